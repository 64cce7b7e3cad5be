"""The model's logits against the golden ones, teacher-forced along the golden ids (tests/data/golden_public.json)."""
import unittest

from ebbtide import AVX512, EbbtideTest, golden

TOP = 64  # deep enough to find every golden id among the largest
FLOAT_TOLERANCE = 2e-3
MEAN_TOLERANCE = 0.15
SURE_GAP = 1.0


class GoldenLogits(EbbtideTest):
    """How far a run's logits are from the golden ones; of any cards."""

    def deltas(self, kernels, cards, **flags):
        """For every step of every golden: (case, step, golden gap, same argmax, [|delta| of the five listed logits])."""
        engine = self.serve(cards, kernels=kernels, **flags)
        out = []
        for number, case in enumerate(golden()):
            ids = case["prompt_ids"] + case["greedy_ids"][:-1]
            rows = engine.score(f"case{number}", ids, TOP, seconds=600)
            for step, wanted in enumerate(case["steps"]):
                self.assertEqual(wanted["id"], case["greedy_ids"][step])
                row = rows[len(case["prompt_ids"]) - 1 + step]
                self.assertEqual([x for _, x in row], sorted((x for _, x in row), reverse=True))
                found = dict(row)
                missing = [i for i in wanted["top5_ids"] if i not in found]
                self.assertEqual(missing, [], f"case {number} step {step}: not among the {TOP} largest")
                delta = [abs(found[i] - x) for i, x in zip(wanted["top5_ids"], wanted["top5_logits"])]
                gap = wanted["top5_logits"][0] - wanted["top5_logits"][1]
                out.append((number, step, gap, row[0][0] == wanted["top5_ids"][0], delta))
        engine.finish()
        self.assertEqual(len(out), 12 * 48)
        every = [d for row in out for d in row[4]]
        agree = sum(row[3] for row in out)
        print(f"goldens, {kernels} kernels, {cards} card(s): mean |delta| {sum(every) / len(every):.5f}, max {max(every):.5f}, "
              f"same argmax {agree} of {len(out)}")
        return out

    @staticmethod
    def wrong(rows):
        """Another argmax where the golden one is sure: (case, step, golden gap)."""
        return [row[:3] for row in rows if row[2] >= SURE_GAP and not row[3]]

    def check_integer_path(self, kernels, cards):
        rows = self.deltas(kernels, cards)
        every = [d for row in rows for d in row[4]]
        self.assertLessEqual(sum(every) / len(every), MEAN_TOLERANCE)
        wrong = self.wrong(rows)
        self.assertEqual(wrong, [], "another argmax where the golden gap is at least 1 (case, step, golden gap)")
        return rows


class Goldens(GoldenLogits):
    def test_the_float_path_is_within_two_thousandths_on_every_listed_logit(self):
        rows = self.deltas("float", 1)
        worst = sorted(((max(row[4]), row[0], row[1]) for row in rows), reverse=True)
        far = [w for w in worst if w[0] > FLOAT_TOLERANCE]
        self.assertEqual(far, [], f"{len(far)} steps too far (|delta|, case, step)")
        wrong = [row[:3] for row in rows if row[2] > 2 * FLOAT_TOLERANCE and not row[3]]
        self.assertEqual(wrong, [], "another argmax (case, step, golden gap)")

    def test_the_integer_path_is_within_its_tolerances(self):
        self.check_integer_path("auto", 2)

    def test_the_plain_reference_gives_the_same_logits_as_the_chosen_kernels(self):
        ids = golden()[10]["prompt_ids"][:130]
        seen = []
        for kernels in ("reference", "avx2") + ("avx512",) * AVX512:
            engine = self.serve(2, kernels=kernels)
            seen.append(engine.score("same", ids, 5))
            engine.finish()
        self.assertEqual(seen[1:], seen[:1] * (len(seen) - 1))

    def test_the_float_path_generates_the_golden_ids(self):
        engine = self.serve(2, kernels="float")
        for number, case in enumerate(golden()):
            with self.subTest(case=number, prompt=case["prompt"][:40]):
                since = engine.gen(f"g{number}", 48, case["prompt_ids"], ignore_eos=1)
                _, ids, text = engine.done(f"g{number}", since, 600)
                sure = next((i for i, step in enumerate(case["steps"])
                             if step["top5_logits"][0] - step["top5_logits"][1] <= 2 * FLOAT_TOLERANCE), 48)
                self.assertEqual(ids[:sure], case["greedy_ids"][:sure])
                if sure == 48:
                    self.assertEqual(text.decode(), case["greedy_text"])
        engine.finish()


if __name__ == "__main__":
    unittest.main()
