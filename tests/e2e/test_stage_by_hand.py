"""A stage driven by its lines alone, as a person would at a terminal: one, and several joined by links."""
import os
import signal
import socket
import struct
import unittest

from ebbtide import DEMO, DEMO_LAYERS, EbbtideTest, encode, golden, ids_text
from stage import Stage, rows


class StageByHand(EbbtideTest):
    prompt = golden()[1]["prompt_ids"]
    program = ("ebbtide-stage-cpu",)

    def started(self, n=1, **keys):
        """n stages with even layers, linked at epoch 0, serving."""
        stages = [Stage(self, i, program=self.program) for i in range(n)]
        per = DEMO_LAYERS // n
        for i, s in enumerate(stages):
            held = s.load(device=i, stage=i, stages=n, layers=f"{i * per}-{(i + 1) * per - 1}", **keys)
            self.assertEqual(held.verb, "HELD", held.raw)
        self.link(stages, 0)
        for s in stages:
            self.assertEqual(s.after("GO", "LOADED").verb, "LOADED")
        return stages

    def link(self, stages, epoch):
        pairs = [(a, b, "in", "out") for a, b in zip(stages, stages[1:])]
        if len(stages) > 1:
            pairs.append((stages[-1], stages[0], "back-in", "back-out"))
        for sender, receiver, way_in, way_out in pairs:
            there = receiver.after(f"LINK epoch={epoch} {way_in}=listen", "LINKED")
            up = sender.after(f"LINK epoch={epoch} {way_out}={there.keys[way_in]} key={there.keys['key']}", "LINKED")
            self.assertEqual(up.keys[way_out], "ok", up.raw)

    def decode(self, stages, n, first_step=1, epoch=0, seq=0, run_ahead=False):
        """Greedy ids of the prompt; with run_ahead every step is sent before the one before has answered."""
        out, pos = [], 0
        since = len(stages[-1].lines.all)
        for i in range(n):
            step = first_step + i
            if i == 0:
                ids, count = ids_text(self.prompt), len(self.prompt)
            elif run_ahead:
                ids, count = f"@{step - 1}.{len(self.prompt) - 1 if i == 1 else 0}", 1
            else:
                ids, count = str(out[-1]), 1
            for s in stages:
                s.send(rows(step, seq, pos, ids, epoch, want="last"), f"STEP epoch={epoch} step={step} rows={count}")
            pos += count
            if not run_ahead:
                out.append(self.token(stages[-1], step, since))
        return out or [self.token(stages[-1], first_step + i, since) for i in range(n)]

    def token(self, last, step, since):
        at = last.lines.wait(lambda m: m.verb in ("TOK", "ERR") and (m.verb == "ERR" or m["step"] == step), since,
                             what=f"TOK of step {step}")
        self.assertEqual(last.lines.all[at].verb, "TOK", last.lines.all[at].raw)
        return last.lines.all[at]["ids"]

    def test_the_hand_help_shows_lines_that_work(self):
        stage = Stage(self, 0)
        self.assertEqual(stage.after(f"LOAD model={encode(str(DEMO))} segment_mib=1", "HELD").verb, "HELD")
        self.assertEqual(stage.after("GO", "LOADED").verb, "LOADED")
        since = stage.send("ROWS epoch=0 step=1 seq=0 pos=0 ids=1,2,3 want=last", "STEP epoch=0 step=1 rows=3")
        self.assertEqual(stage.wait("TOK", since=since)["rows"], 2)
        self.assertGreater(stage.wait("RAN", since=since)["lookups"], 0)
        stage.send("QUIT")
        self.assertEqual(stage.process.wait(10), 0)

    def test_linked_stages_give_the_tokens_of_one(self):
        alone = self.decode(self.started(1), 24)
        for n in (2, 4):
            with self.subTest(stages=n):
                self.namespace += "x"
                self.assertEqual(self.decode(self.started(n), 24), alone)

    def test_a_token_may_be_named_before_it_is_known(self):
        alone = self.decode(self.started(1), 16)
        self.namespace += "x"
        self.assertEqual(self.decode(self.started(1), 16, run_ahead=True), alone)
        self.namespace += "x"
        self.assertEqual(self.decode(self.started(2), 16, run_ahead=True), alone)

    def test_a_higher_epoch_forgets_all_and_starts_anew(self):
        stages = self.started(2)
        before = self.decode(stages, 8)
        stages[0].send(rows(100, 0, 12, "5"), "STEP epoch=0 step=100 rows=1")  # never reaches the second stage
        self.link(stages, 1)
        self.assertEqual(self.decode(stages, 8, first_step=1, epoch=1), before)
        since = stages[0].send(rows(200, 7, 0, "5", epoch=0), "STEP epoch=0 step=200 rows=1", "PING old")
        stages[0].wait("PONG", "old", since)
        late = [m for m in stages[0].lines.all[since:] if m.verb in ("ERR", "RAN")]  # RAN of the last steps may come this late
        self.assertEqual([m for m in late if m.verb == "ERR" or m["epoch"] == 0], [])

    def test_forks_share_a_prefix_and_then_go_their_own_way(self):
        stage, = self.started(1)
        alone = self.decode([stage], 12)
        self.assertEqual(stage.after("FORK 1 0 5", "FORKED").verb, "FORKED")
        rest = self.prompt[5:]
        since = stage.send(rows(50, 1, 5, ids_text(rest), want="last"), f"STEP epoch=0 step=50 rows={len(rest)}")
        self.assertEqual(self.token(stage, 50, since), alone[0])
        since = stage.send(rows(51, 0, 5, ids_text(rest), want="last"), f"STEP epoch=0 step=51 rows={len(rest)}")
        self.assertEqual(self.token(stage, 51, since), alone[0])
        free = stage.after("DROP 0", "DROPPED")["kv_blocks_free"]
        self.assertEqual(stage.after("DROP 1", "DROPPED")["kv_blocks_free"], free + 1)

    def test_a_stage_answers_while_its_neighbour_is_stopped(self):
        stages = self.started(2)
        os.kill(stages[0].process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, stages[0].process.pid, signal.SIGCONT)
        since = stages[1].send(rows(1, 0, 0, "5", want="last"), "STEP epoch=0 step=1 rows=1")
        free = stages[1].stat()[1]["free_mib"]
        receipt = stages[1].vram(f"VRAM {free + 2}")[1]
        self.assertEqual((receipt["freed_mib"], receipt["shortfall_mib"]), (2, 0))
        self.assertLess(stages[1].ping(seconds=2), 1)
        stages[0].send(rows(1, 0, 0, "5", want="last"), "STEP epoch=0 step=1 rows=1")
        os.kill(stages[0].process.pid, signal.SIGCONT)
        self.token(stages[1], 1, since)

    def test_rows_that_come_behind_those_of_steps_long_gone_are_not_left_lying(self):
        """The last layer, with this test as the stage before it: a ring full of rows that nobody wants any more, more or less,
        and behind them, still on the wire, those of the step that is waiting."""
        n_values = 256
        stage = Stage(self, 0)
        self.assertEqual(stage.load(stage=1, stages=2, layers=f"{DEMO_LAYERS - 1}-{DEMO_LAYERS - 1}").verb, "HELD")
        there = stage.after("LINK epoch=0 in=listen", "LINKED")
        self.assertEqual(stage.after("GO", "LOADED").verb, "LOADED")
        wire = socket.socket(socket.AF_UNIX)
        self.addCleanup(wire.close)
        wire.connect(b"\0" + there.text("in").removeprefix(b"unix:"))
        wire.sendall(struct.pack("<8s32sQ", b"EBBLINK1", there.keys["key"].encode(), n_values))
        self.assertEqual(wire.recv(8), b"EBBLINK1")

        def frame(step):
            payload = struct.pack(f"<{n_values}f", *(i / n_values for i in range(n_values)))
            return struct.pack("<6IQ", 0x4C424245, 1, 0, 0, 1, len(payload), step) + payload

        for n_gone in range(12):
            step = 100 * (n_gone + 1)
            wire.sendall(b"".join(frame(step - n_gone + i) for i in range(n_gone)) + frame(step))
            self.assertLess(stage.ping(), 5)  # by now what fits is in the ring
            since = stage.send(rows(step, 0, 0, "5", want="last"), f"STEP epoch=0 step={step} rows=1")
            stage.lines.wait(lambda m: m.verb == "TOK" and m["step"] == step, since, 20, f"TOK behind {n_gone} rows")

    def test_what_cannot_run_is_refused_and_spoils_nothing(self):
        stage, = self.started(1)
        before = self.decode([stage], 6)
        for lines in (
                (rows(60, 0, 99, "5"), "STEP epoch=0 step=60 rows=1"),          # beyond its length
                (rows(60, 3, 0, "5,4096"), "STEP epoch=0 step=60 rows=2"),      # no such token
                (rows(60, 3, 0, "5,6"), "STEP epoch=0 step=60 rows=3"),         # not as many rows as said
                (rows(60, 3, 0, "5,x"), "STEP epoch=0 step=60 rows=2"),
                (rows(60, 3, 0, ids_text([5] * 65)), "STEP epoch=0 step=60 rows=65"),
                (rows(60, 3, 0, "5"), rows(60, 3, 0, "5"), "STEP epoch=0 step=60 rows=2"),
                (rows(60, 3, 0, "5", want="top:1025"), "STEP epoch=0 step=60 rows=1"),
                (rows(60, 3, 0, "5", temperature="nan"), "STEP epoch=0 step=60 rows=1")):
            since = stage.send(*lines)
            self.assertEqual(stage.wait("ERR", since=since).bare[0], "step:0.60", lines)
        for request in ("LOAD model=x", "GO", "DROP 9", "FORK 1 9 0", "FORK 1 0 999", "rows", "VRAM 65", "STEP epoch=5 step=1 rows=1",
                        "LINK epoch=0 in=here", "LINK epoch=0 out=unix:nobody key=00000000000000000000000000000000"):
            self.assertEqual(stage.after(request, "never").verb, "ERR", request)
        self.assertEqual(self.decode([stage], 6, first_step=70, seq=5), before)

    def test_a_load_that_cannot_be_met_holds_nothing(self):
        stage = Stage(self, 0, vram_mib=24)
        for keys in ({"model": "/nowhere.gguf"}, {"fingerprint": "0123456789abcdef"}, {"layers": "0-8"}, {"layers": "1-7"},
                     {"kernels": "slow"}, {"reserve_mib": 23}, {"kv_tokens": 1 << 20}, {"chunk": 0}, {"kv": "f8"}):
            answer = stage.load(**keys)
            self.assertEqual(answer.verb, "ERR", keys)
            self.assertEqual(stage.stat()[0]["free_mib"], 24, keys)
        self.assertEqual(stage.load(kv_tokens=1024, context=1024).verb, "HELD")
        self.assertEqual(stage.after("RELEASE", "RELEASED").verb, "RELEASED")
        self.assertEqual(stage.stat()[0]["free_mib"], 24)

    def test_end_of_input_ends_a_busy_stage(self):
        stage, = self.started(1)
        for step in range(1, 40):
            stage.send(rows(step, step % 4, 0, ids_text(self.prompt * 4), want="last"), f"STEP epoch=0 step={step} rows=32")
        stage.process.stdin.close()
        self.assertEqual(stage.process.wait(5), 0)


if __name__ == "__main__":
    unittest.main()
