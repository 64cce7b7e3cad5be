"""Workspace of long prompts on the card: lent by the expert cache, with the same tokens, and the card's free memory as it was."""
import time
import unittest

from card import IS_CUDA, QUICK, BigModel, GpuTest

CHUNK, N_CHUNKS, N_NEW = (1024, 4, 32) if IS_CUDA else (128, 4, 8)
N_LOANS = (10 if QUICK else 100) if IS_CUDA else 5
PROMPT = [(7 * i + i // 97) % 251 for i in range(N_CHUNKS * CHUNK - 100)]


class Loans(GpuTest):
    def big(self, **flags):
        return self.serve(1, model=BigModel.path(), segment_mib=64 if IS_CUDA else 1, context=len(PROMPT) + N_NEW + 64, parallel=2,
                          chunk=CHUNK, **flags)

    def prompt_run(self, engine, tag, first, look=False):
        """Ids, milliseconds of the prompt, and what the stage said meanwhile. No prompt begins as another does."""
        since, seen = engine.gen(tag, N_NEW, [first] + PROMPT, ignore_eos=1), []
        while look and not any(m.verb in ("DONE", "ERR") for m in engine.lines.all[since:]):
            seen.append(engine.stat()[0])
        end, ids, _ = engine.done(tag, since)
        return ids, end["prefill_ms"], seen

    def shrink_to(self, engine, mib):
        stat = engine.stat()[0]
        return engine.vram(f"VRAM {stat['free_mib'] + stat['cache_mib'] + stat['workspace_mib'] - mib} 0")[0]

    def settled(self, engine, before):
        """As much cache, workspace and free memory as before, every slot filled again."""
        limit = time.monotonic() + 60
        keys = ("free_mib", "cache_mib", "workspace_mib", "slots")
        while True:
            stat = engine.stat()[0]
            if stat["resident"] == stat["slots"] and all(stat[key] == before[key] for key in keys):
                return
            self.assertLess(time.monotonic(), limit, f"{stat.raw}, before {before.raw}")
            time.sleep(0.02)

    def test_a_card_whose_cache_is_halved_lends_and_gets_back_and_no_token_changes(self):
        engine = self.big()
        start, ledger = engine.stat()[0], engine.ledger()[0]
        self.assertEqual(start["workspace_rows"], CHUNK, "room for everything")
        wanted = [self.prompt_run(engine, f"w{i}", i)[0] for i in range(3)]
        whole_ms = min(self.prompt_run(engine, f"ww{i}", 10 + i)[1] for i in range(3))
        half = (start["cache_full_mib"] + start["cache_floor_mib"]) // 2 // start["segment_mib"] * start["segment_mib"]
        receipt = self.shrink_to(engine, half)
        self.assertEqual((receipt["prompt_chunk"], engine.stat()[0]["workspace_mib"]), (CHUNK, 0), receipt.raw)
        self.settled(engine, before := engine.stat()[0])
        lent_ms = []
        for i, ids in enumerate(wanted):
            got, ms, seen = self.prompt_run(engine, f"l{i}", i, look=True)
            self.assertEqual(got, ids)
            lent = max(seen, key=lambda s: (s["workspace_rows"], s["workspace_mib"]))
            self.assertEqual((lent["workspace_rows"], lent["free_mib"]), (CHUNK, before["free_mib"]), lent.raw)
            self.assertEqual(lent["cache_mib"] + lent["workspace_mib"], half, lent.raw)
            lent_ms.append(ms)
            engine.gen(f"x{i}", 1, [200 + i] * 8)
            self.settled(engine, before)
        receipt = self.shrink_to(engine, start["cache_floor_mib"])
        self.assertLess(receipt["prompt_chunk"], CHUNK, receipt.raw)
        got, floor_ms, _ = self.prompt_run(engine, "f", 0)
        self.assertEqual(got, wanted[0])
        engine.vram("VRAM")
        self.settled(engine, start)
        self.assertEqual(engine.ledger()[0].raw, ledger.raw)
        engine.finish()
        print(f"loans: a prompt of {len(PROMPT) + 1}: {whole_ms} ms with everything there, {min(lent_ms)} with a halved cache that lends, "
              f"{floor_ms} at the floor in chunks of {receipt['prompt_chunk']}")

    def test_many_loans_leave_as_much_free_as_there_was(self):
        engine = self.big()
        self.shrink_to(engine, engine.stat()[0]["cache_full_mib"] // 2)
        before = engine.stat()[0]
        self.settled(engine, before)
        outside = self.foreign(engine)
        free = outside.free_mib()
        for i in range(N_LOANS):
            engine.ids(f"g{i}", 1, [i] + PROMPT[:3 * 64], ignore_eos=1)
            self.assertEqual(outside.free_mib(), free, f"after loan {i}")
        self.settled(engine, before)
        self.assertEqual(engine.ledger()[0]["unexplained"], 0)
        engine.finish()


if __name__ == "__main__":
    unittest.main()
