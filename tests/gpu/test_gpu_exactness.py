"""On the card: the same ids over any number of stages, link, chunk and residency, and for sequences side by side."""
import unittest

from card import QUICK, GpuTest, links_here
from test_exactness import ExactRuns, covering_array

N_ROWS = 6 if QUICK else 14


class Exactness(GpuTest, ExactRuns):
    def engine_with_cache(self, row):
        """By commands: of what a step needs on a GPU a plan knows no more than an upper bound, and near the floor that would cost
        rows of a chunk."""
        engine = self.engine_for(row, 0)
        for device, card in engine.stat().items():
            target = self.target(row, card["cache_full_mib"], card["cache_floor_mib"])
            receipt = engine.vram(f"VRAM {card['free_mib'] + card['cache_mib'] + card['workspace_mib'] - target} {device}")[device]
            self.assertEqual(receipt["cache_mib"], target, receipt.raw)
        return engine

    def test_every_pair_of_settings_gives_the_same_ids(self):
        axes = {"cards": (1, 2, 3, 4), "chunk": (16, 64, 512), "cache": ("whole", "halved", "floor"), "miss_share": ("auto", 0, 100),
                "link": links_here()}
        if links_here() == (None,):
            del axes["link"]
        rows = covering_array(axes, n_rows=N_ROWS)
        rows = rows[:N_ROWS] if QUICK else rows
        self.check_rows(rows, {"cards": 1, "chunk": 64, "cache": "whole"})
        print(f"exactness: {len(rows)} rows gave the same ids; links {links_here()}")

    def test_sequences_side_by_side_get_the_ids_they_get_alone(self):
        for n_cards in (1, 3):
            with self.subTest(cards=n_cards):
                self.check_side_by_side(n_cards)

    def test_a_prefill_over_generated_ids_leads_to_the_same_ids_at_every_position(self):
        self.check_prefill_over_generated((1, 16, 512))


if __name__ == "__main__":
    unittest.main()
