"""On two cards: the same tokens as on one, how fast, what the links cost, and memory by card. Figures stand beside their aims (figures.py).

A link that cannot be had here is skipped with the engine's own words. With --card cpu:0,cpu:1 the same runs, small, on CPU cards.
"""
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from card import CARDS, IS_CUDA, ORDINAL, BigModel, TwoCards, byte_prompts, cards_here
from ebbtide import BIN, DEMO, EBBTIDE, golden
from figures import LEFT_MIB, SECONDS, SMALL, FiguresTest, on_gpu
from test_architectures import ARCH, MODELS
from test_architectures import golden as arch_golden

LINKS = ("socket", "ipc", "nccl")
N_CYCLES = 5 if SMALL else 100
N_REQUESTS = int(os.environ.get("EBBTIDE_GPU_REQUESTS") or (30 if SMALL else 1000))
SETTLED = 10 if SMALL else 20  # requests after which nothing may be taken any more
UNEVEN_MIB = 24576 if IS_CUDA else 40
NCCL_BY_SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


@functools.lru_cache(maxsize=None)
def refused(link):
    """Why rows cannot go by this link between the two cards, or None: an engine is asked, once."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([str(EBBTIDE), "run", "--model", str(DEMO), "--cards", ",".join(CARDS[:2]), "--namespace", f"two-{os.getpid()}",
                               "--link", link, "--log-level", "info", "--ids", "1,2,3", "--max-new", "2", "--output", "ids"],
                              env={**os.environ, "XDG_RUNTIME_DIR": folder}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=120)
    words = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing was said"]
    if done.returncode != 0:
        return words[-1]
    by = [line.rsplit(" ", 1)[-1] for line in words if "rows go on to the next card by" in line]
    return None if by == [link] else f"--link {link} became {by}: {next((w for w in words if 'not ' + link in w), words[-1])}"


class Linked(TwoCards, FiguresTest):
    def links(self):
        """Those that can be had; the others are told."""
        here = [link for link in LINKS if refused(link) is None]
        for link in LINKS:
            if link not in here:
                print(f"not by {link}: {refused(link)}", flush=True)
        self.assertIn("socket", here)
        return here

    def wants(self, link):
        if refused(link) is not None:
            self.skipTest(refused(link))

    def all_resident(self, engine):
        begin = time.monotonic()
        while any(card["resident"] < card["slots"] for card in engine.stat().values()):
            self.generate(engine, 8, 8)
            self.assertLess(time.monotonic() - begin, 60, engine.stat())
        return time.monotonic() - begin

    def card_to(self, engine, device, mib):
        """The receipt of a command that leaves a card's cache so many MiB."""
        stat = engine.stat()[device]
        return engine.vram(f"VRAM {stat['free_mib'] + stat['cache_mib'] + stat['workspace_mib'] - mib} {device}")[device]


class Tokens(Linked):
    """Greedy ids of the demo model and of every architecture, over every link and two chunks."""

    serving = threading.Lock()

    def run_of(self, model, prompts, cards, n_new, **flags):
        with self.serving:
            engine = self.serve(cards, False, model=model, segment_mib=self.segment_mib, **flags)
        engine.ready()
        out = [engine.ids(f"t{i}", n_new, prompt, ignore_eos=1) for i, prompt in enumerate(prompts)]
        self.assertEqual([card["unexplained"] for card in engine.ledger().values()], [0] * cards)
        engine.finish()
        return out

    def test_one_card_and_two_over_every_link_give_the_same_ids(self):
        models = [(DEMO, [golden()[i]["prompt_ids"] * (3 if i == 10 else 1) for i in (1, 3, 10)])]
        models += [(ARCH / f"{name}.gguf", [case["prompt_ids"] for case in arch_golden(name)]) for name in (MODELS[::4] if SMALL else MODELS)]
        links, wanted, got = self.links(), {}, {}
        with ThreadPoolExecutor(4 if IS_CUDA else 2) as pool:
            for model, prompts in models:
                wanted[model] = pool.submit(self.run_of, model, prompts, 1, 24, chunk=64)
                for link in links:
                    for chunk in (16, 512) if model == DEMO else (7,):
                        got[model, link, chunk] = pool.submit(self.run_of, model, prompts, 2, 24, chunk=chunk, link=link)
        for (model, link, chunk), ids in got.items():
            with self.subTest(model=model.name, link=link, chunk=chunk):
                self.assertEqual(ids.result(), wanted[model].result())
        print(f"{len(got)} runs over two cards gave the ids of one card: {len(models)} models, links {links}")


def spans(path):
    """Of a trace: by (stage, track, name), step -> (begin, end), microseconds; of several in one step the last."""
    out = {}
    for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]:
        if event.get("ph") == "X" and "step" in event.get("args", {}):
            at = out.setdefault((event["pid"], event["cat"], event["name"]), {})
            at[event["args"]["step"]] = (event["ts"], event["ts"] + event["dur"])
    return out


def median_gap(from_spans, to_spans, ahead=0):
    """From the end of one kind of span to the beginning of another, in the same step or `ahead` of it: the median of the last steps."""
    gaps = [to_spans[step + ahead][0] - end for step, (_, end) in sorted(from_spans.items()) if step + ahead in to_spans]
    return statistics.median(gaps[-100:]) if gaps else math.nan


class Speed(Linked):
    def traced(self, link):
        """What a hop is made of, as the stages saw it: microseconds from a step's launch of copying rows out to the launch of copying
        them in, and from ids that were sampled to the next step's launch on the first card."""
        path = self.sandbox / f"trace-{link}.json"
        engine = self.big(2, link=link, trace=path)
        self.all_resident(engine)
        self.generate(engine, 16, 24 if SMALL else 128)
        engine.finish()
        seen = spans(path)
        name = "graph" if (0, "compute", "graph") in seen else "layers"
        first, last = seen[0, "compute", name], seen[1, "compute", name]
        out = median_gap(first, seen[1, "link", "tile-in"])
        back = median_gap(last, first, 1)
        self.figure(f"hop by {link}: layers seen ended to tile taken", out, "us", note="as the control threads saw it")
        self.figure(f"back by {link}: ids sampled to the next launch", back, "us")

    def test_decode_of_one_sequence(self):
        engine = self.big()
        self.all_resident(engine)
        one, _ = self.decode_rate(engine, n_runs=5)
        engine.finish()
        self.figure("decode, one card", one, "tok/s")
        for link in self.links():
            engine = self.big(2, link=link)
            self.all_resident(engine)
            rate, end = self.decode_rate(engine, n_runs=5)
            engine.finish()
            self.assertEqual(end["hits"], end["lookups"], end.raw)
            self.figure(f"decode, two cards by {link}, of one card", rate / one, "", on_gpu(0.97), note=f"{rate:.4g} of {one:.4g} tok/s")
            self.figure(f"a token by {link}, longer by", 1e6 / rate - 1e6 / one, "us", note="rows on, ids back, one launch more")
            self.traced(link)

    def prefill_rate(self, cards, n, **flags):
        engine = self.big(cards, context=n + 256, **flags)
        self.all_resident(engine)
        seconds = statistics.median([self.generate(engine, n, 2)[0] for _ in range(4)][1:])
        engine.finish()
        return n / seconds

    def test_prefill_with_chunks_in_flight(self):
        n = 512 if SMALL else 8192
        one = self.prefill_rate(1, n)
        self.figure(f"prefill {n}, one card", one, "tok/s")
        for link, chunk in ((link, chunk) for link in self.links() for chunk in (None, n // 8)):
            if chunk is not None and link == "socket" and not SMALL:
                continue
            rate = self.prefill_rate(2, n, link=link, **({"chunk": chunk} if chunk else {}))
            self.figure(f"prefill {n}, two cards by {link}{f', chunk {chunk}' if chunk else ''}, of one", rate / one, "",
                        on_gpu(1.4) if chunk is None else None, note=f"{rate:.5g} of {one:.5g} tok/s")


class Bare(Linked):
    """What the machine can do without an engine: the peer copy, also into memory shared as the links share theirs; NCCL."""

    def peers(self):
        """(bytes, place) -> (us, GB/s) by gpu-peers."""
        program = BIN / "gpu-peers"
        if not IS_CUDA or not program.exists():
            self.skipTest(f"{program.name}: " + ("not built" if IS_CUDA else "CPU cards have no peer copy"))
        done = subprocess.run([str(program), *(card.partition(":")[2] for card in CARDS[:2])], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.split() for line in done.stdout.splitlines()]
        return {(int(row[1]), row[0]): (float(row[2]), float(row[3])) for row in rows}

    def test_hand_off_from_link_buffers_is_as_fast_as_from_plain_memory(self):
        rows = self.peers()
        for size in sorted({size for size, _ in rows}):
            plain, link = rows[size, "plain"], rows[size, "link"]
            self.figure(f"peer copy of {size} bytes", plain[0], "us", note=f"{plain[1]:.4g} GB/s, plain memory")
            self.figure(f"the same into a link's memory, speed of it", plain[0] / link[0], "", 1.0, slack=0.03,
                        note=f"{link[0]:.4g} us, {link[1]:.4g} GB/s")

    def test_nccl_between_two_processes(self):
        if not IS_CUDA:
            self.skipTest("CPU cards have no NCCL")
        script = Path(__file__).with_name("nccl_pair.py")
        for name, more in (("", {}), (" by sockets", NCCL_BY_SOCKETS)):
            done = subprocess.run([sys.executable, "-B", str(script), *(card.partition(":")[2] for card in CARDS[:2])],
                                  env={**os.environ, **more}, capture_output=True, text=True, timeout=60)
            if done.returncode == 3:
                self.skipTest(done.stderr.strip())
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            for line in done.stdout.splitlines():
                size, us = line.split()
                self.figure(f"NCCL send and receive of {size} bytes{name}", float(us), "us", note=f"{int(size) / float(us) / 1e3:.4g} GB/s, one way")


class ByCard(Linked):
    """Commands to one card of two while both decode."""

    def check(self, engine, where):
        prompts, n_new = byte_prompts(1, 3, 5), 60 if SMALL else 600
        plain = [engine.ids(f"{where}p{i}", n_new, prompt, ignore_eos=1) for i, prompt in enumerate(prompts)]
        outside = [self.foreign(engine, device) for device in (0, 1)]
        starts = [engine.gen(f"{where}{i}", n_new, prompt, ignore_eos=1) for i, prompt in enumerate(prompts)]
        engine.wait("T", f"{where}0", starts[0])
        for device in (0, 1) * (1 if SMALL else 3):
            other, full = 1 - device, engine.stat()[device]["cache_full_mib"]
            floor, segment = engine.stat()[device]["cache_floor_mib"], engine.stat()[device]["segment_mib"]
            before, free_before = engine.stat()[other], outside[other].free_mib()
            receipt = self.card_to(engine, device, max(floor, full // segment // 2 * segment))
            self.assertGreater(receipt["freed_mib"], 0, receipt.raw)
            outside[device].allocate(receipt["free_mib"] - LEFT_MIB)
            after = engine.stat()[other]
            self.assertEqual(after["cache_mib"], before["cache_mib"], "the other card's cache moved")
            self.assertGreaterEqual(after["resident"], before["resident"], "the other card lost experts")
            self.assertEqual(outside[other].free_mib(), free_before, "memory of the other card moved")
            outside[device].free()
            self.assertEqual(engine.vram(f"VRAM - {device}")[device]["cache_mib"], full)
        self.assertEqual([engine.done(f"{where}{i}", start)[1] for i, start in enumerate(starts)], plain)
        for program in outside:
            program.end() if IS_CUDA else program.free()

    def test_the_named_card_gives_what_its_receipt_says_and_the_other_keeps_its_cache(self):
        engine = self.big(2, parallel=4)
        uuids = [engine.stat()[device].text("uuid") for device in (0, 1)]
        self.check(engine, "a")
        engine.finish()
        if not IS_CUDA:
            return
        shown = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(str(i) for i in sorted(cards_here()[0]))).split(",")
        self.env["CUDA_VISIBLE_DEVICES"] = ",".join(reversed(shown[:2]))
        engine = self.big(2, parallel=4)
        self.assertEqual([engine.stat()[device].text("uuid") for device in (1, 0)], uuids, "the cards were not permuted")
        self.check(engine, "b")
        engine.finish()
        print(f"cards by UUID: {uuids}, also with CUDA_VISIBLE_DEVICES={self.env['CUDA_VISIBLE_DEVICES']}")

    def test_both_cards_at_once_take_no_longer_than_the_slower_one(self):
        engine = self.big(2)
        self.all_resident(engine)
        stat = engine.stat()
        reserve = min(card["free_mib"] + card["cache_mib"] - card["cache_floor_mib"] for card in stat.values())
        alone, both = {0: [], 1: []}, []
        tag, since = self.start(engine, 16, 200 if SMALL else 2000)
        engine.wait("T", tag, since)
        for _ in range(3 if SMALL else 10):
            for device in (0, 1):
                begin = time.monotonic()
                engine.vram(f"VRAM {reserve} {device}")
                alone[device].append(time.monotonic() - begin)
                engine.vram(f"VRAM - {device}")
            begin = time.monotonic()
            receipts = engine.vram(f"VRAM {reserve}")
            both.append(time.monotonic() - begin)
            self.assertTrue(all(r["freed_mib"] > 0 for r in receipts.values()), receipts)
            engine.vram("VRAM")
        engine.done(tag, since)
        engine.finish()
        slower = max(statistics.median(times) for times in alone.values())
        self.figure("VRAM to both cards, of the slower alone", statistics.median(both) / slower, "", 1.0, at_most=True, slack=0.1,
                    note=f"{statistics.median(both) * 1e3:.3g} of {slower * 1e3:.3g} ms, while they decode")


class Buffers(Linked):
    def test_links_survive_cycles_of_both_pools(self):
        link = "ipc" if refused("ipc") is None else "socket"
        n = 256 if SMALL else 8192
        engine = self.big(2, link=link, context=max(n + 256, 1024))
        self.all_resident(engine)
        prompt, ledger = byte_prompts(10)[0], {device: card.raw for device, card in engine.ledger().items()}
        plain = engine.ids("plain", 48, prompt, ignore_eos=1)
        before = statistics.median([self.generate(engine, n, 2)[0] for _ in range(4)][1:])
        outside = [self.foreign(engine, device) for device in (0, 1)]
        held, stat = [program.free_mib() for program in outside], engine.stat()
        reserve = min(card["free_mib"] + card["cache_mib"] - card["cache_floor_mib"] for card in stat.values())
        tag, since = self.start(engine, 16, n)
        for _ in range(N_CYCLES):
            engine.vram(f"VRAM {reserve}")
            engine.vram("VRAM")
        engine.send(f"STOP {tag}")
        engine.done(tag, since)
        self.assertEqual(engine.ids("after", 48, prompt, ignore_eos=1), plain)
        self.all_resident(engine)
        after = statistics.median([self.generate(engine, n, 2)[0] for _ in range(4)][1:])
        self.figure(f"prefill {n} by {link} after {N_CYCLES} cycles of both pools, of before", before / after, "", 1.0, slack=0.03)
        lost = max(was - program.free_mib() for was, program in zip(held, outside))
        self.figure(f"free memory lost in {N_CYCLES} cycles of both pools", lost, "MiB", 0, at_most=True)
        self.assertEqual([program.free_mib() for program in outside], held)
        self.assertEqual({device: card["link"] for device, card in engine.ledger().items()},
                         {device: int(raw.split(" link=")[1].split()[0]) for device, raw in ledger.items()})
        engine.finish()


class Steady(Linked):
    def test_many_requests_leave_both_cards_as_free_as_the_first_ones(self):
        longest = 512 if SMALL else 32768
        engine = self.big(2, context=longest + 64)
        outside, settled, done = [self.foreign(engine, device) for device in (0, 1)], None, 0
        limit = time.monotonic() + SECONDS
        while done < N_REQUESTS and (done <= SETTLED or time.monotonic() < limit):
            self.generate(engine, round(math.exp(self.random.uniform(math.log(16), math.log(longest)))), 3)
            done += 1
            settled = [program.free_mib() for program in outside] if done == SETTLED else settled
        now = [program.free_mib() for program in outside]
        for device in (0, 1):
            self.figure(f"free memory of card {device} lost from request {SETTLED} to {done}", settled[device] - now[device], "MiB", 0,
                        at_most=True, note="" if done == N_REQUESTS else f"time was up; {N_REQUESTS} were wanted")
        self.assertEqual(now, settled)
        engine.finish()

    def test_nccl_by_its_sockets_gives_the_same_ids(self):
        self.wants("nccl")
        prompts, ids = byte_prompts(1, 10), {}
        for name, cards, flags, env in (("one card", 1, {}, {}), ("nccl", 2, {"link": "nccl"}, {}),
                                        ("nccl by sockets", 2, {"link": "nccl"}, NCCL_BY_SOCKETS)):
            self.env.update(env)
            engine = self.big(cards, **flags)
            self.all_resident(engine)
            ids[name] = [engine.ids(f"n{i}", 48, prompt, ignore_eos=1) for i, prompt in enumerate(prompts)]
            rate, _ = self.decode_rate(engine)
            engine.finish()
            self.figure(f"decode, {name}", rate, "tok/s")
        self.assertEqual(ids["nccl"], ids["one card"])
        self.assertEqual(ids["nccl by sockets"], ids["one card"])


class Uneven(Linked):
    def plan(self, flags):
        done = self.command("plan", *self.flags(2, model=BigModel.path(), **flags), "--json")
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace"))
        return [card["layer_last"] - card["layer_first"] + 1 for card in json.loads(done.stdout)["cards"]]

    def rate(self, flags, split):
        """Tokens a second with that split; None where it does not fit."""
        engine = self.big(2, wait=False, split=split, **flags)
        try:
            engine.ready()
        except AssertionError:
            self.assertNotEqual(engine.process.wait(10), 0)
            return None
        self.all_resident(engine)
        rate, _ = self.decode_rate(engine, n_runs=3)
        engine.finish()
        return rate

    def test_the_planned_split_is_as_good_as_the_best_of_those_around_it(self):
        whole = cards_here()[0][ORDINAL][1] if IS_CUDA else 96
        flags = {"vram_mib": [whole, UNEVEN_MIB], "context": 4096 if IS_CUDA else 2048, "kv_tokens": 8192 if IS_CUDA else 4096,
                 **({} if IS_CUDA else {"segment_mib": 1})}
        why = self.command("plan", *self.flags(2, model=BigModel.path(), **flags), "--why")
        print(why.stdout.decode(errors="replace"))
        layers, limit = self.plan(flags), time.monotonic() + SECONDS
        n, rates = sum(layers), {}
        auto = self.rate(flags, "auto")
        nearest = sorted((k for k in range(1, n) if k != layers[0]), key=lambda k: abs(k - layers[0]))
        for first in nearest:
            if len(rates) >= (2 if SMALL else 10) or time.monotonic() > limit:
                break
            rate = self.rate(flags, f"0-{first - 1},{first}-{n - 1}")
            if rate is not None:
                rates[first] = rate
        again = self.rate(flags, "auto")
        best = max(rates, key=rates.get)
        self.figure(f"decode, split auto ({layers[0]} and {layers[1]} layers), of the best of {len(rates)} others",
                    (auto + again) / 2 / rates[best], "", 1.0, slack=0.03,
                    note=f"auto {auto:.4g}, again {again:.4g}; best other {best} at {rates[best]:.4g}; "
                         + " ".join(f"{k}:{rate:.4g}" for k, rate in sorted(rates.items())))


if __name__ == "__main__":
    unittest.main()
