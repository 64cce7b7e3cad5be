"""The main job: one model split over several cards, run from the command line."""
import json
import re
import subprocess
import unittest

from ebbtide import DEMO, EBBTIDE, REPO, EbbtideTest, encode, golden

ISHMAEL = "Call me Ishmael."


class MainJob(EbbtideTest):
    def test_the_command_of_the_readme_prints_the_generated_ids_only(self):
        result = self.command("run", "-m", DEMO, "--cards", "cpu:0,cpu:1", "--split", "0-3,4-7", "--max-new", 48,
                              "--output", "ids", "--namespace", self.namespace, ISHMAEL)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, rb"\A\d+(,\d+){47}\n\Z")

    def test_one_two_three_four_and_eight_cards_print_the_same_ids(self):
        wanted = self.run_ids(ISHMAEL, cards=1)
        self.assertEqual(len(wanted), 48)
        for cards, split in ((2, "0-3,4-7"), (2, "0-6,7-7"), (3, "auto"), (4, "auto"), (8, "auto")):
            with self.subTest(cards=cards, split=split):
                self.assertEqual(self.run_ids(ISHMAEL, cards=cards, split=split), wanted)

    def test_text_output_is_the_text_of_the_ids_and_nothing_else_on_stdout(self):
        engine = self.serve()
        since = engine.gen("g", 48, ISHMAEL)
        _, ids, text = engine.done("g", since)
        engine.finish()
        result = self.command("run", *self.flags(), "--max-new", 48, ISHMAEL)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.rstrip(b"\n"), text.rstrip(b"\n"))
        self.assertEqual(len(ids), 48)

    def test_the_run_ends_with_one_line_of_figures_on_stderr(self):
        result = self.command("run", *self.flags(), "--max-new", 16, ISHMAEL)
        lines = result.stderr.decode().strip().splitlines()
        self.assertTrue(lines, "no line of figures")
        self.assertRegex(lines[-1], r"tok/s")
        self.assertNotRegex(result.stderr.decode(), r"\x1b|\r", "a pipe gets no terminal control")

    def test_jsonl_output_is_one_object_a_line(self):
        result = self.command("run", *self.flags(), "--max-new", 8, "--output", "jsonl", ISHMAEL)
        self.assertEqual(result.returncode, 0, result.stderr)
        objects = [json.loads(line) for line in result.stdout.decode().splitlines()]
        self.assertGreaterEqual(len(objects), 8)
        self.assertTrue(all(isinstance(o, dict) for o in objects))

    def test_a_prompt_may_come_from_stdin_or_a_file(self):
        wanted = self.run_ids(ISHMAEL, 12)
        file = self.sandbox / "prompt.txt"
        file.write_text(ISHMAEL)
        from_file = self.command("run", *self.flags(), "--max-new", 12, "--output", "ids", "-f", file)
        self.assertEqual(from_file.stdout.decode().strip(), ",".join(map(str, wanted)), from_file.stderr)
        from_stdin = subprocess.run([str(EBBTIDE), "run", *self.flags(), "--max-new", "12", "--output", "ids", "-"],
                                    input=ISHMAEL.encode(), env=self.env, cwd=REPO, capture_output=True, timeout=60)
        self.assertEqual(from_stdin.stdout.decode().strip(), ",".join(map(str, wanted)), from_stdin.stderr)

    def test_a_stage_is_started_by_the_launch_template(self):
        marks = self.sandbox / "started"
        script = self.sandbox / "launch.sh"
        script.write_text(f'#!/bin/sh\necho "$@" >> {marks}\nexec "$@"\n')
        script.chmod(0o755)
        self.assertEqual(self.run_ids(ISHMAEL, 8, launch=f"{script} {{stage}}"), self.run_ids(ISHMAEL, 8))
        self.assertEqual(len(marks.read_text().splitlines()), 2)

    def test_part_text_is_cut_into_the_golden_ids(self):
        engine = self.serve(1)
        for i, case in enumerate(golden()[:10]):
            with self.subTest(prompt=case["prompt"]):
                tag, ids = f"p{i}", case["prompt_ids"]
                since = engine.send(f"PART {tag} text={encode(case['prompt'])}", f"SCORE {tag} top=1")
                engine.done(tag, since)
                scored = [int(m.bare[2]) for m in engine.lines.all[since:] if m.verb == "LOGITS" and m.bare[0] == tag]
                self.assertEqual(scored, ids)
        engine.finish()


class Commands(EbbtideTest):
    def test_help_names_the_commands_and_the_exit_codes(self):
        result = self.command("--help")
        self.assertEqual(result.returncode, 0)
        text = result.stdout.decode()
        for word in ("run", "serve", "vram", "stat", "score", "130"):
            self.assertRegex(text, rf"\b{word}\b")
        self.assertLessEqual(max(map(len, text.splitlines())), 120)

    def test_every_command_has_a_help_of_its_own(self):
        for command in ("run", "serve", "vram", "stat", "score"):
            with self.subTest(command):
                result = self.command(command, "--help")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn(command, result.stdout.decode())

    def test_version_is_one_line(self):
        result = self.command("--version")
        self.assertEqual((result.returncode, result.stdout.count(b"\n")), (0, 1))
        self.assertRegex(result.stdout, rb"\d+\.\d+\.\d+")

    def test_a_wrong_use_is_one_line_and_exit_2(self):
        cases = (["nonsense"], [], ["run", "--no-such-flag", "1", "hello"], ["run", "--max-new", "many", "hello"],
                 ["run", "--cards", "tpu:0", "hello"], ["run", "--cards", "", "hello"], ["run", "hello"],
                 ["run", "-m", DEMO, "--temperature", "-1", "hello"], ["run", "-m", DEMO, "--output", "xml", "hello"],
                 ["run", "-m", DEMO, "--max-new", "1.5", "hello"], ["run", "-m"],
                 ["score", "-m", DEMO, "--ids", "1,x", "--top", "3"])
        for case in cases:
            with self.subTest(" ".join(map(str, case))):
                result = self.command(*case, seconds=20)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stdout, b"")
                self.assertTrue(result.stderr.strip(), "nothing said")
                if case:
                    self.assertEqual(len(result.stderr.decode().strip().splitlines()), 1, result.stderr)

    def test_an_unknown_flag_names_the_nearest_known_one(self):
        result = self.command("run", "-m", DEMO, "--segmnt-mib", "1", "hello", seconds=20)
        self.assertEqual(result.returncode, 2)
        self.assertIn("segment-mib", result.stderr.decode())

    def test_a_split_that_does_not_cover_the_model_is_refused_by_name(self):
        for split, word in (("0-3,5-7", "4"), ("0-3", "0-3"), ("0-3,4-8", "8"), ("0-3,3-7", "3"), ("4-7,0-3", "4-7"),
                            ("0-3,4-6", "7"), ("x", "x")):
            with self.subTest(split):
                result = self.command("run", *self.flags(split=split), "hello", seconds=20)
                self.assertIn(result.returncode, (1, 2), result.stderr)
                self.assertIn(word, result.stderr.decode())
                self.assertEqual(len(result.stderr.decode().strip().splitlines()), 1, result.stderr)

    def test_more_cards_than_layers_are_refused(self):
        result = self.command("run", *self.flags(9), "hello", seconds=20)
        self.assertIn(result.returncode, (1, 2), result.stderr)
        self.assertIn("9", result.stderr.decode())

    def test_a_card_too_small_for_its_layers_is_refused_with_numbers(self):
        result = self.command("run", *self.flags(vram_mib="2,64", segment_mib=1), "hello", seconds=20)
        self.assertEqual(result.returncode, 1, result.stderr)
        text = result.stderr.decode()
        self.assertTrue(re.search(r"card 0|cpu:0|device 0|stage 0", text), text)
        self.assertRegex(text, r"\d")

    def test_score_prints_the_largest_logits_of_every_position(self):
        ids = golden()[1]["prompt_ids"]
        result = self.command("score", *self.flags(), "--ids", ",".join(map(str, ids)), "--top", 3)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.decode().splitlines()
        self.assertEqual(len(lines), len(ids))
        for position, line in enumerate(lines):
            fields = line.split(" ")
            self.assertEqual(int(fields[0]), position)
            self.assertEqual(len(fields), 7)
            logits = [float(x) for x in fields[2::2]]
            self.assertEqual(logits, sorted(logits, reverse=True))


if __name__ == "__main__":
    unittest.main()
