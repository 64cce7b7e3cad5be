"""Penalties, biases and log-probabilities: what they say, and that a seed, a prompt and settings mean the same tokens
whatever runs beside them, however the work is cut, and after a stage was killed and its work replayed."""
import json
import math
import os
import signal
import struct
import unittest

from ebbtide import AVX512, EbbtideTest, golden, ids_text
from stage import Stage, rows

SHORT = "Call me Ishmael."
PENALTIES = {"repetition_penalty": "1.3", "repeat_last_n": 20, "frequency_penalty": "0.4", "presence_penalty": "0.25",
             "logit_bias": "11:-3.5,50:2.25", "ignore_eos": 1}
SAMPLED = {**PENALTIES, "temperature": "0.9", "top_k": 50, "seed": 21, "logprobs": 3}


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


class Sampling(EbbtideTest):
    def whole(self, engine, tag, n, prompt, **options):
        """Ids of a generation, and what its T lines say of probabilities."""
        since = engine.gen(tag, n, prompt, **options)
        return self.end(engine, tag, since)

    @staticmethod
    def end(engine, tag, since):
        _, ids, _ = engine.done(tag, since)
        return ids, [(m.keys.get("logprob"), m.keys.get("top")) for m in engine.tokens(tag, since)]

    def adjusted_best(self, row, tokens, n_prompt):
        """The token that the documented arithmetic makes the largest of a SCORE's row, each step rounded to fp32."""
        repetition, frequency, presence = f32(1.3), f32(0.4), f32(0.25)
        recent, generated = set(tokens[-20:]), tokens[n_prompt:]
        biases = {11: -3.5, 50: 2.25}
        best = None
        for token, logit in row:
            x = f32(logit)
            if token in recent:
                x = f32(x / repetition) if x > 0 else f32(x * repetition)
            times = generated.count(token)
            if times:
                x = f32(f32(x - f32(frequency * times)) - presence)
            x = f32(x + biases.get(token, 0))
            if best is None or (x, -token) > (best[0], -best[1]):
                best = (x, token)
        self.assertGreater(best[0], row[-1][1] + 2.25, "tokens beyond the listed ones could be it")
        return best[1]

    def test_greedy_tokens_under_penalties_are_those_of_the_documented_arithmetic(self):
        prompt = golden()[1]["prompt_ids"]
        engine = self.serve(2)
        plain = engine.ids("plain", 60, prompt, ignore_eos=1)
        ids = engine.ids("penalised", 60, prompt, **PENALTIES)
        self.assertNotEqual(ids, plain)
        rows = engine.score("s", prompt + ids[:-1], 1024)
        for i, token in enumerate(ids):
            known = prompt + ids[:i]
            self.assertEqual(token, self.adjusted_best(rows[len(known) - 1], known, len(prompt)), f"token {i}")
        engine.finish()

    def test_settings_that_change_nothing_leave_the_tokens_alone(self):
        engine = self.serve(2)
        for name, how in (("greedy", {}), ("sampled", {"temperature": "0.8", "seed": 3})):
            plain = engine.ids(f"a-{name}", 60, SHORT, ignore_eos=1, **how)
            neutral = engine.ids(f"b-{name}", 60, SHORT, ignore_eos=1, repetition_penalty=1, repeat_last_n=64,
                                 frequency_penalty=0, presence_penalty="0.0", logit_bias="5:0", logprobs=0, **how)
            self.assertEqual(neutral, plain)
            self.assertEqual(engine.ids(f"c-{name}", 60, SHORT, ignore_eos=1, repetition_penalty=5, repeat_last_n=0,
                                        **how), plain)
        engine.finish()

    def test_a_bias_forbids_a_token_and_another_forces_one(self):
        engine = self.serve(2)
        first = engine.ids("a", 1, SHORT, ignore_eos=1)[0]
        self.assertNotIn(first, engine.ids("b", 30, SHORT, ignore_eos=1, logit_bias=f"{first}:-100"))
        self.assertEqual(engine.ids("c", 5, SHORT, ignore_eos=1, logit_bias="77:100"), [77] * 5)
        engine.finish()

    def test_the_same_tokens_over_splits_chunks_and_kernels(self):
        prompt = golden()[10]["prompt_ids"][:120]
        wanted = None
        for cards, flags in ((1, {"kernels": "reference"}), (1, {"chunk": 7}), (2, {}), (3, {"chunk": 16}),
                             (8, {"kernels": "avx2", "chunk": 1}),
                             *[(2, {"kernels": "avx512", "chunk": 5})] * AVX512):
            with self.subTest(cards=cards, **flags):
                engine = self.serve(cards, **flags)
                got = self.whole(engine, "g", 40, prompt, **SAMPLED)
                wanted = wanted or got
                self.assertEqual(got, wanted)
                self.end_engines()

    def test_the_same_tokens_alone_and_beside_others_with_other_settings(self):
        prompts = [case["prompt_ids"] for case in golden()[:8]]
        options = [{**SAMPLED, "seed": i, "frequency_penalty": f"0.{i}", "logit_bias": f"{40 + i}:3", "logprobs": i}
                   for i in range(8)]
        engine = self.serve(2, parallel=8)
        alone = [self.whole(engine, f"a{i}", 40, p, **o) for i, (p, o) in enumerate(zip(prompts, options))]
        begin = [engine.gen(f"s{i}", 40, p, **o) for i, (p, o) in enumerate(zip(prompts, options))]
        self.assertEqual([self.end(engine, f"s{i}", b) for i, b in enumerate(begin)], alone)
        engine.finish()

    def test_a_prefix_that_is_reused_brings_its_history(self):
        prompt = golden()[10]["prompt_ids"][:150]
        fresh = {}
        for cut in (150, 149, 33):
            engine = self.serve(2)
            fresh[cut] = self.whole(engine, "g", 20, prompt[:cut], **SAMPLED)
            engine.finish()
        engine = self.serve(2)
        for cut, wanted in fresh.items():
            since = engine.gen(f"c{cut}", 20, prompt[:cut], **SAMPLED)
            self.assertEqual(self.end(engine, f"c{cut}", since), wanted)
            self.assertEqual(engine.wait("RESUME", f"c{cut}", since)["reused"], 0 if cut == 150 else cut - 1)
        engine.finish()

    def test_a_conversation_s_earlier_answer_counts_as_prompt(self):
        prompt = golden()[1]["prompt_ids"]
        engine = self.serve(2)
        first = engine.ids("a", 20, prompt, **PENALTIES)
        again = engine.ids("b", 20, prompt + first, **PENALTIES)
        engine.finish()
        engine = self.serve(1)
        self.assertEqual(engine.ids("c", 20, prompt + first, **PENALTIES), again)
        engine.finish()

    def test_tokens_go_on_identically_after_a_stage_was_killed(self):
        prompts = [golden()[i]["prompt_ids"] for i in (1, 3, 5)]
        for victim in (0, 1):
            with self.subTest(stage=victim):
                engine = self.serve(2)
                alone = [self.whole(engine, f"a{i}", 150, p, **SAMPLED) for i, p in enumerate(prompts)]
                pids = engine.stages()
                begin = [engine.gen(f"s{i}", 150, p, **SAMPLED) for i, p in enumerate(prompts)]
                engine.lines.wait(lambda m, b=begin: m.verb == "T" and len(engine.tokens("s2", b[2])) >= 30, begin[2])
                os.kill(pids[victim], signal.SIGKILL)
                self.assertEqual([self.end(engine, f"s{i}", b) for i, b in enumerate(begin)], alone)
                self.assertNotEqual(engine.stages(), pids, "the stage was not killed in time")
                engine.finish()

    def test_logprobs_are_of_the_raw_logits_whatever_is_drawn(self):
        prompt = golden()[1]["prompt_ids"]
        engine = self.serve(2)
        ids, told = self.whole(engine, "g", 30, prompt, **{**SAMPLED, "logprobs": 20})
        rows = engine.score("s", prompt + ids[:-1], 1024)
        for i, (logprob, top) in enumerate(told):
            row = rows[len(prompt) + i - 1]
            top = [(int(a), float(b)) for a, b in (pair.split(":") for pair in top.split(","))]
            self.assertEqual([a for a, _ in top], [a for a, _ in row[:20]])
            norm = row[0][1] - top[0][1]
            for (_, lp), (_, logit) in zip(top, row):
                self.assertAlmostEqual(logit - lp, norm, delta=2e-5)
            at_least = sum(math.exp(logit - norm) for _, logit in row)
            self.assertLess(at_least, 1 + 1e-4)
            self.assertGreater(at_least, 0.5)
            if ids[i] in dict(row):
                self.assertAlmostEqual(float(logprob), dict(row)[ids[i]] - norm, delta=2e-5)
        engine.finish()

    def test_logprobs_0_tells_the_token_s_own_alone_and_none_are_told_unasked(self):
        engine = self.serve(1)
        _, told = self.whole(engine, "a", 5, SHORT, ignore_eos=1, logprobs=0)
        self.assertEqual([top for _, top in told], [None] * 5)
        self.assertTrue(all(float(logprob) <= 0 for logprob, _ in told))
        self.assertEqual(self.whole(engine, "b", 5, SHORT, ignore_eos=1)[1], [(None, None)] * 5)
        engine.finish()

    def test_a_stop_text_is_met_across_the_borders_of_tokens(self):
        engine = self.serve(2)
        since = engine.gen("a", 60, SHORT, ignore_eos=1)
        _, ids, text = engine.done("a", since)
        pieces = [m.text("text") for m in engine.tokens("a", since)]
        at = next(i for i in range(3, 40) if pieces[i] and pieces[i + 1] and pieces[i].isascii())
        stop = (pieces[at][-1:] + pieces[at + 1][:1]).decode()
        since = engine.gen("b", 60, SHORT, ignore_eos=1, stop="".join("%%%02X" % ord(c) for c in stop))
        end, _, stopped = engine.done("b", since)
        self.assertEqual(end.bare[1], "stop")
        self.assertEqual(stopped, text[:text.index(stop.encode())])
        engine.finish()

    def test_wrong_settings_are_refused_by_name(self):
        engine = self.serve(1)
        for option, code, says in (("repetition_penalty=0", "out-of-range", "0.01 to 100"),
                                   ("repetition_penalty=x", "bad-value", "repetition_penalty"),
                                   ("repeat_last_n=-1", "bad-value", "repeat_last_n"),
                                   ("frequency_penalty=2.1", "out-of-range", "-2 to 2"),
                                   ("presence_penalty=-3", "out-of-range", "-2 to 2"),
                                   ("logit_bias=5", "bad-value", "logit_bias"),
                                   ("logit_bias=5:101", "out-of-range", "-100 to 100"),
                                   ("logit_bias=99999999:1", "out-of-range", "99999999"),
                                   ("logit_bias=5:1,5:2", "bad-value", "twice"),
                                   ("logit_bias=" + ",".join(f"{i}:1" for i in range(65)), "out-of-range", "64"),
                                   ("logprobs=21", "out-of-range", "0 to 20")):
            got, text = engine.error(f"GEN a 5 {option} ids=5", "a")
            self.assertEqual(got, code, text)
            self.assertIn(says, text)
        engine.finish()

    def test_run_takes_the_same_settings_as_flags(self):
        prompt = golden()[1]["prompt_ids"]
        engine = self.serve(2)
        wanted = self.whole(engine, "a", 30, prompt, **SAMPLED)
        engine.finish()
        result = self.command("run", *self.flags(), "--max-new", 30, "--output", "jsonl", "--ids", ids_text(prompt),
                              "--ignore-eos", "--temperature", "0.9", "--top-k", 50, "--seed", 21, "--logprobs", 3,
                              "--repeat-penalty", "1.3", "--repeat-last-n", 20, "--frequency-penalty", "0.4",
                              "--presence-penalty", "0.25", "--logit-bias", "11:-3.5,50:2.25")
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        events = [json.loads(line) for line in result.stdout.decode().splitlines()]
        tokens = [e for e in events if e["event"] == "T"]
        self.assertEqual([e["id"] for e in tokens], wanted[0])
        self.assertEqual([e["top"] for e in tokens], [top for _, top in wanted[1]])
        for e, (logprob, _) in zip(tokens, wanted[1]):
            self.assertAlmostEqual(e["logprob"], float(logprob), places=6)


class History(EbbtideTest):
    """A stage by hand: the tokens that penalties look back on, where a sequence is forked, cut back or begun anew."""

    def draw(self, step, seq, pos, ids, epoch=0):
        self.stage.send(rows(step, seq, pos, ids_text(ids), epoch=epoch, want="last", repetition_penalty=5,
                             repeat_last_n=6, frequency_penalty=2, presence_penalty=2, prompt=4))
        told = self.stage.after(f"STEP epoch={epoch} step={step} rows={len(ids)}", "TOK")
        self.assertEqual(told.verb, "TOK", told.raw)
        return told["ids"]

    def test_it_goes_the_way_of_the_kv(self):
        self.stage = Stage(self, 0)
        self.assertEqual(self.stage.load(sequences=4).verb, "HELD")
        self.stage.after("GO", "LOADED")
        common, ends = golden()[1]["prompt_ids"][:5], ([7, 9, 11], [20, 21, 22, 23])
        plain = [self.draw(i, 0, 0, common + end) for i, end in enumerate(ends)]
        ends = [[token] + end for token, end in zip(plain, ends)]  # what would be drawn counts, so it matters
        fresh = [self.draw(2 + i, 0, 0, common + end) for i, end in enumerate(ends)]
        self.assertNotEqual(fresh[0], fresh[1])
        self.draw(4, 1, 0, common + ends[1])
        self.assertEqual(self.draw(5, 1, len(common), ends[0]), fresh[0], "cut back")
        self.assertEqual(self.stage.after(f"FORK 2 1 {len(common)}", "FORKED").verb, "FORKED")
        self.assertEqual(self.draw(6, 2, len(common), ends[1]), fresh[1], "forked")
        self.assertEqual(self.draw(7, 1, len(common), ends[0]), fresh[0], "the one forked from")
        self.stage.after("DROP 1", "DROPPED")
        self.assertEqual(self.draw(8, 3, 0, common + ends[0]), fresh[0], "in the place of a dropped one")


if __name__ == "__main__":
    unittest.main()
