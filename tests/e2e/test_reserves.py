"""Memory that is promised to others: reserves in the split and at run time, busy cards before loading and who holds them, what a
program needs just to attach, and the bound on a host's memory.
"""
import json
import re
import signal
import subprocess
import time
import unittest

from ebbtide import BIN, DEMO, EBBTIDE, MIB, REPO, EbbtideTest, Engine
from stage import Stage


class Reserves(EbbtideTest):
    def test_the_first_cards_reserve_and_the_others_count_in_the_split_and_at_run_time(self):
        """Three equal cards; the layers go where the room is, and every card keeps its own reserve, also after it was changed."""
        flags = dict(vram_mib=16, segment_mib=1, context=256, reserve_mib=9, reserve_later_mib=4)
        plan = json.loads(self.command("plan", "--json", *self.flags(3, **flags)).stdout)["cards"]
        self.assertEqual([c["reserve_bytes"] // MIB for c in plan], [9, 4, 4])
        sizes = [c["layer_last"] - c["layer_first"] + 1 for c in plan]
        self.assertLessEqual(sizes[0], min(sizes[1:]), "the first card keeps most and gets least")
        engine = self.serve(3, **flags)
        stat = engine.stat()
        self.assertEqual([stat[i]["layers"] for i in range(3)], [f"{c['layer_first']}-{c['layer_last']}" for c in plan])
        self.assertEqual([(stat[i]["reserve_mib"], stat[i]["base_mib"]) for i in range(3)], [(9, 9), (4, 4), (4, 4)])
        for i, reserve in enumerate((9, 4, 4)):
            self.assertGreaterEqual(stat[i]["free_mib"], reserve)
        engine.vram("VRAM 0")
        for i, receipt in engine.vram("VRAM").items():
            self.assertEqual((receipt["reserve_mib"], receipt["shortfall_mib"]), ((9, 4, 4)[i], 0))
            self.assertGreaterEqual(receipt["free_mib"], (9, 4, 4)[i])
        engine.finish()

    def test_a_cards_own_reserve_wins_over_the_lists(self):
        path = self.sandbox / "own.yaml"
        path.write_text(f"""model: {DEMO}
cards: [cpu:0, cpu:1, {{card: cpu:2, reserve_mib: 7}}]
vram_mib: 24
segment_mib: 1
context: 256
namespace: {self.namespace}
vram: {{reserve_mib: 3, reserve_later_mib: 5}}
""")
        plan = json.loads(self.command("plan", "--json", "--config", path).stdout)["cards"]
        self.assertEqual([c["reserve_bytes"] // MIB for c in plan], [3, 5, 7])
        engine = Engine(self, ["--config", str(path)], self.env, self.sandbox / "own.err").ready()
        self.engines.append(engine)
        self.assertEqual([s["reserve_mib"] for s in engine.stat().values()], [3, 5, 7])
        engine.finish()


class BusyCards(EbbtideTest):
    FLAGS = dict(vram_mib="32,32", segment_mib=1, context=256, min_free_mib=30)

    def run_(self, **flags):
        return ["run", *self.flags(2, **dict(self.FLAGS, **flags)), "--max-new", 2, "--output", "ids", "Call me Ishmael."]

    def test_a_busy_card_is_named_with_what_it_has_and_who_holds_the_rest(self):
        holder = self.hold(1, 20)
        begin = time.monotonic()
        result = self.command(*self.run_())
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(result.returncode, 1)
        said = result.stderr.decode()
        self.assertRegex(said, rf"30 MiB are to be free on every card: card 1 \(cpu:1\): 12 of 32 MiB free, foreign-holder "
                               rf"\(pid {holder.pid}\) holds 20 MiB")
        self.assertNotIn("card 0", said)

    def test_more_than_a_card_has_is_refused_at_once(self):
        result = self.command(*self.run_(min_free_mib=33, wait_s=600))
        self.assertEqual(result.returncode, 1)
        self.assertIn("33 MiB are to be free; card 0 (cpu:0) has 32 in all", result.stderr.decode())

    def test_it_waits_for_the_memory_and_says_so_and_then_runs(self):
        holder = self.hold(0, 20)
        process = subprocess.Popen([str(EBBTIDE), *map(str, self.run_(wait_s=100))], env=self.env, cwd=REPO,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.__exit__, None, None, None)
        self.addCleanup(process.kill)
        line = process.stderr.readline().decode()
        self.assertRegex(line, rf"waiting until 30 MiB are free \(0 of 100 s\): card 0 .*foreign-holder \(pid {holder.pid}\)")
        holder.stdin.close()
        out, _ = process.communicate(timeout=60)
        self.assertEqual((process.returncode, len(out.decode().split(","))), (0, 2))

    def test_waiting_ends_with_its_time_or_with_an_interrupt(self):
        self.hold(0, 20)
        begin = time.monotonic()
        result = self.command(*self.run_(wait_s=1))
        self.assertGreaterEqual(time.monotonic() - begin, 1)
        self.assertEqual(result.returncode, 1)
        self.assertIn("and were not in time: card 0 (cpu:0): 12 of 32 MiB free", result.stderr.decode())
        process = subprocess.Popen([str(EBBTIDE), *map(str, self.run_(wait_s=100))], env=self.env, cwd=REPO,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.__exit__, None, None, None)
        self.addCleanup(process.kill)
        self.assertIn(b"waiting", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130)

    def test_a_model_that_does_not_fit_beside_a_holder_names_it(self):
        holder = self.hold(0, 30)
        result = self.command(*self.run_(min_free_mib=0))
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"foreign-holder (pid {holder.pid}) holds 30 MiB - free it", result.stderr.decode())

    def test_a_stage_tells_who_holds_its_card(self):
        stage = Stage(self, 0)
        self.assertEqual(stage.after("HOLDERS", "HOLDERS-DONE").raw, "HOLDERS-DONE free_mib=64 total_mib=64 foreign_mib=0")
        small, large = self.hold(0, 3), self.hold(0, 5)
        self.hold(1, 7)
        since = len(stage.lines.all)
        self.assertEqual(stage.after("HOLDERS", "HOLDERS-DONE").raw, "HOLDERS-DONE free_mib=56 total_mib=64 foreign_mib=8")
        self.assertEqual([m.raw for m in stage.lines.all[since:-1]],
                         [f"HOLDER pid={large.pid} name=foreign-holder mib=5", f"HOLDER pid={small.pid} name=foreign-holder mib=3"])
        large.kill()
        large.wait()
        self.assertEqual(stage.after("HOLDERS", "HOLDERS-DONE")["foreign_mib"], 3)


class Attaching(EbbtideTest):
    def plan(self, *args):
        return self.command("plan", "-m", DEMO, "--cards", "cuda:0,cpu:0", "--vram-mib", 60, *args).stdout.decode()

    def test_plan_and_doctor_warn_of_a_reserve_that_nobody_could_use(self):
        self.assertIn("another program needs 305 just to attach (vram.attach_mib)", self.plan("--reserve-mib", "1,1"))
        self.assertNotIn("ATTACH", self.plan())
        self.assertNotIn("ATTACH: card 1", self.plan("--reserve-mib", "1,1"))
        self.assertNotIn("ATTACH", self.plan("--reserve-mib", "1,1", "--attach-mib", 0))
        cards = json.loads(self.plan("--reserve-mib", "2,2", "--attach-mib", 50, "--json"))["cards"]
        self.assertEqual([c.get("attach_mib_wanted") for c in cards], [50, None])
        said = self.command("doctor", "--cards", "cpu:0", "--reserve-mib", 80, "--attach-mib", 305).stdout.decode()
        self.assertIn("card 0: a reserve of 80 MiB; another program needs 305 just to attach", said)
        self.assertIn("wanted auto or a whole number", self.command("plan", "-m", DEMO, "--attach-mib", "some").stderr.decode())

    def test_the_tool_warns_when_less_is_free_than_a_program_needs(self):
        engine = self.serve(1, vram_mib=32, segment_mib=1, context=256, attach_mib=20)
        for reserve, warns in ((3, True), (20, False), (0, False)):
            result = self.command("vram", reserve, 0)
            self.assertEqual(result.returncode, 0, result.stderr.decode())
            self.assertEqual(bool(re.search(r"warning: card 0: \d+ MiB are free; another program needs 20", result.stderr.decode())),
                             warns, (reserve, result.stderr.decode()))
        engine.finish()


class HostMemory(EbbtideTest):
    """CPU cards that say they are devices register the pages of the model's file."""

    def serve_devices(self, **flags):
        launch = f"sh -c 'shift; exec {BIN}/device-stage \"$@\"' -- {{stage}}"
        return self.serve(2, vram_mib="32,32", segment_mib=1, context=256, launch=launch, **flags)

    def test_what_is_registered_is_in_the_ledger(self):
        engine = self.serve_devices()
        bytes_ = [m["host_registered"] for m in engine.ledger().values()]
        self.assertGreater(sum(bytes_), DEMO.stat().st_size * 0.9)
        engine.finish()
        engine = self.serve(2, vram_mib="32,32", segment_mib=1, context=256)
        self.assertEqual([m["host_registered"] for m in engine.ledger().values()], [0, 0])
        engine.finish()

    def test_a_budget_bounds_one_stage_and_all_of_a_host_together(self):
        engine = self.serve_devices()
        each = [m["host_registered"] // MIB + 1 for m in engine.ledger().values()]
        engine.finish()
        engine = self.serve_devices(budget_mib=sum(each))
        engine.finish()
        for budget, words in ((max(each), r"the 2 card\(s\) on this host would bind \d+ MiB"),
                              (min(each) - 2, r"card cpu:0.*layers 0-\d+ bind \d+ MiB of host memory .* allows")):
            with self.subTest(budget):
                engine = self.serve_devices(budget_mib=budget, wait=False)
                self.assertEqual(engine.process.wait(60), 1)
                self.assertRegex(engine.log(), words)


if __name__ == "__main__":
    unittest.main()
