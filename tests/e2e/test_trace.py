"""--trace: one file of what every stage did and when, that Chrome's and Perfetto's viewers read; and no token changes."""
import json
import os
import signal
import unittest

from ebbtide import DATA, EbbtideTest, golden
from processes import eventually

ISHMAEL = "Call me Ishmael."


class Trace(EbbtideTest):
    def setUp(self):
        super().setUp()
        self.path = self.sandbox / "trace.json"

    def read(self, path=None):
        """The whole, and its spans by stage and track."""
        whole = json.loads((path or self.path).read_text(encoding="utf-8"))
        self.assertEqual(list(self.sandbox.glob("*.stage*")), [], "the stages' own files are still there")
        spans = {}
        for event in whole["traceEvents"]:
            if event["ph"] == "X":
                spans.setdefault((event["pid"], event["cat"]), []).append(event)
        return whole, spans

    def check_nests(self, spans):
        for track, events in spans.items():
            ends = []
            for e in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
                while ends and ends[-1] <= e["ts"]:
                    ends.pop()
                self.assertTrue(not ends or e["ts"] + e["dur"] <= ends[-1], f"{track}: {e} ends behind what it began in")
                ends.append(e["ts"] + e["dur"])

    def steps(self, spans, stage, name="step"):
        return [e["args"]["step"] for e in spans[stage, "control"] if e["name"] == name]

    def test_every_step_is_there_on_every_stage_and_the_tokens_are_the_same(self):
        for cards in (1, 3):
            with self.subTest(cards=cards):
                wanted = self.run_ids(ISHMAEL, 24, cards=cards)
                self.assertEqual(self.run_ids(ISHMAEL, 24, cards=cards, trace=self.path), wanted)
                whole, spans = self.read()
                self.check_nests(spans)
                self.assertEqual(whole["otherData"]["notes"], [])
                self.assertEqual(whole["otherData"]["lost"], 0)
                first = self.steps(spans, 0)
                self.assertGreaterEqual(len(first), 24)
                for stage in range(cards):
                    self.assertEqual(self.steps(spans, stage), first)
                    for name in ("input", "launch"):
                        self.assertEqual(sorted(set(self.steps(spans, stage, name))), sorted(first))
                    self.assertEqual({e["args"]["step"] for e in spans[stage, "compute"] if "step" in e["args"]}, set(first))
                    self.assertTrue(spans[stage, "upload"], "experts were uploaded")
                names = [e["args"]["name"] for e in whole["traceEvents"] if e["name"] == "process_name"]
                self.assertEqual([n.partition(":")[0] for n in names], [f"stage {i}" for i in range(cards)])

    def test_times_of_all_stages_are_of_one_clock(self):
        self.run_ids(ISHMAEL, 12, cards=2, trace=self.path)
        _, spans = self.read()
        sent = {e["args"]["step"]: e["ts"] for e in spans[0, "link"] if e["name"] == "tile-out"}
        came = {e["args"]["step"]: e["ts"] + e["dur"] for e in spans[1, "link"] if e["name"] == "tile-in"}
        self.assertEqual(sorted(sent), sorted(came))
        for step, at in sent.items():
            self.assertLessEqual(at, came[step], f"step {step} came before it was sent")

    def test_a_long_prompt_is_seen_layer_by_layer_and_a_command_within_it(self):
        engine = self.serve(2, vram_mib=[32, 32], segment_mib=1, trace=self.path)
        since = engine.gen("g", 24, golden()[11]["prompt_ids"], ignore_eos=1)
        stat = engine.stat()[1]
        receipt = engine.vram(f"VRAM {stat['free_mib'] + stat['cache_mib'] - stat['cache_floor_mib']} 1")[1]
        self.assertGreater(receipt["freed_mib"], 0)
        engine.done("g", since)
        engine.finish()
        _, spans = self.read()
        self.check_nests(spans)
        commands = [e for e in spans[1, "vram"] if e["name"] == "VRAM"]
        self.assertEqual([(e["args"]["reserve_mib"], e["args"]["freed_mib"], e["dur"]) for e in commands],
                         [(receipt["reserve_mib"], receipt["freed_mib"], receipt["us"])])
        self.assertNotIn((0, "vram"), spans)
        layers = {(e["args"]["first"], e["args"]["last"]) for e in spans[0, "compute"] if e["name"] == "layers"}
        self.assertLessEqual({(i, i) for i in range(4)}, layers)

    def test_promotions_are_seen_among_the_uploads(self):
        engine = self.serve(1, vram_mib=32, segment_mib=1, trace=self.path)
        stat = engine.stat()[0]
        engine.vram(f"VRAM {stat['free_mib'] + stat['cache_mib'] - stat['cache_floor_mib']} 0")
        engine.ids("g", 200, ISHMAEL, ignore_eos=1)
        promotions = engine.stat()[0]["promotions"]
        engine.ids("after", 8, ISHMAEL, ignore_eos=1)  # ends the one that may be on its way
        engine.finish()
        _, spans = self.read()
        self.check_nests(spans)
        self.assertGreater(promotions, 0)
        self.assertGreaterEqual(sum(e["args"]["promoted"] for e in spans[0, "upload"]), promotions)

    def test_a_stage_that_was_killed_leaves_what_it_had_written(self):
        engine = self.serve(2, trace=self.path)
        whole = engine.ids("whole", 40, ISHMAEL, ignore_eos=1)
        os.kill(engine.stages()[1], signal.SIGKILL)
        self.assertTrue(eventually(lambda: len(engine.stages()) == 2, 20)[0])
        self.assertEqual(engine.ids("again", 40, ISHMAEL, ignore_eos=1), whole)
        engine.finish()
        _, spans = self.read()
        self.check_nests(spans)
        epochs = {e["args"]["epoch"] for e in spans[1, "control"] if e["name"] == "step"}
        self.assertEqual(len(epochs), 2, "steps of both lives")

    def device_spans(self, cards):
        """Of a run on cards that say they are devices."""
        script = self.sandbox / "launch.sh"
        program = os.path.join(os.environ.get("EBBTIDE_BIN") or "build/bin", "device-stage")
        script.write_text(f'#!/bin/sh\nshift\nexec {os.path.abspath(program)} "$@"\n')
        script.chmod(0o755)
        self.run_ids(ISHMAEL, 12, cards=cards, launch=f"{script} {{stage}}", trace=self.path)
        _, spans = self.read()
        self.check_nests(spans)
        return spans

    def test_a_device_shows_its_graphs(self):
        self.assertIn("graph", {e["name"] for e in self.device_spans(1)[0, "compute"]})

    def test_a_device_puts_rows_on_their_way_behind_its_layers_not_when_it_has_seen_them_end(self):
        spans = self.device_spans(2)
        ends = {e["args"]["step"]: e["ts"] + e["dur"] for e in spans[0, "compute"] if e["name"] == "graph"}
        sent = {e["args"]["step"]: e["ts"] for e in spans[0, "link"] if e["name"] == "tile-out"}
        self.assertGreaterEqual(len(ends), 10)
        for step, end in ends.items():
            self.assertLessEqual(sent[step], end, step)

    def test_a_place_that_cannot_be_written_is_refused_in_one_line(self):
        for path in ("/no/such/folder/trace.json", self.sandbox):
            with self.subTest(path=str(path)):
                result = self.command("run", *self.flags(cards=1, trace=path), "--max-new", 4, ISHMAEL)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn("--trace", result.stderr.decode())
                self.assertEqual(result.stderr.count(b"\n"), 1, result.stderr)

    def test_the_bench_makes_one_of_every_engine(self):
        done = self.command("bench", "--cpu", "--quick", "--only", "model", "--model", DATA / "demo-moe-30m-q4_k_m.gguf",
                            "--trace", self.path, seconds=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        for path in (self.path, self.path.with_name("trace.json.2")):
            whole, spans = self.read(path)
            self.check_nests(spans)
            self.assertTrue(self.steps(spans, 0))


if __name__ == "__main__":
    unittest.main()
