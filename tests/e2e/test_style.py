"""The code looks as .clang-format says, and no file has grown past what a reader takes in."""
import re
import shutil
import subprocess
import unittest

from ebbtide import REPO

CLANG_FORMAT = 14  # other versions break some lines elsewhere
LINES_MAX = 800


def tracked(*patterns):
    names = subprocess.run(["git", "ls-files", *patterns], cwd=REPO, capture_output=True, text=True, check=True).stdout
    return names.split()


class Style(unittest.TestCase):
    def test_every_source_is_formatted(self):
        program = shutil.which("clang-format-14") or shutil.which("clang-format")
        version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout if program else ""
        found = re.search(r"version (\d+)", version)
        if not found or int(found[1]) != CLANG_FORMAT:
            self.skipTest(f"clang-format {CLANG_FORMAT} is not here")
        result = subprocess.run([program, "--dry-run", "--Werror", *tracked("*.c", "*.h")], cwd=REPO, capture_output=True, text=True)
        wrong = sorted({line.split(":")[0] for line in result.stderr.splitlines() if "error:" in line})
        self.assertEqual(wrong, [], "run clang-format -i on them")

    def test_no_source_is_longer_than_eight_hundred_lines(self):
        long = [name for name in tracked("*.c", "*.h", "*.py", "tools/*", "tests/*.sh")
                if (REPO / name).is_file() and len((REPO / name).read_bytes().splitlines()) > LINES_MAX]
        self.assertEqual(long, [])


if __name__ == "__main__":
    unittest.main()
