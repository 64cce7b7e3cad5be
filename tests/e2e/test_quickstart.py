"""tools/quickstart: what a newcomer runs first."""
import re
import subprocess
import unittest

from ebbtide import BIN, REPO, EbbtideTest


class Quickstart(EbbtideTest):
    def test_it_builds_and_shows_english_with_a_hand_back_and_a_return_in_the_middle(self):
        if BIN != REPO / "build" / "bin":
            self.skipTest(f"it builds into build/, and this is a test of {BIN}")
        result = subprocess.run([REPO / "tools" / "quickstart"], env=self.env, cwd="/", stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
        output = result.stdout.decode()
        self.assertEqual(result.returncode, 0, output)
        self.assertNotIn("\x1b", output, "colours go to terminals only")
        text = output[output.index("\n3. "):output.index("\n4. ")]
        parts = re.split(r"\n\n   \$ ebbtide vram (.*)\n((?:   \| .*\n)+)", text)
        self.assertEqual(len(parts), 7, "wanted text, VRAM, receipt, text, VRAM, receipt, text")
        self.assertRegex(parts[1], r"^\d+ 1$")
        self.assertEqual(parts[4], "- 1")
        for english in (parts[0], parts[3], parts[6]):
            self.assertGreaterEqual(len(re.findall(r"\b(the|and|of|to|that|in|a|I|he|was)\b", english)), 10, english)
        self.assertIn("the same text, byte for byte", output)
        self.assertIn("tok/s", output)


if __name__ == "__main__":
    unittest.main()
