"""How engines start, end and are found: signals, end of input, control sockets, the tools."""
import os
import re
import resource
import signal
import socket
import stat as stat_bits
import subprocess
import time
import unittest

from ebbtide import EBBTIDE, REPO, EbbtideTest
from processes import eventually

ISHMAEL = "Call me Ishmael."


def processor_seconds(pid):
    """What a process has used of the processors until now, all its threads."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Ends(EbbtideTest):
    def files(self):
        """What lies in the runtime directory, lock files aside."""
        return sorted(str(p.relative_to(self.runtime)) for p in self.runtime.rglob("*")
                      if not p.is_dir() and p.name.split(".")[-1] != "lock")

    def generating(self, engine, tag="g", max_new=1500):
        since = engine.gen(tag, max_new, ISHMAEL, ignore_eos=1)
        engine.wait("T", tag, since)
        return since

    def check_signal(self, process, number, code):
        begin = time.monotonic()
        process.send_signal(number)
        self.assertEqual(process.wait(10), code)
        self.assertLess(time.monotonic() - begin, 1.0)
        self.assertTrue(eventually(lambda: not self.survivors(), 1)[0], "stages are left")
        self.assertEqual(self.files(), [])

    def test_sigint_and_sigterm_end_serve_at_once_while_tokens_flow(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number.name):
                engine = self.serve(2)
                self.generating(engine)
                self.check_signal(engine.process, number, code)

    def test_sigint_and_sigterm_end_an_idle_serve_at_once(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number.name):
                self.check_signal(self.serve(2).process, number, code)

    def test_sigint_and_sigterm_end_run_at_once(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number.name):
                process = subprocess.Popen([str(EBBTIDE), "run", *self.flags(), "--max-new", "1500", "--ignore-eos", ISHMAEL],
                                           env=self.env, cwd=REPO, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                           stderr=subprocess.DEVNULL)
                self.addCleanup(process.stdout.close)
                self.addCleanup(process.kill)
                self.assertTrue(os.read(process.stdout.fileno(), 1))
                self.check_signal(process, number, code)

    def test_ctrl_c_at_a_terminal_reaches_the_whole_group_and_is_still_clean(self):
        process = subprocess.Popen([str(EBBTIDE), "run", *self.flags(), "--max-new", "1500", "--ignore-eos", ISHMAEL],
                                   env=self.env, cwd=REPO, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        os.read(process.stdout.fileno(), 1)
        begin = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        self.assertEqual(process.wait(10), 130)
        self.assertLess(time.monotonic() - begin, 1.0)
        self.assertNotIn(b"restart", process.stderr.read())
        self.assertTrue(eventually(lambda: not self.survivors(), 1)[0])

    def test_a_signal_while_the_model_loads_ends_it_at_once(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            for wait in (0.0, 0.02, 0.1):
                with self.subTest(signal=number.name, wait=wait):
                    engine = self.serve(4, wait=False)
                    eventually(lambda: engine.stages(), 5, 0.001)
                    time.sleep(wait)
                    self.check_signal(engine.process, number, code)

    def test_the_end_of_input_finishes_what_runs(self):
        engine = self.serve(2)
        self.generating(engine, max_new=60)
        engine.send("QUIT")
        engine.finish()
        end, ids, _ = engine.done("g")
        self.assertEqual((end.bare[1], len(ids)), ("length", 60))
        engine = self.serve(2)
        self.generating(engine, max_new=60)
        engine.finish()
        self.assertEqual(len(engine.done("g")[1]), 60)
        self.assertEqual(self.files(), [])

    def test_on_eof_cancel_cancels_what_runs(self):
        engine = self.serve(2, on_eof="cancel")
        self.generating(engine)
        begin = time.monotonic()
        engine.finish()
        self.assertLess(time.monotonic() - begin, 2.0)
        end, ids, _ = engine.done("g")
        self.assertEqual(end.bare[1], "cancel")
        self.assertLess(len(ids), 1500)

    def test_shutdown_ends_the_engine_also_from_a_socket(self):
        for from_socket in (False, True):
            with self.subTest(socket=from_socket):
                engine = self.serve(2)
                self.generating(engine)
                (self.client() if from_socket else engine).send("SHUTDOWN")
                self.assertEqual(engine.process.wait(5), 0)
                self.assertTrue(eventually(lambda: not self.survivors(), 1)[0])
                self.assertEqual(self.files(), [])

    def test_a_reader_that_is_gone_ends_run_quietly(self):
        result = subprocess.run(f"'{EBBTIDE}' run {' '.join(self.flags())} --max-new 1500 --ignore-eos '{ISHMAEL}' | head -c 20",
                                shell=True, env=self.env, cwd=REPO, capture_output=True, timeout=60)
        self.assertEqual(len(result.stdout), 20)
        self.assertTrue(eventually(lambda: not self.survivors(), 2)[0])


class ControlSocket(EbbtideTest):
    def socket_path(self, name="one"):
        return self.runtime / "ebbtide" / f"{name}.sock"

    def test_the_socket_is_private_and_at_its_place(self):
        engine = self.serve(1, name="one")
        mode = os.stat(self.socket_path()).st_mode
        self.assertTrue(stat_bits.S_ISSOCK(mode))
        self.assertEqual(stat_bits.S_IMODE(mode), 0o600)
        self.assertEqual(stat_bits.S_IMODE(os.stat(self.runtime / "ebbtide").st_mode), 0o700)
        engine.finish()
        self.assertFalse(self.socket_path().exists())

    def test_a_control_path_of_ones_own_and_no_socket_at_all(self):
        path = self.sandbox / "my.sock"
        engine = self.serve(1, control=path)
        result = self.command("stat", "--control", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        engine.finish()
        self.assertFalse(path.exists())
        engine = self.serve(1, control="none")
        self.assertEqual(list(self.runtime.rglob("*.sock")), [])
        engine.finish()

    def test_several_clients_are_served_at_once_and_tags_are_their_own(self):
        engine = self.serve(2, name="one")
        clients = [self.client() for _ in range(4)]
        alone = engine.ids("t", 30, ISHMAEL, ignore_eos=1)
        everyone = [engine, *clients]
        begin = [c.gen("t", 30, ISHMAEL, ignore_eos=1) for c in everyone]
        clients[0].vram("VRAM 0")
        self.assertEqual([c.done("t", b)[1] for c, b in zip(everyone, begin)], [alone] * 5)
        self.assertFalse(any(m.verb in ("INFO", "CARD", "READY") for c in clients for m in c.lines.all))
        self.assertFalse(any(m.verb == "VRAM" for c in everyone if c is not clients[0] for m in c.lines.all))
        clients[1].send("QUIT")
        self.assertTrue(clients[1].lines.wait_end(5))
        self.assertLess(clients[2].ping(), 5)
        engine.finish()

    def test_a_lost_connection_cancels_its_requests_only(self):
        engine = self.serve(2, name="one", parallel=2)
        gone, stays = self.client(), self.client()
        alone = engine.ids("t", 120, ISHMAEL, ignore_eos=1)
        since = gone.gen("lost", 1500, ISHMAEL, ignore_eos=1)
        gone.wait("T", "lost", since)
        begin = stays.gen("t", 120, ISHMAEL, ignore_eos=1)
        gone.close()
        self.assertEqual(stays.done("t", begin)[1], alone)
        steps = engine.stat()[0]["steps"]
        time.sleep(0.5)
        self.assertEqual(engine.stat()[0]["steps"], steps, "the lost sequence still runs")
        engine.finish()

    def test_a_half_closed_socket_still_gets_its_answers(self):
        engine = self.serve(2, name="one")
        client = self.client()
        since = client.gen("t", 30, ISHMAEL, ignore_eos=1)
        client.send("STAT")
        client.half_close()
        self.assertEqual(len(client.done("t", since)[1]), 30)
        client.wait("STAT-DONE")
        engine.finish()

    def test_a_client_that_stops_reading_is_dropped_and_others_go_on(self):
        engine = self.serve(2, name="one")
        deaf = socket.socket(socket.AF_UNIX)
        self.addCleanup(deaf.close)
        deaf.connect(str(self.socket_path()))
        deaf.settimeout(5)
        try:
            for _ in range(3000):
                deaf.sendall(b"STAT\nLEDGER\nPLAN\n" * 20)
        except OSError:
            pass
        self.assertLess(engine.ping(), 10)
        self.assertEqual(len(engine.ids("t", 20, ISHMAEL, ignore_eos=1)), 20)
        engine.finish()

    def test_without_descriptors_left_clients_wait_and_the_engine_does_not_spin(self):
        engine = self.serve(2)
        first = self.client()
        pid = engine.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), limits[1]))
        waiting = self.client()
        waiting.send("PING later")
        used = [processor_seconds(pid)]
        time.sleep(1)
        used.append(processor_seconds(pid))
        self.assertLess(used[1] - used[0], 0.2, "it asks for the client again and again")
        first.ping("meanwhile")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        waiting.wait("PONG", "later")

    def test_a_stale_socket_is_recognised(self):
        engine = self.serve(1, name="one")
        engine.process.kill()
        engine.process.wait()
        self.assertTrue(eventually(lambda: not self.survivors(), 1)[0])
        self.assertNotEqual(self.command("stat").returncode, 0)
        engine = self.serve(1, name="one")
        self.assertEqual(self.command("stat").returncode, 0)
        engine.finish()

    def test_two_engines_of_one_name_are_refused(self):
        engine = self.serve(1, name="one")
        result = self.command("serve", *self.flags(1, name="one"), seconds=30)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(b"one", result.stderr)
        self.assertLess(engine.ping(), 5)
        engine.finish()


class Tools(EbbtideTest):
    def test_without_an_engine_a_tool_says_what_to_do_and_exits_3(self):
        for tool in ("vram", "stat"):
            result = self.command(tool)
            self.assertEqual((result.returncode, result.stdout), (3, b""), tool)
            self.assertEqual(len(result.stderr.decode().strip().splitlines()), 1)
            self.assertIn("ebbtide serve", result.stderr.decode())

    def test_with_several_engines_a_tool_names_them_and_wants_a_name(self):
        engines = [self.serve(1, name=name) for name in ("one", "two")]
        for tool in ("vram", "stat"):
            result = self.command(tool)
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertRegex(result.stderr.decode(), r"one.*two|two.*one")
            self.assertEqual(self.command(tool, "--name", "two").returncode, 0)
        for engine in engines:
            engine.finish()

    def test_vram_without_arguments_shows_and_changes_nothing(self):
        engine = self.serve("cpu:0,cpu:1", vram_mib="24,24", segment_mib=1)
        engine.vram("VRAM 14 1")
        before = [m.raw for m in engine.stat().values()]
        result = self.command("vram")
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ("0", "1", "14"):
            self.assertRegex(result.stdout.decode(), rf"\b{word}\b")
        self.assertEqual([m.raw for m in engine.stat().values()], before)
        engine.finish()

    def test_vram_with_arguments_is_the_protocols_command(self):
        engine = self.serve("cpu:0,cpu:1", vram_mib="24,24", segment_mib=1)
        start = engine.stat()[1]
        reserve = start["free_mib"] + 3
        result = self.command("vram", reserve, 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout.decode(), r"\b3\b")
        self.assertEqual(engine.stat()[1]["cache_mib"], start["cache_mib"] - 3)
        self.assertEqual(self.command("vram", "-", 1).returncode, 0)
        self.assertEqual(engine.stat()[1]["cache_mib"], start["cache_mib"])
        self.assertEqual(self.command("vram", start["total_mib"], 1).returncode, 4, "a shortfall has its own exit code")
        for wrong in (["1.5"], ["-1"], ["1", "2"], ["1", "1", "1"], [str(start["total_mib"] + 1)], ["12MiB"]):
            result = self.command("vram", *wrong)
            self.assertIn(result.returncode, (1, 2), (wrong, result.stdout))
            self.assertEqual(len(result.stderr.decode().strip().splitlines()), 1, wrong)
        engine.finish()

    def test_stat_shows_every_card(self):
        engine = self.serve(3, segment_mib=1, vram_mib="24,24,24")
        result = self.command("stat")
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ("cpu:0", "cpu:1", "cpu:2"):
            self.assertTrue(re.search(word, result.stdout.decode()), result.stdout)
        engine.finish()


if __name__ == "__main__":
    unittest.main()
