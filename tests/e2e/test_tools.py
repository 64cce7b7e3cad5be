"""The tools beside the engine that make and measure: ebbtide-make-model and ebbtide-bench."""
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

from ebbtide import BIN, DEMO, EbbtideTest

MAKE_MODEL = BIN / "ebbtide-make-model"
HELP = "(see ebbtide make-model --help)"


class MakeModel(EbbtideTest):
    def make(self, *args, path=None, **options):
        """Runs it to its end: the finished process and the path."""
        path = path or self.sandbox / "made.gguf"
        done = self.command("make-model", *args, "-o", path, **options)
        return done, path

    def made(self, *args, **options):
        done, path = self.make(*args, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    def digest(self, path):
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def files(self):
        return sorted(p.name for p in self.sandbox.iterdir() if p.name != "run")

    def logits(self, model):
        """score: for every position its largest logits."""
        done = self.command("score", *self.flags("cpu:0", model=model), "--text", "The quick brown fox", "--top", 8)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [[float(x) for x in line.split()[2::2]] for line in done.stdout.decode().splitlines()]

    def check_generates(self, model, n_cards=2):
        rows = self.logits(model)
        self.assertGreater(len(rows), 10)
        for row in rows:
            self.assertTrue(all(abs(x) < 100 for x in row), row)  # nan and inf fail too
            self.assertGreater(row[0], row[-1])
        ids = self.generate(model, "cpu:0")
        self.assertEqual(len(ids), 48)
        self.assertGreater(len(set(ids)), 8, "it repeats itself from the start")
        self.assertEqual(self.generate(model, ",".join(f"cpu:{i}" for i in range(n_cards))), ids)

    def generate(self, model, cards):
        done = self.command("run", *self.flags(cards, model=model), "--ignore-eos", "--max-new", 48,
                            "--output", "ids", "The quick brown fox")
        self.assertEqual(done.returncode, 0, done.stderr)
        return [int(i) for i in done.stdout.decode().split(",")]

    def test_small_shapes_of_every_architecture_generate_finite_logits(self):
        for shape in ("tiny-qwen3", "tiny-mixtral", "tiny-olmoe"):
            with self.subTest(shape=shape):
                self.check_generates(self.made(shape, "--seed", 3, path=self.sandbox / f"{shape}.gguf"))

    def test_every_mix_of_types_opens_and_generates(self):
        page = self.command("make-model", "--help").stdout.decode()
        mixes = re.findall(r"\b(?:q\d_[0-9k]|b?f\d\d)\b", page.split("--type-mix MIX")[1].split("--seed")[0])
        self.assertGreater(len(set(mixes)), 10)
        for mix in sorted(set(mixes)):
            with self.subTest(mix=mix):
                rows = self.logits(self.made("tiny-olmoe", "--layers", 1, "--type-mix", mix, "--force"))
                self.assertTrue(all(abs(x) < 100 for row in rows for x in row))

    def test_two_layers_of_a_real_shape_generate_finite_logits(self):
        path = self.made("olmoe-1b-7b", "--layers", 2)
        page = self.command("inspect", path).stdout.decode()
        self.assertRegex(page, r"layers +2, 2048 wide")
        self.assertRegex(page, r"experts +8 of 64, 1024 wide")
        self.check_generates(path)

    def test_the_mix_is_what_files_in_use_have(self):
        path = self.made("tiny-qwen3")
        groups, group = {}, None
        for line in self.command("inspect", path).stdout.decode().split("group ")[1].splitlines()[1:]:
            m = re.match(r"  (\w*) +(Q\w+|F32) +(\d+) ", line)
            if not m:
                break
            group = m[1] or group
            groups.setdefault(group, {})[m[2]] = int(m[3])
        self.assertEqual(groups["embedding"], {"Q4_K": 1})
        self.assertEqual(groups["head"], {"Q6_K": 1})
        self.assertEqual(groups["router"], {"F32": 4})
        self.assertEqual(groups["attention"], {"Q4_K": 14, "Q6_K": 2})  # 4 layers: the values of half of them
        self.assertEqual(groups["experts"], {"Q4_K": 10, "Q6_K": 2})

    def test_a_seed_gives_the_same_bytes_whatever_the_threads(self):
        names = [("a", 1, 1), ("b", 1, 7), ("c", 2, 7)]
        digests = [self.digest(self.made("tiny-qwen3", "--seed", seed, "--threads", threads, path=self.sandbox / name))
                   for name, seed, threads in names]
        self.assertEqual(digests[0], digests[1])
        self.assertNotEqual(digests[0], digests[2])

    def test_a_vocabulary_is_copied_and_cut_or_padded(self):
        small = self.made("tiny-qwen3", "--tokenizer", DEMO, path=self.sandbox / "small.gguf")
        large = self.made("olmoe-1b-7b", "--layers", 1, "--type-mix", "q2_k", "--tokenizer", DEMO,
                          path=self.sandbox / "large.gguf")
        for model, most in ((small, 1024), (large, 50304)):
            ids = self.generate(model, "cpu:0")
            self.assertLess(max(ids), most)
        n_demo = len(self.logits(DEMO))
        self.assertEqual(len(self.logits(large)), n_demo, "words are no longer the tokens they were")
        self.assertGreaterEqual(len(self.logits(small)), n_demo)

    def test_what_it_cannot_do_is_refused_by_name_and_leaves_nothing(self):
        path = self.sandbox / "made.gguf"
        cases = [
            (["tiny-qwen3", "-o", path, "--layers", "5"], 2, "--layers: tiny-qwen3 has 4, got 5"),
            (["tiny-qwen3", "-o", path, "--layers", "0"], 2, "wanted a whole number from 1"),
            (["tiny-qwen3", "-o", path, "--layers", "two"], 2, "got 'two'"),
            (["tiny-qwen3", "-o", path, "--seed", "-1"], 2, "--seed: wanted"),
            (["tiny-qwen3", "-o", path, "--type-mix", "q4_k_x"], 2, "wanted one of q4_k_m"),
            (["tiny-qwen3", "-o", path, "--sead", "1"], 2, "--sead is not a flag here"),
            (["tiny-qwen3", "-o"], 2, "wanted a value"),
            (["tiny-qwen3"], 2, "wanted a file to write"),
            (["-o", path], 2, "wanted the name of one shape, got 0"),
            (["tiny-qwen3", "tiny-olmoe", "-o", path], 2, "wanted the name of one shape, got 2"),
            (["llama-9t", "-o", path], 2, "no model 'llama-9t'; wanted one of qwen3-30b-a3b"),
            (["gpt-oss-20b", "-o", path], 2, "gpt-oss-20b: its architecture (gpt-oss) is not computed yet"),
            (["tiny-qwen3", "-o", path, "--tokenizer", self.sandbox / "none.gguf"], 1, "none.gguf"),
            (["tiny-qwen3", "-o", path, "--tokenizer", __file__], 1, "test_tools.py"),
            (["tiny-qwen3", "-o", self.sandbox / "no" / "made.gguf"], 1, "No such file or directory"),
            (["tiny-qwen3", "-o", self.sandbox], 1, "is there already"),
            (["tiny-qwen3", "--force", "-o", self.sandbox / "run"], 1, "is no plain file"),
        ]
        for args, status, words in cases:
            with self.subTest(args=args):
                done = self.command("make-model", *args)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(words, done.stderr.decode())
                self.assertEqual(HELP in done.stderr.decode(), status == 2)
                self.assertEqual(done.stderr.decode().count("\n"), 1)
                self.assertEqual(self.files(), [])

    def test_a_file_that_is_there_stays_unless_it_is_forced(self):
        path = self.sandbox / "made.gguf"
        path.write_text("mine")
        done, _ = self.make("tiny-olmoe")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(path.read_text(), "mine")
        self.made("tiny-olmoe", "--force")
        self.assertEqual(path.read_bytes()[:4], b"GGUF")
        self.assertEqual(self.files(), ["made.gguf"])

    def test_a_disk_without_the_room_is_told_before_anything_is_written(self):
        free = shutil.disk_usage(self.sandbox).free
        if free > 480e9:
            self.skipTest(f"{free / 1e9:.0f} GB are free here: the largest model would fit")
        done, path = self.make("qwen3-235b-a22b", "--type-mix", "f32")  # some 940 GB
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.decode(), r"wants \d+ MiB, its disk has \d+ free")
        self.assertEqual(self.files(), [])

    def test_a_full_disk_or_a_limit_leaves_nothing(self):
        done, path = self.make("tiny-qwen3", preexec_fn=lambda: limit_file_bytes(1 << 20))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("File too large", done.stderr.decode())
        self.assertEqual(self.files(), [])

    def test_an_interrupt_leaves_nothing(self):
        signals = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
        if unnamed_files_are_possible(self.sandbox):
            signals.append((signal.SIGKILL, -9))
        for number, status in signals:
            with self.subTest(signal=number):
                process = subprocess.Popen([MAKE_MODEL, "olmoe-1b-7b", "--threads", "1", "-o", self.sandbox / "made.gguf"],
                                           stderr=subprocess.PIPE, env=self.env)
                time.sleep(0.3)
                process.send_signal(number)
                words = process.communicate(timeout=30)[1].decode()
                self.assertEqual(process.returncode, status, words)
                if number != signal.SIGKILL:
                    self.assertIn("stopped, nothing is left of it", words)
                self.assertEqual(self.files(), [])


def unnamed_files_are_possible(folder):
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR))
        return True
    except OSError:
        return False


def limit_file_bytes(n):
    """In the child: files may not grow beyond n bytes, and say so by an error."""
    import resource
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n, n))


if __name__ == "__main__":
    unittest.main()
