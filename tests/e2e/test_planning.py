"""Before an engine starts: files of settings, plans from files alone, the doctor, the manual page and the completion.

Plans are held against engines: what a card is said to hold is what its stage then holds.
"""
import json
import os
import re
import signal
import subprocess
import unittest

from ebbtide import DATA, DEMO, EBBTIDE, MIB, REPO, EbbtideTest
from processes import eventually

ARCH = DATA / "arch"


class Planning(EbbtideTest):
    def said(self, *args, code=0, **options):
        """Runs `ebbtide …`, which must end so; stdout if it did well, else its one line on stderr."""
        result = self.command(*args, seconds=60, **options)
        self.assertEqual(result.returncode, code, result.stderr.decode() + result.stdout.decode())
        if code == 0:
            return result.stdout.decode()
        said = result.stderr.decode()
        self.assertEqual(len(said.splitlines()), 1, said)
        return said

    def file(self, text, name="settings.yaml"):
        path = self.sandbox / name
        path.write_text(text, encoding="utf-8")
        return path

    def plan(self, *args, model=DEMO):
        return json.loads(self.said("plan", "-m", model, "--json", *args))

    def splits(self, *args):
        return ",".join(f"{c['layer_first']}-{c['layer_last']}" for c in self.plan(*args)["cards"])


class Configuration(Planning):
    def test_the_sample_is_what_the_program_prints_and_it_is_good(self):
        sample = (REPO / "examples" / "ebbtide.yaml").read_text(encoding="utf-8")
        self.assertEqual(self.said("config", "--print"), sample, "ebbtide config --print > examples/ebbtide.yaml")
        self.assertRegex(self.said("config", "--check", REPO / "examples" / "ebbtide.yaml"), r": good: \d+ keys")

    def test_every_flag_of_the_engine_is_in_the_sample(self):
        """Under its own name, or in a section that is the first part of it: --miss-share is miss: share:."""
        sample = (REPO / "examples" / "ebbtide.yaml").read_text(encoding="utf-8")
        help_page = self.said("serve", "--help")
        names, section = set(), ""
        for inner, key in re.findall(r"(?m)^( {2})?(?:# )?(\w+):(?= |$)", sample):
            section = section if inner else key
            names |= {key, f"{section}_{key}"}
        for flag in re.findall(r"^ +(?:-\w, )?--([\w-]+)", help_page, re.M):
            if flag not in ("config", "help", "print"):
                self.assertIn(flag.replace("-", "_"), names)

    def test_a_mistake_is_one_line_with_file_line_key_expected_and_got(self):
        path = self.file("context: 512\n\nparallel: many\n")
        for args, code in ((("config", "--check", path), 1), (("run", "--config", path, "x"), 2),
                           (("plan", "--config", path), 2)):
            said = self.said(*args, code=code)
            self.assertIn(f"{path}:3: parallel: expected a whole number from 1 to 1024, got 'many'", said)
        self.assertIn("No such file", self.said("config", "--check", self.sandbox / "none.yaml", code=1))
        self.said("config", code=2)
        self.said("config", "--print", "--check", path, code=2)

    def test_an_engine_runs_from_a_file_and_flags_win(self):
        path = self.file(f"""model: {DEMO}
cards:
  - cpu:0
  - card: cpu:1
    vram_mib: 48
    reserve_mib: 3
vram_mib: 32
segment_mib: 1
vram: {{reserve_mib: 1, reserve_later_mib: 2}}
namespace: {self.namespace}
max_new: 5
output: ids
""")
        ids = self.said("run", "--config", path, "Call me Ishmael.")
        self.assertEqual(len(ids.split(",")), 5)
        self.assertEqual(len(self.said("run", "--config", path, "--max-new", 3, "Call me Ishmael.").split(",")), 3)
        plan = self.plan("--config", path)
        self.assertEqual([c["total_mib"] for c in plan["cards"]], [32, 48])
        self.assertEqual([c["reserve_bytes"] for c in plan["cards"]], [MIB, 3 * MIB])
        plan = self.plan("--config", path, "--reserve-mib", "4,5")
        self.assertEqual([c["reserve_bytes"] for c in plan["cards"]], [4 * MIB, 5 * MIB])

    def test_a_card_may_be_launched_in_its_own_way(self):
        mark = self.sandbox / "launched"
        path = self.file(f"""model: {DEMO}
namespace: {self.namespace}
cards:
  - cpu:0
  - card: cpu:1
    launch: "sh -c 'echo {{card}} >> {mark}; exec \\"$@\\"' launcher {{stage}}"
""")
        self.assertEqual(len(self.said("run", "--config", path, "--max-new", 2, "--output", "ids", "x").split(",")), 2)
        self.assertEqual(mark.read_text(), "cpu:1\n")


class Plans(Planning):
    def test_golden_plans_for_one_to_eight_cards_without_any_hardware(self):
        goldens = {1: "0-7", 2: "0-3,4-7", 3: "0-2,3-5,6-7", 4: "0-1,2-3,4-5,6-7", 5: "0-1,2-3,4-5,6-6,7-7",
                   6: "0-1,2-3,4-4,5-5,6-6,7-7", 7: "0-1,2-2,3-3,4-4,5-5,6-6,7-7", 8: "0-0,1-1,2-2,3-3,4-4,5-5,6-6,7-7"}
        for n, wanted in goldens.items():
            cards = ",".join(f"cuda:{i}" for i in range(n))
            self.assertEqual(self.splits("--cards", cards, "--vram-mib", 64), wanted)
        self.assertIn("at most 8 cards", self.said("plan", "-m", DEMO, "--vram-mib", 64, code=1, *(
            "--cards", ",".join(f"cuda:{i}" for i in range(9)))))

    def test_every_layer_once_for_uneven_cards_and_tiny_reserves(self):
        for vram, reserve in (((24, 16, 13), 0), ((13, 16, 24), 1), ((64, 12, 12), 0), ((20, 20, 20), 1), ((14, 14, 14), 0)):
            plan = self.plan("--cards", "cpu:0@a,cpu:1@a,cpu:2@a", "--vram-mib", ",".join(map(str, vram)),
                             "--reserve-mib", reserve)
            layers = [l for c in plan["cards"] for l in range(c["layer_first"], c["layer_last"] + 1)]
            self.assertEqual(layers, list(range(8)), vram)
            for c in plan["cards"]:
                used = sum(c[k] for k in ("dense_bytes", "kv_bytes", "workspace_bytes", "link_bytes", "cache_bytes",
                                          "reserve_bytes", "left_bytes"))
                self.assertEqual(used, c["total_mib"] * MIB, "every byte of a card has an owner")
                self.assertLessEqual(c["experts_resident"], c["experts"])

    def test_of_a_gpus_memory_links_take_the_ring_that_a_neighbour_maps_alone(self):
        def link_bytes(cards, *flags):
            return [card["link_bytes"] for card in self.plan("--cards", cards, "--vram-mib", 64, *flags)["cards"]]
        ring = 4 * 64 * 4 * 256  # tiles of a chunk's rows, fp32
        gpus, mapped = ("cuda:0,cuda:1", "--chunk", 64), [0, -(-ring // (2 * MIB)) * 2 * MIB]
        self.assertEqual(link_bytes(*gpus, "--link", "socket"), [0, 0], "tiles that go through sockets are in host memory")
        self.assertEqual(link_bytes(*gpus, "--link", "ipc"), mapped)
        self.assertEqual(link_bytes(*gpus), mapped, "rings are what GPUs of one host take")
        self.assertEqual(link_bytes("cuda:0,cuda:0@other", "--chunk", 64), [0, 0], "a ring is not for two hosts")
        self.assertEqual(link_bytes("cuda:0,cpu:0")[0], 0)
        self.assertEqual(link_bytes("cuda:0,cpu:0")[1], link_bytes("cpu:0,cpu:1")[1])

    def test_what_a_card_is_said_to_hold_is_what_its_stage_holds(self):
        for model, cards, flags in ((DEMO, 1, {}), (DEMO, 2, {"chunk": 128}), (DEMO, 3, {"kernels": "float", "parallel": 2}),
                                    (DEMO, 2, {"kv": "q8_0"}),
                                    (ARCH / "mixtral.gguf", 2, {}), (ARCH / "qwen2moe.gguf", 1, {"context": 64}),
                                    (ARCH / "llama.gguf", 2, {})):
            with self.subTest(f"{model.name} on {cards}"):
                flags = dict(flags, vram_mib=",".join(["40"] * cards))
                plan = json.loads(self.said("plan", "--json", *self.flags(cards, model=model, **flags)))
                engine = self.serve(cards, model=model, **flags)
                ledger, stat = engine.ledger(), engine.stat()
                for i, card in enumerate(plan["cards"]):
                    self.assertEqual(stat[i]["layers"], f"{card['layer_first']}-{card['layer_last']}")
                    for ours, theirs in (("dense", "weights"), ("kv", "kv"), ("link", "link"), ("cache", "cache")):
                        self.assertEqual(card[ours + "_bytes"], ledger[i][theirs], theirs)
                    self.assertLess(abs(card["workspace_bytes"] - ledger[i]["workspace"]),
                                    0.1 * ledger[i]["workspace"] + 65536)
                    self.assertEqual((card["experts_resident"], card["experts"]),
                                     (stat[i]["slots"], stat[i]["slots_full"]))
                engine.finish()

    def test_an_engine_splits_uneven_cards_as_planned(self):
        flags = dict(vram_mib="13,24", segment_mib=1, context=512)
        wanted = json.loads(self.said("plan", "--json", *self.flags(2, **flags)))["cards"]
        engine = self.serve(2, **flags)
        self.assertEqual([engine.stat()[i]["layers"] for i in range(2)],
                         [f"{c['layer_first']}-{c['layer_last']}" for c in wanted])
        engine.finish()

    def test_a_split_that_does_not_fit_names_the_card_and_one_that_does(self):
        args = ("plan", "-m", DEMO, "--cards", "cpu:0@a,cpu:1@a", "--vram-mib", "7,24")
        said = self.said(*args, "--split", "0-5,6-7", code=1)
        self.assertRegex(said, r"card 0 \(cpu:0@a\): 7 MiB free, reserve 0: 7 MiB left for layers 0-5, which need \d+")
        self.said(*args, "--split", re.search(r"--split (\S+)", said)[1])
        said = self.said("plan", "-m", DEMO, "--cards", "cpu:0@a,cpu:1@a", "--vram-mib", "5", code=1)
        self.assertRegex(said, r"no split fits, the nearest lacks \d+ MiB")
        self.assertIn("--vram-mib", self.said("plan", "-m", DEMO, "--cards", "cuda:0", code=1))

    def test_an_engine_whose_cards_are_too_small_is_refused_with_the_same_words(self):
        said = self.said("run", *self.flags(2, vram_mib="5,5"), "x", code=1)
        self.assertRegex(said, r"card \d \(cpu:\d\): 5 MiB free, reserve 0: 5 MiB left for layers")

    def test_why_shows_the_candidates_and_low_the_number_to_set(self):
        text = self.said("plan", "-m", DEMO, "--cards", "cpu:0@a,cpu:1@a", "--vram-mib", "11,24", "--segment-mib", 1, "--why")
        costs = [float(x) for x in re.findall(r"--split \S+ +([\d.]+) ms", text)]
        self.assertGreater(len(costs), 2)
        self.assertEqual(costs, sorted(costs))
        plan = self.plan("--cards", "cpu:0@a,cpu:1@a", "--vram-mib", "100,100", "--split", "0-3,4-7", "--kv-tokens", 20000,
                         "--context", 2048, "--segment-mib", 1)
        left = plan["cards"][0]["left_bytes"] // MIB
        text = self.said("plan", "-m", DEMO, "--cards", "cpu:0@a,cpu:1@a", "--vram-mib", f"{100 - left},100", "--split",
                         "0-3,4-7", "--kv-tokens", 20000, "--context", 2048, "--segment-mib", 1)
        low = re.search(r"^LOW: card 0 .* set --reserve-mib (\S+)", text, re.M)
        self.assertTrue(low, text)
        again = self.said("plan", "-m", DEMO, "--cards", "cpu:0@a,cpu:1@a", "--vram-mib", f"{100 - left},100", "--split",
                          "0-3,4-7", "--kv-tokens", 20000, "--context", 2048, "--segment-mib", 1, "--reserve-mib", low[1])
        self.assertNotIn("LOW", again)


class Operations(Planning):
    def test_the_doctor_finds_this_machine_fit_for_cpu_cards(self):
        text = self.said("doctor", "-m", DEMO, "--cards", "cpu:0,cpu:1", "--vram-mib", 64)
        for word in ("processor", "cores", "page cache", "locked memory", "/dev/shm", "directory", "CUDA driver", "plan"):
            self.assertIn(word, text)
        self.assertRegex(text, r"\n\d+ ok, \d+ to mind, 0 that will not work\n\Z")

    def test_the_doctor_says_what_will_not_work_and_how_to_mend_it(self):
        bad = self.sandbox / "bad.gguf"
        bad.write_bytes(b"nothing")
        result = self.command("doctor", "-m", bad)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout.decode(), r"(?m)^FAILS  model .*bad\.gguf.*\n +-> \w+")
        result = self.command("doctor", "-m", DEMO, "--cards", "cpu:0", "--vram-mib", 4)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout.decode(), r"(?m)^FAILS  plan .*4 MiB free")
        self.env["XDG_RUNTIME_DIR"] = "/proc/nowhere"
        result = self.command("doctor")
        self.env["XDG_RUNTIME_DIR"] = str(self.runtime)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout.decode(), r"(?m)^FAILS  directory")

    def test_the_manual_page_has_every_command_and_flag(self):
        page = self.said("help", "--man")
        self.assertTrue(page.startswith(".TH EBBTIDE 1"))
        plain = page.replace("\\-", "-").replace("\\&", "")
        for command in ("run", "serve", "plan", "config", "doctor", "vram"):
            self.assertIn(f"\n.SS {command}\n", plain)
            for flag in re.findall(r"^ +(?:-\w, )?--([\w-]+)", self.said(command, "--help"), re.M):
                if command != "vram":
                    self.assertIn(f"--{flag}", plain, command)
        for line in page.splitlines():
            self.assertRegex(line, r"^(\.(TH|SH|SS|TP|PP|B|I|nf|fi|br)\b|[^.'])|^$", "a request that is none")

    def test_the_completion_completes(self):
        script = self.file(self.said("help", "--completion"), "completion.bash")

        def complete(*words):
            line = (f"source {script}; COMP_WORDS=({' '.join(words)} ''); COMP_CWORD={len(words)}; "
                    "compopt() { :; }; _ebbtide; echo \"${COMPREPLY[@]}\"")
            return subprocess.run(["bash", "-c", line], capture_output=True, check=True, env=self.env).stdout.decode().split()

        self.assertIn("plan", complete("ebbtide"))
        self.assertIn("--why", complete("ebbtide", "plan"))
        self.assertNotIn("--why", complete("ebbtide", "run"))
        self.assertIn("reference", complete("ebbtide", "run", "--kernels"))
        self.assertEqual(complete("ebbtide", "run", "--config"), [])

    def test_the_unit_starts_an_engine_that_lives_without_a_controller(self):
        unit = (REPO / "examples" / "ebbtide.service").read_text(encoding="utf-8")
        config = self.file(f"model: {DEMO}\nnamespace: {self.namespace}\n")
        commands = re.findall(r"^(ExecStartPre|ExecStart)=-?(.*)$", unit, re.M)
        self.assertEqual([name for name, _ in commands], ["ExecStartPre"] * 3 + ["ExecStart"])
        for name, command in commands:
            command = command.replace("/usr/bin/ebbtide", str(EBBTIDE)).replace("/etc/ebbtide.yaml", str(config))
            command = command.replace("/run/ebbtide/", f"{self.runtime}/")
            process = subprocess.Popen(["bash", "-c", "exec " + command], env=self.env, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if name == "ExecStartPre":
                output, _ = process.communicate(timeout=30)
                self.assertEqual(process.returncode, 0, output)
        up, _ = eventually(lambda: (self.runtime / "ebbtide" / "main.sock").exists(), 30)
        self.assertTrue(up, "no control socket")
        self.assertIn("main", self.command("stat", "--name", "main").stdout.decode() + "main")
        self.assertIsNone(process.poll(), "it ended for want of a controller")
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 143)


if __name__ == "__main__":
    unittest.main()
