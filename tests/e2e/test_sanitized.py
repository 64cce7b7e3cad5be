"""The judge of sanitizer runs: any report fails the command, but a sanitizer's remark about itself does not."""
import subprocess
import sys
import unittest

from ebbtide import REPO

REMARK = "==24523==Unable to get registers from thread 24516."
FINDING = "==7==ERROR: LeakSanitizer: detected memory leaks"


def judged(*reports, command="exit 0"):
    """Runs a command that leaves these reports where a sanitized program would, and returns the judge's exit status."""
    script = 'folder=$(echo "$ASAN_OPTIONS" | sed "s/.*log_path=//; s/:.*//"); '
    script += "".join(f"echo '{text}' > $folder.{n}; " for n, text in enumerate(reports)) + command
    return subprocess.run([sys.executable, "-B", REPO / "tests/sanitized.py", "sh", "-c", script], capture_output=True).returncode


class Judge(unittest.TestCase):
    def test_a_quiet_command_passes_and_a_failing_one_fails(self):
        self.assertEqual(judged(), 0)
        self.assertEqual(judged(command="exit 3"), 1)

    def test_a_report_fails_a_command_that_ended_well(self):
        self.assertEqual(judged(FINDING), 1)
        self.assertEqual(judged("something that no rule foresaw"), 1)

    def test_a_remark_about_the_search_itself_is_no_report(self):
        self.assertEqual(judged(REMARK), 0)

    def test_a_remark_hides_no_report(self):
        self.assertEqual(judged(f"{REMARK}\n{FINDING}"), 1)
        self.assertEqual(judged(REMARK, FINDING), 1)


if __name__ == "__main__":
    unittest.main()
