"""Every command that README.md and MULTI_GPU.md show in a ```sh block runs, as it stands, from the root of the project.

A block is one script: it may start an engine in the background and talk to it. What builds or tests the project
itself (this very run is part of it) is not run again here: for those lines it is enough that the file they call exists.
A block that begins with ```sh gpu runs where ebbtide-stage-cuda lists a card that can be used, and is skipped elsewhere.
"""
import functools
import os
import re
import signal
import subprocess
import unittest

from ebbtide import BIN, REPO, EbbtideTest

DOCUMENTS = ("README.md", "MULTI_GPU.md")
BLOCK = re.compile(r"^```sh( gpu)?\n(.*?)^```", re.M | re.S)
BUILDS = re.compile(r"^\s*(git clone|cd ebbtide|cmake |ninja|ctest|\.ci/run|tools/check|tools/quickstart|sudo |apt-get |apt )")
SECONDS = 180


@functools.lru_cache(maxsize=None)
def gpu_is_here():
    program = BIN / "ebbtide-stage-cuda"
    if not program.exists():
        return False
    done = subprocess.run([str(program), "--list"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return done.returncode == 0 and " usable=1" in done.stdout


class Documents(EbbtideTest):
    def blocks(self, name):
        text = (REPO / name).read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            yield text[:match.start()].count("\n") + 2, match[1] is not None, match[2]

    def run_block(self, script):
        """Bash, stopping at the first failure; background jobs end with the block."""
        if BIN != REPO / "build" / "bin":
            script = script.replace("build/bin", str(BIN))
        whole = f"set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"
        env = dict(self.env, PATH=f"{BIN}:{self.env['PATH']}")
        process = subprocess.Popen(["bash", "-c", whole], cwd=REPO, env=env, stdin=subprocess.DEVNULL, start_new_session=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            self.fail(f"ran longer than {SECONDS} s:\n{output.decode(errors='replace')[-3000:]}")
        self.assertEqual(process.returncode, 0, output.decode(errors="replace")[-3000:])

    def check(self, name):
        ran = 0
        for line_number, wants_gpu, script in self.blocks(name):
            with self.subTest(f"{name}:{line_number}"):
                if wants_gpu and not gpu_is_here():
                    print(f"{name}:{line_number}: not run: no CUDA card that can be used")
                    continue
                kept = []
                for line in script.splitlines():
                    called = re.match(r"\s*((?:tools|\.ci)/[\w-]+)", line)
                    if called:
                        self.assertTrue(os.access(REPO / called[1], os.X_OK), f"{called[1]} is not a program")
                    if not BUILDS.match(line):
                        kept.append(line)
                if any(line.strip() and not line.lstrip().startswith("#") for line in kept):
                    self.run_block("\n".join(kept) + "\n")
                    ran += 1
        return ran

    def test_the_commands_of_the_readme_run(self):
        self.assertGreater(self.check("README.md"), 0)

    def test_the_commands_of_multi_gpu_run(self):
        self.assertGreater(self.check("MULTI_GPU.md"), 0)

    def test_the_table_of_policies_is_what_its_program_prints(self):
        done = subprocess.run([str(BIN / "policy-table")], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(len(done.stdout.splitlines()), 20)
        self.assertIn(done.stdout, (REPO / "MULTI_GPU.md").read_text(encoding="utf-8"))

    def test_the_documents_name_no_file_that_is_missing(self):
        for name in DOCUMENTS:
            text = (REPO / name).read_text(encoding="utf-8")
            for path in re.findall(r"\]\(([^)#:]+)\)", text):
                self.assertTrue((REPO / path).exists(), f"{name} links {path}")


if __name__ == "__main__":
    unittest.main()
