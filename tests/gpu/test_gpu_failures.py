"""On the card: a stage that is stopped leaves its neighbour answering, one that is killed costs no token, and a driver that refuses
costs a receipt or the start, in words."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "chaos"))
import test_kills  # noqa: E402
from card import IS_CUDA, GpuTest  # noqa: E402
from ebbtide import BIN  # noqa: E402


class StageStops(GpuTest, test_kills.StageStops):
    pass


class StageDies(GpuTest, test_kills.StageDies):
    pass


class DriverRefuses(GpuTest):
    """The stage's program is one whose driver calls are refused by order (failing_stage.c)."""

    prompt = [7, 11, 13, 17, 19, 23]

    def setUp(self):
        super().setUp()
        self.program = BIN / ("gpu-failing-stage" if IS_CUDA else "failing-stage")
        if not self.program.exists():
            self.skipTest(f"{self.program.name} is not built")
        self.orders, self.script = self.sandbox / "orders", self.sandbox / "launch.sh"
        self.script.write_text(f'#!/bin/sh\nshift\nexec {self.program} --orders {self.orders} "$@"\n')
        self.script.chmod(0o755)
        self.orders.write_text("")

    def start(self, wait=True):
        return self.serve(1, wait, vram_mib=128, segment_mib=self.segment_mib, launch=f"{self.script} {{stage}}")

    def ids(self, engine, tag):
        return engine.ids(tag, 24, self.prompt, ignore_eos=1)

    def check_receipt(self, receipt, refused):
        self.assertEqual(receipt["shortfall_mib"], max(0, receipt["reserve_mib"] - receipt["free_mib"]), receipt.raw)
        if refused:
            self.assertEqual(receipt["reason"], "driver", receipt.raw)

    def test_refused_while_serving_it_goes_on_with_what_it_has(self):
        engine = self.start()
        plain, stat = self.ids(engine, "plain"), engine.stat()[0]
        small = stat["free_mib"] + stat["cache_mib"] - stat["cache_floor_mib"]
        for call in ("create", "map", "set_access", "unmap", "destroy"):
            for often in ("", " for-ever"):
                with self.subTest(call=call, often=often):
                    gives = call in ("unmap", "destroy")
                    if not gives:
                        engine.vram(f"VRAM {small} 0")
                    self.orders.write_text(f"{call} 1{often}")
                    self.check_receipt(engine.vram(f"VRAM {small} 0" if gives else "VRAM - 0")[0], True)
                    self.assertEqual(self.ids(engine, f"{call}{bool(often):d}"), plain)
                    self.orders.write_text("")
                    self.check_receipt(engine.vram(f"VRAM {small} 0")[0], False)
                    self.assertEqual(engine.vram("VRAM - 0")[0]["cache_mib"], stat["cache_full_mib"])
        self.assertEqual(engine.ledger()[0]["unexplained"], 0)
        self.assertEqual(self.ids(engine, "after"), plain)
        engine.finish()

    def test_refused_at_the_start_it_says_so_and_ends(self):
        for call in ("reserve", "create", "map", "set_access"):
            with self.subTest(call=call):
                self.orders.write_text(f"{call} 1 for-ever")
                engine = self.start(wait=False)
                self.assertEqual(engine.process.wait(60), 1, engine.log())
                self.assertIn("told to fail", engine.log())


if __name__ == "__main__":
    unittest.main()
