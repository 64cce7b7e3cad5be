"""One budget: KV takes segments from the expert cache and gives them back, no token changes, and every byte has a name meanwhile."""
import os
import random
import signal
import time
import unittest

from ebbtide import BIN, MIB, OWNERS, EbbtideTest, eventually, golden, ids_text
from stage import Stage, rows

CONTEXT, PARALLEL, N_SEQUENCES, N_TOKENS = 2048, 4, 5, 30
LONG = (golden()[11]["prompt_ids"] + golden()[10]["prompt_ids"])[:1900]
# Five prompts that share a beginning of 400 tokens, then differ in their length and their text.
PROMPTS = [LONG[:400] + LONG[400 + i:1900 - 150 * i] for i in range(N_SEQUENCES)]
SIZES = {"segment_mib": 1, "threads": 1, "context": CONTEXT, "parallel": PARALLEL}
SMALL = {**SIZES, "vram_mib": 24, "kv_tokens": 64, "kv_tokens_max": CONTEXT * PARALLEL}
DEVICE = f"env DEVICE_STAGE_WAKES=0 sh -c 'shift; exec {BIN}/device-stage \"$@\"' -- {{stage}}"


class Budget(EbbtideTest):
    wanted = None  # the tokens, from a card where KV never grows

    def prompts_wanted(self):
        if Budget.wanted is None:
            engine = self.serve("cpu:0", **SIZES, kv_tokens=CONTEXT * PARALLEL)
            Budget.wanted = [engine.ids(f"w{i}", N_TOKENS, p, ignore_eos=1) for i, p in enumerate(PROMPTS)]
            engine.finish()
        return Budget.wanted

    def check_ledger(self, engine):
        """Every byte is named and the parts are the whole, whatever is on its way. (kv, cache) of each card, in bytes."""
        lines = engine.ledger()
        for line in lines.values():
            self.assertEqual(line["unexplained"], 0, line.raw)
            self.assertEqual(sum(line[owner] for owner in OWNERS) + line["free"], line["total"], line.raw)
        return {device: (line["kv"], line["cache"]) for device, line in lines.items()}

    def generate(self, engine, meanwhile=lambda: None):
        """All prompts at once; looks at the ledger until the last has ended. What it saw: [{device: (kv, cache)}]."""
        begin = [engine.gen(f"g{i}", N_TOKENS, p, ignore_eos=1) for i, p in enumerate(PROMPTS)]
        seen, deadline = [], time.monotonic() + 120
        while sum(m.verb in ("DONE", "ERR") for m in engine.lines.all[begin[0]:]) < N_SEQUENCES:
            seen.append(self.check_ledger(engine))
            meanwhile()
            time.sleep(0.01)
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual([engine.done(f"g{i}", b)[1] for i, b in enumerate(begin)], self.prompts_wanted())
        return seen

    def check_way_back(self, engine, start):
        """KV goes back to what it had at the start, and the cache is whole again."""
        back, now = eventually(lambda: [m.raw for m in engine.ledger().values()] == start, 10)
        self.assertTrue(back, f"{now} {[m.raw for m in engine.ledger().values()]}, at the start {start}")

    def check_moves(self, cards, **flags):
        self.prompts_wanted()
        engine = self.serve(cards, **{**SMALL, **flags})
        start = [m.raw for m in engine.ledger().values()]
        first = self.check_ledger(engine)
        seen = self.generate(engine)
        for device, (kv, cache) in first.items():
            self.assertGreaterEqual(max(s[device][0] for s in seen), kv + 3 * MIB, "KV grew")
            self.assertLessEqual(min(s[device][1] for s in seen), cache - 3 * MIB, "the cache made room")
        self.check_way_back(engine, start)
        self.assertEqual(engine.ids("again", N_TOKENS, PROMPTS[1], ignore_eos=1), self.wanted[1])
        engine.finish()

    def test_long_sequences_on_a_small_card_take_cache_and_return_it_with_the_tokens_of_a_large_one(self):
        self.check_moves("cpu:0")

    def test_so_do_two_cards_that_grant_different_amounts(self):
        self.check_moves("cpu:0,cpu:1", vram_mib="16,11")

    def test_so_does_a_card_that_is_a_device(self):
        self.check_moves("cpu:0", launch=DEVICE)

    def test_vram_commands_meanwhile_change_no_token_and_take_nothing_promised(self):
        self.prompts_wanted()
        engine = self.serve("cpu:0,cpu:1", **{**SMALL, "vram_mib": "16,16"})
        start, rng, reasons = [m.raw for m in engine.ledger().values()], random.Random(7), set()

        def command():
            if not any(m.verb == "PP" for m in engine.lines.all):
                return  # from here on the longest sequence's KV is granted: enough for any of them
            device = rng.randrange(2)
            line = rng.choice((f"VRAM {rng.randrange(6)} {device}", f"VRAM {rng.randrange(17)} {device}", f"VRAM - {device}", "VRAM"))
            for receipt in engine.vram(line).values():
                reasons.add(receipt.text("reason").decode())
                self.assertEqual(receipt["shortfall_mib"] > 0, receipt.text("reason") != b"ok", receipt.raw)
            if rng.random() < 0.5:  # so that what was refused can be had again
                engine.vram("VRAM")
        self.generate(engine, command)
        self.assertLessEqual(reasons, {"ok", "floor", "loan"})
        self.assertIn("loan", reasons)
        engine.vram("VRAM")
        self.check_way_back(engine, start)
        engine.finish()

    def test_a_stage_that_dies_with_grown_kv_costs_no_token(self):
        self.prompts_wanted()
        engine = self.serve("cpu:0,cpu:1", **{**SMALL, "vram_mib": "16,16"})
        start, left = [m.raw for m in engine.ledger().values()], [2]

        def kill():
            time.sleep(0.3)
            if left[0] > 0 and min(s["kv_mib"] for s in engine.stat().values()) > 2:
                left[0] -= 1
                os.kill(engine.stages()[left[0]], signal.SIGKILL)
        begin = [engine.gen(f"g{i}", N_TOKENS, p, ignore_eos=1) for i, p in enumerate(PROMPTS)]
        while sum(m.verb in ("DONE", "ERR") for m in engine.lines.all[begin[0]:]) < N_SEQUENCES:
            kill()
        self.assertEqual([engine.done(f"g{i}", b)[1] for i, b in enumerate(begin)], self.wanted)
        self.assertEqual(left, [0])
        self.check_way_back(engine, start)
        engine.finish()

    def test_at_the_floor_a_request_is_refused_with_the_card_and_its_numbers(self):
        self.prompts_wanted()
        engine = self.serve("cpu:0", **{**SMALL, "vram_mib": 12})
        floor = engine.stat()[0]["cache_floor_mib"]
        end, ids, _ = engine.done("big", engine.gen("big", N_TOKENS, LONG, ignore_eos=1))
        self.assertEqual((end.bare[1], ids), ("error", []), end.raw)
        words = end.text("error").decode()
        for part in ("card cpu:0", "KV for 1952 positions wanted", f"cache is at {floor} MiB", f"its floor at {floor}", "0 MiB are free"):
            self.assertIn(part, words)
        short = PROMPTS[4][:500]
        since = engine.gen("short", 10, short, ignore_eos=1)
        self.assertEqual(engine.done("short", since)[0].bare[1], "length")
        engine.finish()

    def test_what_a_vram_command_holds_is_refused_and_had_again_afterwards(self):
        wanted = self.prompts_wanted()
        engine = self.serve("cpu:0", **SMALL)
        engine.vram("VRAM 16")
        self.assertEqual(engine.done("g", engine.gen("g", N_TOKENS, PROMPTS[0], ignore_eos=1))[0].bare[1], "error")
        engine.vram("VRAM")
        self.assertEqual(engine.ids("h", N_TOKENS, PROMPTS[0], ignore_eos=1), wanted[0])
        engine.finish()


class Credits(EbbtideTest):
    """CREDIT by hand."""

    def started(self, **keys):
        stage = Stage(self, 0, **keys)
        held = stage.load(kv_tokens=32, kv_tokens_max=CONTEXT * PARALLEL, context=CONTEXT, sequences=8)
        self.assertEqual((held.verb, held["kv_blocks"], held["kv_blocks_max"]), ("HELD", 1, 256), held.raw)
        self.assertEqual(stage.after("GO", "LOADED").verb, "LOADED")
        return stage

    def feed(self, stage, step, seq, pos, ids, want="none"):
        for at in range(0, len(ids), 64):
            part = ids[at:at + 64]
            last = at + 64 >= len(ids)
            since = stage.send(rows(step, seq, pos + at, ids_text(part), want=want if last else "none"), f"STEP epoch=0 step={step} rows={len(part)}")
            at_end = stage.lines.wait(lambda m: m.verb in ("RAN", "ERR"), since)
            self.assertEqual(stage.lines.all[at_end].verb, "RAN", stage.lines.all[at_end].raw)
            step += 1
        return step, [m["ids"] for m in stage.lines.all[since:] if m.verb == "TOK" and "ids" in m.keys]

    def test_blocks_that_several_sequences_share_are_moved_together_and_keep_their_contents(self):
        tokens = []
        for moves in (False, True):
            self.namespace += "x"
            stage = self.started()
            self.assertGreaterEqual(stage.after("CREDIT 60", "CREDITED")["kv_blocks"], 60)
            step, _ = self.feed(stage, 1, 0, 0, LONG[900:1800])  # the front, another text, to be dropped
            step, _ = self.feed(stage, step, 1, 0, LONG[:700])   # behind it
            stage.after("FORK 2 1 650", "FORKED")
            stage.after("DROP 0", "DROPPED")
            if moves:
                before = stage.after("STAT", "STAT")
                credited = stage.after("CREDIT 1", "CREDITED")
                self.assertLess(credited["kv_blocks"], before["kv_blocks"])
                self.assertGreaterEqual(credited["kv_blocks"] - credited["kv_blocks_free"], 22)
            step, first = self.feed(stage, step, 1, 700, LONG[700:701], want="last")
            step, second = self.feed(stage, step, 2, 650, LONG[800:820], want="last")
            tokens.append((first, second))
        self.assertEqual(tokens[0], tokens[1])

    def test_a_credit_is_never_less_than_is_in_use_nor_more_than_can_be_had(self):
        stage = self.started(vram_mib=16)
        most = stage.after("CREDIT 100000", "CREDITED")
        self.assertEqual(most["cache_mib"], most["cache_floor_mib"], most.raw)
        self.assertLess(most["kv_blocks"], 256)
        step, _ = self.feed(stage, 1, 0, 0, LONG[:600])
        less = stage.after("CREDIT 0", "CREDITED")
        self.assertGreaterEqual(less["kv_blocks"], 19)
        self.assertLess(less["kv_blocks"], most["kv_blocks"])
        self.feed(stage, step, 0, 600, LONG[600:601])
        stage.after("DROP 0", "DROPPED")
        self.assertEqual(stage.after("CREDIT 0", "CREDITED")["kv_blocks"], 1)
        for bad in ("CREDIT", "CREDIT x", "CREDIT -1", "CREDIT 1 2", "CREDIT 99999999999"):
            self.assertEqual(stage.after(bad, "CREDITED").verb, "ERR", bad)


if __name__ == "__main__":
    unittest.main()
