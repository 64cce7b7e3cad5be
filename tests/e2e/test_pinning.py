"""Where the threads of CPU cards run, as the kernel tells it of every one of them."""
import os
import unittest
from pathlib import Path

from ebbtide import DEMO, EbbtideTest, Engine, encode
from stage import Stage

PROMPT = "Call me Ishmael."
MINE = os.sched_getaffinity(0)


def numbers(text):
    """0-2,7 as a set."""
    found = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def threads(pid):
    """name -> the sets of processors that threads of that name may use."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        found.setdefault(fields["Name"], []).append(numbers(fields["Cpus_allowed_list"]))
    return found


class Pinning(EbbtideTest):
    def stage_threads(self, engine):
        return [threads(pid) for pid in engine.stages()]

    def test_without_a_setting_every_thread_may_run_anywhere(self):
        engine = self.serve(2)
        for stage in self.stage_threads(engine):
            self.assertTrue(all(where == MINE for sets in stage.values() for where in sets), stage)
        self.assertTrue(all(int(line["threads"]) == len(MINE) for line in engine.per_card("PLAN").values()))
        engine.finish()

    def test_cores_are_shared_out_among_the_cards_and_every_thread_has_one(self):
        engine = self.serve(2, pin="cores")
        of_card = []
        for stage in self.stage_threads(engine):
            computing = stage["ebb-stream"] + stage.get("ebb-worker", [])
            self.assertGreaterEqual(sum(len(where) == 1 for where in computing), 1 + len(stage.get("ebb-worker", [])), stage)
            alone = set().union(*(where for where in computing if len(where) == 1))
            everywhere = set().union(*(where for sets in stage.values() for where in sets))
            self.assertEqual(everywhere, alone, "a thread of the card that may leave its cores")
            of_card.append(alone)
        if len(MINE) >= 2 and len(set().union(*of_card)) > 1:
            self.assertFalse(of_card[0] & of_card[1], "two cards on one core")
        self.assertTrue(all(where <= MINE for where in of_card))
        engine.finish()

    def test_a_list_holds_every_thread_of_the_card_that_has_it(self):
        last = max(MINE)
        config = self.sandbox / "pin.yaml"
        config.write_text(f"cards:\n  - card: cpu:0\n    pin: '{last}'\n  - cpu:1\nthreads: 2\n")
        flags = ["--model", str(DEMO), "--config", str(config), "--namespace", self.namespace]
        engine = Engine(self, flags, self.env, self.sandbox / "serve.err")
        self.engines.append(engine)
        engine.ready()
        first, second = self.stage_threads(engine)
        self.assertTrue(all(where == {last} for sets in first.values() for where in sets), first)
        self.assertTrue(all(where == MINE for sets in second.values() for where in sets), second)
        self.assertEqual(len(first["ebb-worker"]), 1)
        engine.finish()

    def test_memory_nodes_hold_a_card_with_all_their_processors(self):
        engine = self.serve(1, pin="numa")
        (stage,) = self.stage_threads(engine)
        sets = [where for found in stage.values() for where in found]
        self.assertTrue(all(where == sets[0] and where <= MINE for where in sets), stage)
        engine.finish()

    def test_pinning_changes_no_token(self):
        free = self.run_ids(PROMPT, 24, cards="cpu:0,cpu:1")
        for pin in ("cores", "numa", str(min(MINE))):
            self.assertEqual(self.run_ids(PROMPT, 24, cards="cpu:0,cpu:1", pin=pin), free, pin)

    def steps_of_four(self, **flags):
        """How many steps card 0 runs while four sequences of 40 tokens are generated at once."""
        engine = self.serve(2, **flags)
        prompt = list(range(300, 308))
        since = engine.send(*(f"PART {tag} ids={','.join(str(i + tag) for i in prompt)}" for tag in range(4)),
                            *(f"GEN {tag} 40 ignore_eos=1" for tag in range(4)))
        for tag in range(4):
            engine.done(str(tag), since)
        steps = engine.stat()[0]["steps"]
        engine.finish()
        return steps

    def test_cards_that_take_turns_serve_all_sequences_in_one_step_and_others_in_a_group_each(self):
        together = self.steps_of_four()
        self.assertLess(together, 65, "4 prompts and about 40 steps of four rows")
        self.assertGreater(self.steps_of_four(pin="cores"), 75, "two groups of two rows")

    def test_a_processor_that_is_not_there_is_refused_by_number(self):
        result = self.command("run", "-m", DEMO, "--cards", "cpu:0", "--pin", "1023", "--ids", "1,2", "--max-new", 1)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(b"processor 1023", result.stderr)
        result = self.command("doctor", "--cards", "cpu:0", "--pin", "1023")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"pin names processor 1023", result.stdout)

    def test_a_stage_lets_go_when_it_gives_everything_back(self):
        stage = Stage(self, 0)
        one = min(MINE)
        held = stage.load(pin=one, share="0/1")
        self.assertEqual(held.verb, "HELD", held)
        self.assertTrue(all(where == {one} for sets in threads(stage.process.pid).values() for where in sets))
        stage.after("RELEASE", "RELEASED")
        self.assertTrue(all(where == MINE for sets in threads(stage.process.pid).values() for where in sets))
        for bad, word in (("pin=most", "none, cores, numa"), ("pin=cores share=2/2", "share"), ("pin=cores share=1", "share"),
                          ("pin=cores share=0/2x", "share")):
            answer = stage.after(f"LOAD model={encode(str(DEMO))} {bad}", "HELD")
            self.assertEqual(answer.verb, "ERR", bad)
            self.assertIn(word, answer.raw.replace("%20", " "))


if __name__ == "__main__":
    unittest.main()
