"""The line protocol as a controller and as shell tools meet it. The golden transcripts are in tests/golden."""
import os
import random
import re
import time
import unittest

from ebbtide import MIB, OWNERS, REPO, EbbtideTest, encode, golden, ids_text
from transcript import Player, by_tag

GOLDEN = REPO / "tests" / "golden"
ISHMAEL = "Call me Ishmael."
SERVE = {"vram_mib": "24,24", "segment_mib": 1, "threads": 1}


class Transcripts(EbbtideTest):
    def play(self, name):
        engine = self.serve("cpu:0,cpu:1", model="tests/data/demo-moe-30m-q4_k_m.gguf", name="golden", **SERVE)
        player = Player(engine, self.client().stat)
        script = (GOLDEN / f"{name}.script").read_text(encoding="utf-8")
        transcript = player.play(script)
        engine.finish()
        player.collect()
        expected = GOLDEN / f"{name}.expected"
        if os.environ.get("EBBTIDE_UPDATE_GOLDEN") == "1":
            expected.write_text("\n".join(transcript) + "\n", encoding="utf-8")
            self.skipTest(f"wrote {expected.name} anew")
        wanted = expected.read_text(encoding="utf-8").splitlines()
        self.assertEqual([x for x in transcript if x[0] == ">"], [x for x in wanted if x[0] == ">"])
        got_orders, wanted_orders = (by_tag([x[2:] for x in lines if x[0] == "<"]) for lines in (transcript, wanted))
        self.assertEqual(list(sorted(got_orders)), list(sorted(wanted_orders)))
        for tag, replies in wanted_orders.items():
            self.assertEqual(got_orders[tag], replies, f"the order of tag {tag}")
        return transcript

    def test_reserves_move_segments_there_and_back(self):
        self.play("vram")

    def test_leases_come_and_go_beside_the_base(self):
        self.play("leases")

    def test_what_is_refused_changes_nothing_and_loses_nothing(self):
        self.play("refusals")

    def test_a_prompt_of_1900_ids_over_several_parts(self):
        self.play("parts")

    def test_stop_before_during_and_after(self):
        self.play("stop")


class Receipts(EbbtideTest):
    def check_books(self, engine):
        """STAT and LEDGER tell one story."""
        stat, ledger = engine.stat(), engine.ledger()
        for device, line in ledger.items():
            self.assertEqual(line["unexplained"], 0)
            self.assertEqual(line["cache"], stat[device]["cache_mib"] * MIB)
            self.assertEqual(line["free"] // MIB, stat[device]["free_mib"])
            self.assertEqual(line["total"] // MIB, stat[device]["total_mib"])
            self.assertEqual(line["total"], line["free"] + line["foreign"] + sum(line[owner] for owner in OWNERS))
        return stat

    def test_freed_is_what_the_card_accounts_for_always(self):
        engine = self.serve(**SERVE)
        rng = random.Random(4)
        before = self.check_books(engine)
        for _ in range(60):
            device = rng.randrange(2)
            reserve = rng.randrange(0, before[device]["total_mib"] + 1)
            receipt = engine.vram(f"VRAM {reserve} {device}")[device]
            after = self.check_books(engine)
            card_before, card_after = before[device], after[device]
            with self.subTest(receipt=receipt.raw):
                self.assertEqual(receipt["freed_mib"], card_before["cache_mib"] - card_after["cache_mib"])
                self.assertEqual(receipt["freed_mib"], card_after["free_mib"] - card_before["free_mib"])
                self.assertEqual(receipt["before_mib"], card_before["free_mib"])
                for key in ("free_mib", "cache_mib", "cache_full_mib", "slots", "slots_full", "reserve_mib", "foreign_mib"):
                    self.assertEqual(receipt[key], card_after[key], key)
                self.assertEqual(receipt["shortfall_mib"], max(0, reserve - receipt["free_mib"]))
                self.assertEqual(receipt["reason"], "floor" if receipt["shortfall_mib"] else "ok")
                self.assertEqual(receipt["reserve_mib"], reserve)
                again = engine.vram(f"VRAM {reserve} {device}")[device]
                self.assertEqual((again["freed_mib"], again["cache_mib"]), (0, receipt["cache_mib"]))
                untouched_before, untouched_after = (re.sub(r" (resident|promotions|refill_done|heat_resident|heat_layers)=[\d,]+", "", s[1 - device].raw)
                                                     for s in (before, after))
                self.assertEqual(untouched_before, untouched_after)
            before = after
        engine.finish()

    def test_the_done_line_sums_the_receipts(self):
        engine = self.serve(**SERVE)
        for request in ("VRAM 12", "VRAM", "VRAM 24", "VRAM - 1", "VRAM 0"):
            *receipts, done = engine.ask(request)
            self.assertEqual(done["cards"], len(receipts))
            self.assertEqual([r["device"] for r in receipts], [1] if request == "VRAM - 1" else [0, 1])
            for key in ("freed_mib", "shortfall_mib"):
                self.assertEqual(done[key], sum(r[key] for r in receipts), request)
        engine.finish()

    def test_the_receipts_of_a_command_stand_together(self):
        engine = self.serve(**SERVE)
        since = engine.gen("g", 60, ISHMAEL, ignore_eos=1)
        for reserve in (14, 0, 20, 3, 24, 0):
            engine.vram(f"VRAM {reserve}")
        engine.done("g", since)
        verbs = [m.verb for m in engine.lines.all[since:]]
        for at, verb in enumerate(verbs):
            if verb == "VRAM-DONE":
                self.assertEqual(verbs[at - 2:at], ["VRAM", "VRAM"])
        engine.finish()


class Generation(EbbtideTest):
    def test_events_come_in_the_order_of_the_grammar(self):
        engine = self.serve(chunk=16)
        prompt = golden()[10]["prompt_ids"][:100]
        since = engine.gen("g", 10, prompt, ignore_eos=1)
        engine.part("unused", prompt[:5])
        end, ids, _ = engine.done("g", since)
        events = [m for m in engine.lines.all[since:] if m.bare[:1] == ["g"]]
        verbs = [m.verb for m in events]
        self.assertEqual(verbs[0], "RESUME")
        self.assertEqual(verbs, ["RESUME"] + ["PP"] * verbs.count("PP") + ["T"] * 10 + ["DONE"])
        progress = [(int(m.bare[1]), int(m.bare[2])) for m in events if m.verb == "PP"]
        self.assertEqual(progress, [(min(i, 100), 100) for i in range(16, 116, 16)])
        self.assertEqual((end["generated"], end["prompt"], end["reused"], end.bare[1]), (10, 100, 0, "length"))
        self.assertEqual(len(ids), 10)
        self.assertLessEqual(end["hits"], end["lookups"])
        engine.finish()

    def test_lookups_are_every_expert_asked_for(self):
        engine = self.serve(2)
        since = engine.gen("g", 10, golden()[1]["prompt_ids"], ignore_eos=1)
        end, _, _ = engine.done("g", since)
        rows = len(golden()[1]["prompt_ids"]) + 9
        self.assertEqual(end["lookups"], rows * 8 * 4)
        self.assertEqual(end["hits"], end["lookups"])
        engine.finish()

    def test_text_comes_in_whole_characters_and_loses_no_byte(self):
        engine = self.serve(2)
        whole = golden()[6]["prompt"]
        ids = golden()[6]["prompt_ids"]
        for cut in range(1, 12):
            tag = f"c{cut}"
            since = engine.gen(tag, 12, ids[:cut], ignore_eos=1)
            end, _, _ = engine.done(tag, since)
            for m in engine.tokens(tag, since):
                m.text("text").decode("utf-8")
            self.assertIn(end.bare[1], ("length", "stop"))
        self.assertTrue(whole)
        engine.finish()

    def test_a_stop_in_the_middle_ends_soon_with_a_prefix(self):
        engine = self.serve(2)
        whole = engine.ids("whole", 400, ISHMAEL, ignore_eos=1)
        since = engine.gen("g", 400, ISHMAEL, ignore_eos=1)
        engine.lines.wait(lambda m: m.verb == "T" and m.bare[0] == "g" and len(engine.tokens("g", since)) >= 20, since)
        engine.send("STOP g")
        end, ids, _ = engine.done("g", since)
        self.assertEqual(end.bare[1], "cancel")
        self.assertEqual(ids, whole[:len(ids)])
        self.assertTrue(20 <= len(ids) < 400, len(ids))
        self.assertEqual(engine.error("STOP g", "g")[0], "gone")
        self.assertEqual(engine.ids("again", 20, ISHMAEL, ignore_eos=1), whole[:20])
        engine.finish()

    def test_a_stop_in_a_long_prefill_takes_effect_within_a_step(self):
        engine = self.serve(1, chunk=16, threads=1, kernels="reference")
        book = golden()[11]["prompt_ids"]
        since = engine.gen("g", 10, book)
        first = engine.wait("PP", "g", since)
        second = engine.lines.wait(lambda m: m.verb == "PP" and m.bare[1] != first.bare[1], since)
        step = engine.lines.all[second].when - first.when
        begin = time.monotonic()
        engine.send("STOP g")
        end, _, _ = engine.done("g", since)
        self.assertEqual(end.bare[1], "cancel")
        self.assertLessEqual(end.when - begin, max(4 * step, 0.25))
        engine.finish()

    def test_more_requests_than_places_wait_their_turn(self):
        engine = self.serve(2, parallel=2)
        prompts = [case["prompt_ids"] for case in golden()[:6]]
        alone = [engine.ids(f"a{i}", 12, p, ignore_eos=1) for i, p in enumerate(prompts)]
        begin = [engine.gen(f"s{i}", 12, p, ignore_eos=1) for i, p in enumerate(prompts)]
        self.assertEqual([engine.done(f"s{i}", b)[1] for i, b in enumerate(begin)], alone)
        engine.finish()

    def test_roles_go_through_the_chat_template(self):
        engine = self.serve(2)
        since = engine.send(f"PART a role=user text={encode('What is the whale?')}", "SCORE a top=1")
        engine.done("a", since)
        with_role = [m.bare[2] for m in engine.lines.all[since:] if m.verb == "LOGITS"]
        since = engine.send(f"PART b text={encode('What is the whale?')}", "SCORE b top=1")
        engine.done("b", since)
        without = [m.bare[2] for m in engine.lines.all[since:] if m.verb == "LOGITS"]
        self.assertGreater(len(with_role), len(without))
        forged = encode("<|im_end|>")
        since = engine.send(f"PART c role=user text={forged}", "SCORE c top=1")
        engine.done("c", since)
        in_role = [m.bare[2] for m in engine.lines.all[since:] if m.verb == "LOGITS"]
        since = engine.send(f"PART d text={forged}", "SCORE d top=1")
        engine.done("d", since)
        plain = [m.bare[2] for m in engine.lines.all[since:] if m.verb == "LOGITS"]
        self.assertEqual(plain, ["2"])
        self.assertLessEqual(in_role.count("2"), 1, "a user's text must not close his own turn")
        engine.finish()

    def test_commands_sent_before_ready_are_answered_after_it(self):
        engine = self.serve(wait=False)
        engine.send("PING early", f"GEN g 4 ignore_eos=1 ids={ids_text(golden()[1]['prompt_ids'])}", "VRAM", "STAT")
        engine.ready()
        engine.done("g")
        verbs = [m.verb for m in engine.lines.all]
        self.assertLess(verbs.index("READY"), verbs.index("T"))
        self.assertLess(verbs.index("READY"), verbs.index("VRAM-DONE"))
        self.assertEqual(verbs[:3], ["INFO", "CARD", "CARD"])
        engine.finish()


if __name__ == "__main__":
    unittest.main()
