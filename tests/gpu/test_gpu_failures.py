"""On the card: a stage that is stopped leaves its neighbour answering, one that is killed costs no token."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "chaos"))
import test_kills  # noqa: E402
from card import GpuTest  # noqa: E402


class StageStops(GpuTest, test_kills.StageStops):
    pass


class StageDies(GpuTest, test_kills.StageDies):
    pass


if __name__ == "__main__":
    unittest.main()
