"""Experts that are not on a device card, in short steps: which recorded family a step takes, and that it gives the same tokens whoever
computes them. The card is a CPU card that says it is a device, so the asks, the answers and the waits are those of a GPU.
"""
import unittest

from ebbtide import BIN, EbbtideTest, eventually, golden, ids_text
from stage import Stage, rows

PROMPT = golden()[1]["prompt_ids"]
LAUNCH = f"sh -c 'shift; exec {BIN}/device-stage \"$@\"' -- {{stage}}"


class ByHand(EbbtideTest):
    def started(self, **keys):
        self.namespace += "x"
        stage = Stage(self, 0, program=("device-stage",))
        self.assertEqual(stage.load(kv_tokens=2048, **{"miss_threads": 2, "miss_share": 100, **keys}).verb, "HELD")
        self.assertEqual(stage.after("GO", "LOADED").verb, "LOADED")
        return stage

    def stat(self, stage):
        return stage.after("STAT", "STAT")

    def families(self, stage):
        stat = self.stat(stage)
        return stat["graph_resident"], stat["graph_misses"]

    def step(self, stage, number, pos, ids, seq=0):
        """The token after it."""
        since = stage.send(rows(number, seq, pos, ids_text(ids), want="last"), f"STEP epoch=0 step={number} rows={len(ids)}")
        return stage.wait("TOK", since=since)["ids"]

    def decode(self, stage, n, between=lambda i: None):
        out = [self.step(stage, 1, 0, PROMPT)]
        for i in range(1, n):
            between(i)
            out.append(self.step(stage, 1 + i, len(PROMPT) + i - 1, out[-1:]))
        return out

    def shrink(self, stage, segments):
        stat = self.stat(stage)
        receipt = stage.after(f"VRAM {stat['free_mib'] + segments * stat['segment_mib']}", "VRAM")
        self.assertEqual(receipt["freed_mib"], segments * stat["segment_mib"], receipt.raw)
        self.assertLess(self.stat(stage)["resident"], stat["slots_full"])

    def grow(self, stage):
        stage.after("VRAM -", "VRAM")
        whole, _ = eventually(lambda: self.stat(stage)["resident"] == self.stat(stage)["slots_full"], 20)
        self.assertTrue(whole, self.stat(stage).raw)

    def test_a_shrink_leaves_the_family_of_the_resident_before_the_next_token_and_a_whole_cache_returns_to_it(self):
        undisturbed = self.decode(self.started(miss_threads=0), 12)
        stage, seen = self.started(), []

        def between(i):
            seen.append(self.families(stage))
            if i == 4:
                self.shrink(stage, 1)
            if i == 8:
                self.grow(stage)
        self.assertEqual(self.decode(stage, 12, between), undisturbed)
        seen.append(self.families(stage))
        self.assertEqual(seen, [(1, 0), (2, 0), (3, 0), (4, 0),  # the step after the shrink is the first of the others
                                (4, 1), (4, 2), (4, 3), (4, 4),  # and the one after the last upload the first that is not
                                (5, 4), (6, 4), (7, 4), (8, 4)])

    def test_without_a_host_that_helps_steps_are_counted_alike(self):
        for keys in ({"miss_threads": 0}, {"miss_share": 0}):
            stage = self.started(**keys)
            self.shrink(stage, 1)
            self.decode(stage, 3)
            self.assertEqual(self.families(stage), (0, 3))

    def test_while_the_card_waits_for_its_host_the_stage_answers_and_ends_as_asked(self):
        wait_us = 50000  # eight times a step: once a layer
        self.env["DEVICE_STAGE_WAIT_US"] = str(wait_us)
        stage = self.started(miss_threads=1)
        self.shrink(stage, 2)
        since = stage.send(rows(1, 0, 0, ids_text(PROMPT), want="last"), f"STEP epoch=0 step=1 rows={len(PROMPT)}")
        for i in range(3):
            self.assertLess(stage.ping(f"p{i}"), 2e-6 * wait_us)
        self.assertNotIn("TOK", [m.verb for m in stage.lines.all[since:]], "the step was over before it was asked")
        stage.after("VRAM -", "VRAM")  # behind the layers
        stage.wait("RAN", since=since)
        stage.send(rows(2, 0, len(PROMPT), "5", want="last"), "STEP epoch=0 step=2 rows=1", "QUIT")
        self.assertEqual(stage.process.wait(20), 0)

    def test_what_is_no_share_is_refused(self):
        stage = Stage(self, 0, program=("device-stage",))
        for keys in ({"miss_share": 101}, {"miss_share": "half"}, {"miss_threads": -1}, {"miss_threads": 2000}):
            self.assertEqual(stage.load(**keys).verb, "ERR", keys)


class Shares(EbbtideTest):
    def serve(self, reserve=0, **flags):
        return super().serve(1, launch=LAUNCH, vram_mib=64, segment_mib=1, kv_tokens=2048, **flags)

    def test_every_share_gives_the_same_ids_alone_and_side_by_side(self):
        prompts = [case["prompt_ids"][:60] for case in golden()[:8]]
        engine = self.serve(miss_threads=0, parallel=8)
        wanted = [engine.ids(f"w{i}", 16, ids, ignore_eos=1) for i, ids in enumerate(prompts)]
        full = engine.stat()[0]
        engine.finish()
        half = (full["cache_full_mib"] - full["cache_floor_mib"]) // 2
        for share, leaves in (("auto", half), (100, half), (60, full["cache_full_mib"]), (100, full["cache_full_mib"])):
            with self.subTest(share=share, leaves=leaves):
                engine = self.serve(miss_threads=2, miss_share=share, parallel=8)
                engine.vram(f"VRAM {full['free_mib'] + leaves} 0")
                self.assertEqual([engine.ids(f"a{i}", 16, ids, ignore_eos=1) for i, ids in enumerate(prompts[:3])], wanted[:3])
                begun = [engine.gen(f"b{i}", 16, ids, ignore_eos=1) for i, ids in enumerate(prompts)]
                self.assertEqual([engine.done(f"b{i}", at)[1] for i, at in enumerate(begun)], wanted)
                self.assertGreater(engine.stat()[0]["graph_misses"], 3 * 15)
                engine.finish()


if __name__ == "__main__":
    unittest.main()
