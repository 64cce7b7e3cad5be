"""On the card: the demo model and every architecture within the tolerances of the golden logits, alone and beside a CPU card."""
import unittest

from card import IS_CUDA, QUICK, GpuTest
from test_architectures import MODELS, ArchitectureRuns
from test_goldens import GoldenLogits


class Goldens(GpuTest, GoldenLogits):
    def test_the_demo_model_is_within_its_tolerances(self):
        self.check_integer_path("auto", 1)

    def test_a_run_over_two_kinds_of_cards_is_within_them_too(self):
        for cards in ("cuda:0,cpu:0", "cpu:0,cuda:0") if IS_CUDA else ("cpu:0,cpu:1",):
            with self.subTest(cards=cards):
                self.check_integer_path("auto", cards)


class Architectures(GpuTest, ArchitectureRuns):
    models = MODELS[::3] if QUICK else MODELS

    def test_every_architecture_is_within_its_tolerances(self):
        self.check_integer_path()

    def test_tokens_do_not_depend_on_splits_chunks_or_residency(self):
        for name in self.models:
            plain = self.greedy(name, cards=1, chunk=64)
            for flags in ({"cards": 2, "chunk": 7}, {"cards": 1, "chunk": 1}):
                with self.subTest(model=name, **flags):
                    self.assertEqual(self.greedy(name, **flags), plain)
            with self.subTest(model=name, residency="floor"):
                self.assertEqual(self.at_the_floor(name), plain)


if __name__ == "__main__":
    unittest.main()
