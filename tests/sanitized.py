"""Runs a command of a sanitizer's build, and fails if any process of it had something to report.

    python3 sanitized.py <command> …

A report alone would get lost: Criterion takes no notice of how a test's process ends, and an engine starts a stage that died
again, without losing a token. So every process writes what it has to report into a file, and here they are read.
"""
import ctypes
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

OPTIONS = {
    "ASAN_OPTIONS": "handle_sigill=1:detect_stack_use_after_return=1:strict_string_checks=1",  # undefined behaviour is SIGILL
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}
# What a sanitizer says about itself and not about the program: the search for leaks stops all threads, and one that ended in
# that very moment has no registers left to look into.
REMARKS = re.compile(r"==\d+==Unable to get registers from thread \d+\.")
ADDR_NO_RANDOMIZE = 0x0040000


def is_finding(report):
    return any(line.strip() and not REMARKS.fullmatch(line.strip()) for line in report.splitlines())


def main(command):
    # The thread sanitizer expects programs and libraries at certain places, and many kernels scatter them wider. Where this is
    # refused, the old way of scattering may do.
    ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)
    with tempfile.TemporaryDirectory(prefix="sanitized-") as folder:
        env = dict(os.environ)
        for name, options in OPTIONS.items():
            env[name] = ":".join(filter(None, [options, f"log_path={folder}/{name[:4]}", env.get(name)]))
        status = subprocess.run(command, env=env).returncode
        reports = [report.read_text(encoding="utf-8", errors="replace") for report in sorted(Path(folder).iterdir())]
        for report in reports:
            print(report, flush=True)
        reports = list(filter(is_finding, reports))
        print(f"{len(reports)} reports by sanitizers", flush=True)
        return 1 if reports or status != 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
