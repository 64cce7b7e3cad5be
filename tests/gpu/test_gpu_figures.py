"""On the card: how fast, how much and how steady, each figure beside its aim (figures.py). What must not be wrong fails; what is only
slower than its aim is told as short."""
import math
import os
import signal
import statistics
import time
import unittest

from card import CARD, IS_CUDA, ForeignOnCuda, BigModel
from ebbtide import PATIENCE
from figures import LEFT_MIB, SECONDS, SMALL, FiguresTest, bench_rows, memory_speeds, on_gpu

N_CYCLES = 10 if SMALL else 100
N_REQUESTS = int(os.environ.get("EBBTIDE_GPU_REQUESTS") or (60 if SMALL else 1000))
SETTLED = 20  # requests after which nothing may be taken any more


class Products(FiguresTest):
    def test_products_of_one_row_beside_the_copy_speed(self):
        for row in bench_rows("--cards", CARD, "--only", "products"):
            if row["what"] in ("matrix-vector", "experts") and row["against"] and row["type"] in ("Q4_K", "Q6_K", "Q8_0"):
                self.figure(f"{row['what']} {row['type']} {row['shape']}", row["value"], row["unit"],
                            on_gpu(0.8 * row["against"]), note="aim: 0.8 of the copy speed")


class Load(FiguresTest):
    def test_from_the_page_cache_to_ready(self):
        self.big().finish()
        begin = time.monotonic()
        engine = self.big()
        self.figure("load to READY", time.monotonic() - begin, "s", on_gpu(2.0), at_most=True)
        engine.finish()


class Speed(FiguresTest):
    def test_decode_by_depth_of_context(self):
        depths = ((0, 550), (128, 500), (512, 420)) if SMALL else ((0, 550), (4096, 500), (16384, 420))
        engine = self.big(context=depths[-1][0] + 512)
        self.all_resident(engine)
        for depth, aim in depths:
            rate, end = self.decode_rate(engine, max(depth, 1), n_runs=3 if depth < 8192 else 2)
            self.figure(f"decode behind {depth}", rate, "tok/s", on_gpu(aim), note=f"{end['hits']} of {end['lookups']} resident")
        engine.finish()

    def test_prefill(self):
        sizes = ((64, 9000), (256, 16000), (1024, 20000)) if SMALL else ((512, 9000), (2048, 16000), (8192, 20000))
        engine = self.big(context=sizes[-1][0] + 256)
        self.all_resident(engine)
        for n, aim in sizes:
            seconds = statistics.median([self.generate(engine, n, 2)[0] for _ in range(4)][1:])
            self.figure(f"prefill {n}", n / seconds, "tok/s", on_gpu(aim))
        engine.finish()

    def side_by_side(self, engine, n, n_new):
        """Tokens a second of all together, while all are past their prompts and none has ended."""
        started = [self.start(engine, 16, n_new) for _ in range(n)]
        for tag, since in started:
            engine.done(tag, since)
        times = {tag: [m.when for m in engine.tokens(tag, since)] for tag, since in started}
        begin, end = max(t[0] for t in times.values()), min(t[-1] for t in times.values())
        self.assertLess(begin, end, f"{n} sequences were never under way all at once")
        return sum(begin < w <= end for t in times.values() for w in t) / (end - begin)

    def test_decode_side_by_side(self):
        counts = ((2, 1800), (8, 3500)) if SMALL else ((8, 1800), (32, 3500))
        engine = self.big(context=2048, parallel=counts[-1][0], kv_tokens=counts[-1][0] * 512)
        self.all_resident(engine)
        for n, aim in counts:
            rates = [self.side_by_side(engine, n, 64 if SMALL else 256) for _ in range(4)][1:]
            self.figure(f"decode, {n} side by side, total", statistics.median(rates), "tok/s", on_gpu(aim))
        engine.finish()


class Misses(FiguresTest):
    def with_misses(self, engine, mib):
        """Decode with a cache of so many MiB: tokens a second, bytes missed a token, and the DONE."""
        slot, n_new = self.slot_bytes(engine), 16 if SMALL else 48
        self.cache_to(engine, mib)
        rate, end = self.decode_rate(engine, 16, n_new)
        return rate, (end["lookups"] - end["hits"]) / (16 + n_new - 1) * slot, end

    def test_experts_half_and_wholly_missing(self):
        _, pcie = memory_speeds()
        cpu = next(row["value"] for row in bench_rows("--cpu", "--only", "products")
                   if row["what"] == "matrix-vector" and row["type"] == "Q4_K") * 1e9
        engine = self.big()
        self.all_resident(engine)
        stat = engine.stat()[0]
        whole, _ = self.decode_rate(engine)
        self.figure("decode, all resident", whole, "tok/s", note=f"PCIe {pcie * 1e-9:.1f} GB/s, CPU {cpu * 1e-9:.1f} GB/s")
        half = (stat["cache_full_mib"] // stat["segment_mib"] // 2) * stat["segment_mib"]
        sizes = (("half", max(half, stat["cache_floor_mib"])), ("wholly", stat["cache_floor_mib"]))
        for name, mib in sizes:
            rate, missed, end = self.with_misses(engine, mib)
            limit, now = 1 / (1 / whole + missed / (pcie + cpu)), engine.stat()[0]
            self.figure(f"decode, experts {name} missing", rate, "tok/s", 0.75 * limit,
                        note=f"limit {limit:.4g}, {missed / 2**20:.1f} MiB missed a token, {end['hits']} of {end['lookups']} resident, "
                             f"an expert over the bus {now['miss_card_us']} us, by the host {now['miss_host_us']} us")
        engine.vram("VRAM - 0")
        engine.finish()
        engine = self.big(miss_threads=0)
        for name, mib in sizes:
            rate, missed, _ = self.with_misses(engine, mib)
            self.figure(f"the same, {name}, by the card alone", rate, "tok/s", note=f"{missed / 2**20:.1f} MiB missed a token")
        engine.finish()


class HandBack(FiguresTest):
    def test_a_receipt_beside_the_drivers_calls(self):
        driver, _ = memory_speeds()
        engine = self.big()
        self.all_resident(engine)
        stat = engine.stat()[0]
        n_idle = stat["workspace_mib"] // stat["segment_mib"]  # goes with them
        n = min(28, (stat["cache_full_mib"] - stat["cache_floor_mib"]) // stat["segment_mib"] + n_idle)
        scale = 1 if stat["segment_mib"] == 512 else None  # the driver's calls were timed for such a segment
        before, _ = self.decode_rate(engine)
        times = {"shrink": [], "grow": []}
        for _ in range(5):
            receipt = self.cache_to(engine, stat["cache_full_mib"] - (n - n_idle) * stat["segment_mib"])
            self.assertEqual(receipt["freed_mib"], n * stat["segment_mib"], receipt.raw)
            times["shrink"].append(receipt["us"])
            times["grow"].append(engine.vram("VRAM - 0")[0]["us"])
            refill = self.all_resident(engine)
        for name, calls in (("shrink", ("unmapped", "destroyed")), ("grow", ("created", "mapped"))):
            at_least = n * sum(driver[call] for call in calls)
            self.figure(f"{name} by {n * stat['segment_mib']} MiB", statistics.median(times[name]), "us", scale and 1.2 * at_least,
                        at_most=True, note=f"the driver's calls alone {at_least:.0f} us")
        self.figure("refill of it", n * stat["segment_mib"] / 1024 / max(refill, 1e-9), "GiB/s")
        after, _ = self.decode_rate(engine)
        self.figure("decode after taking back, of before", after / before, "", 0.98)
        engine.finish()

    def flow(self, engine, n_prompt, n_new, begun, commands):
        """Receipts of commands sent while one request runs, after its first line of the verb `begun`; and its lines."""
        tag, since = self.start(engine, n_prompt, n_new)
        receipts = []
        engine.wait(begun, tag, since)
        for i in range(commands):
            at = len(engine.lines.all)
            receipts.append(self.cache_to(engine, self.sizes[i % 2]))
            engine.lines.wait(lambda m: m.verb in (begun, "DONE"), at, what="the next line")
            if any(m.verb == "DONE" for m in engine.lines.all[since:]):
                break
        engine.done(tag, since)
        return receipts, [m for m in engine.lines.all[since:] if m.verb == begun and m.bare[0] == tag]

    def test_how_long_a_command_waits(self):
        n_long = 1024 if SMALL else 16384
        engine = self.big(context=n_long + 256)
        self.all_resident(engine)
        stat = engine.stat()[0]
        first, _, last = stat.keys["layers"].partition("-")
        self.sizes = (stat["cache_full_mib"] - 2 * stat["segment_mib"], stat["cache_full_mib"])
        self.cache_to(engine, self.sizes[0])
        rate, _ = self.decode_rate(engine)
        waits = [r["wait_us"] for r in self.flow(engine, 16, 200, "T", 20)[0]]
        self.figure("wait_us while decoding, longest", max(waits), "us", 1e6 / rate, at_most=True,
                    note=f"aim: a step undisturbed, with the smaller cache; {len(waits)} commands, median {statistics.median(waits):.0f} us")
        lines = self.flow(engine, n_long, 2, "PP", 0)[1]
        layer = max(b.when - a.when for a, b in zip(lines, lines[1:])) / (int(last) - int(first) + 1)
        waits = [r["wait_us"] for r in self.flow(engine, n_long, 2, "PP", 20)[0]]
        self.figure("wait_us while prefilling, longest", max(waits), "us", layer * 1e6, at_most=True,
                    note=f"aim: a layer of the longest chunk undisturbed; {len(waits)} commands, median {statistics.median(waits):.0f} us")
        engine.vram("VRAM - 0")
        engine.finish()

    def test_cycles_leave_as_much_free_as_there_was(self):
        engine = self.big()
        self.all_resident(engine)
        outside, stat = self.foreign(engine), engine.stat()[0]
        held = outside.free_mib()
        for _ in range(N_CYCLES):
            self.cache_to(engine, stat["cache_floor_mib"])
            engine.vram("VRAM - 0")
        self.figure(f"free memory lost in {N_CYCLES} cycles", held - outside.free_mib(), "MiB", 0, at_most=True)
        self.assertEqual(outside.free_mib(), held)
        engine.finish()


class OneSegment(FiguresTest):
    def test_one_big_segment_and_many_small_ones_decode_alike(self):
        rates, whole = {}, None
        for name in ("small", "big", "small again", "big again"):
            size = None if IS_CUDA else 1
            if name.startswith("big"):
                size = whole
            engine = self.big(**({"segment_mib": size} if size else {}))
            self.all_resident(engine)
            stat = engine.stat()[0]
            whole = whole or stat["cache_full_mib"] + (2 if IS_CUDA else 1)
            rates.setdefault(name.split()[0], []).append(self.decode_rate(engine, n_runs=5)[0])
            print(f"{name}: {stat['cache_full_mib'] // stat['segment_mib']} segments of {stat['segment_mib']} MiB, {rates}")
            engine.finish()
        self.figure("decode, 1 segment, of many", max(rates["big"]) / max(rates["small"]), "", 1.0, slack=0.01)


class Steady(FiguresTest):
    def test_many_requests_leave_as_much_free_as_the_first_ones(self):
        longest = 1024 if SMALL else 32768
        engine = self.big(context=longest + 64)
        outside, limit, settled, done = self.foreign(engine), time.monotonic() + SECONDS, None, 0
        while done < N_REQUESTS and (done <= SETTLED or time.monotonic() < limit):
            n = round(math.exp(self.random.uniform(math.log(16), math.log(longest))))
            self.generate(engine, n, 3)
            done += 1
            settled = outside.free_mib() if done == SETTLED else settled
        self.figure(f"free memory lost from request {SETTLED} to {done}", settled - outside.free_mib(), "MiB", 0, at_most=True,
                    note="" if done == N_REQUESTS else f"time was up; {N_REQUESTS} were wanted")
        self.assertEqual(outside.free_mib(), settled)
        engine.finish()

    def test_cold_long_prompts_take_the_same_time(self):
        n, n_runs = (1024, 4) if SMALL else (32768, 10)
        engine = self.big(context=n + 64)
        self.all_resident(engine)
        times = [self.generate(engine, n, 2)[0] for _ in range(n_runs)]
        self.figure(f"cold prompts of {n}, slowest to fastest", max(times) / min(times), "", on_gpu(1.05), at_most=True,
                    note=" ".join(f"{t:.3f}" for t in times))
        engine.finish()


class Beside(FiguresTest):
    def test_two_stages_on_one_card(self):
        engine = self.big()
        self.all_resident(engine)
        one, _ = self.decode_rate(engine)
        engine.finish()
        share = 24576 if IS_CUDA else 96
        engine = self.big(2, vram_mib=[share] * 2)
        self.all_resident(engine)
        two, _ = self.decode_rate(engine)
        self.figure("decode, two stages on one card, of one", two / one, "", note=f"{two:.4g} of {one:.4g} tok/s; no aim: time-sliced")
        engine.finish()

    def test_a_stopped_stage_leaves_its_neighbour_answering(self):
        engine = self.big(2, vram_mib=[24576 if IS_CUDA else 96] * 2)
        tag, since = self.start(engine, 16, 200)
        engine.lines.wait(lambda m: m.verb == "T" and len(engine.tokens(tag, since)) >= 10, since)
        for victim, other in ((0, 1), (1, 0)):
            pid = engine.stages()[victim]
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(0.2)
                begin = time.monotonic()
                self.assertIn(other, engine.vram(f"VRAM - {other}"))
                self.figure(f"VRAM of card {other}, card {victim} stopped", (time.monotonic() - begin) * 1e3, "ms", 1000, at_most=True)
                self.figure(f"PING, card {victim} stopped", engine.ping(f"p{victim}") * 1e3, "ms", 1000, at_most=True)
            finally:
                os.kill(pid, signal.SIGCONT)
        end, _, _ = engine.done(tag, since)
        self.assertEqual(end.bare[1], "length", end.raw)
        engine.finish()

    def test_what_a_second_program_costs_to_attach(self):
        engine = self.big()
        if not IS_CUDA:
            self.skipTest("a CPU card's memory is an account: a program that holds none costs none")
        first = ForeignOnCuda(self, engine)
        before = first.free_mib()
        ForeignOnCuda(self, engine)
        self.figure("a client attached", before - first.free_mib(), "MiB", note="what plan warns below")
        engine.finish()


class FullCard(FiguresTest):
    prompt_ids = [7, 11, 13, 17, 19, 23, 29, 31]

    def ids(self, engine, tag):
        return engine.ids(tag, 48, self.prompt_ids, ignore_eos=1)

    def check_receipt(self, receipt):
        self.assertEqual(receipt["shortfall_mib"], max(0, receipt["reserve_mib"] - receipt["free_mib"]), receipt.raw)

    def test_an_engine_on_a_card_that_others_fill_goes_on_with_what_it_has(self):
        engine = self.big()
        plain, stat = self.ids(engine, "plain"), engine.stat()[0]
        outside = self.foreign(engine)
        self.check_receipt(self.cache_to(engine, stat["cache_floor_mib"]))
        outside.allocate(outside.free_mib() - LEFT_MIB)
        self.assertEqual(self.ids(engine, "full"), plain)
        grown = engine.vram("VRAM 0 0")[0]
        self.check_receipt(grown)
        self.assertLess(grown["cache_mib"], stat["cache_full_mib"], grown.raw)
        self.assertGreater(grown["foreign_mib"], 0, grown.raw)
        self.assertEqual(self.ids(engine, "grown"), plain)
        short = engine.vram(f"VRAM {stat['total_mib']} 0")[0]
        self.check_receipt(short)
        self.assertGreater(short["shortfall_mib"], 0, short.raw)
        self.assertEqual(self.ids(engine, "short"), plain)
        outside.free()
        self.assertEqual(engine.vram("VRAM - 0")[0]["cache_mib"], stat["cache_full_mib"])
        self.assertEqual(self.ids(engine, "again"), plain)
        engine.finish()
        print(f"a full card: grown to {grown['cache_mib']} of {stat['cache_full_mib']} MiB, {grown['reason']}; {short['reason']}")

    def test_a_start_on_a_full_card_is_refused_in_words(self):
        engine = self.big()
        outside, stat = self.foreign(engine), engine.stat()[0]
        engine.finish()
        if IS_CUDA:
            outside.allocate(outside.free_mib() - LEFT_MIB)
        else:
            outside.hold(stat["total_mib"] - 2)
        late = self.big(wait=False)
        status = late.process.wait(PATIENCE)
        words = late.log().strip()
        print(f"a start on a full card: {words}")
        self.assertEqual(status, 1, words)
        self.assertNotIn("Assertion", words)
        outside.free()
        self.big().finish()


if __name__ == "__main__":
    unittest.main()
