"""Every architecture's tiny model against its golden logits, and the same tokens however it is split, fed and kept.

The files are tests/data/arch; a golden has all 320 logits after each of four prompts and 12 greedy steps with their top five.
"""
import json
import unittest

from ebbtide import DATA, EbbtideTest

ARCH = DATA / "arch"
MODELS = sorted(path.stem for path in ARCH.glob("*.gguf"))
VOCABULARY = 320
FLOAT_TOLERANCE, MEAN_TOLERANCE, MAX_TOLERANCE, SURE_GAP = 2e-3, 0.1, 0.6, 1.0
PROMPTS = 4


def golden(name):
    return json.loads((ARCH / f"{name}.golden.json").read_text(encoding="utf-8"))


class Architectures(EbbtideTest):
    def model(self, name, cards=1, **flags):
        return self.serve(cards, model=ARCH / f"{name}.gguf", segment_mib=1, **flags)

    def logits(self, name, kernels):
        """For each golden: (case, the logits at every position of prompt and greedy ids)."""
        engine = self.model(name, kernels=kernels)
        for number, case in enumerate(golden(name)):
            ids = case["prompt_ids"] + case["greedy_ids"][:-1]
            yield case, [dict(row) for row in engine.score(f"c{number}", ids, VOCABULARY)]
        engine.finish()

    def deltas(self, name, kernels):
        full, steps, wrong = [], [], []
        for case, rows in self.logits(name, kernels):
            at = len(case["prompt_ids"]) - 1
            self.assertEqual(len(rows[at]), VOCABULARY)
            full += [abs(rows[at][i] - x) for i, x in enumerate(case["logits_after_prompt"])]
            for step, wanted in enumerate(case["steps"]):
                row = rows[at + step]
                steps += [abs(row[i] - x) for i, x in zip(wanted["top5_ids"], wanted["top5_logits"])]
                gap = wanted["top5_logits"][0] - wanted["top5_logits"][1]
                if max(row, key=row.get) != wanted["top5_ids"][0]:
                    wrong.append((step, round(gap, 4)))
        every = full + steps
        print(f"{name}, {kernels}: mean |delta| {sum(every) / len(every):.5f}, max {max(every):.5f}, "
              f"other argmax {len(wrong)} of {PROMPTS * 12}")
        return full, steps, wrong

    def test_there_are_eight_models(self):
        self.assertEqual(len(MODELS), 8)

    def test_the_float_path_is_within_two_thousandths_on_all_logits(self):
        for name in MODELS:
            with self.subTest(model=name):
                full, steps, _ = self.deltas(name, "float")
                self.assertEqual(len(full), PROMPTS * VOCABULARY)
                self.assertLessEqual(max(full + steps), FLOAT_TOLERANCE)

    def test_the_integer_path_is_within_its_tolerances(self):
        for name in MODELS:
            with self.subTest(model=name):
                full, steps, wrong = self.deltas(name, "auto")
                every = full + steps
                self.assertLessEqual(sum(every) / len(every), MEAN_TOLERANCE)
                self.assertLessEqual(max(every), MAX_TOLERANCE)
                self.assertEqual([w for w in wrong if w[1] >= SURE_GAP], [], "another argmax (step, golden gap)")

    def greedy(self, name, **flags):
        engine = self.model(name, **flags)
        out = [engine.ids(f"g{i}", 24, case["prompt_ids"], ignore_eos=1) for i, case in enumerate(golden(name))]
        engine.finish()
        return out

    def test_tokens_do_not_depend_on_splits_chunks_residency_or_kernels(self):
        for name in MODELS:
            plain = self.greedy(name, cards=1, chunk=64)
            for flags in ({"cards": 2, "chunk": 7}, {"cards": 2, "chunk": 1}, {"cards": 1, "chunk": 7, "threads": 2},
                          {"cards": 2, "chunk": 64, "kernels": "reference"}):
                with self.subTest(model=name, **flags):
                    self.assertEqual(self.greedy(name, **flags), plain)
            with self.subTest(model=name, residency="floor"):
                self.assertEqual(self.at_the_floor(name), plain)

    def at_the_floor(self, name):
        """Every card's cache at its floor before the first token."""
        engine = self.model(name, cards=2, chunk=7)
        for device, card in engine.stat().items():
            reserve = min(card["total_mib"], card["free_mib"] + card["cache_mib"] - card["cache_floor_mib"])
            receipt = engine.vram(f"VRAM {reserve} {device}")[device]
            self.assertEqual(receipt["cache_mib"], card["cache_floor_mib"])
        out = [engine.ids(f"g{i}", 24, case["prompt_ids"], ignore_eos=1) for i, case in enumerate(golden(name))]
        engine.finish()
        return out


if __name__ == "__main__":
    unittest.main()
