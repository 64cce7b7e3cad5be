"""Long prompts borrow their workspace from the expert cache: no token changes, every byte has a name meanwhile, it goes back, and the
prompt chunk is what every card can lend."""
import os
import random
import signal
import time
import unittest

from ebbtide import BIN, MIB, OWNERS, EbbtideTest, eventually, golden, ids_text
from stage import Stage, rows

CONTEXT, PARALLEL, CHUNK, LEAST, N_TOKENS = 2048, 4, 256, 64, 12
LONG = (golden()[11]["prompt_ids"] + golden()[10]["prompt_ids"])[:1900]
SIZES = {"segment_mib": 1, "threads": 1, "context": CONTEXT, "parallel": PARALLEL, "kv_tokens": CONTEXT}
SMALL = {**SIZES, "vram_mib": 24, "chunk": CHUNK, "name": "lends"}
DEVICE = f"env DEVICE_STAGE_WAKES=0 sh -c 'shift; exec {BIN}/device-stage \"$@\"' -- {{stage}}"


class Loans(EbbtideTest):
    wanted = {}  # the tokens, in chunks that need no loan

    def ids_wanted(self, prompt):
        if tuple(prompt) not in Loans.wanted:
            engine = self.serve("cpu:0", **SIZES, chunk=LEAST)
            Loans.wanted[tuple(prompt)] = engine.ids("w", N_TOKENS, prompt, ignore_eos=1)
            engine.finish()
        return Loans.wanted[tuple(prompt)]

    def check_ledger(self, engine):
        """Every byte is named and the parts are the whole, whatever is on its way. {device: (workspace, cache)}, in bytes."""
        lines = engine.ledger()
        for line in lines.values():
            self.assertEqual(line["unexplained"], 0, line.raw)
            self.assertEqual(sum(line[owner] for owner in OWNERS) + line["free"], line["total"], line.raw)
        return {device: (line["workspace"], line["cache"]) for device, line in lines.items()}

    def generate(self, engine, prompt=tuple(LONG), tag="g", meanwhile=lambda: None):
        """What the ledger said while a prompt ran, and the rows of its chunks."""
        wanted = self.ids_wanted(prompt)
        since = engine.gen(tag, N_TOKENS, prompt, ignore_eos=1)
        seen, deadline = [], time.monotonic() + 60
        while not any(m.verb in ("DONE", "ERR") for m in engine.lines.all[since:]):
            seen.append(self.check_ledger(engine))
            meanwhile()
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual(engine.done(tag, since)[1], wanted)
        done = [int(m.bare[1]) for m in engine.lines.all[since:] if m.verb == "PP"]
        return seen, [b - a for a, b in zip([0] + done, done)]

    def check_way_back(self, engine, start):
        back, _ = eventually(lambda: [m.raw for m in engine.ledger().values()] == start, 10)
        self.assertTrue(back, f"{[m.raw for m in engine.ledger().values()]}, at the start {start}")

    def check_loan(self, cards, **flags):
        self.ids_wanted(LONG)
        engine = self.serve(cards, **{**SMALL, **flags})
        start = [m.raw for m in engine.ledger().values()]
        first = self.check_ledger(engine)
        seen, chunks = self.generate(engine)
        for device, (workspace, cache) in first.items():
            most = max(s[device][0] for s in seen)
            self.assertGreaterEqual(most, workspace + MIB, "the workspace grew")
            self.assertEqual(min(s[device][1] for s in seen), cache - (most - workspace), "by what the cache lent")
        self.assertEqual(chunks[:3], [CHUNK] * 3)
        self.check_way_back(engine, start)
        engine.finish()

    def test_a_long_prompt_on_a_small_card_borrows_from_the_cache_and_returns_it_with_the_tokens_of_short_chunks(self):
        self.check_loan("cpu:0")

    def test_so_it_does_on_two_cards(self):
        self.check_loan("cpu:0,cpu:1", vram_mib="20,18")

    def test_so_it_does_on_a_card_that_is_a_device(self):
        self.check_loan("cpu:0", launch=DEVICE)

    def test_where_memory_is_plentiful_nothing_moves(self):
        engine = self.serve("cpu:0,cpu:1", **{**SMALL, "vram_mib": 64})
        start = self.check_ledger(engine)
        for stat in engine.stat().values():
            self.assertEqual((stat["workspace_rows"], stat["prompt_chunk"], stat["slots"]), (CHUNK, CHUNK, stat["slots_full"]))
        seen, chunks = self.generate(engine)
        self.assertEqual(chunks[:3], [CHUNK] * 3)
        self.assertTrue(all(s == start for s in seen))
        stat = engine.stat()[0]
        receipt = engine.vram(f"VRAM {stat['free_mib'] + stat['workspace_mib']} 0")[0]
        self.assertEqual((receipt["freed_mib"], receipt["slots"], receipt["shortfall_mib"]), (stat["workspace_mib"], stat["slots"], 0), receipt.raw)
        self.assertEqual((engine.stat()[0]["workspace_mib"], receipt["prompt_chunk"]), (0, CHUNK), "idle workspace goes before any expert")
        engine.vram("VRAM")
        self.assertEqual(self.check_ledger(engine), start)
        engine.finish()

    def test_a_prompt_of_few_chunks_borrows_nothing(self):
        engine = self.serve("cpu:0", **SMALL)
        start = self.check_ledger(engine)
        seen, chunks = self.generate(engine, LONG[:2 * LEAST])
        self.assertEqual(chunks, [LEAST, LEAST])
        self.assertTrue(all(s == start for s in seen))
        engine.finish()

    def test_a_card_that_can_lend_nothing_holds_the_run_at_the_smallest_chunk_until_it_can(self):
        engine = self.serve("cpu:0,cpu:1", **{**SMALL, "vram_mib": "20,20"})
        watcher = self.client()
        watcher.ask("WATCH")
        whole = engine.vram("VRAM 0")
        self.assertEqual([r["prompt_chunk"] for r in whole.values()], [CHUNK, CHUNK])
        receipt = engine.vram("VRAM 20 1")[1]
        self.assertEqual((receipt["prompt_chunk"], receipt["shortfall_mib"] > 0), (LEAST, True), receipt.raw)
        self.assertEqual([s["prompt_chunk"] for s in engine.stat().values()], [CHUNK, LEAST])
        start = self.check_ledger(engine)
        seen, chunks = self.generate(engine)
        self.assertEqual(set(chunks[:-1]), {LEAST})
        self.assertTrue(all(s == start for s in seen), "nobody lends what another cannot use")
        self.assertEqual(engine.vram("VRAM - 1")[1]["prompt_chunk"], CHUNK)
        _, chunks = self.generate(engine, LONG[7:], "again")
        self.assertEqual(chunks[:2], [CHUNK] * 2)
        told = [m.raw for m in watcher.lines.all if m.raw.startswith("EVENT chunk")]
        self.assertEqual(told, [f"EVENT chunk prompt_chunk={LEAST}", f"EVENT chunk prompt_chunk={CHUNK}"])
        engine.finish()

    def test_vram_commands_meanwhile_get_what_they_ask_for_and_change_no_token(self):
        engine = self.serve("cpu:0,cpu:1", **{**SMALL, "vram_mib": "20,20"})
        self.ids_wanted(LONG)
        start, rng, chunks = [m.raw for m in engine.ledger().values()], random.Random(11), set()

        def command():
            device = rng.randrange(2)
            line = rng.choice((f"VRAM {rng.randrange(5)} {device}", f"VRAM {rng.randrange(17)} {device}", f"VRAM - {device}", "VRAM"))
            for receipt in engine.vram(line).values():
                self.assertIn(receipt.text("reason"), (b"ok", b"floor"), receipt.raw)
                self.assertEqual(receipt["shortfall_mib"] > 0, receipt.text("reason") == b"floor", receipt.raw)
                chunks.add(receipt["prompt_chunk"])
        for i in range(6):
            self.generate(engine, LONG[5 * i:], f"g{i}", command)  # none begins as another does
        self.assertLessEqual({LEAST, CHUNK}, chunks)
        engine.vram("VRAM")
        self.check_way_back(engine, start)
        engine.finish()

    def test_a_shrink_in_a_long_prompt_takes_the_loan_at_once(self):
        engine = self.serve("cpu:0", **{**SMALL, "vram_mib": 24})
        self.ids_wanted(LONG)
        floor = engine.stat()[0]["cache_floor_mib"]
        since = engine.gen("g", N_TOKENS, LONG, ignore_eos=1)
        while not any(m.verb == "PP" for m in engine.lines.all[since:]):
            time.sleep(0.005)
        lent = engine.stat()[0]
        self.assertGreater(lent["workspace_mib"], 0)
        receipt = engine.vram("VRAM 24")[0]
        self.assertEqual((receipt.text("reason"), receipt["cache_mib"], receipt["prompt_chunk"]), (b"floor", floor, LEAST))
        self.assertEqual(receipt["freed_mib"], lent["workspace_mib"] + lent["cache_mib"] - floor)
        self.assertEqual(self.check_ledger(engine)[0][1], floor * MIB)
        self.assertEqual(engine.stat()[0]["workspace_mib"], 0)
        self.assertEqual(engine.done("g", since)[1], self.ids_wanted(LONG))
        engine.finish()

    def test_a_hundred_loans_leave_free_memory_as_it_was(self):
        engine = self.serve("cpu:0", **{**SMALL, "vram_mib": 24})
        prompt, wanted = LONG[:200], None
        before, start = engine.stat()[0], self.check_ledger(engine)
        for i in range(100):
            ids = engine.ids(f"g{i}", 2, [i] + prompt, ignore_eos=1)
            wanted = ids if i == 0 else wanted
        self.assertEqual(engine.ids("last", 2, [0] + prompt, ignore_eos=1), wanted)
        back, _ = eventually(lambda: self.check_ledger(engine) == start, 10)
        self.assertTrue(back)
        after = engine.stat()[0]
        for key in ("free_mib", "cache_mib", "workspace_mib", "slots", "resident"):
            same, now = eventually(lambda: engine.stat()[0][key] == before[key], 10)
            self.assertTrue(same, f"{key}: {before[key]} before, {after[key]} after")
        engine.finish()

    def test_a_stage_that_dies_with_a_loan_costs_no_token(self):
        engine = self.serve("cpu:0,cpu:1", **{**SMALL, "vram_mib": "20,20"})
        start, left = [m.raw for m in engine.ledger().values()], [2]

        def kill():
            if left[0] > 0 and all(s["workspace_mib"] > 0 for s in engine.stat().values()):
                left[0] -= 1
                os.kill(engine.stages()[left[0]], signal.SIGKILL)
        since = engine.gen("g", N_TOKENS, LONG, ignore_eos=1)
        while not any(m.verb in ("DONE", "ERR") for m in engine.lines.all[since:]):
            kill()
        self.assertEqual(engine.done("g", since)[1], self.ids_wanted(LONG))
        self.assertEqual(left, [0])
        self.check_way_back(engine, start)
        engine.finish()


class Chunks(EbbtideTest):
    """CHUNK by hand."""

    def started(self, **keys):
        stage = Stage(self, 0, **keys)
        held = stage.load(kv_tokens=CONTEXT, context=CONTEXT, sequences=8, chunk=CHUNK, chunk_min=LEAST)
        self.assertEqual(held.verb, "HELD", held.raw)
        self.assertEqual(stage.after("GO", "LOADED").verb, "LOADED")
        return stage, held

    def step(self, stage, step, pos, ids, want="none"):
        since = stage.send(rows(step, 0, pos, ids_text(ids), want=want), f"STEP epoch=0 step={step} rows={len(ids)}")
        at = stage.lines.wait(lambda m: m.verb in ("RAN", "ERR"), since)
        self.assertEqual(stage.lines.all[at].verb, "RAN", stage.lines.all[at].raw)
        return [m["ids"] for m in stage.lines.all[since:] if m.verb == "TOK" and "ids" in m.keys]

    def test_a_step_runs_with_whatever_workspace_there_is(self):
        tokens = []
        for lends in (False, True):
            self.namespace += "x"
            stage, held = self.started(vram_mib=24)
            self.assertEqual((held["workspace_rows"], held["prompt_chunk"]), (LEAST, CHUNK), held.raw)
            if lends:
                chunked = stage.after(f"CHUNK {CHUNK}", "CHUNKED")
                self.assertEqual((chunked["workspace_rows"], chunked["prompt_chunk"]), (CHUNK, CHUNK), chunked.raw)
            self.step(stage, 1, 0, LONG[:CHUNK])
            tokens.append(self.step(stage, 2, CHUNK, LONG[CHUNK:2 * CHUNK - 3], "last"))
        self.assertEqual(tokens[0], tokens[1])

    def test_a_chunk_between_is_lent_as_the_cache_can_and_comes_back(self):
        stage, held = self.started(vram_mib=24)
        start = stage.after("LEDGER", "LEDGER").raw
        for asked in (100, CHUNK, 1 << 20, 128):
            rows_had = stage.after(f"CHUNK {asked}", "CHUNKED")["workspace_rows"]
            self.assertGreaterEqual(rows_had, min(asked, CHUNK))
        for asked in (LEAST, 0):
            self.assertEqual(stage.after(f"CHUNK {asked}", "CHUNKED")["workspace_rows"], LEAST)
        back, _ = eventually(lambda: stage.after("LEDGER", "LEDGER").raw == start, 10)
        self.assertTrue(back)
        stage.after("VRAM 24", "VRAM-DONE")
        for asked in (LEAST, 128, CHUNK):
            chunked = stage.after(f"CHUNK {asked}", "CHUNKED")
            self.assertEqual((chunked["workspace_rows"], chunked["prompt_chunk"]), (LEAST, LEAST), chunked.raw)
        for bad in ("CHUNK", "CHUNK x", "CHUNK -1", "CHUNK 1 2", "CHUNK 99999999999"):
            self.assertEqual(stage.after(bad, "CHUNKED").verb, "ERR", bad)

    def test_a_shrink_in_a_long_step_is_served_at_a_layer_and_the_step_ends_with_the_same_tokens(self):
        tokens = []
        for shrinks in (False, True):
            self.namespace += "y"
            stage, _ = self.started(vram_mib=24)
            lent = stage.after(f"CHUNK {CHUNK}", "CHUNKED") and stage.after("STAT", "STAT")
            since = stage.send(rows(1, 0, 0, ids_text(LONG[:CHUNK]), want="last"), f"STEP epoch=0 step=1 rows={CHUNK}")
            if shrinks:
                eventually(lambda: stage.after("STAT", "STAT")["state"] == "running", 5)
                stage.send("VRAM 24")
            stage.wait("RAN", since=since)
            answers = [m for m in stage.lines.all[since:] if m.verb in ("VRAM", "TOK", "RAN")]
            tokens.append([m["ids"] for m in answers if m.verb == "TOK"])
            if shrinks:
                self.assertEqual([m.verb for m in answers], ["VRAM", "TOK", "RAN"])
                self.assertEqual(answers[0]["freed_mib"], lent["workspace_mib"] + lent["cache_mib"] - lent["cache_floor_mib"])
                self.assertLess(answers[0]["wait_us"] + answers[0]["us"], answers[2]["us"])
        self.assertEqual(tokens[0], tokens[1])

    def test_kv_goes_before_workspace(self):
        stage = Stage(self, 0, vram_mib=24)
        stage.load(kv_tokens=32, kv_tokens_max=8192, context=CONTEXT, sequences=8, chunk=CHUNK, chunk_min=LEAST)
        stage.after("GO", "LOADED")
        self.assertEqual(stage.after(f"CHUNK {CHUNK}", "CHUNKED")["workspace_rows"], CHUNK)
        most = stage.after("CREDIT 100000", "CREDITED")
        self.assertEqual((most["cache_mib"], most["prompt_chunk"]), (most["cache_floor_mib"], LEAST), most.raw)
        self.assertEqual(stage.after("STAT", "STAT")["workspace_mib"], 0)
        self.assertEqual(stage.after("LEDGER", "LEDGER")["unexplained"], 0)


if __name__ == "__main__":
    unittest.main()
