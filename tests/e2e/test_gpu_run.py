"""tests/gpu/run and its figures, tried on a CPU card with a tiny model: every part runs to its end, and says what it measured."""
import csv
import subprocess
import sys
import unittest

from ebbtide import BIN, REPO, EbbtideTest

RUN = [sys.executable, "-B", str(REPO / "tests" / "gpu" / "run")]


class GpuRun(EbbtideTest):
    def run_parts(self, *flags, card="cpu:0"):
        done = subprocess.run([*RUN, *flags, "--quick", "--card", card, "--log", str(self.sandbox / "log")], cwd=REPO,
                              env={**self.env, "EBBTIDE_BIN": str(BIN)}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=600)
        details = self.sandbox / "log" / "details.log"
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + details.read_text(errors="replace")[-3000:])
        with open(self.sandbox / "log" / "figures.csv", newline="") as f:
            return done.stdout, {row["name"]: row for row in csv.DictReader(f)}

    def check(self, rows, *beginnings):
        for beginning in beginnings:
            found = [row for name, row in rows.items() if name.startswith(beginning)]
            self.assertTrue(found, f"no figure {beginning!r} in {list(rows)}")
            for row in found:
                self.assertIn(row["verdict"], ("ok", "short") if row["aim"] else ("",), row)

    def test_the_first_half_of_the_figures(self):
        parts = [flag for name in ("load", "decode", "side-by-side", "prefill", "misses", "receipts", "waits", "trace")
                 for flag in ("--only", name)]  # not the products: test_bench has them
        output, rows = self.run_parts(*parts)
        self.check(rows, "load to READY", "decode behind 0", "decode, 8 side by side", "prefill 1024", "decode, experts half missing",
                   "decode, experts wholly missing", "shrink by", "grow by", "wait_us while decoding", "wait_us while prefilling")
        self.assertRegex(output, r"(?m)^\d+ passed, 0 failed, 0 skipped$")
        self.assertIn('"traceEvents"', (self.sandbox / "log" / "trace.json").read_text(encoding="utf-8"))

    def test_the_second_half_of_the_figures(self):
        output, rows = self.run_parts("--figures", "2")
        self.check(rows, "free memory lost in", "VRAM of card 1, card 0 stopped", "decode, two stages", "decode, 1 segment",
                   "two stages: longest gap in a shrink", "cold prompts", "free memory lost from request 20 to 60")
        lost = [row["value"] for name, row in rows.items() if name.startswith("free memory lost")]
        self.assertEqual(lost, ["0", "0"])
        self.assertRegex(output, r"(?m)^skipped: attach: ")

    def test_the_figures_of_two_cards(self):
        output, rows = self.run_parts("--figures", "two", card="cpu:0,cpu:1")
        self.check(rows, "decode, two cards by socket", "decode, two cards by ipc", "a token by ipc, longer by", "hop by ipc", "back by socket",
                   "prefill 512, two cards by ipc", "VRAM to both cards", "two cards, cpu:0 and cpu:1: longest gap", "prefill 256 by ipc after",
                   "free memory of card 1 lost", "decode, split auto")
        self.assertEqual({row["value"] for name, row in rows.items() if name.startswith("free memory")}, {"0"})
        self.assertRegex(output, r"(?m)^skipped: two-bare: ")
        self.assertRegex(output, r"(?m)^skipped: two-nccl: ")

    def test_what_needs_two_cards_is_skipped_on_one(self):
        done = subprocess.run([*RUN, "--only", "two-tokens", "--only", "two-borrow", "--card", "cpu:0", "--log", str(self.sandbox / "log")],
                              cwd=REPO, env={**self.env, "EBBTIDE_BIN": str(BIN)}, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("two cards are wanted", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^0 passed, 0 failed, 2 skipped$")

    def test_what_compute_sanitizer_says_of_the_kernels_counts(self):
        for says, status, word in (("ERROR SUMMARY: 0 errors", 0, "2 passed, 0 failed, 0 skipped"),
                                   ("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0, "2 passed, 0 failed, 0 skipped"),
                                   ("ERROR SUMMARY: 0 errors\n========= ERROR SUMMARY: 3 errors", 1, "0 passed, 2 failed, 0 skipped"),
                                   ("nothing to say", 1, "0 passed, 2 failed, 0 skipped"),
                                   ("Error: Device not supported", 0, "0 passed, 0 failed, 2 skipped")):
            with self.subTest(says):
                stand_in = self.sandbox / "compute-sanitizer"
                stand_in.write_text(f"#!/bin/sh\necho '========= {says}'\n")
                stand_in.chmod(0o755)
                done = subprocess.run([*RUN, "--sanitizer", "--card", "cpu:0", "--log", str(self.sandbox / "log")], cwd=REPO,
                                      env={**self.env, "EBBTIDE_BIN": str(BIN), "COMPUTE_SANITIZER": str(stand_in)},
                                      capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, status, done.stdout + done.stderr)
                self.assertIn(word, done.stdout)

    def test_its_parts_are_listed_with_their_limits(self):
        done = subprocess.run([*RUN, "--list"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        halves = {}
        for line in done.stdout.splitlines():
            if line.startswith("figures"):
                halves.setdefault(line.split()[1], []).append(line.split()[-1])
        self.assertEqual(sorted(halves), ["1", "2", "two"])
        self.assertIn("requests", halves["2"])


if __name__ == "__main__":
    unittest.main()
