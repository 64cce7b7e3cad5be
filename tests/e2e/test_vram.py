"""Memory moves while tokens flow: no token changes, every receipt is true, and at the end everything is where it was."""
import random
import statistics
import subprocess
import time
import unittest

from ebbtide import BIN, MIB, OWNERS, EbbtideTest, golden
from processes import memory_files

N_COMMANDS, N_SEQUENCES, N_TOKENS = 200, 3, 300
SERVE = {"vram_mib": "32,32", "segment_mib": 1, "threads": 1}


class Cards:
    """What a controller knows of the cards from receipts alone; chooses commands that move segments, mostly."""

    def __init__(self, stat, rng):
        self.rng = rng
        self.segment = {d: s["segment_mib"] for d, s in stat.items()}
        self.free = {d: s["free_mib"] for d, s in stat.items()}
        self.cache = {d: s["cache_mib"] for d, s in stat.items()}
        self.full = {d: s["cache_full_mib"] for d, s in stat.items()}
        self.floor = {d: s["cache_floor_mib"] for d, s in stat.items()}
        self.total = {d: s["total_mib"] for d, s in stat.items()}
        self.start = {d: s["reserve_mib"] for d, s in stat.items()}
        self.reserve = dict(self.start)

    def next_command(self):
        """A command and the reserve that it asks of each card concerned."""
        kind, device = self.rng.random(), self.rng.choice(list(self.free))
        if kind < 0.75:
            sizes = [c for c in range(self.floor[device], self.full[device] + 1, self.segment[device]) if c != self.cache[device]]
            reserve = self.free[device] + self.cache[device] - self.rng.choice(sizes)
            return f"VRAM {reserve} {device}", {device: reserve}
        if kind < 0.80:
            return f"VRAM {self.reserve[device]} {device}", {device: self.reserve[device]}
        if kind < 0.85:
            return f"VRAM - {device}", {device: self.start[device]}
        if kind < 0.90:
            return "VRAM", dict(self.start)
        if kind < 0.95:
            return f"VRAM {self.total[device]} {device}", {device: self.total[device]}
        reserve = self.rng.randrange(min(self.total.values()) + 1)
        return f"VRAM {reserve}", {d: reserve for d in self.free}

    def wanted_cache(self, device, reserve):
        """What must stay mapped, in whole segments: all but the reserve, between the floor and the whole."""
        room = (self.free[device] + self.cache[device] - reserve) // self.segment[device] * self.segment[device]
        return max(self.floor[device], min(self.full[device], room))

    def check_receipt(self, test, device, reserve, receipt):
        wanted = self.wanted_cache(device, reserve)
        freed = self.cache[device] - wanted
        shortfall = max(0, reserve - (self.free[device] + freed))
        truth = {"reserve_mib": reserve, "cache_mib": wanted, "freed_mib": freed, "before_mib": self.free[device],
                 "free_mib": self.free[device] + freed, "shortfall_mib": shortfall, "foreign_mib": 0,
                 "cache_full_mib": self.full[device], "reason": "floor" if shortfall else "ok"}
        test.assertEqual({key: receipt[key] for key in truth}, truth, receipt.raw)

    def check_and_take(self, test, command, reserves, receipts):
        """Holds receipts against what was asked for. How many of them moved segments."""
        test.assertEqual(sorted(receipts), sorted(reserves), command)
        for device, receipt in receipts.items():
            self.check_receipt(test, device, reserves[device], receipt)
            self.take(device, receipt)
        return sum(receipt["freed_mib"] != 0 for receipt in receipts.values())

    def take(self, device, receipt):
        self.free[device], self.cache[device] = receipt["free_mib"], receipt["cache_mib"]
        self.reserve[device] = receipt["reserve_mib"]


class VramDuringGeneration(EbbtideTest):
    def generate(self, engine, with_commands):
        prompts = [golden()[i]["prompt_ids"] for i in (1, 3, 5)]
        mark = "v" if with_commands else "p"
        begin = [engine.gen(f"{mark}{i}", N_TOKENS, p, ignore_eos=1) for i, p in enumerate(prompts)]
        log = self.send_commands(engine, begin[0]) if with_commands else None
        ids = [engine.done(f"{mark}{i}", b)[1] for i, b in enumerate(begin)]
        self.assertEqual([len(i) for i in ids], [N_TOKENS] * N_SEQUENCES)
        return ids, log

    def send_commands(self, engine, since):
        """Spreads the commands over the generation: each waits for its share of the tokens."""
        cards = Cards(engine.stat(), random.Random(20))
        moved, waits = 0, []
        per_command = N_SEQUENCES * N_TOKENS / (N_COMMANDS * 1.15)
        for number in range(N_COMMANDS):
            count = [0]

            def enough(m, count=count, number=number):
                count[0] += m.verb == "T"
                return count[0] >= number * per_command
            engine.lines.wait(enough, since, what=f"token {number * per_command}")
            command, reserves = cards.next_command()
            sent = time.monotonic()
            receipts = engine.vram(command)
            waits.append(time.monotonic() - sent)
            moved += cards.check_and_take(self, command, reserves, receipts)
        done = sum(m.verb == "DONE" for m in engine.lines.all[since:])
        self.assertLess(done, N_SEQUENCES, "the commands outlasted the generation")
        self.assertGreaterEqual(moved, N_COMMANDS // 2, "too few commands moved segments")
        return moved, waits

    def test_200_commands_while_three_sequences_generate_change_no_token(self):
        engine = self.serve("cpu:0,cpu:1", **SERVE)
        ledger, held = engine.ledger(), [sorted(memory_files(pid).values()) for pid in engine.stages()]
        plain, _ = self.generate(engine, with_commands=False)
        self.assertEqual([m.raw for m in engine.ledger().values()], [m.raw for m in ledger.values()])
        squeezed, (moved, waits) = self.generate(engine, with_commands=True)
        self.assertEqual(squeezed, plain)
        engine.vram("VRAM")
        self.assertEqual([m.raw for m in engine.ledger().values()], [m.raw for m in ledger.values()])
        self.assertEqual([sorted(memory_files(pid).values()) for pid in engine.stages()], held, "memory files outside the ledger's view")
        engine.finish()
        print(f"vram: {N_COMMANDS} commands, {moved} receipts moved segments, answered in "
              f"{statistics.median(waits) * 1e3:.1f} ms (median), {max(waits) * 1e3:.1f} ms (longest)")

    def test_the_memory_that_the_system_sees_is_what_the_ledger_says(self):
        engine = self.serve("cpu:0,cpu:1", **SERVE)
        for command in ("VRAM", "VRAM {free} 1", "VRAM 0", "VRAM 32", "VRAM - 0"):
            stat = engine.stat()
            engine.vram(command.format(free=stat[1]["free_mib"] + 3))
            for (device, line), pid in zip(engine.ledger().items(), engine.stages()):
                owned = sum(line[owner] for owner in OWNERS)
                self.assertEqual(sum(memory_files(pid).values()), owned, f"card {device} after {command}")
        engine.finish()

    def test_in_a_long_prefill_a_command_is_answered_within_a_layers_time(self):
        for n_cards in (1, 2):
            with self.subTest(cards=n_cards):
                self.long_prefill(n_cards)

    def long_prefill(self, n_cards):
        """One command after the other, all of which move a segment, until the prompt is done."""
        engine = self.serve(n_cards, vram_mib=[48] * n_cards, segment_mib=1, threads=1, chunk=512)
        prompt = (golden()[11]["prompt_ids"] + golden()[10]["prompt_ids"])[:1900]
        free = engine.stat()[0]["free_mib"]
        since = engine.gen("long", 1, prompt, ignore_eos=1)
        begin, waits = time.monotonic(), []
        while not engine.tokens("long", since):
            reserve = free + 1 + len(waits) % 2
            sent = time.monotonic()
            receipt = engine.vram(f"VRAM {reserve} 0")[0]
            if not engine.tokens("long", since):
                waits.append(time.monotonic() - sent)
                self.assertNotEqual(receipt["freed_mib"], 0)
        engine.done("long", since)
        chunk_ends = [begin] + [m.when for m in engine.lines.all[since:] if m.verb == "PP"]
        layer = max(b - a for a, b in zip(chunk_ends, chunk_ends[1:])) / (8 // n_cards)
        print(f"vram in a prefill on {n_cards} card(s): a layer of 512 rows takes {layer * 1e3:.0f} ms at most; {len(waits)} commands "
              f"answered in {statistics.median(waits) * 1e3:.1f} ms (median), {max(waits) * 1e3:.1f} ms (longest)")
        self.assertGreaterEqual(len(waits), 3)
        self.assertLessEqual(max(waits), max(3 * layer, 0.05))
        engine.finish()


class Foreign(EbbtideTest):
    def test_foreign_memory_shows_and_limits_what_a_grow_may_take(self):
        engine = self.serve("cpu:0,cpu:1", **SERVE)
        start = engine.stat()[1]
        receipt = engine.vram(f"VRAM {start['free_mib'] + 4} 1")[1]
        self.assertEqual(receipt["freed_mib"], 4)
        holder = self.hold(1, start["free_mib"] + 2)
        squeezed = engine.stat()
        self.assertEqual(squeezed[1]["foreign_mib"], start["free_mib"] + 2)
        self.assertEqual(squeezed[0]["foreign_mib"], 0)
        self.assertEqual(engine.ledger()[1]["foreign"], (start["free_mib"] + 2) * MIB)
        receipt = engine.vram("VRAM 0 1")[1]
        self.assertEqual((receipt["freed_mib"], receipt["free_mib"], receipt["cache_mib"]), (-2, 0, start["cache_mib"] - 2))
        self.assertEqual(receipt["foreign_mib"], start["free_mib"] + 2)
        self.assertEqual(len(engine.ids("g", 20, "Call me Ishmael.", ignore_eos=1)), 20)
        holder.stdin.close()
        holder.wait(10)
        receipt = engine.vram("VRAM 0 1")[1]
        self.assertEqual((receipt["freed_mib"], receipt["cache_mib"], receipt["foreign_mib"]), (-2, start["cache_mib"], 0))
        engine.finish()

    def test_a_reserve_that_foreign_memory_prevents_has_its_reason(self):
        engine = self.serve("cpu:0,cpu:1", **SERVE)
        start = engine.stat()[1]
        room = start["free_mib"] + start["cache_mib"] - start["cache_floor_mib"]
        self.hold(1, start["free_mib"])
        receipt = engine.vram(f"VRAM {room} 1")[1]
        self.assertEqual(receipt["freed_mib"], start["cache_mib"] - start["cache_floor_mib"])
        self.assertEqual(receipt["shortfall_mib"], start["free_mib"])
        self.assertIn(receipt["reason"], ("foreign", "floor"))
        engine.finish()

    def test_a_dead_holder_is_forgotten(self):
        engine = self.serve("cpu:0,cpu:1", **SERVE)
        free = engine.stat()[1]["free_mib"]
        holder = self.hold(1, 3)
        self.assertEqual(engine.stat()[1]["free_mib"], free - 3)
        holder.kill()
        holder.wait()
        self.assertEqual((engine.stat()[1]["free_mib"], engine.stat()[1]["foreign_mib"]), (free, 0))
        engine.finish()


if __name__ == "__main__":
    unittest.main()
