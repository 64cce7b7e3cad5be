"""On the card: memory moves while tokens flow. No token changes, every receipt is true for a second program on the card, and nothing is
lost over many cycles."""
import random
import statistics
import time
import unittest

from card import IS_CUDA, QUICK, BigModel, GpuTest, byte_prompts
from ebbtide import golden
from test_vram import Cards

N_COMMANDS = 60 if QUICK else 200
N_CYCLES = 20 if QUICK else 100
CASES, N_TOKENS = (1, 3, 5), 400
LEFT_MIB = 100 if IS_CUDA else 0  # what the second program leaves when it takes all that is free
SMALL_MIB = 128 if IS_CUDA else 64  # of a card for the demo model
SHARE_MIB = 24576 if IS_CUDA else 64  # of a stage of the big model beside another
CONTEXT = {"context": 4096, "parallel": 4, "kv_tokens": 8192}


class Squeezed:
    """Rounds of generation side by side, and whether each gave the ids of the first, undisturbed one."""

    def __init__(self, test, engine, prompts):
        self.test, self.engine, self.prompts, self.n_rounds = test, engine, prompts, 0
        self.begin()
        self.plain = self.take()

    def begin(self):
        self.n_rounds += 1
        self.starts = [self.engine.gen(f"r{self.n_rounds}.{i}", N_TOKENS, p, ignore_eos=1) for i, p in enumerate(self.prompts)]

    def take(self):
        return [self.engine.done(f"r{self.n_rounds}.{i}", start)[1] for i, start in enumerate(self.starts)]

    def is_running(self):
        return sum(m.verb == "DONE" for m in self.engine.lines.all[self.starts[0]:]) < len(self.starts)

    def end_round(self):
        self.test.assertEqual(self.take(), self.plain, f"round {self.n_rounds}")

    def next_token(self):
        """Waits until a token has come; the next round begins where one has ended."""
        if not self.is_running():
            self.end_round()
            self.begin()
        self.engine.lines.wait(lambda m: m.verb in ("T", "DONE"), len(self.engine.lines.all), what="a token")


class VramDuringGeneration(GpuTest):
    def check(self, engine, prompts):
        """Random commands, each at a token that has just come."""
        ledger = [m.raw for m in engine.ledger().values()]
        squeezed = Squeezed(self, engine, prompts)
        cards, moved, waits = Cards(engine.stat(), random.Random(20)), 0, []
        squeezed.begin()
        for _ in range(N_COMMANDS):
            squeezed.next_token()
            command, reserves = cards.next_command()
            sent = time.monotonic()
            receipts = engine.vram(command)
            waits.append(time.monotonic() - sent)
            moved += cards.check_and_take(self, command, reserves, receipts)
        squeezed.end_round()
        self.assertGreaterEqual(moved, N_COMMANDS // 2, "too few commands moved segments")
        engine.vram("VRAM")
        self.assertEqual([m.raw for m in engine.ledger().values()], ledger)
        engine.finish()
        print(f"vram: {N_COMMANDS} commands over {squeezed.n_rounds - 1} rounds, {moved} receipts moved segments, answered in "
              f"{statistics.median(waits) * 1e3:.1f} ms (median), {max(waits) * 1e3:.1f} ms (longest)")

    def test_random_commands_while_three_sequences_generate_change_no_token(self):
        for n_cards in (1, 2):
            with self.subTest(cards=n_cards):
                engine = self.serve(n_cards, vram_mib=[SMALL_MIB] * n_cards, segment_mib=self.segment_mib, threads=1)
                self.check(engine, [golden()[i]["prompt_ids"] for i in CASES])

    def test_nor_with_a_big_model(self):
        engine = self.serve(2, model=BigModel.path(), vram_mib=[SHARE_MIB] * 2, segment_mib=0 if IS_CUDA else 1, **CONTEXT)
        self.check(engine, byte_prompts(*CASES))


class Receipts(GpuTest):
    def big(self, **flags):
        return self.serve(1, model=BigModel.path(), segment_mib=0 if IS_CUDA else 1, **CONTEXT, **flags)

    def all_resident(self, engine):
        """Waits until every slot has its expert again."""
        limit = time.monotonic() + 60
        while engine.stat()[0]["resident"] < engine.stat()[0]["slots_full"]:
            engine.ids(f"warm{time.monotonic_ns()}", 8, byte_prompts(1)[0], ignore_eos=1)
            self.assertLess(time.monotonic(), limit, engine.stat()[0].raw)

    def hem(self, engine):
        """A program that takes all that is free but two segments; what the engine gives is then all there is."""
        hem = self.foreign(engine)
        spare = 2 * engine.stat()[0]["segment_mib"]
        hem.allocate(hem.free_mib() - LEFT_MIB - spare)
        return hem

    def test_what_a_receipt_says_is_free_a_second_program_can_take(self):
        engine = self.big(**({} if IS_CUDA else {"vram_mib": 64}))
        squeezed = Squeezed(self, engine, byte_prompts(*CASES))
        second, hem = self.foreign(engine), self.hem(engine)
        stat = engine.stat()[0]
        segment, span = stat["segment_mib"], stat["cache_full_mib"] - stat["cache_floor_mib"]
        squeezed.begin()
        for part in (0.02, 0.3, 0.7, 1.0, 0.5, 0.1):
            squeezed.next_token()
            now = engine.stat()[0]
            reserve = now["free_mib"] + now["cache_mib"] + now["workspace_mib"] - (stat["cache_full_mib"] - int(span * part) // segment * segment)
            receipt = engine.vram(f"VRAM {reserve} 0")[0]
            self.assertGreaterEqual(receipt["free_mib"] + receipt["shortfall_mib"], reserve, receipt.raw)
            second.allocate(receipt["free_mib"] - LEFT_MIB)
            squeezed.next_token()
            second.free()
        squeezed.end_round()
        hem.free()
        receipt = engine.vram("VRAM - 0")[0]
        self.assertEqual(receipt["cache_mib"], stat["cache_full_mib"], receipt.raw)
        self.check_refilled(engine, squeezed)
        engine.finish()

    def check_refilled(self, engine, squeezed):
        """Tokens as before, and no look-up misses any more."""
        self.all_resident(engine)
        squeezed.begin()
        squeezed.end_round()
        since = engine.gen("after", 32, squeezed.prompts[0], ignore_eos=1)
        end, ids, _ = engine.done("after", since)
        self.assertEqual(ids, squeezed.plain[0][:32])
        self.assertEqual(end["hits"], end["lookups"])

    def test_many_cycles_leave_as_much_free_as_there_was(self):
        engine = self.big(**({} if IS_CUDA else {"vram_mib": 64}))
        outside = self.foreign(engine)
        stat, ledger = engine.stat()[0], engine.ledger()[0]
        reserve = stat["free_mib"] + stat["cache_mib"] + stat["workspace_mib"] - stat["cache_floor_mib"]
        seen, shrunk = [], []
        since = engine.gen("flow", 64, "Call me Ishmael.", ignore_eos=1)
        for _ in range(N_CYCLES):
            shrunk.append(engine.vram(f"VRAM {reserve} 0")[0]["free_mib"])
            engine.vram("VRAM - 0")
            seen.append(outside.free_mib())
        engine.done("flow", since)
        self.assertEqual(len(set(shrunk)), 1, shrunk)
        self.assertEqual(seen[1:], seen[:1] * (N_CYCLES - 1), "free on the card after each cycle")
        self.assertEqual(outside.free_mib(), seen[0])
        self.assertEqual(engine.ledger()[0].raw, ledger.raw)
        engine.finish()
        print(f"vram: {N_CYCLES} cycles of {stat['cache_full_mib'] - stat['cache_floor_mib']} MiB, {seen[0]} MiB free after each")


if __name__ == "__main__":
    unittest.main()
