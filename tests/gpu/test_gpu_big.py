"""On the card: a model of the size and shape that this is made for, as one stage and as two, and what an engine leaves on the card."""
import unittest

from card import IS_CUDA, BigModel, GpuTest, byte_prompts
from processes import eventually, is_alive

CONTEXT = {"context": 4096, "parallel": 4, "kv_tokens": 8192}
CASES = (1, 3, 10)


class Big(GpuTest):
    def ids(self, cards, **flags):
        engine = self.serve(cards, model=BigModel.path(), **CONTEXT, **flags)
        out = []
        for number, prompt in enumerate(byte_prompts(*CASES)):
            since = engine.gen(f"g{number}", 64, prompt, ignore_eos=1)
            end, ids, _ = engine.done(f"g{number}", since)
            out.append(ids)
            print(f"{cards} stage(s), {flags}: {len(prompt)} tokens read in {end['prefill_ms']} ms, {len(ids)} written in "
                  f"{end['decode_ms']} ms, {end['hits']} of {end['lookups']} experts resident")
        engine.finish()
        return out

    def test_one_stage_and_two_give_the_same_ids(self):
        share = 24576 if IS_CUDA else 64
        one = self.ids(1)
        self.assertEqual([len(ids) for ids in one], [64] * len(CASES))
        self.assertGreater(len({tuple(ids) for ids in one}), 1, "every prompt leads to the same ids")
        self.assertEqual(self.ids(2, vram_mib=[share] * 2, chunk=512), one)

    def test_an_engine_that_has_ended_has_left_nothing_on_the_card(self):
        engine = self.serve(1, model=BigModel.path(), **CONTEXT)
        outside = self.foreign(engine)
        held = outside.free_mib()
        engine.ids("g", 8, "Call me Ishmael.", ignore_eos=1)
        if not IS_CUDA:
            self.skipTest("a CPU card's free memory is the engine's own to tell")
        stages = engine.stages()
        engine.process.kill()
        engine.process.wait()
        self.end_survivors()
        # A process that ends gives its memory back after all that marks it as this test's: not before it is dead is it free.
        self.assertTrue(eventually(lambda: not any(map(is_alive, stages)))[0], stages)
        self.assertGreater(outside.free_mib(), held)
        again = self.serve(1, model=BigModel.path(), **CONTEXT)
        self.assertEqual(outside.free_mib(), held)
        again.finish()


if __name__ == "__main__":
    unittest.main()
