"""ebbtide-bench: every row is printed, a failure is told, nothing is left behind; and speed is not below half of its aim."""
import csv
import os
import re
import signal
import subprocess
import time
import unittest

from ebbtide import BIN, DATA, DEMO, EbbtideTest

TYPES = ["Q4_K", "Q6_K", "Q8_0", "Q4_0", "Q5_K", "Q2_K", "Q3_K", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16", "F32"]
SANITIZED = any(key in os.environ for key in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"))


class Bench(EbbtideTest):
    def bench(self, *flags, what=("--cpu",), status=0):
        """Its table and the rows of its CSV."""
        path = self.sandbox / "rows.csv"
        done = self.command("bench", *what, "--quick", "--csv", path, *flags, seconds=300)
        self.assertEqual(done.returncode, status, done.stderr)
        with open(path, newline="") as f:
            return done.stdout.decode(), list(csv.DictReader(f))

    def rows(self, rows, part, what):
        return [r for r in rows if r["part"] == part and r["what"] == what]

    def best_ratio(self, wanted, measure):
        """Other work may run on the machine: the best of three."""
        best = {}
        for _ in range(3):
            for key, ratio in measure():
                best[key] = max(best.get(key, 0), ratio)
            if all(ratio >= wanted for ratio in best.values()):
                break
        return best

    def test_every_row_is_printed_and_in_the_csv(self):
        table, rows = self.bench()
        self.assertRegex(table, r"\Aebbtide-bench \S+, \d{4}-\d\d-\d\d, .+, \d+ threads?, kernels \w+, quick")
        for what in ("matrix-vector", "matrix-rows"):
            self.assertEqual([r["type"] for r in self.rows(rows, "products", what)], TYPES)
        for what in ("prefill", "decode"):
            one, two = self.rows(rows, "model", what)
            self.assertRegex(one["shape"], "^one stage")
            self.assertRegex(two["shape"], "^two stages")
            self.assertAlmostEqual(float(two["against"]), float(one["value"]), delta=0.001 * float(one["value"]))
        self.assertEqual([r["what"] for r in rows if r["part"] == "hop"], ["a token"] * 2 + ["hop there and back"])
        self.assertEqual([r["what"] for r in rows if r["part"] == "vram"],
                         ["shrink", "grow", "shrink until answered", "grow until answered",
                          "created", "mapped", "unmapped", "destroyed"])
        for row in rows:
            if row["what"] != "hop there and back":  # a difference
                self.assertGreater(float(row["value"]), 0, row)
            self.assertGreater(int(row["runs"]), 2)
            if row["ratio"]:
                self.assertAlmostEqual(float(row["ratio"]), float(row["value"]) / float(row["against"]), delta=0.01)
            self.assertRegex(table, rf"(?m)^  {row['what']} .*{re.escape(row['shape'])} +\S+ {row['unit']}\b")
        self.assertEqual(sorted(os.listdir(self.sandbox)), ["rows.csv", "run"])

    def test_a_card_is_measured_beside_its_own_speeds(self):
        table, rows = self.bench(what=("--cards", "cpu:0,cpu:1"))
        self.assertEqual([r["type"] for r in self.rows(rows, "products", "matrix-vector")], TYPES)
        self.assertEqual([r["type"] for r in self.rows(rows, "products", "experts")], TYPES[:3])
        shapes = [r["shape"] for r in self.rows(rows, "model", "decode")]
        for stages in ("1 stage", "2 stages"):
            self.assertEqual([s for s in shapes if s.startswith(stages + ";")],
                             [f"{stages}; {how}" for how in ("behind 16", "behind 512", "2 side by side", "4 side by side",
                                                             "8 side by side")])
        bounded = ("matrix-vector", "matrix-few-rows", "experts", "decode", "decode, half resident", "shrink", "grow", "refill")
        for row in rows:
            self.assertGreater(float(row["value"]), 0, row)
            self.assertEqual(bool(row["ratio"]), row["what"] in bounded or "until answered" in row["what"], row)
        self.assertEqual(sorted(os.listdir(self.sandbox)), ["rows.csv", "run"])

    def test_one_part_of_a_model_of_ones_own(self):
        table, rows = self.bench("--only", "vram", "--model", DEMO)
        self.assertEqual({r["part"] for r in rows}, {"vram"})
        table, rows = self.bench("--only", "vram", "--model", DATA / "arch" / "llama.gguf")
        self.assertIn("the model has no experts", table)
        self.assertEqual(len(rows), 4)

    def test_what_cannot_be_is_told_in_one_line(self):
        cases = [
            ([], 2, "wanted what to measure: --cpu, or --cards cuda:0"),
            (["--cpu", "--cards", "cpu:0"], 2, "wanted what to measure: --cpu, or --cards cuda:0"),
            (["--cards", "gpu:0"], 2, "--cards: wanted cards of this machine such as cuda:0, got 'gpu:0'"),
            (["--cards", "cpu:0@far"], 2, "--cards: wanted cards of this machine such as cuda:0, got 'cpu:0@far'"),
            (["--cpu", "--only", "all"], 2, "--only: wanted products, model or vram, got 'all'"),
            (["--cpu", "--threads", "0"], 2, "--threads: wanted a number from 1 to 1024, got '0'"),
            (["--cpu", "--kernels", "mmx"], 2, "mmx"),
            (["--cpu", "--model", "none.gguf"], 2, "none.gguf"),
            (["--cpu", "--fast"], 2, "--fast is not a flag here"),
            (["--cpu", "now"], 2, "wanted flags only, got 'now'"),
            (["--cpu", "--csv"], 2, "--csv: wanted a value"),
            (["--cpu", "--csv", self.sandbox / "no" / "rows.csv"], 1, "No such file or directory"),
        ]
        for flags, status, words in cases:
            with self.subTest(flags=flags):
                done = self.command("bench", *flags)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(words, done.stderr.decode())
                self.assertEqual(done.stderr.decode().count("\n"), 1)

    def test_a_model_that_no_engine_opens_is_a_failure(self):
        done = self.command("bench", "--cpu", "--quick", "--only", "model", "--model", __file__)
        self.assertEqual(done.returncode, 1)
        self.assertIn("test_bench.py", done.stderr.decode())
        self.assertIn("ebbtide bench: the engine ended before it answered", done.stderr.decode())

    def test_a_stop_takes_engines_and_made_models_along(self):
        process = subprocess.Popen([BIN / "ebbtide-bench", "--cpu", "--only", "model"], env=self.env,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        limit = time.monotonic() + 60
        while not list(self.sandbox.glob("*.gguf")) and time.monotonic() < limit:
            time.sleep(0.02)
        self.assertTrue(list(self.sandbox.glob("*.gguf")), "no model was made")
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 143)
        self.assertEqual(list(self.sandbox.glob("*.gguf")), [])

    @unittest.skipIf(SANITIZED, "a sanitizer's build is slow: its speed says nothing")
    def test_products_of_one_row_reach_half_of_their_aim(self):
        def measure():
            rows = self.bench("--only", "products")[1]
            return [(r["type"], float(r["best_ratio"])) for r in self.rows(rows, "products", "matrix-vector")
                    if r["type"] in ("Q4_K", "Q8_0")]
        best = self.best_ratio(0.30, measure)  # the aim: 0.60 of the speed of reading
        self.assertEqual(len(best), 2)
        self.assertGreaterEqual(min(best.values()), 0.30, best)

    @unittest.skipIf(SANITIZED, "a sanitizer's build is slow: its speed says nothing")
    def test_two_stages_reach_half_of_their_aim(self):
        def measure():
            rows = self.bench("--only", "model", "--model", DEMO, "--threads", os.cpu_count())[1]
            return [("decode", float(self.rows(rows, "model", "decode")[1]["ratio"]))]
        best = self.best_ratio(0.45, measure)  # the aim: 0.90 of one stage
        self.assertGreaterEqual(best["decode"], 0.45)


if __name__ == "__main__":
    unittest.main()
