"""A second program lives on what the engine gives up: random reserves on random cards of a run over two stages while three sequences
decode; after each receipt a program that was there beforehand takes what it says is free, and no token changes. On one GPU with a
share of it for each stage, and on two."""
import random
import statistics
import time
import unittest

from card import CARDS, IS_CUDA, TwoCards, byte_prompts
from figures import LEFT_MIB, SECONDS, SMALL, FiguresTest

N_RESERVES = 12 if SMALL else 100
SHARE_MIB = 24576 if IS_CUDA else 64  # of a stage: more than its part of the model wants, so that something is free at the start
CASES, N_NEW = (1, 3, 5), 200 if SMALL else 1000
TOKENS_BETWEEN = 4  # of the first sequence, undisturbed, between two commands
PROBLEM = "the tokens outlasted the commands"


class Borrowing(FiguresTest):
    def begin(self, engine, mark):
        prompts = byte_prompts(*CASES)
        return [(f"{mark}.{i}", engine.gen(f"{mark}.{i}", N_NEW, prompt, ignore_eos=1)) for i, prompt in enumerate(prompts)]

    def take(self, engine, started):
        return [engine.done(tag, since)[1] for tag, since in started]

    def next_tokens(self, engine, started, n):
        """Waits for so many more tokens; False where a sequence ended meanwhile."""
        since = len(engine.lines.all)
        for _ in range(n):
            at = engine.lines.wait(lambda m: m.verb in ("T", "DONE") and m.bare[0] == started[0][0], since, what="a token")
            if engine.lines.all[at].verb == "DONE":
                return False
            since = at + 1
        return True

    @staticmethod
    def gaps(engine, started, begin, end):
        """Seconds between neighbouring tokens of a sequence, of those gaps that touch [begin, end], all sequences together."""
        out = []
        for tag, since in started:
            times = [m.when for m in engine.tokens(tag, since)]
            out += [b - a for a, b in zip(times, times[1:]) if b > begin and a < end]
        return out

    def check(self, engine, where):
        """The reserves; how long tokens were away around each receipt beside `us` and two steps as they were around it."""
        self.all_resident(engine)
        plain = self.take(engine, self.begin(engine, "plain"))
        outside = {device: self.foreign(engine, device) for device in engine.stat()}
        rng, n_round, done, marks, worst = random.Random(6), 0, 0, [], []
        limit = time.monotonic() + SECONDS
        while done < N_RESERVES and time.monotonic() < limit:
            started, marks, n_round = self.begin(engine, f"round{n_round}"), [], n_round + 1
            if not self.next_tokens(engine, started, 2):
                self.fail(PROBLEM)
            while done < N_RESERVES and self.next_tokens(engine, started, TOKENS_BETWEEN):
                device = rng.choice(sorted(outside))
                stat = engine.stat()[device]
                sizes = range(stat["cache_floor_mib"], stat["cache_full_mib"] + 1, stat["segment_mib"])
                reserve = stat["free_mib"] + stat["cache_mib"] + stat["workspace_mib"] - rng.choice(sizes)
                sent = time.monotonic()
                receipt = engine.vram(f"VRAM {reserve} {device}")[device]
                marks.append((sent, time.monotonic(), receipt))
                self.assertGreaterEqual(receipt["free_mib"] + receipt["shortfall_mib"], reserve, receipt.raw)
                outside[device].allocate(receipt["free_mib"] - LEFT_MIB)
                done += 1
                self.next_tokens(engine, started, 1)
                outside[device].free()
            self.assertEqual(self.take(engine, started), plain, f"round {n_round}")
            worst += self.beside_limit(engine, started, marks)
        engine.vram("VRAM")
        engine.finish()
        self.assertGreater(done, 0)
        shrinks = [row for row in worst if row[0]]
        ratio, gap, bound = max((gap / bound, gap, bound) for _, gap, bound in shrinks)
        self.figure(f"{where}: longest gap in a shrink, of us and two steps", ratio, "", 1.0, at_most=True,
                    note=f"{gap * 1e3:.3g} of {bound * 1e3:.3g} ms; {done} reserves, {len(shrinks)} shrinks, "
                         f"median {statistics.median(g / b for _, g, b in shrinks):.2f}")
        if done < N_RESERVES:
            print(f"time was up: {done} of {N_RESERVES} reserves")

    def beside_limit(self, engine, started, marks):
        """For every command: whether it shrank, the longest gap that touches it, and what that may be. A step is the slower of the median
        before the command and after it: what was taken away makes later steps slower, and that is not the shrink."""
        out = []
        for i, (sent, came, receipt) in enumerate(marks):
            last, following = marks[i - 1][1] if i > 0 else 0, marks[i + 1][0] if i + 1 < len(marks) else came + 0.1
            before = self.gaps(engine, started, last + min(0.02, (sent - last) / 2), sent)
            after = self.gaps(engine, started, came, following)
            around = self.gaps(engine, started, sent, came)
            if before and after and around:
                step = max(statistics.median(before), statistics.median(after))
                out.append((receipt["freed_mib"] > 0, max(around), receipt["us"] * 1e-6 + 2 * step))
        return out

    def all_resident(self, engine):
        begin = time.monotonic()
        while any(card["resident"] < card["slots"] for card in engine.stat().values()):
            self.generate(engine, 8, 8)
            self.assertLess(time.monotonic() - begin, 60, engine.stat())


class OneCard(Borrowing):
    def test_two_stages_of_one_card_give_what_their_receipts_say(self):
        self.check(self.big(2, parallel=4, vram_mib=[SHARE_MIB] * 2), "two stages, one card" if IS_CUDA else "two stages")


class Both(TwoCards, Borrowing):
    def test_two_cards_give_what_their_receipts_say(self):
        self.check(self.big(2, parallel=4, vram_mib=[SHARE_MIB] * 2), f"two cards, {' and '.join(CARDS[:2])}")


if __name__ == "__main__":
    unittest.main()
