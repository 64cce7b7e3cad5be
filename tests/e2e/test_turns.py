"""Stages that share one physical card change its memory one after the other: as processes, driven by their lines alone."""
import fcntl
import signal
import socket
import time
import unittest

from ebbtide import EbbtideTest, golden, ids_text
from processes import eventually
from stage import Stage, rows

PROMPT = golden()[1]["prompt_ids"][:32]
WAIT_S = 1.0  # TURN_WAIT_US of stages/turn.h


class Turns(EbbtideTest):
    def stage(self, vram_mib=40, card=0, program=("device-stage",), **keys):
        stage = Stage(self, card, vram_mib, program)
        stage.load(**keys)
        stage.after("GO", "LOADED")
        return stage

    def lock_path(self, uuid):
        return self.runtime / "ebbtide" / f"card-{uuid}-{self.namespace}.lock"

    def locked(self):
        """The lock of the pretended device 0, held by this test until the file is closed."""
        file = open(self.lock_path("device-0"), "r+b")
        self.addCleanup(file.close)
        fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def is_free(self, path):
        with open(path, "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def commands(self, stage):
        """A shrink of the cache to its floor, and the way back."""
        stat = stage.after("STAT", "STAT")
        return f"VRAM {stat['free_mib'] + stat['cache_mib'] - stat['cache_floor_mib']}", "VRAM 0"

    def test_a_command_waits_for_the_neighbours_and_the_wait_is_in_its_receipt(self):
        stage = self.stage()
        shrink, _ = self.commands(stage)
        file = self.locked()
        since = stage.send(shrink)
        time.sleep(0.3)
        self.assertFalse([m for m in stage.lines.all[since:] if m.verb == "VRAM"])
        file.close()
        receipt = stage.wait("VRAM", since=since)
        self.assertGreaterEqual(receipt["wait_us"], 290_000, receipt.raw)
        self.assertGreater(receipt["freed_mib"], 0)
        self.assertLess(receipt["us"], 290_000)
        self.assertLess(stage.after("VRAM 0", "VRAM")["wait_us"], 290_000)

    def test_meanwhile_it_answers_and_goes_on_with_its_steps(self):
        stage = self.stage()
        shrink, _ = self.commands(stage)
        file = self.locked()
        since = stage.send(shrink)
        self.assertEqual(stage.after("PING here", "PONG").bare, ["here"])
        self.assertEqual(stage.after("STAT", "STAT")["device"], 0)
        for step in range(1, 4):
            stage.send(rows(step, 0, (step - 1) * len(PROMPT), ids_text(PROMPT), want="last"))
            self.assertEqual(stage.after(f"STEP epoch=0 step={step} rows={len(PROMPT)}", "TOK")["step"], step)
        self.assertFalse([m for m in stage.lines.all[since:] if m.verb == "VRAM"])
        file.close()
        self.assertGreater(stage.wait("VRAM", since=since)["freed_mib"], 0)

    def test_two_stages_of_one_card_take_turns(self):
        self.env["DEVICE_STAGE_MOVE_US"] = "20000"  # moves of experts
        first, second = self.stage(100), self.stage(100)
        for stage in (first, second):  # uses experts of the segments that go, so that they move
            stage.send(rows(1, 0, 0, ids_text(PROMPT)))
            stage.after(f"STEP epoch=0 step=1 rows={len(PROMPT)}", "RAN")
        commands = [self.commands(s)[0] for s in (first, second)]
        since = [s.send(c) for s, c in zip((first, second), commands)]
        receipts = [s.wait("VRAM", since=at) for s, at in zip((first, second), since)]
        earlier, later = sorted(receipts, key=lambda m: m["wait_us"])
        self.assertGreater(earlier["us"], 20_000, earlier.raw)
        self.assertGreaterEqual(later["wait_us"] + 5_000, earlier["wait_us"] + earlier["us"], f"{earlier.raw}\n{later.raw}")
        for receipt in receipts:  # no receipt counts what the other gave back
            self.assertEqual(receipt["free_mib"], receipt["before_mib"] + receipt["freed_mib"], receipt.raw)

    def test_a_neighbour_that_is_stopped_is_waited_for_once_and_the_log_says_so(self):
        self.env["DEVICE_STAGE_MOVE_US"] = "400000"
        slow = self.stage(100)
        del self.env["DEVICE_STAGE_MOVE_US"]
        slow.send(rows(1, 0, 0, ids_text(PROMPT)))
        slow.after(f"STEP epoch=0 step=1 rows={len(PROMPT)}", "RAN")
        stage = self.stage(100)
        slow.send(self.commands(slow)[0])
        self.assertTrue(eventually(lambda: not self.is_free(self.lock_path("device-0")), 10)[0])
        slow.process.send_signal(signal.SIGSTOP)
        shrink, back = self.commands(stage)
        receipt = stage.after(shrink, "VRAM")
        self.assertGreaterEqual(receipt["wait_us"], WAIT_S * 1e6)
        self.assertGreater(receipt["freed_mib"], 0)
        self.assertIn("(is it stopped?); its memory is changed all the same", stage.log_path.read_text())
        self.assertLess(stage.after(back, "VRAM")["wait_us"], WAIT_S * 1e6 / 2)
        self.assertEqual(stage.log_path.read_text().count("is it stopped?"), 1)
        slow.kill()  # the kernel gives the lock back
        self.assertTrue(self.is_free(self.lock_path("device-0")))

    def test_other_cards_and_other_namespaces_do_not_wait(self):
        stage = self.stage(program=("ebbtide-stage-cpu",))
        self.assertTrue(self.lock_path(f"CPU-{socket.gethostname()}-0").exists())
        for name in (f"CPU-{socket.gethostname()}-0", f"CPU-{socket.gethostname()}-1-{self.namespace}"):
            file = open(self.runtime / "ebbtide" / f"card-{name}.lock", "w+b")
            self.addCleanup(file.close)
            fcntl.flock(file, fcntl.LOCK_EX)
        self.assertLess(stage.after(self.commands(stage)[0], "VRAM")["wait_us"], WAIT_S * 1e6 / 2)


if __name__ == "__main__":
    unittest.main()
