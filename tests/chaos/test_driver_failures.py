"""A card whose driver refuses the Nth call of a kind, for every N: at the start, when memory is given back, taken again and
compacted. Every time: a clear error, or a receipt that tells how far it went; nothing is lost, and the tokens stay the same."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from ebbtide import DEMO, EbbtideTest, golden, ids_text  # noqa: E402
from stage import Stage, rows  # noqa: E402

TOTAL_MIB = 64
BASE_MIB = 45  # what the start leaves free: the cache is cut, and there is something to compact
TAKING = ("reserve", "create", "map", "set_access")
GIVING = ("unmap", "destroy", "unreserve")
LOAD = {"context": 512, "reserve_mib": BASE_MIB}


class FailingStage(Stage):
    """A stage whose card takes orders."""

    def __init__(self, test):
        self.orders = test.sandbox / "orders"
        self.orders.write_text("")
        super().__init__(test, 0, TOTAL_MIB, ("failing-stage", "--orders", str(self.orders)))

    def order(self, text):
        self.orders.write_text(text)

    def refusals(self):
        return self.log_path.read_text(errors="replace").count("refused: ")

    def card(self):
        return self.stat()[0]

    def free_bytes(self):
        return self.ledger()[0]["free"]


class DriverFailures(EbbtideTest):
    prompt = golden()[1]["prompt_ids"]

    def each_order(self, stage, kind, live, for_ever=False):
        """`live(order)` with call 1, 2, 3 … of the kind refused, until a life has no such call any more. How many had."""
        n = 0
        while True:
            before, n = stage.refusals(), n + 1
            order = f"{kind} {n}" + (" for-ever" if for_ever else "")
            with self.subTest(order=order):
                stage.order(order)
                live(order)
            stage.order("")
            if stage.refusals() == before:
                return n - 1

    def tokens(self, stage, step, n=6):
        """Greedy ids of the prompt from a fresh sequence."""
        out, pos, ids = [], 0, self.prompt
        for i in range(n):
            since = stage.send(rows(step + i, 0, pos, ids_text(ids), want="last"),
                               f"STEP epoch=0 step={step + i} rows={len(ids)}")
            at = stage.lines.wait(lambda m: m.verb in ("TOK", "ERR"), since, what="TOK")
            self.assertEqual(stage.lines.all[at].verb, "TOK", stage.lines.all[at].raw)
            stage.wait("RAN", since=since)
            pos += len(ids)
            ids = [stage.lines.all[at]["ids"]]
            out += ids
        return out

    def assert_holds_nothing(self, stage, free_bytes):
        ledger = stage.ledger()[0]
        self.assertEqual((ledger["free"], ledger["unexplained"]), (free_bytes, 0), ledger.raw)

    def assert_receipt_is_true(self, stage, receipt):
        stat, ledger = stage.card(), stage.ledger()[0]
        self.assertEqual(ledger["unexplained"], 0, ledger.raw)
        self.assertEqual((receipt["free_mib"], receipt["cache_mib"], receipt["slots"]),
                         (stat["free_mib"], stat["cache_mib"], stat["slots"]), receipt.raw)
        self.assertEqual(receipt["freed_mib"], receipt["free_mib"] - receipt["before_mib"], receipt.raw)
        self.assertEqual(receipt["shortfall_mib"], max(0, receipt["reserve_mib"] - receipt["free_mib"]), receipt.raw)

    def test_a_refused_load_holds_nothing_and_the_next_one_works(self):
        stage = FailingStage(self)
        empty = stage.free_bytes()
        whole = stage.load(**LOAD)
        self.assertEqual(stage.after("RELEASE", "RELEASED").verb, "RELEASED")
        self.assert_holds_nothing(stage, empty)

        def live(order):
            before = stage.refusals()
            held = stage.load(**LOAD)
            refused = stage.refusals() > before
            if held.verb == "ERR":
                self.assertTrue(refused, held.raw)
                self.assertIn("told to fail", held.raw)
            elif not refused:
                self.assertEqual(held["slots"], whole["slots"])
            else:
                self.assertLessEqual(held["slots"], whole["slots"])
            if held.verb == "HELD":
                self.assertEqual(stage.ledger()[0]["unexplained"], 0)
                self.assertEqual(stage.after("RELEASE", "RELEASED").verb, "RELEASED")
            self.assert_holds_nothing(stage, empty)
            stage.order("")
            again = stage.load(**LOAD)
            self.assertEqual(again.verb, "HELD", again.raw)
            self.assertEqual(again["slots"], whole["slots"])
            self.assertEqual(stage.after("RELEASE", "RELEASED").verb, "RELEASED")
            self.assert_holds_nothing(stage, empty)

        for kind in TAKING + GIVING:
            self.assertGreater(self.each_order(stage, kind, live), 2, kind)
        for kind in TAKING:
            self.assertGreater(self.each_order(stage, kind, live, for_ever=True), 2, kind)
        stage.send("QUIT")
        self.assertEqual(stage.process.wait(10), 0)
        self.assert_holds_nothing(Stage(self, 0, TOTAL_MIB), empty)

    def test_what_a_driver_never_takes_back_is_told_and_ends_with_the_process(self):
        for kind in GIVING:
            with self.subTest(kind):
                stage = FailingStage(self)
                empty = stage.free_bytes()
                stage.order(f"{kind} 1 for-ever")
                self.assertEqual(stage.load(**LOAD).verb, "HELD")
                self.assertEqual(stage.after("RELEASE", "RELEASED").verb, "RELEASED")
                ledger = stage.ledger()[0]
                self.assertEqual(ledger["free"] + ledger["unexplained"], empty, ledger.raw)
                self.assertEqual(ledger["unexplained"] > 0, kind != "unreserve", ledger.raw)
                self.assertEqual("that were given back" in stage.log_path.read_text(), kind != "unreserve")
                stage.send("QUIT")
                self.assertEqual(stage.process.wait(10), 0)
                self.assert_holds_nothing(Stage(self, 0, TOTAL_MIB), empty)

    def serving(self):
        stage = FailingStage(self)
        self.assertEqual(stage.load(**LOAD).verb, "HELD")
        self.assertEqual(stage.after("GO", "LOADED").verb, "LOADED")
        return stage

    def commands_under_refusals(self, for_ever):
        """Shrinks with compaction and grows, every call of each kind refused in turn, in one stage's one life."""
        stage = self.serving()
        empty = TOTAL_MIB << 20
        alone, full, step = self.tokens(stage, 1), stage.card(), 100

        def live(order):
            nonlocal step
            step += 100
            n_refused = stage.refusals()
            for command in (f"VRAM {BASE_MIB + 3} 0", f"VRAM {TOTAL_MIB} 0", f"VRAM {BASE_MIB + 1} 0", "VRAM - 0"):
                before = stage.refusals()
                receipt = stage.vram(command.removesuffix(" 0"))[0]
                self.assert_receipt_is_true(stage, receipt)
                if stage.refusals() > before and receipt["reason"] != "ok":
                    self.assertEqual(receipt["reason"], "driver", (command, receipt.raw))
                elif receipt["shortfall_mib"] > 0:
                    self.assertEqual(receipt["reason"], "floor", (command, receipt.raw))
            if stage.refusals() > n_refused:
                self.assertEqual(self.tokens(stage, step, 3), alone[:3])
            stage.order("")
            # What was refused is made good by the next command.
            receipt = stage.vram(f"VRAM {BASE_MIB + 2}")[0]
            self.assertEqual((receipt["shortfall_mib"], receipt["reason"]), (0, "ok"), receipt.raw)
            self.assert_receipt_is_true(stage, receipt)
            receipt = stage.vram("VRAM -")[0]
            self.assertEqual((receipt["slots"], receipt["cache_mib"], receipt["free_mib"]),
                             (full["slots"], full["cache_mib"], full["free_mib"]), receipt.raw)
            self.assert_receipt_is_true(stage, receipt)

        for kind in ("create", "map", "set_access", "unmap", "destroy"):
            self.assertGreater(self.each_order(stage, kind, live, for_ever), 2, kind)
        self.assertEqual(self.tokens(stage, step + 100), alone)
        stage.send("QUIT")
        self.assertEqual(stage.process.wait(10), 0)
        self.assert_holds_nothing(Stage(self, 0, TOTAL_MIB), empty)

    def test_a_driver_that_will_not_say_what_is_free_moves_nothing(self):
        """A VRAM command asks when it comes, before it moves anything, what to move, and for its receipt."""
        stage = self.serving()
        before, free = stage.card()["cache_mib"], stage.free_bytes()
        for n in (1, 2, 3):
            stage.order(f"memory {n} for-ever")
            answer = stage.after(f"VRAM {BASE_MIB + 2}", "VRAM")
            stage.order("")
            self.assertTrue(answer.verb == "ERR" or answer["reason"] == "driver", answer.raw)
            self.assertEqual((stage.card()["cache_mib"], stage.free_bytes()), (before, free), n)
        receipt = stage.vram(f"VRAM {BASE_MIB + 2}")[0]
        self.assertEqual((receipt["shortfall_mib"], receipt["reason"]), (0, "ok"), receipt.raw)

    def test_a_call_refused_once_costs_a_receipt_and_no_token(self):
        self.commands_under_refusals(False)

    def test_a_driver_that_goes_on_refusing_costs_receipts_and_no_token(self):
        self.commands_under_refusals(True)


if __name__ == "__main__":
    unittest.main()
