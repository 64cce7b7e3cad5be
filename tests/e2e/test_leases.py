"""Leases: memory lent until a time, a process or a connection ends, whatever ends it; and many who ask at once."""
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
import unittest

from ebbtide import BIN, EBBTIDE, EbbtideTest, golden
from processes import descendants, eventually

SERVE = {"vram_mib": "32,32", "segment_mib": 1, "threads": 1}
BACK_WITHIN = 2.0  # seconds from a borrower's death to its memory's return


class LeaseTest(EbbtideTest):
    def reserve(self, engine, device=1):
        return engine.stat()[device]["reserve_mib"]

    def is_back(self, engine, before, seconds=BACK_WITHIN, device=1):
        """The card is again as it was: free memory and reserve."""
        def same():
            now = engine.stat()[device]
            return all(now[key] == before[device][key] for key in ("free_mib", "cache_mib", "reserve_mib"))
        begin = time.monotonic()
        back, _ = eventually(same, seconds + 3)
        self.assertTrue(back, f"{engine.stat()} is not {before}")
        self.assertLess(time.monotonic() - begin, seconds)

    def leases(self, engine):
        return [m.keys["lease"] for m in engine.ask("LEASES")[:-1]]

    def event(self, watcher, kind, since=0, **keys):
        """The first EVENT of this kind whose keys have these values."""
        def fits(m):
            return m.verb == "EVENT" and m.bare == [kind] and all(m.keys.get(k) == str(v) for k, v in keys.items())
        return watcher.lines.all[watcher.lines.wait(fits, since, 20, f"EVENT {kind} {keys}")]


class Ends(LeaseTest):
    def test_a_lease_for_a_second_is_over_after_a_second(self):
        engine = self.serve(**SERVE)
        before = engine.stat()
        want = before[1]["free_mib"] + 4
        begin = time.monotonic()
        answer = engine.ask(f"VRAM {want} 1 for=1")
        self.assertEqual((answer[0]["reserve_mib"], answer[0]["freed_mib"], answer[0]["shortfall_mib"]), (want, 4, 0))
        self.assertEqual(answer[-1].keys["lease"], "lease-1")
        self.is_back(engine, before, 1 + BACK_WITHIN)
        self.assertGreaterEqual(time.monotonic() - begin, 1)
        self.assertEqual(self.leases(engine), [])
        engine.finish()

    def test_a_dead_process_gives_back_within_two_seconds(self):
        engine = self.serve(**SERVE)
        before = engine.stat()
        borrower = subprocess.Popen(["sleep", "600"])
        self.addCleanup(borrower.wait)
        self.addCleanup(borrower.kill)
        engine.vram(f"VRAM {before[1]['free_mib'] + 3} 1 pid={borrower.pid} lease=game")
        self.assertEqual(self.leases(engine), ["game"])
        time.sleep(0.3)
        self.assertEqual(engine.stat()[1]["free_mib"], before[1]["free_mib"] + 3)
        borrower.kill()  # not waited for yet: a zombie is dead, too
        self.is_back(engine, before)
        self.assertEqual(engine.error(f"VRAM 1 1 pid={borrower.pid}")[0], "not-found")
        borrower.wait()
        self.assertEqual(engine.error(f"VRAM 1 1 pid={borrower.pid}")[0], "not-found")
        engine.finish()

    def test_a_lost_connection_gives_back_and_a_half_closed_one_gets_its_answer_first(self):
        engine = self.serve(**SERVE)
        before = engine.stat()
        want = before[1]["free_mib"] + 3
        for half in (False, True):
            client = self.client()
            since = client.send(f"VRAM {want} 1 conn=1 lease=mine")
            if half:
                client.half_close()
            self.assertEqual(client.wait("VRAM-DONE", since=since).keys["lease"], "mine")
            if not half:
                self.assertEqual(engine.stat()[1]["reserve_mib"], want)
                client.close()
            self.is_back(engine, before)
        engine.finish()

    def test_a_plain_dash_of_one_leaves_the_lease_of_another_alone(self):
        engine = self.serve(**SERVE)
        before, a, b = engine.stat(), self.client(), self.client()
        free = before[1]["free_mib"]
        b.vram(f"VRAM {free + 5} 1 conn=1 lease=b")
        for command in ("VRAM -", "VRAM", "VRAM - 1", "VRAM 0 1", f"VRAM {free + 2} 1"):
            self.assertEqual(a.vram(command)[1]["reserve_mib"], free + 5, command)
        self.assertEqual(engine.stat()[1]["free_mib"], free + 5)
        a.close()
        self.assertEqual(engine.vram("VRAM - 1")[1]["reserve_mib"], free + 5)
        self.assertEqual(engine.vram(f"VRAM {free + 6} 1")[1]["free_mib"], free + 6)
        self.assertEqual(self.leases(engine), ["b"])
        b.close()
        self.assertTrue(eventually(lambda: self.leases(engine) == [], 2)[0])
        self.assertEqual(engine.stat()[1]["reserve_mib"], free + 6)
        engine.vram("VRAM - 1")
        self.is_back(engine, before)
        engine.finish()

    def test_a_lease_outlives_its_stage_even_one_that_could_not_be_met(self):
        engine = self.serve(**SERVE)
        before = engine.stat()
        for want in (before[1]["free_mib"] + 4, before[1]["total_mib"]):
            with self.subTest(reserve=want):
                held = engine.vram(f"VRAM {want} 1 for=600 lease=kept")[1]
                os.kill(engine.stages()[1], signal.SIGKILL)
                self.assertEqual(len(engine.ids(f"g{want}", 8, "Call me Ishmael.", ignore_eos=1)), 8)

                def same():
                    now = engine.stat()[1]
                    self.assertEqual(now.keys["uuid"], before[1].keys["uuid"], "known while it is away, too")
                    return now["state"] != "restarting" and all(now[k] == held[k] for k in ("reserve_mib", "free_mib", "cache_mib"))
                self.assertTrue(eventually(same, 10)[0], f"{engine.stat()[1]} is not {held}")
                self.assertEqual(self.leases(engine), ["kept"])
                self.assertEqual(engine.stat()[1]["base_mib"], before[1]["base_mib"])
                since = engine.send("UNLEASE kept")
                engine.wait("VRAM-DONE", since=since)
                self.is_back(engine, before)
        engine.finish()

    def test_a_stage_comes_back_while_the_borrower_uses_what_it_was_lent(self):
        engine = self.serve(**SERVE)
        before = engine.stat()
        lent = before[1]["free_mib"] + 4
        engine.vram(f"VRAM {lent} 1 for=600 lease=used")
        holder = subprocess.Popen([str(BIN / "foreign-holder"), "--namespace", self.namespace, "--device", "1", "--mib", str(lent)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.env)
        self.addCleanup(holder.__exit__, None, None, None)
        self.addCleanup(holder.kill)
        self.assertEqual(holder.stdout.readline().split()[:1], [b"held"])
        self.assertEqual(engine.stat()[1]["free_mib"], 0)
        os.kill(engine.stages()[1], signal.SIGKILL)
        self.assertEqual(len(engine.ids("g", 8, "Call me Ishmael.", ignore_eos=1)), 8)
        self.assertTrue(eventually(lambda: engine.stat()[1]["reserve_mib"] == lent, 10)[0], engine.stat()[1])
        holder.stdin.close()
        holder.wait(10)
        engine.wait("VRAM-DONE", since=engine.send("UNLEASE used"))
        self.is_back(engine, before)
        engine.finish()

    def test_a_lease_that_ends_while_its_stage_is_away_is_not_held_by_the_new_one(self):
        engine = self.serve(**SERVE)
        before, client = engine.stat(), self.client()
        client.vram(f"VRAM {before[1]['free_mib'] + 4} 1 conn=1")
        os.kill(engine.stages()[1], signal.SIGKILL)
        client.close()
        self.is_back(engine, before, 10)
        engine.finish()


class Tools(LeaseTest):
    def lend(self, *args, **options):
        """`ebbtide vram …` in the background."""
        process = subprocess.Popen([str(EBBTIDE), "vram", *map(str, args)], env=self.env, stdin=subprocess.DEVNULL, **options)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def runs(self, engine, n=1):
        self.assertTrue(eventually(lambda: len(self.leases(engine)) == n, 5)[0])

    def test_memory_is_held_while_a_command_runs_and_is_back_when_it_has_ended(self):
        engine = self.serve(**SERVE)
        before = engine.stat()
        want = before[1]["free_mib"] + 3
        begin = time.monotonic()
        process = self.lend(want, 1, "--", "sleep", "2")
        self.runs(engine)
        self.assertEqual((engine.stat()[1]["reserve_mib"], engine.stat()[1]["free_mib"]), (want, want))
        self.assertEqual(process.wait(10), 0)
        self.assertGreaterEqual(time.monotonic() - begin, 2)
        after = engine.stat()[1]  # at once: it has waited for its receipts
        self.assertEqual((after["reserve_mib"], after["free_mib"]), (before[1]["reserve_mib"], before[1]["free_mib"]))
        engine.finish()

    def test_the_status_is_the_commands_and_its_output_is_untouched(self):
        engine = self.serve(**SERVE)
        for command, status in ((["sh", "-c", "echo out; echo err >&2; exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137), (["true"], 0),
                                (["no-such-program-here"], 127), (["/"], 126)):
            result = self.command("vram", 1, "--", *command)
            self.assertEqual(result.returncode, status, result.stderr)
            self.assertEqual(result.stdout, b"out\n" if status == 7 else b"")
            self.assertEqual(self.leases(engine), [])
        engine.finish()

    def test_what_cannot_be_had_is_told_by_its_own_status_and_the_command_is_not_run(self):
        engine = self.serve(**SERVE)
        before, mark = engine.stat(), self.sandbox / "ran"
        total = before[1]["total_mib"]
        for args, status, words in (([total, 1], 4, "--partial"), ([total + 1, 1], 5, "has 32 in all"), ([1, 7], 5, "no device 7"),
                                    ([total, 1, "--control", self.sandbox / "none"], 3, "no such control socket")):
            result = self.command("vram", *args, "--", "touch", mark)
            self.assertEqual(result.returncode, status, result.stderr)
            self.assertIn(words, result.stderr.decode())
            self.assertFalse(mark.exists())
            self.is_back(engine, before)
        self.assertEqual(self.command("vram", total, 1, "--partial", "--", "touch", mark).returncode, 0)
        self.assertTrue(mark.exists())
        self.is_back(engine, before)
        engine.finish()

    def test_killed_with_nine_it_gives_back_within_two_seconds_and_takes_its_command_along(self):
        engine = self.serve(**SERVE)
        before = engine.stat()
        process = self.lend(before[1]["free_mib"] + 3, 1, "--", "sleep", "600")
        self.runs(engine)
        self.assertTrue(eventually(lambda: descendants(process.pid), 5)[0])
        sleeper = descendants(process.pid)[0]
        process.kill()
        self.is_back(engine, before)
        self.assertEqual(self.leases(engine), [])
        self.assertTrue(eventually(lambda: not os.path.exists(f"/proc/{sleeper}"), 5)[0])
        engine.finish()

    def test_signals_reach_the_command_and_the_memory_comes_back(self):
        engine = self.serve(**SERVE)
        before = engine.stat()
        script = "trap 'echo int; exit 3' INT; trap 'echo term; exit 4' TERM; echo up; while :; do sleep 0.05; done"
        for number, word, status in ((signal.SIGINT, b"int\n", 3), (signal.SIGTERM, b"term\n", 4)):
            process = self.lend(before[1]["free_mib"] + 3, 1, "--", "sh", "-c", script, stdout=subprocess.PIPE)
            self.assertEqual(process.stdout.readline(), b"up\n")
            process.send_signal(number)
            self.assertEqual(process.communicate(timeout=10)[0], word)
            self.assertEqual(process.returncode, status)
            self.is_back(engine, before)
        process = self.lend(1, "--", "sleep", "600")
        self.runs(engine)
        self.assertTrue(eventually(lambda: descendants(process.pid), 5)[0])
        process.terminate()
        self.assertEqual(process.wait(10), 128 + signal.SIGTERM)
        engine.finish()

    def test_an_engine_that_ends_does_not_end_the_command(self):
        engine = self.serve(**SERVE)
        process = self.lend(1, "--", "sh", "-c", "sleep 1; exit 9", stderr=subprocess.PIPE)
        self.runs(engine)
        engine.finish()
        self.assertIn(b"the lease with it; the command goes on", process.communicate(timeout=10)[1])
        self.assertEqual(process.returncode, 9)

    def test_a_lease_that_was_renewed_elsewhere_is_not_ended_with_the_command(self):
        engine = self.serve(**SERVE)
        process = self.lend(1, "--lease", "handed", "--", "sleep", "600")
        self.runs(engine)
        engine.vram("VRAM 2 1 for=600 lease=handed")
        process.terminate()
        process.wait(10)
        self.assertEqual(self.leases(engine), ["handed"])
        engine.finish()

    def test_leases_are_made_listed_and_ended_from_a_shell(self):
        engine = self.serve(**SERVE)
        before = engine.stat()
        want = before[1]["free_mib"] + 2
        self.assertEqual(self.command("leases").stdout, b"no leases\n")
        result = self.command("vram", want, 1, "--for", 600, "--lease", "a.1", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        said = json.loads(result.stdout)
        self.assertEqual((said["lease"], said["receipts"][0]["reserve_mib"]), ("a.1", want))
        self.assertEqual(self.command("vram", 1, "--pid", os.getpid()).returncode, 0)
        listed = json.loads(self.command("leases", "--json").stdout)
        self.assertIn(listed["leases"][0].pop("for"), range(590, 601))
        self.assertEqual(listed["count"], 2)
        self.assertEqual(listed["leases"], [{"lease": "a.1", "reserve_mib": want, "device": 1},
                                            {"lease": "lease-1", "reserve_mib": 1, "pid": os.getpid()}])
        table = self.command("leases").stdout.decode().splitlines()
        self.assertRegex(table[0], r"^lease +card +reserve MiB")
        self.assertRegex(table[1], rf"^a\.1 +1 +{want} ")
        self.assertEqual(self.command("leases", "--raw").stdout.decode().splitlines()[1], f"LEASES lease=lease-1 reserve_mib=1 pid={os.getpid()}")
        top = json.loads(self.command("top", "--json", "--interval", "0").stdout)
        self.assertEqual([lease["name"] for lease in top["leases"]], ["a.1", "lease-1"])
        result = self.command("unlease", "a.2")
        self.assertEqual((result.returncode, result.stdout), (1, b""))
        self.assertIn("the nearest is a.1", result.stderr.decode())
        result = self.command("unlease", "a.1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(result.stdout.decode().splitlines()[-1].endswith("lease=a.1"))
        self.assertEqual(self.leases(engine), ["lease-1"])
        engine.finish()

    def test_a_wrong_use_is_one_line_and_exit_2(self):
        for args in (["vram", "--for", "5"], ["vram", "1", "--for", "0"], ["vram", "1", "--for", "5", "--pid", "1"], ["vram", "1", "--lease", "x"],
                     ["vram", "1", "--for", "5", "--", "true"], ["vram", "1", "--"], ["vram", "--", "true"], ["vram", "1", "--pid"],
                     ["vram", "1", "--pid", "x"], ["vram", "1", "--for", "5", "--lease", "a/b"], ["vram", "1", "--partial"], ["vram", "1", "--fro", "5"],
                     ["vram", "0" * 300 + "1"], ["vram", "1", "--json", "--", "true"], ["unlease"], ["unlease", "a", "b"], ["unlease", "a/b"],
                     ["leases", "x"], ["leases", "--ledger"]):
            result = self.command(*args)
            self.assertEqual((result.returncode, result.stdout, result.stderr.count(b"\n")), (2, b"", 1), (args, result.stderr))
            self.assertIn(f"(see ebbtide {args[0]} --help)", result.stderr.decode())


class Bounds(LeaseTest):
    def test_there_are_256_leases_at_most_and_a_refused_one_changes_nothing(self):
        engine, client = self.serve(**SERVE), self.client()
        before = engine.stat()
        for i in range(256):
            client.send(f"VRAM 0 {i % 2} conn=1 lease=n{i}")
        client.wait("LEASES-DONE", since=client.send("LEASES"), seconds=60)
        self.assertEqual(len(self.leases(engine)), 256)
        self.assertEqual(engine.error(f"VRAM {before[1]['free_mib'] + 3} 1 for=9 lease=late")[0], "busy")
        self.is_back(engine, before)
        self.assertEqual(engine.vram(f"VRAM {before[1]['free_mib'] + 3} 1 for=9 lease=n7")[1]["freed_mib"], 3)
        engine.wait("VRAM-DONE", since=engine.send("UNLEASE n7"))
        self.assertEqual(engine.ask("VRAM 1 1 for=9 lease=late")[-1].keys["lease"], "late")
        client.close()
        self.assertTrue(eventually(lambda: self.leases(engine) == ["late"], 2)[0])
        engine.finish()


class Watch(LeaseTest):
    def test_watchers_hear_of_leases_and_of_receipts_that_were_not_theirs(self):
        engine = self.serve(**SERVE)
        watcher, other = self.client(), self.client()
        self.assertEqual(watcher.ask("WATCH")[-1].verb, "WATCH-DONE")
        free = engine.stat()[1]["free_mib"]
        other.vram(f"VRAM {free + 2} 1 conn=1 lease=o")
        self.event(watcher, "lease", state="made", lease="o", device=1, reserve_mib=free + 2, conn=1)
        self.event(watcher, "vram", device=1, freed_mib=2, free_mib=free + 2, reason="ok")
        other.vram(f"VRAM {free + 3} 1 for=900 lease=o")
        self.event(watcher, "lease", state="renewed", lease="o", reserve_mib=free + 3, **{"for": 900})
        other.close()
        other = self.client()
        other.vram(f"VRAM {free + 4} 1 conn=1 lease=p")
        since = len(watcher.lines.all)
        other.close()
        self.event(watcher, "lease", since, state="ended", lease="p", why="connection")
        self.event(watcher, "vram", since, device=1, reserve_mib=free + 3, freed_mib=-1)
        since = watcher.send("UNLEASE o")
        done = watcher.lines.wait(lambda m: m.verb == "VRAM-DONE", since, 10)
        self.event(watcher, "lease", since, state="ended", lease="o", why="unlease")
        watcher.ping()
        self.assertEqual([m for m in watcher.lines.all[since:] if m.verb == "EVENT" and m.bare == ["vram"]], [])
        self.assertEqual(watcher.lines.all[done - 1].verb, "VRAM")
        self.assertFalse([m for m in engine.lines.all if m.verb == "EVENT"], "the controller did not ask")
        engine.finish()


class Many(LeaseTest):
    N_CLIENTS, N_COMMANDS = 50, 100

    def talk(self, number, free, faults):
        """A client's commands, in bursts, and every answer held against its command, in order."""
        try:
            rng, client, mine = random.Random(number), self.client(), set()
            for _ in range(self.N_COMMANDS // 10):
                commands = [self.command_of(rng, number, free, mine) for _ in range(10)]
                since = client.send(*(c for c, _ in commands))
                client.ping(f"end-{number}-{rng.random()}")
                client.wait("LEASES-DONE", since=client.send("LEASES"))
                answers = [m for m in client.lines.all[since:] if m.verb != "PONG"]
                for command, check in commands:
                    check(command, answers)
            client.close()
        except Exception as fault:  # told by the test's own thread
            faults.append(f"client {number}: {fault!r}")

    def command_of(self, rng, number, free, mine):
        def receipts(command, answers, devices, lease=None, least=0):
            for device in devices:
                m = answers.pop(0)
                self.assertEqual((m.verb, m["device"]), ("VRAM", device), command)
                self.assertGreaterEqual(m["reserve_mib"], least, command)
            m = answers.pop(0)
            self.assertEqual((m.verb, m["cards"], m.keys.get("lease")), ("VRAM-DONE", len(devices), lease), command)

        def error(command, answers, code):
            m = answers.pop(0)
            self.assertEqual((m.verb, m.bare[1]), ("ERR", code), command)
        kind, device = rng.randrange(6), rng.randrange(2)
        reserve = free + rng.randrange(6)
        if kind == 0:
            return f"VRAM {reserve} {device}", lambda c, a: receipts(c, a, [device], None, reserve)
        if kind == 1:
            return "VRAM -", lambda c, a: receipts(c, a, [0, 1])
        if kind == 2:
            name = f"c{number}.{device}"
            mine.add(name)
            return f"VRAM {reserve} {device} conn=1 lease={name}", lambda c, a: receipts(c, a, [device], name, reserve)
        if kind == 3 and mine:
            name = mine.pop()
            return f"UNLEASE {name}", lambda c, a: receipts(c, a, [int(name[-1])], name)
        if kind == 4:
            return f"UNLEASE none{number}", lambda c, a: error(c, a, "not-found")
        return f"VRAM {number}x", lambda c, a: error(c, a, "bad-value")

    def test_fifty_clients_get_every_answer_right_and_in_order_while_tokens_stay_the_same(self):
        engine = self.serve(**SERVE)
        prompt = golden()[1]["prompt_ids"]
        wanted = engine.ids("alone", 40, prompt, ignore_eos=1)
        before, faults, texts = engine.stat(), [], []
        free = min(card["free_mib"] for card in before.values())
        threads = [threading.Thread(target=self.talk, args=(i, free, faults)) for i in range(self.N_CLIENTS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            texts.append(engine.ids(f"t{len(texts)}", 40, prompt, ignore_eos=1))
        for thread in threads:
            thread.join()
        self.assertEqual(faults, [])
        self.assertGreater(len(texts), 0)
        for text in texts:
            self.assertEqual(text, wanted)
        engine.vram("VRAM")
        self.assertTrue(eventually(lambda: self.leases(engine) == [], 2)[0])
        for device in (0, 1):
            self.is_back(engine, before, device=device)
        engine.finish()

    def test_one_that_never_reads_is_dropped_with_its_lease_and_the_others_are_served(self):
        engine = self.serve(**SERVE)
        before = engine.stat()
        path = next((self.runtime / "ebbtide").glob("*.sock"))
        deaf = socket.socket(socket.AF_UNIX)
        self.addCleanup(deaf.close)
        deaf.connect(str(path))
        deaf.sendall(f"WATCH\nVRAM {before[1]['free_mib'] + 3} 1 conn=1 lease=deaf\n".encode())
        self.assertTrue(eventually(lambda: self.leases(engine) == ["deaf"], 5)[0])
        noisy, count = self.client(), 0
        limit = time.monotonic() + 60
        while self.leases(engine) != [] and time.monotonic() < limit:
            since = noisy.send(*[f"VRAM 0 {i % 2}" for i in range(200)])
            count += 200
            noisy.wait("PONG", since=noisy.send("PING x"))
            noisy.lines.wait(lambda m, n=[0]: m.verb == "VRAM-DONE" and n.__setitem__(0, n[0] + 1) is None and n[0] == 200, since, 60)
        self.assertEqual(self.leases(engine), [], f"not dropped after {count} events")
        self.assertEqual(len(engine.ids("g", 8, "Call me Ishmael.", ignore_eos=1)), 8)
        self.is_back(engine, before)
        engine.finish()


if __name__ == "__main__":
    unittest.main()
