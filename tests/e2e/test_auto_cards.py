"""`--cards auto` and what is said of CUDA cards, on machines with and without them: a program that plays ebbtide-stage-cuda stands
beside a copy of ebbtide and answers `--list`. Where it is asked to be a stage it is a CPU card's, so that whole runs work.
"""
import os
import shutil
import subprocess
import unittest

from ebbtide import BIN, DEMO, EbbtideTest

H200 = "CARD device={} name=NVIDIA%20H200 uuid=GPU-{} compute=9.0 total_mib=143771 free_mib=140000 usable=1"
OLD = "CARD device=0 name=Tesla%20V100 uuid=GPU-7 compute=7.0 total_mib=16384 free_mib=16000 usable=0 why=cuda:0:%20too%20old%20a%20card"
TWO = "echo '" + H200.format(0, 1) + "'; echo '" + H200.format(1, 2) + "'"
NO_DRIVER = "echo 'ebbtide-stage-cuda: there is no NVIDIA driver here' >&2; exit 1"
LIST_SECONDS = 20  # CUDA_CARDS_WAIT_S


class AutoCards(EbbtideTest):
    def setUp(self):
        super().setUp()
        self.bin = self.sandbox / "bin"
        self.bin.mkdir()
        shutil.copy(BIN / "ebbtide", self.bin)  # a program is found beside the file that runs, so a link would not do
        (self.bin / "ebbtide-stage-cpu").symlink_to(BIN / "ebbtide-stage-cpu")
        for tool in ("ebbtide-vram", "ebbtide-stat"):
            (self.bin / tool).symlink_to(BIN / tool)

    def lists(self, script):
        """From now on `ebbtide-stage-cuda --list` is this; any other call is a CPU stage that calls itself a CUDA one."""
        path = self.bin / "ebbtide-stage-cuda"
        path.write_text(f'#!/bin/sh\nif [ "$1" = --list ]; then\n{script}\nexit 0\nfi\n'
                        f'{BIN}/ebbtide-stage-cpu "$@" --namespace {self.namespace} | sed -u s/kind=cpu/kind=cuda/\n', encoding="utf-8")
        path.chmod(0o755)

    def ebbtide(self, *args, seconds=60):
        return subprocess.run([str(self.bin / "ebbtide"), *map(str, args)], env=self.env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=seconds)

    def chosen(self, *args, seconds=60):
        """What auto is here, by `config --print`, which says it beside the sample; and its reason, "" if none is given."""
        result = self.ebbtide("config", "--print", seconds=seconds)
        self.assertEqual(result.returncode, 0)
        said = result.stderr.strip()
        self.assertTrue(said.startswith("ebbtide: --cards auto: "), said)
        self.assertEqual(len(said.splitlines()), 1, said)
        cards, _, why = said[len("ebbtide: --cards auto: "):].partition(" ")
        return cards, why.strip("()")

    def run_words(self, *args):
        """stderr of a short run."""
        result = self.ebbtide("run", "-m", DEMO, "--namespace", self.namespace, "--max-new", 2, *args, "The whale")
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stderr

    def test_every_card_of_the_driver_is_taken_and_every_command_shows_it(self):
        self.lists(TWO)
        self.assertEqual(self.chosen(), ("cuda:0,cuda:1", ""))
        plan = self.ebbtide("plan", "-m", DEMO)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertRegex(plan.stdout, r"(?m)^cuda:0 .*140000 ")
        self.assertRegex(plan.stdout, r"(?m)^cuda:1 ")
        self.assertIn("2 cards (auto: cuda:0,cuda:1)", self.run_words("--vram-mib", "64,64"))
        self.assertIn("--cards auto: cuda:0,cuda:1", self.run_words("--vram-mib", 64, "--log-level", "info"))
        doctor = self.ebbtide("doctor").stdout
        self.assertRegex(doctor, r"(?m)^ok +cards +auto: cuda:0,cuda:1$")
        self.assertIn("cuda:1 NVIDIA H200, compute capability 9.0, 140000 of 143771 MiB free", doctor)

    def test_a_list_of_memory_counts_the_chosen_cards(self):
        self.lists(TWO)
        result = self.ebbtide("plan", "-m", DEMO, "--vram-mib", "64,64,64")
        self.assertEqual(result.returncode, 2)
        self.assertIn("one for each of the 2 cards, got 3", result.stderr)

    def test_cards_that_are_named_ask_nobody(self):
        self.lists("touch " + str(self.sandbox / "asked"))
        self.run_words("--cards", "cpu:0", "--vram-mib", 64)
        self.assertFalse((self.sandbox / "asked").exists())
        self.ebbtide("run", "--help")
        self.assertFalse((self.sandbox / "asked").exists())

    def test_a_set_of_cpu_kernels_means_a_cpu_card(self):
        self.lists(TWO)
        self.assertIn("1 card (auto: cpu:0)", self.run_words("--kernels", "reference", "--vram-mib", 64))

    def test_without_a_program_or_a_driver_it_is_a_cpu_card_and_only_debug_says_why(self):
        for script, why in ((None, "not found or not executable"), (NO_DRIVER, "there is no NVIDIA driver here")):
            with self.subTest(why):
                if script:
                    self.lists(script)
                words = self.run_words("--vram-mib", 64)
                self.assertEqual(len(words.splitlines()), 1, words)
                self.assertIn("1 card (auto: cpu:0)", words)
                self.assertIn(why, self.run_words("--vram-mib", 64, "--log-level", "debug"))
                cards, reason = self.chosen()
                self.assertEqual(cards, "cpu:0")
                self.assertIn(why, reason)
                self.assertRegex(self.ebbtide("doctor").stdout, r"(?m)^ok +cards +auto: cpu:0 \(")

    def test_a_list_without_a_card(self):
        self.lists("true")
        self.assertEqual(self.chosen(), ("cpu:0", "the NVIDIA driver shows no card"))

    def test_a_card_that_cannot_be_used_is_left_out_and_told(self):
        self.lists(f"echo '{OLD}'")
        words = self.run_words("--vram-mib", 64)
        self.assertIn("--cards auto: cpu:0 (cuda:0: too old a card)", words)
        self.lists(f"echo '{OLD}'; echo '{H200.format(1, 2)}'")
        self.assertEqual(self.chosen(), ("cuda:1", "cuda:0: too old a card"))

    def test_what_is_no_list_counts_as_none_and_is_a_warning(self):
        broken = {"echo hello world": "no list of cards", f"echo '{H200.format(0, 1)}'; echo 'CARD device=x'": "no list of cards",
                  f"echo '{H200.format(0, 1)}'; exit 3": "exited with status 3", "kill -9 $$": "killed by signal 9",
                  "head -c 200000 /dev/zero | tr '\\0' 'A'": "more than 65535 bytes",
                  "printf 'CARD device=0 \\001\\n'": "no list of cards"}
        for script, why in broken.items():
            with self.subTest(script):
                self.lists(script)
                words = self.run_words("--vram-mib", 64)
                self.assertIn("--cards auto: cpu:0 (", words)
                self.assertIn(why, words)
                self.assertRegex(self.ebbtide("doctor").stdout, r"(?m)^mind +cards +auto: cpu:0 \(")

    def test_a_program_that_hangs_is_given_up_and_ended(self):
        self.lists("sleep 1000 & sleep 1000")
        cards, why = self.chosen(seconds=LIST_SECONDS + 30)
        self.assertEqual(cards, "cpu:0")
        self.assertIn(f"no answer within {LIST_SECONDS} s", why)

    def test_a_cuda_card_without_program_or_driver_is_one_clear_line(self):
        for script, why in ((None, "ebbtide-stage-cuda: not found"), ("true", "there is no NVIDIA driver here")):
            with self.subTest(why):
                if script:
                    path = self.bin / "ebbtide-stage-cuda"
                    path.write_text(f"#!/bin/sh\n{NO_DRIVER}\n", encoding="utf-8")
                    path.chmod(0o755)
                result = self.ebbtide("run", "-m", DEMO, "--cards", "cuda:0", "x")
                self.assertEqual(result.returncode, 1)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                self.assertIn("card cuda:0: ", result.stderr)
                self.assertIn(why, result.stderr)

    def test_the_doctor_says_which_cuda_card_will_not_work(self):
        self.lists(f"echo '{OLD}'; echo '{H200.format(1, 2)}'")
        for cards, why, fix in (("cuda:0", "cuda:0: too old a card", "leave it out of --cards"),
                                ("cuda:1,cuda:5", "cuda:5: the NVIDIA driver shows 2 card(s)", "nvidia-smi -L")):
            with self.subTest(cards):
                result = self.ebbtide("doctor", "--cards", cards)
                self.assertEqual(result.returncode, 1)
                self.assertRegex(result.stdout, rf"(?m)^FAILS +CUDA cards +{why.replace('(', '.').replace(')', '.')}")
                self.assertIn(fix, result.stdout)
        self.lists("echo 'ebbtide-stage-cuda: the NVIDIA driver is too old: it is made for CUDA 11.4' >&2; exit 1")
        self.assertIn("-> install a newer NVIDIA driver", self.ebbtide("doctor", "--cards", "cuda:0").stdout)
        os.remove(self.bin / "ebbtide-stage-cuda")
        self.assertRegex(self.ebbtide("doctor", "--cards", "cuda:0").stdout, r"(?m)^FAILS +CUDA cards +not looked at")


class Listing(EbbtideTest):
    def test_the_cpu_stage_lists_its_first_card(self):
        done = subprocess.run([str(BIN / "ebbtide-stage-cpu"), "--list"], env=self.env, capture_output=True, text=True, timeout=20)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"\ACARD device=0 name=\S+ uuid=CPU-\S+ total_mib=\d+ free_mib=\d+ usable=1\n\Z")

    def test_the_cuda_stage_lists_cards_or_says_in_a_line_why_not(self):
        program = BIN / "ebbtide-stage-cuda"
        if not program.exists():
            self.skipTest("ebbtide-stage-cuda is not built")
        done = subprocess.run([str(program), "--list"], env=self.env, capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            self.assertRegex(done.stdout, r"\A(CARD device=\d+ name=\S+ uuid=\S* compute=\d+\.\d+ total_mib=\d+ free_mib=\d+ "
                                          r"usable=(1|0 why=\S+)\n)+\Z")
        else:
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, r"\Aebbtide-stage-cuda: .+\n\Z")


if __name__ == "__main__":
    unittest.main()
