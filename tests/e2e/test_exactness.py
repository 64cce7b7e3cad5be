"""The ids do not depend on how the work is split, cut, cached, threaded or computed.

In normal mode every pair of settings meets in some row of a covering array (about 30 rows); with EBBTIDE_FULL=1 the full
cross runs. The caches are brought to their size by reserves derived from what STAT says of a probe with all resident.
"""
import itertools
import random
import unittest

from ebbtide import AVX512, FULL, EbbtideTest, golden

AXES = {
    "cards": (1, 2, 3, 4, 8),
    "chunk": (1, 16, 64, 512),
    "cache": ("whole", "halved", "floor"),
    "threads": (1, 2),
    "kernels": ("avx512", "avx2", "reference") if AVX512 else ("avx2", "reference"),
}
KV_TOKENS = 4096  # given, or the engine would rather choose less of it than shrink the cache
SHORT, LONG_IDS, N_SHORT, N_LONG = "Call me Ishmael.", 200, 48, 24
SAMPLED = {"temperature": "0.8", "seed": 7}


def covering_array(axes, n_rows=30, seed=1):
    """At least n_rows rows in which every pair of values of two axes occurs: greedy over random candidates, filled up with
    others that are met by chance; always the same rows."""
    rng = random.Random(seed)
    names = list(axes)

    def pairs(row):
        return set(itertools.combinations(sorted((n, str(row[n])) for n in names), 2))

    missing = set()
    for a, b in itertools.combinations(sorted(names), 2):
        missing |= {((a, str(x)), (b, str(y))) for x in axes[a] for y in axes[b]}
    rows = []
    while missing:
        candidates = [{n: rng.choice(axes[n]) for n in names} for _ in range(60)]
        best = max(candidates, key=lambda row: len(pairs(row) & missing))
        if pairs(best) & missing:
            rows.append(best)
            missing -= pairs(best)
    while len(rows) < n_rows:
        row = {n: rng.choice(axes[n]) for n in names}
        if row not in rows:
            rows.append(row)
    return rows


def all_rows(axes):
    return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


class ExactRuns(EbbtideTest):
    """The ids of the demo model with a row's settings: "cards" and "cache", and flags by their names."""

    capacity_mib = 64  # of a card: roomy, so that the reserve alone decides about the cache

    @classmethod
    def setUpClass(cls):
        cls.long_prompt = golden()[10]["prompt_ids"][:LONG_IDS]
        cls.reserves = {}

    def engine_for(self, row, reserve):
        flags = {key: value for key, value in row.items() if key not in ("cards", "cache")}
        return self.serve(row["cards"], vram_mib=[self.capacity_mib] * row["cards"], segment_mib=self.segment_mib,
                          kv_tokens=KV_TOKENS, reserve_mib=reserve, **flags)

    def reserve_for(self, row):
        """The reserve of each card that leaves the row's cache, and the cache it must lead to."""
        cards = row["cards"]
        key = tuple((name, row[name]) for name in sorted(row) if name != "cache")
        if key not in self.reserves:
            probe = self.engine_for(row, [0] * cards)
            self.reserves[key] = probe.stat()
            probe.finish()
        reserve, cache = [], []
        for device in range(cards):
            stat = self.reserves[key][device]
            full, floor = stat["cache_full_mib"], stat["cache_floor_mib"]
            self.assertEqual(stat["cache_mib"], full, "the probe's cache is not whole")
            target = self.target(row, full, floor)
            reserve.append(0 if target == full else stat["free_mib"] + stat["workspace_mib"] + full - target)
            cache.append(target)
        return reserve, cache

    def target(self, row, full, floor):
        """MiB of a card's cache."""
        return {"whole": full, "halved": max(floor, full // 2 // self.segment_mib * self.segment_mib), "floor": floor}[row["cache"]]

    def engine_with_cache(self, row):
        """The row's engine, its caches brought to their size by the reserves of the start."""
        reserve, cache = self.reserve_for(row)
        engine = self.engine_for(row, reserve)
        stat = engine.stat()
        self.assertEqual([stat[d]["cache_mib"] for d in range(row["cards"])], cache)
        return engine

    def results(self, row):
        engine = self.engine_with_cache(row)
        out = {
            "short": engine.ids("short", N_SHORT, SHORT, ignore_eos=1),
            "long": engine.ids("long", N_LONG, self.long_prompt, ignore_eos=1),
            "sampled": engine.ids("sampled", N_SHORT, SHORT, ignore_eos=1, **SAMPLED),
        }
        engine.finish()
        return out

    def check_rows(self, rows, first):
        """Every row gives the ids of the first."""
        wanted = self.results(first)
        self.assertEqual([len(ids) for ids in wanted.values()], [N_SHORT, N_LONG, N_SHORT])
        self.assertNotEqual(wanted["short"], wanted["sampled"])
        for row in rows:
            with self.subTest(**row):
                try:
                    self.assertEqual(self.results(row), wanted)
                finally:
                    self.end_engines()

    def check_side_by_side(self, cards, **flags):
        prompts = [case["prompt_ids"] for case in golden()[:8]]
        engine = self.serve(cards, parallel=8, **flags)
        alone = [engine.ids(f"alone{i}", 32, ids, ignore_eos=1) for i, ids in enumerate(prompts)]
        for n in (3, 8):
            begin = [engine.gen(f"s{n}.{i}", 32, prompts[i], ignore_eos=1) for i in range(n)]
            together = [engine.done(f"s{n}.{i}", begin[i])[1] for i in range(n)]
            self.assertEqual(together, alone[:n])
        engine.finish()

    def check_prefill_over_generated(self, chunks):
        """A prefill over ids that were generated leads to the same ids at every position."""
        prompt = golden()[1]["prompt_ids"]
        engine = self.serve(2)
        whole = engine.ids("whole", 40, prompt, ignore_eos=1)
        engine.finish()
        for chunk in chunks:
            engine = self.serve(3, chunk=chunk)
            rows = engine.score("s", prompt + whole[:-1], 1)
            self.assertEqual([row[0][0] for row in rows[len(prompt) - 1:]], whole)
            engine.finish()


class Exactness(ExactRuns):
    def test_every_pair_of_settings_gives_the_same_ids(self):
        rows = all_rows(AXES) if FULL else covering_array(AXES)
        self.check_rows(rows, {"cards": 1, "chunk": 64, "cache": "whole", "threads": 1, "kernels": "reference"})
        print(f"exactness: {len(rows)} rows of {len(all_rows(AXES))} gave the same ids")

    @unittest.skipUnless(AVX512, "this processor has no AVX-512 with VNNI")
    def test_avx512_is_among_the_kernels_that_are_compared_and_what_auto_takes(self):
        self.assertIn("avx512", AXES["kernels"])
        row = {"cards": 2, "chunk": 16, "cache": "floor", "threads": 2}
        self.assertEqual(self.results({**row, "kernels": "auto"}), self.results({**row, "kernels": "avx512"}))

    def test_the_covering_array_holds_every_pair(self):
        rows = covering_array(AXES)
        for a, b in itertools.combinations(AXES, 2):
            met = {(row[a], row[b]) for row in rows}
            self.assertEqual(met, set(itertools.product(AXES[a], AXES[b])))
        self.assertLessEqual(len(rows), 40)

    def test_sequences_side_by_side_get_the_ids_they_get_alone(self):
        self.check_side_by_side(2)

    def test_a_seed_means_the_same_draw_over_any_split_and_another_seed_another(self):
        options = {"top_k": 40, "top_p": "0.9", "temperature": "1.1", "ignore_eos": 1}
        seen = []
        for cards, split in ((1, "auto"), (2, "0-3,4-7"), (3, "0-0,1-5,6-7"), (8, "auto")):
            engine = self.serve(cards, split=split)
            seen.append([engine.ids(f"s{seed}", 40, SHORT, seed=seed, **options) for seed in (7, 8)])
            engine.finish()
        self.assertEqual(seen[1:], seen[:1] * 3)
        self.assertNotEqual(seen[0][0], seen[0][1])

    def test_a_prefill_over_generated_ids_leads_to_the_same_ids_at_every_position(self):
        self.check_prefill_over_generated((1, 7, 16, 512))

    def test_a_prefix_that_is_reused_leads_to_the_ids_of_one_that_is_not(self):
        prompt = golden()[10]["prompt_ids"][:150]
        fresh = {}
        for cut in (150, 149, 33, 16, 15):
            engine = self.serve(2)
            fresh[cut] = engine.ids("g", 20, prompt[:cut], ignore_eos=1)
            engine.finish()
        engine = self.serve(2)
        for cut, wanted in fresh.items():
            since = engine.gen(f"c{cut}", 20, prompt[:cut], ignore_eos=1)
            end, ids, _ = engine.done(f"c{cut}", since)
            self.assertEqual(ids, wanted)
            self.assertEqual(end["reused"], 0 if cut == 150 else cut - 1)
        engine.finish()


if __name__ == "__main__":
    unittest.main()
