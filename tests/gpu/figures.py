"""What the tests that measure share: a figure beside its aim, engines that generate from fresh random ids, and the speeds that bound them.

A figure is one line, `name value unit aim ratio ok|short`, and one row of the CSV that EBBTIDE_GPU_FIGURES names. `short` is no
failure: it is what is to be read. Aims in absolute speed are a GPU's; on CPU cards only those measured in the same run are held
against a figure. Times are the controller's own, from the moment that it sent to the moment that the line was read.
"""
import csv
import functools
import os
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from card import CARD, IS_CUDA, QUICK, BigModel, GpuTest
from ebbtide import BIN, MIB

SMALL = QUICK or not IS_CUDA
SECONDS = float(os.environ.get("EBBTIDE_GPU_SECONDS") or 240)  # that a test may spend on what it may cut short
FIELDS = ("name", "value", "unit", "aim", "ratio", "verdict", "note")
LEFT_MIB = 100 if IS_CUDA else 0  # what a second program leaves when it takes all that is free


def on_gpu(aim):
    """An aim in absolute speed."""
    return aim if IS_CUDA else None


def verdict(value, aim, at_most, slack=0.0):
    if aim is None:
        return ""
    return "ok" if (value <= aim + slack if at_most else value >= aim - slack) else "short"


@functools.lru_cache(maxsize=None)
def bench_rows(*flags):
    """The rows of an ebbtide-bench."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        subprocess.run([str(BIN / "ebbtide-bench"), *flags, "--csv", str(path), *(["--quick"] if SMALL else [])], check=True,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=200)
        with open(path, newline="") as f:
            return [{**row, "value": float(row["value"]), "against": float(row["against"] or 0)} for row in csv.DictReader(f)]


def bench_value(rows, what, key="value", kind=""):
    """Of the first such row; None where there is none."""
    return next((row[key] for row in rows if row["what"] == what and row["type"] == kind), None)


def memory_speeds():
    """Of the card's driver, microseconds for a 512-MiB segment (small elsewhere); of PCIe, bytes a second."""
    rows = bench_rows("--cards", CARD, "--only", "vram", "--model", str(BigModel.path()))
    driver = {what: bench_value(rows, what) for what in ("created", "mapped", "unmapped", "destroyed")}
    upload = bench_value(rows, "refill", "against")
    if upload is None:  # the cache was full again before it could be asked: the speed of reading stands in
        upload = bench_value(bench_rows("--cpu", "--only", "products"), "matrix-vector", "against", "Q4_K")
    return driver, upload * 1e9


class FiguresTest(GpuTest):
    """A test that measures on the big model."""

    def setUp(self):
        super().setUp()
        self.n_requests, self.random = 0, random.Random(8)

    def figure(self, name, value, unit, aim=None, at_most=False, note="", slack=0.0):
        """`slack`: how far beside the aim is still it, as where the aim is 0."""
        ratio = f"{value / aim:.3f}" if aim else ""
        row = (name, f"{value:.6g}", unit, "" if aim is None else f"{aim:.6g}", ratio, verdict(value, aim, at_most, slack), note)
        print(f"figure {name:<46} {value:11.5g} {unit:<6} {row[3]:>9} {ratio:>7} {row[5]:<5} {note}".rstrip(), flush=True)
        path = os.environ.get("EBBTIDE_GPU_FIGURES")
        if path:
            is_new = not os.path.exists(path)
            with open(path, "a", newline="") as f:
                csv.writer(f).writerows(([FIELDS] if is_new else []) + [row])

    def big(self, cards=1, **flags):
        """An engine of the big model, with room for what the test asks of it."""
        flags.setdefault("context", 4096 if IS_CUDA else 2048)
        flags.setdefault("kv_tokens", 2 * flags["context"])
        if not IS_CUDA:
            flags.setdefault("vram_mib", [96] * cards)
            flags.setdefault("segment_mib", 1)
        return self.serve(cards, model=BigModel.path(), **flags)

    def prompt(self, n):
        """New ids, so that nothing of a former request can be used again."""
        return [self.random.randrange(256) for _ in range(n)]

    def start(self, engine, n_prompt, n_new):
        self.n_requests += 1
        tag = f"f{self.n_requests}"
        ids = self.prompt(n_prompt)
        engine.part(tag, ids, 4000)
        return tag, engine.gen(tag, n_new, ignore_eos=1)

    def generate(self, engine, n_prompt, n_new):
        """Seconds until the first token, tokens a second after it, and the DONE."""
        begin = time.monotonic()
        tag, since = self.start(engine, n_prompt, n_new)
        end, _, _ = engine.done(tag, since)
        times = [m.when for m in engine.tokens(tag, since)]
        return times[0] - begin, (len(times) - 1) / max(times[-1] - times[0], 1e-9), end

    def decode_rate(self, engine, depth=16, n_new=None, n_runs=3):
        """Tokens a second of one sequence; the median, and the last DONE. The first run warms up."""
        runs = [self.generate(engine, depth, n_new or (24 if SMALL else 128)) for _ in range(n_runs + 1)][1:]
        return statistics.median(rate for _, rate, _ in runs), runs[-1][2]

    def all_resident(self, engine):
        """Waits until every slot has its expert; tokens flow meanwhile, as fills follow them. Seconds."""
        begin = time.monotonic()
        while engine.stat()[0]["resident"] < engine.stat()[0]["slots"]:
            self.generate(engine, 8, 8)
            self.assertLess(time.monotonic() - begin, 60, engine.stat()[0].raw)
        return time.monotonic() - begin

    def cache_to(self, engine, mib):
        """The receipt of a command that leaves the first card's cache so many MiB."""
        stat = engine.stat()[0]
        return engine.vram(f"VRAM {stat['free_mib'] + stat['cache_mib'] + stat['workspace_mib'] - mib} 0")[0]

    def slot_bytes(self, engine):
        """Of an expert, by the slots of the cache."""
        stat = engine.stat()[0]
        return stat["cache_full_mib"] * MIB / max(stat["slots_full"], 1)
