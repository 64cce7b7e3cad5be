"""ebbtide comfy-handoff: a real engine lends a card to a stand-in of ComfyUI, and has it back whatever happens."""
import json
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import unittest

import comfy_stand_in
from comfy_stand_in import Comfy
from ebbtide import BIN, EBBTIDE, EbbtideTest
from engine_stand_in import StandIn
from processes import eventually

ENGINE = {"vram_mib": "24,24", "segment_mib": 1, "threads": 1}
RESERVE = 10  # MiB of card 1: some of its cache has to go
BACK_WITHIN = 2.0  # seconds from the tool's end to the memory's return
NODE = {"class_type": "KSampler", "inputs": {"seed": 1}}
WRONG = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "none"}}


class ComfyHandoff(EbbtideTest):
    def setUp(self):
        super().setUp()
        self.workflow = self.file({"3": NODE}, "portrait.json")

    def file(self, said, name):
        path = self.sandbox / name
        path.write_text(said if isinstance(said, str) else json.dumps(said))
        return path

    def comfy(self, **options):
        comfy = Comfy(**options)
        self.addCleanup(comfy.die)
        return comfy

    def arguments(self, comfy, *more, without=""):
        flags = {"--url": comfy.url, "--reserve": RESERVE, "--device": 1, "--poll": 0.02, "--residue": 1}
        given = [part for flag, value in flags.items() if flag != without for part in (flag, value)]
        return ["comfy-handoff", *given, *more, self.workflow]

    def handoff(self, comfy, *more, status=0):
        done = self.command(*self.arguments(comfy, *more), seconds=60)
        self.assertEqual(done.returncode, status, done.stderr.decode())
        return done

    def start(self, comfy, *more):
        process = subprocess.Popen([str(EBBTIDE), *map(str, self.arguments(comfy, *more))], env=self.env, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.addCleanup(lambda: process.poll() is not None or process.kill())
        running, _ = eventually(lambda: comfy.running is not None, 20)
        self.assertTrue(running, "the workflow never ran")
        return process

    def check_is_back(self, engine, before, seconds=BACK_WITHIN):
        def same():
            now = engine.stat()[1]
            return all(now[key] == before[1][key] for key in ("free_mib", "cache_mib", "reserve_mib"))
        back, _ = eventually(same, seconds)
        self.assertTrue(back, f"{engine.stat()[1]} is not {before[1]}")
        self.assertEqual(len(engine.ask("LEASES")), 1, "a lease is left")

    def last_line(self, done):
        return done.stderr.decode().splitlines()[-1]

    def test_a_workflow_runs_with_the_card_lent_and_the_card_is_back_afterwards(self):
        engine = self.serve(**ENGINE)
        before, seen = engine.stat(), []
        comfy = self.comfy(take=lambda: seen.append(engine.stat()[1]["reserve_mib"]), give=lambda: seen.append(engine.stat()[1]["reserve_mib"]))
        said = json.loads(self.handoff(comfy, "--json").stdout)
        self.assertEqual(seen, [RESERVE, RESERVE], "lent from the first to the last byte that ComfyUI holds")
        self.check_is_back(engine, before)
        self.assertEqual((said["status"], said["device"], said["reserve_mib"], said["given_back"], said["lease"]), (0, 1, RESERVE, True, True))
        self.assertEqual(said["peak_mib"], 6000)
        self.assertGreater(said["freed_mib"], 0)
        self.assertIn(said["prompt_id"], comfy.history)
        self.assertEqual([r[2] for r in comfy.requests if r[1] == "/free"], [{"unload_models": True, "free_memory": True}])
        engine.finish()

    def test_memory_that_comfyui_really_takes_is_there_and_the_cache_grows_only_after_it_is_free(self):
        engine = self.serve(**ENGINE)
        before, held = engine.stat(), []
        comfy = self.comfy(peak_mib=8, free_after_s=1.0, take=lambda: held.append(self.hold(1, 8)),
                           give=lambda: held.pop().communicate(timeout=20))
        self.handoff(comfy, "--residue", 0)
        self.check_is_back(engine, before)
        engine.finish()

    def test_it_waits_for_a_comfyui_that_frees_late(self):
        engine = self.serve(**ENGINE)
        before = engine.stat()
        comfy = self.comfy(free_after_s=1.5, run_s=0.1)
        said = json.loads(self.handoff(comfy, "--json").stdout)
        self.assertGreater(said["let_go_s"], 1.4)
        self.check_is_back(engine, before)
        engine.finish()

    def test_a_workflow_that_is_refused_or_fails_is_told_by_its_node_and_the_card_is_back(self):
        engine = self.serve(**ENGINE)
        before = engine.stat()
        for workflow, fail, words in (({"3": WRONG}, None, "node 3 (CheckpointLoaderSimple): Value not in list"),
                                      ({"3": WRONG, "4": NODE}, None, "refused a part of the workflow: node 3"),
                                      ({"3": NODE}, "Allocation on device\nout of memory", "node 3 (KSampler): Allocation on device out of memory")):
            with self.subTest(words):
                self.workflow = self.file({"prompt": workflow}, "wrong.json")
                comfy = self.comfy(fail=fail, run_s=0.05, free_after_s=0.1)
                done = self.handoff(comfy, status=1)
                self.assertIn(words, self.last_line(done))
                self.assertEqual(comfy.pending, [])
                self.check_is_back(engine, before)
        engine.finish()

    def test_a_comfyui_that_dies_in_the_middle_costs_no_memory(self):
        engine = self.serve(**ENGINE)
        before = engine.stat()
        comfy = self.comfy(run_s=60)
        process = self.start(comfy)
        comfy.die()
        _, words = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 1, words)
        self.assertIn(b"ComfyUI at http://127.0.0.1", words.splitlines()[-1])
        self.check_is_back(engine, before)
        done = self.handoff(comfy, status=1)
        self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)
        engine.finish()

    def test_an_interrupt_ends_the_job_and_gives_back(self):
        engine = self.serve(**ENGINE)
        before = engine.stat()
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                comfy = self.comfy(run_s=60, free_after_s=0.2)
                process = self.start(comfy)
                self.assertEqual(engine.stat()[1]["reserve_mib"], RESERVE)
                process.send_signal(number)
                _, words = process.communicate(timeout=30)
                self.assertEqual(process.returncode, status, words)
                self.assertTrue(comfy.interrupted)
                self.assertEqual(comfy.reserved_mib, 0, "it waited until ComfyUI had let go")
                self.check_is_back(engine, before)
        engine.finish()

    def test_a_second_interrupt_does_not_wait_for_comfyui(self):
        engine = self.serve(**ENGINE)
        before = engine.stat()
        comfy = self.comfy(run_s=60, free_after_s=None)
        process = self.start(comfy)
        process.send_signal(signal.SIGINT)
        freed, _ = eventually(lambda: comfy.free_asked is not None, 20)
        self.assertTrue(freed)
        process.send_signal(signal.SIGINT)
        _, words = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130, words)
        self.check_is_back(engine, before)
        engine.finish()

    def test_a_kill_gives_back_within_two_seconds(self):
        engine = self.serve(**ENGINE)
        before = engine.stat()
        process = self.start(self.comfy(run_s=60))
        self.assertEqual(engine.stat()[1]["reserve_mib"], RESERVE)
        process.kill()
        process.communicate()
        self.check_is_back(engine, before)
        engine.finish()

    def test_a_comfyui_that_never_frees_is_told_and_the_reserve_ends_all_the_same(self):
        engine = self.serve(**ENGINE)
        before = engine.stat()
        done = self.handoff(self.comfy(free_after_s=None), "--free-timeout", 0.5, status=1)
        self.assertIn("ComfyUI still holds 6000 MiB", self.last_line(done))
        self.check_is_back(engine, before)
        engine.finish()

    def test_a_job_that_takes_too_long_is_cancelled(self):
        engine = self.serve(**ENGINE)
        before = engine.stat()
        comfy = self.comfy(run_s=60, free_after_s=0.1)
        done = self.handoff(comfy, "--timeout", 0.5, status=1)
        self.assertIn("longer than 0.5 s", self.last_line(done))
        self.assertTrue(comfy.interrupted)
        self.check_is_back(engine, before)
        engine.finish()

    def test_a_card_that_cannot_give_so_much_runs_nothing_unless_told_to(self):
        engine = self.serve(**ENGINE)
        before = engine.stat()
        comfy = self.comfy(run_s=0.05, free_after_s=0.1)
        done = self.handoff(comfy, "--reserve", 20, status=4)
        self.assertRegex(self.last_line(done), r"card 1: \d+ of 20 MiB are missing \(floor\)")
        self.assertEqual([r for r in comfy.requests if r[0] == "POST"], [])
        self.check_is_back(engine, before)
        self.handoff(comfy, "--reserve", 20, "--anyway")
        self.check_is_back(engine, before)
        engine.finish()

    def test_the_reserve_is_learned_from_the_peak(self):
        engine = self.serve(**ENGINE)
        learned = self.sandbox / "learned.json"
        self.handoff(self.comfy(run_s=0.2, free_after_s=0.1, peak_mib=3), "--learn", learned)
        self.assertEqual(json.loads(learned.read_text()), {"version": 1, "workflows": {"portrait.json": {"runs": 1, "peak_mib": 3, "reserve_mib": 259}}})
        learned.write_text(learned.read_text().replace("259", "9"))
        comfy = self.comfy(run_s=0.2, free_after_s=0.1, peak_mib=2)
        arguments = self.arguments(comfy, "--learn", learned, "--json", without="--reserve")
        done = self.command(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["reserve_mib"], 9)
        self.assertEqual(json.loads(learned.read_text())["workflows"]["portrait.json"], {"runs": 2, "peak_mib": 3, "reserve_mib": 259})
        self.workflow = self.file({"3": NODE}, "unknown.json")
        arguments = self.arguments(comfy, "--learn", learned, without="--reserve")
        self.assertEqual(self.command(*arguments).returncode, 2)
        learned.write_text("{}")
        self.assertEqual(self.command(*arguments).returncode, 1)
        self.assertEqual(learned.read_text(), "{}")
        engine.finish()

    def test_the_card_is_found_by_uuid_then_by_name_else_asked_for(self):
        engine = self.serve("cpu:0", vram_mib="32", segment_mib=1, threads=1)
        name = engine.stat()[0].text("name").decode()
        comfy = self.comfy(run_s=0.05, free_after_s=0.1, name=f"cuda:0 {name} : native")

        def find(at, *more):
            return self.command(*self.arguments(at, "--json", *more, without="--device"))

        done = find(comfy)
        self.assertEqual((done.returncode, json.loads(done.stdout)["device"]), (0, 0), done.stderr)
        uuid = engine.stat()[0].text("uuid").decode()
        done = find(self.comfy(run_s=0.05, free_after_s=0.1, name="cuda:0 Another Name : native", extra={"uuid": uuid}))
        self.assertEqual((done.returncode, json.loads(done.stdout)["device"]), (0, 0), done.stderr)
        done = find(self.comfy(name="cuda:0 Another Card : native"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("say it with --device", self.last_line(done))
        engine.finish()
        path, _ = self.old_engine(lambda request: ["STAT device=0 name=Card uuid=GPU-a reserve_mib=0", "STAT device=1 name=Card uuid=GPU-b reserve_mib=0"])
        done = find(self.comfy(name="cuda:0 Card : native"), "--control", path)
        self.assertIn("is several of the engine's: 0 (Card), 1 (Card); say it with --device", self.last_line(done))
        done = find(self.comfy(run_s=0.05, free_after_s=0.1, name="cuda:0 Card : native", extra={"uuid": "GPU-b"}), "--control", path)
        self.assertEqual((done.returncode, json.loads(done.stdout)["device"]), (0, 1), done.stderr)

    def comfy_process(self, arguments=(), **environment):
        """ComfyUI as a process of its own, which computes on what it calls card 0."""
        said = json.dumps({"name": "cuda:0 Card : native", "run_s": 0.05, "free_after_s": 0.1})
        process = subprocess.Popen([sys.executable, "-B", comfy_stand_in.__file__, said, *arguments], env=dict(self.env, **environment),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.communicate)
        return process.stdout.readline().decode().strip()

    def tool_with_cards(self):
        """The tool beside a driver that knows three cards, and obeys CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER."""
        folder = self.sandbox / "bin"
        folder.mkdir()
        shutil.copy(BIN / "ebbtide-comfy-handoff", folder)
        lister = folder / "ebbtide-stage-cuda"
        lister.write_text(f"#!{sys.executable}\n" + textwrap.dedent("""\
            import os, sys
            assert sys.argv[1:] == ["--list"]
            cards = list("abc" if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else "cab")
            for device, i in enumerate(os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2").split(",")):
                card = cards[int(i)] if i.isdigit() and int(i) < 3 else i[4:] if i.startswith("GPU-") else None
                if card is None:
                    break
                print(f"CARD device={device} name=Card uuid=GPU-{card} total_mib=1 free_mib=1 usable=1")
            """))
        lister.chmod(0o755)
        return folder / "ebbtide-comfy-handoff"

    def test_of_cards_of_one_name_the_one_is_found_that_comfyuis_process_means(self):
        tool = self.tool_with_cards()
        path, _ = self.old_engine(lambda request: [f"STAT device={i} name=Card uuid=GPU-{x} reserve_mib=0" for i, x in enumerate("ab")])
        pci = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        for device, environment, arguments in ((0, pci, ()), (1, {**pci, "CUDA_VISIBLE_DEVICES": "1,0"}, ()), (0, {"CUDA_VISIBLE_DEVICES": "1,0"}, ()),
                                               (1, {"CUDA_VISIBLE_DEVICES": "GPU-b"}, ()), (1, pci, ("--cuda-device", "1")),
                                               (1, pci, ("--default-device=1",)), (None, {}, ()), (None, {**pci, "CUDA_VISIBLE_DEVICES": "2"}, ())):
            with self.subTest(environment=environment, arguments=arguments):
                url = self.comfy_process(arguments, **environment)
                done = subprocess.run([tool, "--control", path, "--url", url, "--reserve", "10", "--poll", "0.02", "--json", self.workflow],
                                      env=self.env, capture_output=True, timeout=60)
                if device is None:
                    self.assertEqual(done.returncode, 1)
                    self.assertIn("'cuda:0 Card : native GPU-c' is none of the engine's: 0 (Card GPU-a), 1 (Card GPU-b)", self.last_line(done))
                else:
                    self.assertEqual((done.returncode, json.loads(done.stdout or "{}").get("device")), (0, device), done.stderr)

    def test_it_warns_where_less_is_free_than_a_program_needs_to_attach(self):
        path, engine = self.old_engine(lambda request: ["STAT device=0 name=Card reserve_mib=0", "STAT device=1 name=Card reserve_mib=3"])
        for attach, warns in ((901, True), (900, False), (0, False)):
            engine.answers["PLAN"] = lambda n, request: [f"PLAN device=0 attach_mib=5000", f"PLAN device=1 attach_mib={attach}", "PLAN-DONE"]
            done = self.handoff(self.comfy(run_s=0.05, free_after_s=0.1), "--control", path)
            words = b"card 1: 900 MiB are free; another program needs 901 just to attach"
            self.assertEqual(words in done.stderr, warns, done.stderr)

    def old_engine(self, stat):
        """An engine without leases."""
        def vram(n, request):
            if "=" in request:
                return ["ERR - unsupported VRAM: conn= is not supported by this version"]
            reserve, device = request.split()[1:]
            return [f"VRAM device={device} reserve_mib={reserve} cache_mib=1 cache_full_mib=1 slots=1 slots_full=1 before_mib=1 free_mib=900 "
                    "freed_mib=1 shortfall_mib=0 foreign_mib=0 prompt_chunk=64 wait_us=1 us=1 reason=ok", "VRAM-DONE cards=1 freed_mib=1 shortfall_mib=0"]
        path = self.sandbox / "old.sock"
        engine = StandIn(path, {"STAT": lambda n, request: stat(request) + ["STAT-DONE"], "VRAM": vram, "PLAN": lambda n, request: ["PLAN-DONE"]})
        self.addCleanup(engine.close)
        return path, engine

    def test_an_engine_without_leases_gets_its_reserve_back_by_hand_with_a_warning(self):
        path, engine = self.old_engine(lambda request: ["STAT device=0 name=Card reserve_mib=0", "STAT device=1 name=Card reserve_mib=3"])
        comfy = self.comfy(run_s=0.1, free_after_s=0.1)
        done = self.handoff(comfy, "--control", path)
        self.assertIn(b"this engine has no leases", done.stderr)
        self.assertEqual([r for r in engine.requests if r.startswith("VRAM") and "=" not in r], [f"VRAM {RESERVE} 1", "VRAM 3 1"])
        process = self.start(self.comfy(run_s=60, free_after_s=0.1), "--control", path)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        self.assertEqual((process.returncode, engine.requests[-1]), (130, "VRAM 3 1"))

    def test_an_engine_that_ends_in_the_middle_does_not_cost_the_workflow(self):
        engine = self.serve(**ENGINE)
        comfy = self.comfy(run_s=1.5, free_after_s=0.1)
        process = self.start(comfy)
        engine.finish()
        _, words = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 0, words)
        self.assertIn(b"warning: the engine did not answer", words)

    def test_a_server_that_answers_nonsense_is_told_in_a_line_and_the_card_is_back(self):
        engine = self.serve(**ENGINE)
        before = engine.stat()
        card = {"name": "x", "vram_total": 5, "vram_free": 5}
        for path, said in (("/system_stats", {}), ("/system_stats", []), ("/system_stats", {"devices": [3, None, {"vram_total": "5"}]}),
                           ("/system_stats", {"devices": [dict(card, vram_free=-1)]}), ("/prompt", {}), ("/prompt", None), ("/prompt", {"prompt_id": "../x y"}),
                           ("/prompt", {"prompt_id": 4}), ("/history", [1])):
            with self.subTest(path=path, said=said):
                comfy = self.comfy(run_s=0.3, free_after_s=0.1)
                usual = comfy.answer
                comfy.answer = lambda method, at, body: (200, said) if at.startswith(path) and method == ("POST" if path == "/prompt" else "GET") \
                    else usual(method, at, body)
                done = self.handoff(comfy, "--quiet", status=1)
                self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)
                self.assertIn(b"ComfyUI", done.stderr)
                self.check_is_back(engine, before)
        engine.finish()

    def test_what_is_wrong_is_told_in_a_line_before_anything_is_taken(self):
        silent = socket.socket()
        silent.bind(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        nobody = f"http://127.0.0.1:{silent.getsockname()[1]}"
        good = str(self.workflow)
        cases = [([], 2), ([good], 2), (["--reserve", "x", good], 2), (["--reserve", "0", good], 2), (["--reserve", "10", "--poll", "nan", good], 2),
                 (["--reserve", "10", "--speed", good], 2), (["--reserve"], 2), (["--reserve", "10", good, good], 2),
                 (["--reserve", "10", "--url", "ftp://x", good], 2), (["--reserve", "10", str(self.sandbox / "none.json")], 1),
                 (["--reserve", "10", str(self.file("{", "cut.json"))], 1), (["--reserve", "10", str(self.file({"nodes": [], "links": []}, "ui.json"))], 1),
                 (["--reserve", "10", str(self.file({"3": 4}, "odd.json"))], 1), (["--reserve", "400", good], 3)]
        for args, status in cases:
            with self.subTest(args=args):
                done = self.command("comfy-handoff", *args)
                self.assertEqual((done.returncode, done.stderr.count(b"\n")), (status, 1), done.stderr)
        engine = self.serve(**ENGINE)
        before = engine.stat()
        done = self.command("comfy-handoff", "--reserve", 400, "--url", nobody, self.workflow)
        self.assertEqual((done.returncode, done.stderr.count(b"\n")), (1, 1), done.stderr)
        self.assertEqual(engine.stat()[1].raw, before[1].raw)
        engine.finish()


if __name__ == "__main__":
    unittest.main()
