"""The kernel tests under compute-sanitizer: no access beyond what was allocated, no race in shared memory.

Skipped where the tool is not there ($COMPUTE_SANITIZER names it, else PATH and the toolkit's folder are looked at) or where it refuses
the device, as under some virtual machines. As many suites as the time allows, the longest last; those left out are named.
"""
import os
import re
import shutil
import subprocess
import time
import unittest
from pathlib import Path

from card import BIN, IS_CUDA, GpuTest

SUITES = ("product_rows", "experts_rows", "kv_store", "fused", "norm", "rope", "quantize", "cuda_router", "cuda_gather", "cuda_move",
          "cuda_combine", "cuda_swiglu", "cuda_shared_add", "cuda_misses", "cuda_embed", "cuda_top", "cuda_logprob", "attention",
          "experts_tiles", "product_tiles", "cuda_product_plain", "cuda_experts_plain", "cuda_sample")
SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)", re.M)
REFUSED = re.compile(r"Device not supported|not supported on this|InitializationError", re.I)


def tool():
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "compute-sanitizer"
    return os.environ.get("COMPUTE_SANITIZER") or shutil.which("compute-sanitizer") or (str(toolkit) if toolkit.exists() else None)


class Kernels(GpuTest):
    def under(self, kind, *flags):
        if tool() is None or not (IS_CUDA or "COMPUTE_SANITIZER" in os.environ):
            self.skipTest("there is no compute-sanitizer here" if tool() is None else "it looks at GPUs alone")
        until, left_out = time.monotonic() + float(os.environ.get("EBBTIDE_GPU_SECONDS", 600)) / 2, []
        for suite in SUITES:
            seconds = until - time.monotonic()
            if seconds < 3:
                left_out.append(suite)
                continue
            argv = [tool(), "--tool", kind, "--target-processes", "all", *flags, str(BIN / "gpu-kernels"),
                    "--filter", f"{suite}/*", "--jobs", "8"]
            try:
                done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=seconds)
            except subprocess.TimeoutExpired:
                left_out.append(suite)
                continue
            said = done.stdout + done.stderr
            if REFUSED.search(said):
                self.skipTest(f"{kind} refuses this device: {REFUSED.search(said)[0]}")
            with self.subTest(suite):
                found = [int(n) for n in SUMMARY.findall(said)]
                self.assertTrue(found, f"{kind} said nothing of {suite}:\n{said[-2000:]}")
                self.assertEqual(sum(found), 0, said[:4000])
                self.assertEqual(done.returncode, 0, said[-2000:])
        print(f"figure {kind}: {len(SUITES) - len(left_out)} suites of {len(SUITES)}" +
              (f"; no time for {', '.join(left_out)}" if left_out else ""), flush=True)

    def test_memcheck_finds_nothing(self):
        self.under("memcheck")

    def test_racecheck_finds_nothing(self):
        self.under("racecheck", "--racecheck-report", "all")


if __name__ == "__main__":
    unittest.main()
