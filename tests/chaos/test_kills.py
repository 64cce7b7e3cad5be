"""Processes are killed and stopped at bad moments: nobody is left over, no request is lost, no token changes."""
import os
import random
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from ebbtide import EbbtideTest, golden  # noqa: E402
from processes import eventually, holders_of, is_alive, memory_files  # noqa: E402

ISHMAEL = "Call me Ishmael."


class CoordinatorDies(EbbtideTest):
    def litter(self):
        """Sockets, shared memory and temporary files that carry this project's or this test's name, lock files aside."""
        found = {str(p) for p in self.runtime.rglob("*") if not p.is_dir() and p.name.split(".")[-1] != "lock"}
        for folder in ("/dev/shm", tempfile.gettempdir(), "/tmp"):
            for path in Path(folder).glob("*"):
                if self.namespace in path.name or path.name.startswith("ebbtide-stage"):
                    found.add(str(path))
        return found

    def check_nothing_is_left(self, pids, inodes, since):
        gone, _ = eventually(lambda: not self.survivors() and not any(map(is_alive, pids)),
                             1.0 - (time.monotonic() - since))
        self.assertTrue(gone, f"alive a second later: {self.survivors()} of {pids}")
        self.assertEqual(holders_of(inodes), set())
        self.assertEqual(self.litter(), set())

    def kill_and_check(self, engine):
        stages = engine.stages()
        inodes = {inode for pid in stages for inode in memory_files(pid)}
        since = time.monotonic()
        engine.process.kill()
        engine.process.wait()
        self.check_nothing_is_left(stages, inodes, since)

    def test_no_stage_outlives_a_killed_coordinator_while_idle_or_generating_or_in_a_prefill(self):
        for doing in ("idle", "generating", "prefill"):
            with self.subTest(doing):
                engine = self.serve(4, kernels="reference" if doing == "prefill" else "auto", chunk=512)
                self.assertEqual(len(engine.stages()), 4)
                if doing == "generating":
                    since = engine.gen("g", 1500, ISHMAEL, ignore_eos=1)
                    engine.wait("T", "g", since)
                if doing == "prefill":
                    engine.gen("g", 10, golden()[11]["prompt_ids"])
                    time.sleep(0.3)
                self.kill_and_check(engine)

    def test_no_stage_outlives_a_coordinator_killed_while_it_loads(self):
        for wait in (0.0, 0.01, 0.03, 0.1):
            with self.subTest(wait=wait):
                engine = self.serve(4, wait=False)
                eventually(lambda: engine.stages(), 5, 0.001)
                time.sleep(wait)
                self.kill_and_check(engine)

    def test_a_stopped_stage_does_not_outlive_it_either_once_it_runs_again(self):
        engine = self.serve(2)
        stages = engine.stages()
        os.kill(stages[1], signal.SIGSTOP)
        engine.process.kill()
        engine.process.wait()
        self.assertTrue(eventually(lambda: not is_alive(stages[0]), 1)[0])
        since = time.monotonic()
        os.kill(stages[1], signal.SIGCONT)
        self.check_nothing_is_left(stages, set(), since)

    def test_the_memory_of_the_dead_is_free_for_the_next_engine(self):
        free = None
        for _ in range(3):
            engine = self.serve(2, vram_mib="32,32", segment_mib=1)
            now = [engine.stat()[d]["free_mib"] for d in (0, 1)]
            self.assertEqual(free or now, now)
            free = now
            self.kill_and_check(engine)

    def test_an_orderly_end_leaves_no_socket_either(self):
        engine = self.serve(2)
        engine.finish()
        self.assertEqual([p for p in self.runtime.rglob("*") if p.suffix == ".sock"], [])
        self.assertEqual(self.litter(), set())


class StageDies(EbbtideTest):
    def test_tokens_go_on_identically_after_any_stage_is_killed(self):
        for victim in range(3):
            with self.subTest(stage=victim):
                engine = self.serve(3)
                whole = engine.ids("whole", 300, ISHMAEL, ignore_eos=1)
                pids = engine.stages()
                since = engine.gen("g", 300, ISHMAEL, ignore_eos=1)
                engine.lines.wait(lambda m: m.verb == "T" and len(engine.tokens("g", since)) >= 40, since)
                os.kill(pids[victim], signal.SIGKILL)
                end, ids, _ = engine.done("g", since)
                self.assertEqual((end.bare[1], ids), ("length", whole))
                self.assertEqual(len(engine.stages()), 3)
                self.assertNotEqual(engine.stages(), pids, "the killed stage was not killed in time")
                engine.finish()

    def test_sampled_sequences_side_by_side_go_on_identically(self):
        engine = self.serve(2)
        prompts = [golden()[i]["prompt_ids"] for i in (1, 3, 5)]
        options = {"temperature": "0.8", "seed": 7, "ignore_eos": 1}
        alone = [engine.ids(f"a{i}", 200, p, **options) for i, p in enumerate(prompts)]
        begin = [engine.gen(f"s{i}", 200, p, **options) for i, p in enumerate(prompts)]
        engine.lines.wait(lambda m: m.verb == "T" and len(engine.tokens("s2", begin[2])) >= 30, begin[2])
        os.kill(engine.stages()[0], signal.SIGKILL)
        self.assertEqual([engine.done(f"s{i}", b)[1] for i, b in enumerate(begin)], alone)
        engine.finish()

    def test_a_stage_killed_in_a_prefill_costs_no_request(self):
        engine = self.serve(2, chunk=64)
        prompt = golden()[11]["prompt_ids"]
        whole = engine.ids("whole", 8, prompt, ignore_eos=1)
        since = engine.gen("g", 8, prompt, ignore_eos=1)
        engine.wait("PP", "g", since)
        os.kill(engine.stages()[1], signal.SIGKILL)
        self.assertEqual(engine.done("g", since)[1], whole)
        engine.finish()

    def test_a_stage_killed_while_idle_is_there_for_the_next_request(self):
        engine = self.serve(2)
        whole = engine.ids("a", 20, ISHMAEL, ignore_eos=1)
        os.kill(engine.stages()[1], signal.SIGKILL)
        time.sleep(0.2)
        self.assertEqual(engine.ids("b", 20, ISHMAEL, ignore_eos=1), whole)
        engine.finish()

    def test_a_reserve_stays_in_force_over_a_restart(self):
        engine = self.serve(2, vram_mib="64,64", segment_mib=self.segment_mib)
        start = engine.stat()[1]
        cache = engine.vram(f"VRAM {start['free_mib'] + 3} 1")[1]["cache_mib"]
        os.kill(engine.stages()[1], signal.SIGKILL)
        engine.ids("g", 20, ISHMAEL, ignore_eos=1)
        now = engine.stat()[1]
        self.assertEqual((now["cache_mib"], now["reserve_mib"]), (cache, start["free_mib"] + 3))
        engine.finish()

    def test_requests_fail_by_name_after_the_last_attempt_and_the_engine_lives(self):
        engine = self.serve(2, stage_attempts=0)
        since = engine.gen("g", 1500, ISHMAEL, ignore_eos=1)
        engine.wait("T", "g", since)
        os.kill(engine.stages()[1], signal.SIGKILL)
        end, ids, _ = engine.done("g", since)
        self.assertEqual(end.bare[1], "error")
        self.assertTrue(end.keys.get("error"))
        self.assertLess(engine.ping(), 5)

    def test_kills_at_random_moments_change_no_token(self):
        rng = random.Random(9)
        engine = self.serve(2, stage_attempts=20)
        whole = engine.ids("whole", 400, ISHMAEL, ignore_eos=1)
        since = engine.gen("g", 400, ISHMAEL, ignore_eos=1)
        for _ in range(4):
            seen = len(engine.tokens("g", since))
            engine.lines.wait(lambda m, s=seen: m.verb == "T" and len(engine.tokens("g", since)) >= s + 20, since)
            stages = engine.stages()
            if stages:
                os.kill(rng.choice(stages), signal.SIGKILL)
        self.assertEqual(engine.done("g", since)[1], whole)
        engine.finish()


class StageStops(EbbtideTest):
    def test_a_stopped_stage_leaves_the_engine_answering(self):
        engine = self.serve(2)
        whole = engine.ids("whole", 200, ISHMAEL, ignore_eos=1)
        since = engine.gen("g", 200, ISHMAEL, ignore_eos=1)
        engine.lines.wait(lambda m: m.verb == "T" and len(engine.tokens("g", since)) >= 20, since)
        victim = engine.stages()[0]
        os.kill(victim, signal.SIGSTOP)
        try:
            time.sleep(0.3)
            self.assertLess(engine.ping("one"), 1.0)
            receipt = engine.vram("VRAM 0 1")
            self.assertIn(1, receipt, "the other card does not answer for itself")
            self.assertLess(engine.ping("two"), 1.0)
        finally:
            os.kill(victim, signal.SIGCONT)
        self.assertEqual(engine.done("g", since)[1], whole)
        engine.finish()

    def test_ctrl_c_ends_at_once_even_with_a_stopped_stage(self):
        engine = self.serve(2)
        victim = engine.stages()[0]
        os.kill(victim, signal.SIGSTOP)
        since = time.monotonic()
        engine.process.send_signal(signal.SIGINT)
        self.assertEqual(engine.process.wait(10), 130)
        self.assertLess(time.monotonic() - since, 3.0)
        self.assertTrue(eventually(lambda: not self.survivors(), 1)[0])


if __name__ == "__main__":
    unittest.main()
