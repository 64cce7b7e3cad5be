"""Heat of experts from run to run: the next start begins with the experts that were hot, over any split; a file that is not whole
and this model's is named, let be, and costs nothing."""
import os
import re
import signal

from ebbtide import DEMO_LAYERS, EbbtideTest, eventually, golden

N_EXPERTS = 16
SMALL = {"vram_mib": "24,24", "segment_mib": 1, "reserve_mib": "10,10"}  # a part of the experts fits


class HeatFiles(EbbtideTest):
    prompt = golden()[3]["prompt_ids"][:40]

    def setUp(self):
        super().setUp()
        self.file = self.sandbox / "experts.heat"

    def layers(self):
        """layer -> heat of its experts, in uses; everything else of the file is checked."""
        lines = self.file.read_text().splitlines()
        self.assertRegex(lines[0], rf"^EBBTIDE-HEAT version=1 fingerprint=[0-9a-f]{{16}} layers={DEMO_LAYERS} experts={N_EXPERTS}$")
        found = {}
        for line in lines[1:-1]:
            match = re.fullmatch(r"HEAT layer=(\d+) milli=(\d+(?:,\d+)*)", line)
            self.assertTrue(match, line)
            found[int(match[1])] = [int(v) / 1000 for v in match[2].split(",")]
            self.assertEqual(len(found[int(match[1])]), N_EXPERTS)
        self.assertEqual(lines[-1], f"END lines={len(found)}")
        self.assertEqual(len(found), len(lines) - 2)
        return found

    def learn(self, cards=2, **flags):
        engine = self.serve(cards, **{**SMALL, "heat_file": self.file, **flags})
        engine.ids("a", 60, self.prompt, ignore_eos=1)
        return engine

    def first_hit_rate(self, **flags):
        """Of a first request that replaces as little as may be: of one token after a short prompt."""
        engine = self.serve(2, **{**SMALL, **flags})
        since = engine.gen("a", 1, self.prompt, ignore_eos=1)
        done, ids, _ = engine.done("a", since)
        engine.finish()
        return done["hits"] / done["lookups"], ids

    def test_the_next_start_begins_with_what_was_hot(self):
        cold, ids = self.first_hit_rate()
        self.learn().finish()
        self.assertEqual(sorted(self.layers()), list(range(DEMO_LAYERS)))
        warm, ids_again = self.first_hit_rate(heat_file=self.file)
        self.assertEqual(ids_again, ids)
        self.assertGreater(warm, cold + 0.05)

    def test_another_split_reads_it_and_keeps_every_layer(self):
        self.learn().finish()
        before = self.layers()
        self.learn(3, vram_mib="24,24,24", reserve_mib="10,10,10", split="0-1,2-6,7-7").finish()
        after = self.layers()
        self.assertEqual(sorted(after), list(range(DEMO_LAYERS)))
        self.assertNotEqual(after, before)
        for layer in range(DEMO_LAYERS):  # what was hot is still warm
            top = max(range(N_EXPERTS), key=before[layer].__getitem__)
            self.assertGreater(after[layer][top], 0)

    def test_stages_that_end_together_lose_no_layer(self):
        for _ in range(5):
            self.file.unlink(missing_ok=True)
            self.learn(8, vram_mib=24, reserve_mib=10).finish()
            self.assertEqual(sorted(self.layers()), list(range(DEMO_LAYERS)))
            self.assertEqual(os.listdir(self.file.parent).count(self.file.name), 1)
            self.assertEqual([n for n in os.listdir(self.file.parent) if n.startswith(self.file.name + ".")], [])

    def test_it_is_saved_however_the_engine_ends(self):
        def shut_down(engine):
            engine.send("SHUTDOWN")

        ends = {"SHUTDOWN": shut_down, "SIGTERM": lambda e: e.process.send_signal(signal.SIGTERM),
                "SIGINT": lambda e: e.process.send_signal(signal.SIGINT), "end of input": lambda e: e.process.stdin.close()}
        for name, end in ends.items():
            with self.subTest(name):
                self.file.unlink(missing_ok=True)
                engine = self.learn()
                self.assertFalse(self.file.exists())
                end(engine)
                engine.process.wait(20)
                eventually(lambda: not self.survivors(), 5)
                self.assertEqual(sorted(self.layers()), list(range(DEMO_LAYERS)))

    def test_an_engine_that_ran_nothing_writes_nothing(self):
        self.serve(2, **SMALL, heat_file=self.file).finish()
        self.assertFalse(self.file.exists())

    def bad_files(self):
        self.learn(1, vram_mib=32, reserve_mib=10).finish()
        good = self.file.read_text()
        lines = good.splitlines(keepends=True)
        heat = lines[1]
        foreign = re.sub(r"fingerprint=[0-9a-f]{16}", "fingerprint=0123456789abcdef", good)
        return {
            "another model's": (foreign, "the heat of another model: wants fingerprint [0-9a-f]{16}, got 0123456789abcdef"),
            "cut off": ("".join(lines[:-1]), "cut off after line 9: wants END last"),
            "cut off within a line": (good[:len(good) // 2], ":[0-9]+: layer [0-9]+: wants 16 numbers, got|cut off after line"),
            "no heat file": ("# a shopping list\nbread\n", 'not a heat file: wants EBBTIDE-HEAT first, got "#"'),
            "bytes": ("\x00\x01\x02 GGUF", "not a heat file"),
            "newer": (good.replace("version=1", "version=2"), ":1: wants version=1, got 2"),
            "fewer experts": (good.replace("experts=16", "experts=8"), ":1: wants layers=8 experts=16, got 8 and 8"),
            "a number too few": (good.replace(heat, heat[:heat.rindex(",")] + "\n"), ":2: layer 0: wants 16 numbers, got 15"),
            "a number too many": (good.replace(heat, heat[:-1] + ",1\n"), ":2: layer 0: wants 16 numbers, got 17"),
            "no number": (good.replace(heat, heat[:-1] + "x\n"), ":2: "),
            "below zero": (good.replace("milli=", "milli=-", 1), ":2: "),
            "too large": (good.replace("milli=", "milli=99999999999", 1), ":2: "),
            "a layer twice": (good.replace(heat, heat + heat), ":3: layer 0 comes twice"),
            "a layer too many": (good.replace("layer=7", "layer=8"), ":9: HEAT: layer wants 0 to 7, got 8"),
            "lines lost": (good.replace(heat, ""), ":9: END: wants lines=7, got 8"),
            "more behind it": (good + heat, ":11: a line after END"),
            "one long line": ("x" * 200000, "a line may have 65536 bytes"),
        }

    def test_a_file_that_cannot_be_used_is_named_and_let_be(self):
        cold, ids = self.first_hit_rate()
        for name, (text, wanted) in self.bad_files().items():
            with self.subTest(name):
                self.file.write_text(text)
                engine = self.serve(2, **SMALL, heat_file=self.file)
                since = engine.gen("a", 1, self.prompt, ignore_eos=1)
                done, ids_again, _ = engine.done("a", since)
                engine.finish()
                log = engine.log()
                self.assertEqual(ids_again, ids)
                self.assertAlmostEqual(done["hits"] / done["lookups"], cold, delta=0.02)  # none of its numbers counted
                self.assertRegex(log, rf"warning: card [01]: no heat was loaded: {re.escape(str(self.file))}.*({wanted})")
                self.assertRegex(log, rf"warning: card [01]: heat was not saved: {re.escape(str(self.file))}")
                self.assertEqual(self.file.read_text(), text)

    def test_a_place_that_cannot_be_a_file_is_told(self):
        for path in (self.sandbox, self.sandbox / "no" / "folder"):
            with self.subTest(str(path)):
                engine = self.learn(heat_file=path)
                engine.finish()
                self.assertIn(f"heat was not saved: {path}", engine.log())

    def test_a_refill_beside_tokens_goes_on_to_its_end_and_stat_tells_how_far_it_is(self):
        engine = self.serve(1, vram_mib=48, segment_mib=1)
        start = engine.stat()[0]
        since = engine.gen("a", 600, self.prompt, ignore_eos=1)
        engine.vram(f"VRAM {start['free_mib'] + start['cache_mib'] - start['cache_floor_mib']} 0")
        opened = start["slots"] - engine.stat()[0]["slots"]
        self.assertGreater(opened, 0)
        engine.vram("VRAM - 0")
        seen = []

        def is_filled():
            stat = engine.stat()[0]
            self.assertEqual(stat["refill_total"], opened)
            self.assertEqual(stat["resident"] - (start["slots"] - opened), stat["refill_done"])
            seen.append(stat["refill_done"])
            return stat["refill_done"] == opened
        self.assertTrue(eventually(is_filled, 30)[0], seen)
        self.assertEqual(seen, sorted(seen))
        engine.done("a", since)
        engine.finish()

    def test_an_empty_file_is_a_new_one(self):
        self.file.touch()
        engine = self.learn()
        engine.finish()
        self.assertNotIn("heat", engine.log().replace(str(self.sandbox), ""))
        self.assertEqual(len(self.layers()), DEMO_LAYERS)
