"""A card that is a device of its own. What the stage does for one (copies of a step's values, recorded steps, registered pages,
polling where nothing wakes it) is held to the tokens of plain CPU cards, on CPU cards that say they are devices.
"""
import os
import signal
import time
from pathlib import Path

from ebbtide import BIN, golden
from processes import command_name, descendants
from test_exactness import ExactRuns, covering_array

AXES = {"cards": (1, 2, 3), "chunk": (1, 7, 64), "cache": ("whole", "halved", "floor"), "wakes": (0, 1), "miss_share": (0, 60, 100)}
SPLITS = {1: "auto", 2: "0-3,4-7", 3: "0-2,3-5,6-7"}
FIRST = {"cards": 1, "chunk": 64, "cache": "whole"}


class Devices(ExactRuns):
    def serve(self, cards=2, wakes=None, **flags):
        if "miss_share" in flags:
            flags["miss_threads"] = 2  # however few processors there are
        if wakes is not None:
            flags["launch"] = f"env DEVICE_STAGE_WAKES={wakes} sh -c 'shift; exec {BIN}/device-stage \"$@\"' -- {{stage}}"
        return super().serve(cards, **flags)

    def engine_for(self, row, reserve):
        return super().engine_for({**row, "split": SPLITS[row["cards"]]}, reserve)

    def test_every_pair_of_settings_gives_the_ids_of_a_plain_card(self):
        self.check_rows(covering_array(AXES, 12), FIRST)

    def test_sequences_side_by_side_get_the_ids_they_get_alone(self):
        prompts = [case["prompt_ids"] for case in golden()[:8]]
        plain = self.serve(1)
        wanted = [plain.ids(f"plain{i}", 32, ids, ignore_eos=1) for i, ids in enumerate(prompts)]
        plain.finish()
        self.check_side_by_side(2, wakes=0)
        engine = self.serve(2, wakes=0, parallel=8)
        begin = [engine.gen(f"d{i}", 32, ids, ignore_eos=1) for i, ids in enumerate(prompts)]
        self.assertEqual([engine.done(f"d{i}", at)[1] for i, at in enumerate(begin)], wanted)
        engine.finish()

    def test_the_copies_of_a_shrink_are_in_its_receipts_time(self):
        wait_us = 30000
        prompt = golden()[10]["prompt_ids"][:100]
        engine = super().serve(1, vram_mib=64, segment_mib=1, kv_tokens=2048, launch=
                               f"env DEVICE_STAGE_MOVE_US={wait_us} sh -c 'shift; exec {BIN}/device-stage \"$@\"' -- {{stage}}")
        engine.ids("a", 100, prompt, ignore_eos=1)
        stat = engine.stat()[0]
        receipt = engine.vram(f"VRAM {stat['free_mib'] + stat['cache_mib'] // 2} 0")[0]
        self.assertGreater(receipt["freed_mib"], 0)
        self.assertGreaterEqual(receipt["us"], wait_us)  # some experts moved
        engine.finish()

    def test_a_stage_that_waits_for_rows_sleeps_where_nothing_wakes_it(self):
        prompt = golden()[10]["prompt_ids"][:100]
        plain = self.serve(2)
        wanted = plain.ids("plain", 300, prompt, ignore_eos=1)
        plain.finish()
        engine = self.serve(2, wakes=0)
        begin = engine.gen("g", 300, prompt, ignore_eos=1)
        engine.wait("T", "g", begin)
        first, second = sorted((p for p in descendants(engine.pid) if "--device" in command_name(p)),
                               key=lambda p: command_name(p).partition("--device ")[2])
        os.kill(first, signal.SIGSTOP)
        self.addCleanup(lambda: engine.process.poll() is not None or os.kill(first, signal.SIGCONT))
        time.sleep(0.2)

        def ticks():
            fields = Path(f"/proc/{second}/stat").read_text().rpartition(")")[2].split()
            return int(fields[11]) + int(fields[12])
        since = ticks()
        time.sleep(1)
        self.assertLess(ticks() - since, 0.2 * os.sysconf("SC_CLK_TCK"))
        os.kill(first, signal.SIGCONT)
        self.assertEqual(engine.done("g", begin)[1], wanted)
        engine.finish()

    def test_vram_commands_change_no_token(self):
        prompt = golden()[10]["prompt_ids"][:100]
        plain = self.serve(2)
        wanted = plain.ids("plain", 300, prompt, ignore_eos=1)
        plain.finish()
        engine = self.serve(2, vram_mib=[64, 64], segment_mib=1, kv_tokens=2048, wakes=0, miss_share=60)
        stat = engine.stat()
        begin = engine.gen("g", 300, prompt, ignore_eos=1)
        moved = 0
        for i in range(40):
            card = stat[i % 2]
            reserve = card["free_mib"] + (card["cache_mib"] - card["cache_floor_mib"]) * (i // 2 % 5) // 4
            receipts = engine.vram(f"VRAM {reserve} {i % 2}")
            moved += any(r["freed_mib"] != 0 for r in receipts.values())
        self.assertEqual(engine.done("g", begin)[1], wanted)
        self.assertGreater(moved, 10)
        engine.finish()

    def test_logits_and_draws_are_those_of_a_plain_card(self):
        ids = golden()[2]["prompt_ids"][:60]
        seen = []
        for wakes in (None, 1):
            engine = self.serve(2, wakes=wakes)
            seen.append((engine.score("s", ids, 5),
                         engine.ids("t", 40, ids, ignore_eos=1, temperature="0.9", seed=3, repetition_penalty="1.1", logprobs=3)))
            engine.finish()
        self.assertEqual(seen[0], seen[1])
