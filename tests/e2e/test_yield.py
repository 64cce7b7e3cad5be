"""Foreign programs take memory that was promised to nobody, and the cache gives way: no token changes, and it comes back."""
import re
import time
import unittest

from ebbtide import EbbtideTest, eventually, golden

RESERVE = 2
FLAGS = dict(vram_mib=48, segment_mib=1, context=1024, threads=1, reserve_mib=RESERVE)


class Yielding(EbbtideTest):
    def engine(self, quiet=1, how="auto", whole=True, **flags):
        engine = self.serve(1, **{**FLAGS, "log_level": "info", "yield": how, "yield_quiet_s": quiet, **flags})
        stat = engine.stat()[0]
        self.assertEqual((stat["cache_mib"] == stat["cache_full_mib"], stat["yielded_mib"]), (whole, 0))
        self.assertGreaterEqual(stat["free_mib"], RESERVE)
        return engine, stat

    def until(self, engine, fits, seconds):
        """STATs until one fits: it, and how long that took."""
        begin = time.monotonic()
        while True:
            stat = engine.stat()[0]
            waited = time.monotonic() - begin
            if fits(stat):
                return stat, waited
            self.assertLess(waited, seconds, stat.raw)
            time.sleep(0.02)

    def steady(self, engine, seconds, **wanted):
        """STATs for so long: each has these values."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stat = engine.stat()[0]
            self.assertEqual({k: stat[k] for k in wanted}, wanted)
            time.sleep(0.05)

    def end(self, holder):
        holder.stdin.close()
        holder.wait(10)

    def changes(self, engine):
        """Segments that moved, from the log: one number for changes of one kind that follow each other. A holder may take more than
        the card has; what it lacks then shows only bit by bit."""
        found = []
        for n, kind in re.findall(r"foreign memory: (\d+) segments (given up|taken again)", engine.log()):
            if found and found[-1][1] == kind:
                found[-1] = (found[-1][0] + int(n), kind)
            else:
                found.append((int(n), kind))
        return found

    def test_while_tokens_flow_it_gives_way_within_a_second_and_no_token_changes(self):
        prompt = golden()[1]["prompt_ids"]
        engine, start = self.engine()
        wanted = engine.ids("alone", 600, prompt, ignore_eos=1)
        since = engine.gen("g", 600, prompt, ignore_eos=1)
        engine.lines.wait(lambda m: m.verb == "T", since, what="a token")
        holder = self.hold(0, start["free_mib"] - RESERVE + 4)
        squeezed, waited = self.until(engine, lambda s: s["free_mib"] >= RESERVE, 5)
        self.assertLess(waited, 1)
        self.assertEqual((start["cache_mib"] - squeezed["cache_mib"], squeezed["yielded_mib"]), (4, 4))
        self.assertEqual((squeezed["reserve_mib"], squeezed["base_mib"]), (RESERVE, RESERVE))
        self.end(holder)
        _, ids, _ = engine.done("g", since)
        self.assertEqual(ids, wanted)
        back, _ = self.until(engine, lambda s: s["cache_mib"] == start["cache_mib"], 10)
        self.assertEqual(back["yielded_mib"], 0)
        self.assertEqual(engine.ids("after", 600, prompt, ignore_eos=1), wanted)
        self.assertEqual(self.changes(engine), [(4, "given up"), (4, "taken again")])
        engine.finish()
        print(f"yield: 4 segments given up {waited * 1e3:.0f} ms after the holder had its memory")

    def test_a_card_that_gives_way_holds_the_prompt_chunk_down_until_it_has_its_memory_again(self):
        engine, start = self.engine(vram_mib=24, chunk=256, kv_tokens=1024, whole=False)
        engine.ask("WATCH")
        self.assertEqual(start["prompt_chunk"], 256)
        holder = self.hold(0, start["free_mib"] + start["cache_mib"] - start["cache_floor_mib"])
        self.until(engine, lambda s: s["prompt_chunk"] == 64, 5)
        engine.wait("EVENT", "chunk")
        self.end(holder)
        self.until(engine, lambda s: s["prompt_chunk"] == 256, 10)
        eventually(lambda: len([m for m in engine.lines.all if m.raw.startswith("EVENT chunk")]) >= 2, 5)
        self.assertEqual([m.raw for m in engine.lines.all if m.raw.startswith("EVENT chunk")][-1], "EVENT chunk prompt_chunk=256")
        engine.finish()

    def test_idle_it_gives_way_too_and_comes_back_after_the_quiet_period_and_not_before(self):
        engine, start = self.engine(quiet=2)
        holder = self.hold(0, start["free_mib"])
        self.until(engine, lambda s: s["free_mib"] >= RESERVE, 1)
        squeezed = engine.stat()[0]["cache_mib"]
        self.assertEqual(squeezed, start["cache_mib"] - RESERVE)
        self.end(holder)
        self.steady(engine, 1.5, cache_mib=squeezed)
        self.until(engine, lambda s: s["cache_mib"] == start["cache_mib"], 5)
        engine.finish()

    def test_a_holder_that_comes_and_goes_does_not_make_it_flap(self):
        engine, start = self.engine(quiet=2)
        for _ in range(5):
            holder = self.hold(0, start["free_mib"] - RESERVE + 3)
            time.sleep(0.3)
            self.end(holder)
            time.sleep(0.5)
        self.assertEqual(self.changes(engine), [(3, "given up")])
        self.until(engine, lambda s: s["cache_mib"] == start["cache_mib"], 6)
        self.assertEqual(self.changes(engine), [(3, "given up"), (3, "taken again")])
        engine.finish()

    def test_it_stays_above_its_floor_and_goes_on(self):
        engine, start = self.engine()
        holder = self.hold(0, start["total_mib"])
        self.until(engine, lambda s: s["cache_mib"] == s["cache_floor_mib"], 2)
        self.assertEqual(len(engine.ids("g", 20, "Call me Ishmael.", ignore_eos=1)), 20)
        self.steady(engine, 0.4, cache_mib=start["cache_floor_mib"])
        self.assertEqual(len(self.changes(engine)), 1)
        self.end(holder)
        self.until(engine, lambda s: s["cache_mib"] == start["cache_mib"], 6)
        engine.finish()

    def test_a_borrower_that_takes_its_loan_is_not_lent_to_twice(self):
        engine, start = self.engine()
        loan = start["free_mib"] + 3
        receipt = engine.vram(f"VRAM {loan} 0")[0]
        self.assertEqual((receipt["freed_mib"], receipt["reason"]), (3, "ok"))
        borrower = self.hold(0, loan - RESERVE)
        self.steady(engine, 1.6, cache_mib=receipt["cache_mib"], free_mib=RESERVE, yielded_mib=0)
        another = self.hold(0, 1)
        stat, _ = self.until(engine, lambda s: s["free_mib"] >= RESERVE, 1)
        self.assertEqual(stat["cache_mib"], receipt["cache_mib"] - 1)
        self.end(another)
        self.end(borrower)
        time.sleep(1.5)  # of what comes back, a segment may stay away: there must be a margin beside it
        self.assertIn(engine.stat()[0]["cache_mib"], (receipt["cache_mib"] - 1, receipt["cache_mib"]))
        back = engine.vram("VRAM - 0")[0]
        self.assertEqual((back["cache_mib"], back["reserve_mib"]), (start["cache_mib"], RESERVE))
        engine.finish()

    def test_commands_are_answered_as_ever_while_it_gives_way(self):
        engine, start = self.engine()
        since = engine.gen("g", 400, "Call me Ishmael.", ignore_eos=1)
        for i in range(12):
            holder = self.hold(0, start["free_mib"] - RESERVE + 1 + i % 3)
            reserve = start["free_mib"] + i % 4
            receipt = engine.vram(f"VRAM {reserve} 0")[0]
            self.assertEqual(receipt["reserve_mib"], reserve)
            self.assertGreaterEqual(receipt["free_mib"] + receipt["shortfall_mib"], reserve)
            self.end(holder)
        self.assertEqual(len(engine.done("g", since)[1]), 400)
        engine.vram("VRAM")
        self.until(engine, lambda s: s["cache_mib"] == start["cache_mib"], 5)
        engine.finish()

    def test_off_is_the_default_and_nothing_moves(self):
        engine = self.serve(1, **FLAGS)
        start = engine.stat()[0]
        self.hold(0, start["free_mib"])
        self.steady(engine, 0.5, cache_mib=start["cache_mib"], free_mib=0, yielded_mib=0)
        engine.finish()


if __name__ == "__main__":
    unittest.main()
