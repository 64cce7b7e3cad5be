"""Rows between the stages of one host: over a socket, through a ring of the receiver's card that both stages map, and by NCCL. All give
the same tokens, whatever the split; what a ring or NCCL cannot serve goes over the socket; a lost or stopped neighbour leaves nothing
behind. NCCL is tests/fake_nccl.c, between CPU cards that say they are devices.
"""
import json
import os
import signal
from pathlib import Path

from ebbtide import BIN, DEMO, DEMO_LAYERS, EbbtideTest, golden
from processes import command_name, descendants, holders_of, memory_files
from stage import Stage, rows
from test_stage_by_hand import StageByHand


class LinkedByHand(StageByHand):
    """Every promise of stages driven by hand, held over another link than the socket."""

    def started(self, n=1, **keys):
        return super().started(n, **{"link": self.way, **keys})

    def became(self, stages, way="out"):
        return [next(m.keys["link"] for m in reversed(s.lines.all) if m.verb == "LINKED" and way in m.keys) for s in stages]

    def assert_all_is_explained(self, stages):
        for s in stages:
            (ledger,) = s.ledger().values()
            self.assertEqual(ledger["unexplained"], 0, ledger)

    def pair(self, programs, **keys):
        """Two linked stages of these programs."""
        self.namespace += "x"
        stages = [Stage(self, i, program=p) for i, p in enumerate(programs)]
        half = DEMO_LAYERS // 2
        for i, s in enumerate(stages):
            held = s.load(**{"device": i, "stage": i, "stages": 2, "layers": f"{i * half}-{(i + 1) * half - 1}", "link": self.way, **keys})
            self.assertEqual(held.verb, "HELD", held.raw)
        self.link(stages, 0)
        for s in stages:
            self.assertEqual(s.after("GO", "LOADED").verb, "LOADED")
        return stages

    def test_pieces_of_every_size_arrive_whole(self):
        self.prompt = self.prompt * 6
        for chunk in (16, 64, 512):
            ids = []
            for link in ("socket", self.way):
                self.namespace += "x"
                ids.append(self.decode(self.started(2, chunk=max(chunk, len(self.prompt)), link=link), 6))
            self.assertEqual(ids[0], ids[1], chunk)

    def restarted(self, stages):
        """The second of two is killed, and comes back with a higher epoch."""
        stages[1].process.send_signal(signal.SIGKILL)
        stages[1].process.wait()
        stages[1] = Stage(self, 1, program=self.program)
        half = DEMO_LAYERS // 2
        self.assertEqual(stages[1].load(device=1, stage=1, stages=2, layers=f"{half}-{DEMO_LAYERS - 1}", epoch=1,
                                        link=self.way).verb, "HELD")
        self.link(stages, 1)
        self.assertEqual(stages[1].after("GO", "LOADED").verb, "LOADED")

    def test_a_stage_answers_while_the_one_after_it_is_stopped(self):
        stages = self.started(2, sequences=16)
        wanted = self.decode(stages, 1)
        os.kill(stages[1].process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, stages[1].process.pid, signal.SIGCONT)
        n = 12  # more than the ring has tiles
        since = len(stages[1].lines.all)
        for step in range(2, 2 + n):
            for s in stages:
                s.send(rows(step, step, 0, ",".join(map(str, self.prompt)) if step < 5 else "5", want="last"),
                       f"STEP epoch=0 step={step} rows={len(self.prompt) if step < 5 else 1}")
        free = stages[0].stat()[0]["free_mib"]
        self.assertEqual(stages[0].vram(f"VRAM {free + 2}")[0]["freed_mib"], 2)
        self.assertLess(stages[0].ping(seconds=2), 1)
        os.kill(stages[1].process.pid, signal.SIGCONT)
        self.assertEqual([self.token(stages[1], step, since) for step in (2, 3, 4)], wanted * 3)
        self.token(stages[1], 1 + n, since)


class RingByHand(LinkedByHand):
    way = "ipc"

    def test_linked_stages_say_what_the_link_became(self):
        stages = self.started(4)
        self.assertEqual(self.became(stages[:3]), ["ipc"] * 3)
        self.assertEqual(self.became(stages[3:], "back-out"), ["socket"])
        self.assert_all_is_explained(stages)
        links = [next(iter(s.ledger().values()))["link"] for s in stages]
        self.namespace += "x"
        plain = self.started(4, link="socket")
        self.assertEqual(self.became(plain[:3]), ["socket"] * 3)
        for ring, socket in zip(links, (next(iter(s.ledger().values()))["link"] for s in plain)):
            self.assertLessEqual(abs(ring - socket), 4096, "the ring takes the place of the socket's tiles")

    def test_a_link_word_that_is_none_is_refused(self):
        refused = Stage(self, 0).load(link="wire")
        self.assertEqual(refused.verb, "ERR")
        self.assertIn("ipc, nccl or socket", refused.raw)

    def test_cards_that_cannot_share_use_the_socket_and_say_why(self):
        orders = self.sandbox / "orders"
        orders.write_text("")
        cpu, other = ("ebbtide-stage-cpu",), ("failing-stage", "--orders", str(orders))
        alone = self.decode(self.started(1), 16)
        for programs, who, why in (((cpu, other), 1, "shares no memory"), ((other, cpu), 0, "cannot map memory of a host card")):
            with self.subTest(why):
                stages = self.pair(programs)
                self.assertEqual(self.became(stages[:1]), ["socket"])
                self.assertEqual(self.decode(stages, 16), alone)
                self.assertIn(why, stages[who].log_path.read_text())
                self.assert_all_is_explained(stages)

    def test_a_device_copies_rows_on_its_own_stream_into_the_ring(self):
        cpu, device = ("ebbtide-stage-cpu",), ("device-stage",)
        alone = self.decode(self.started(1), 16)
        for programs in ((device, device), (cpu, device), (device, cpu)):
            with self.subTest(programs):
                stages = self.pair(programs)
                self.assertEqual(self.became(stages[:1]), ["ipc"])
                self.assertEqual(self.decode(stages, 16), alone)
                self.assert_all_is_explained(stages)

    def test_a_killed_neighbour_leaves_no_ring_with_anybody(self):
        stages = self.started(2)
        before = self.decode(stages, 8)
        inodes = set(memory_files(stages[1].process.pid))
        self.assertTrue(inodes)
        self.restarted(stages)
        self.assertEqual(holders_of(inodes), set(), "the dead stage's memory is still held")
        maps = Path(f"/proc/{stages[0].process.pid}/maps").read_text(encoding="utf-8")
        self.assertFalse([line for line in maps.splitlines() if "memfd" in line and int(line.split()[4]) in inodes])
        self.assertEqual(self.became(stages[:1]), ["ipc"])
        self.assertEqual(self.decode(stages, 8, epoch=1), before)
        self.assert_all_is_explained(stages)


class NcclByHand(LinkedByHand):
    way = "nccl"
    program = ("device-stage",)

    def failing(self, **env):
        """A device stage in whose NCCL something goes otherwise."""
        script = self.sandbox / f"stage-{len(list(self.sandbox.iterdir()))}.sh"
        words = " ".join(f"{k}={v}" for k, v in env.items())
        script.write_text(f'#!/bin/sh\nexec env {words} {BIN}/device-stage "$@"\n')
        script.chmod(0o755)
        return (str(script),)

    def ledgers(self, stages):
        return [ledger.raw for s in stages for ledger in s.ledger().values()]

    def test_linked_stages_say_what_the_link_became(self):
        stages = self.started(4)
        self.assertEqual(self.became(stages[:3]), ["nccl"] * 3)
        self.assertEqual(self.became(stages[3:], "back-out"), ["socket"])
        self.assert_all_is_explained(stages)

    def test_cards_without_nccl_use_the_socket_and_say_why(self):
        cpu, device = ("ebbtide-stage-cpu",), ("device-stage",)
        alone = self.decode(self.started(1), 16)
        for programs, who, why in (((cpu, device), 0, "a cpu card has no such link"), ((device, cpu), 0, "offers no NCCL")):
            with self.subTest(programs):
                stages = self.pair(programs)
                self.assertEqual(self.became(stages[:1]), ["socket"])
                self.assertEqual(self.decode(stages, 16), alone)
                self.assertIn(why, stages[who].log_path.read_text())
                self.assert_all_is_explained(stages)

    def test_a_communicator_that_cannot_be_made_leaves_the_socket_and_says_why(self):
        alone = self.decode(self.started(1), 16)
        plain, broken = self.program, self.failing(FAKE_NCCL_FAILS="init", FAKE_NCCL_BYTES=1 << 20)
        for programs, why in (((broken, plain), "making a communicator: invalid argument"), ((plain, broken), "at the other stage"),
                              ((self.failing(FAKE_NCCL_FAILS="send"), plain), "the first rows: unhandled system error")):
            with self.subTest(why):
                stages = self.pair(programs)
                self.assertEqual(self.became(stages[:1]), ["socket"])
                self.assertEqual(self.decode(stages, 16), alone)
                self.assertIn(why, stages[0].log_path.read_text())
                self.assert_all_is_explained(stages)

    def test_two_stages_of_one_card_use_the_socket_and_say_why(self):
        stages = [Stage(self, 0, program=self.program) for _ in range(2)]
        half = DEMO_LAYERS // 2
        for i, s in enumerate(stages):
            self.assertEqual(s.load(stage=i, stages=2, layers=f"{i * half}-{(i + 1) * half - 1}", link="nccl", kv_tokens=512).verb, "HELD")
        self.link(stages, 0)
        self.assertEqual(self.became(stages[:1]), ["socket"])
        self.assertIn("both stages are on one card", stages[0].log_path.read_text())

    def test_a_stage_that_finds_no_nccl_says_so(self):
        (self.sandbox / "libnccl.so.2").write_text("not a library")
        stage = Stage(self, 0, program=self.failing(LD_LIBRARY_PATH=self.sandbox))
        answer = stage.load(stages=2, layers="0-3", link="nccl")
        self.assertEqual(answer.verb, "ERR")
        self.assertIn("no NCCL", answer.raw)
        self.assertEqual(stage.load(stages=2, layers="0-3", link="socket").verb, "HELD")

    def test_what_nccl_takes_of_the_card_is_told_and_free_memory_stays(self):
        for took in (1 << 20, 5 << 20):  # of the 3 MiB that are kept for it and its one link
            with self.subTest(took=took):
                stages = self.pair([self.failing(FAKE_NCCL_BYTES=took)] * 2)
                self.assert_all_is_explained(stages)
                before = self.ledgers(stages)
                self.assertTrue(all(" foreign=0 " in ledger for ledger in before), before)
                for epoch in (1, 2, 3):
                    self.link(stages, epoch)
                    self.decode(stages, 4, epoch=epoch)
                    self.assertEqual(self.ledgers(stages), before)
                self.assertEqual("were kept for it" in stages[0].log_path.read_text(), took > 3 << 20)

    def test_a_killed_neighbour_costs_nothing_but_its_link(self):
        stages = self.started(2)
        before = self.decode(stages, 8)
        ledger = self.ledgers(stages[:1])
        os.kill(stages[1].process.pid, signal.SIGSTOP)
        since = stages[0].send(rows(90, 9, 0, "5"), "STEP epoch=0 step=90 rows=1")
        stages[0].wait("RAN", since=since)  # its rows stand and wait for a stage that will never take them
        self.restarted(stages)
        self.assertEqual(self.became(stages[:1]), ["nccl"])
        self.assertEqual(self.decode(stages, 8, epoch=1), before)
        self.assertEqual(self.ledgers(stages[:1]), ledger)

    def test_a_sender_that_dies_before_its_rows_are_there_holds_nobody(self):
        stages = self.started(2)
        before = self.decode(stages, 4)
        os.kill(stages[1].process.pid, signal.SIGSTOP)  # so that it sees header and end together
        since = stages[0].send(rows(90, 9, 0, "5"), "STEP epoch=0 step=90 rows=1")
        stages[1].send(rows(90, 9, 0, "5", want="last"), "STEP epoch=0 step=90 rows=1")
        stages[0].wait("RAN", since=since)
        stages[0].process.send_signal(signal.SIGKILL)
        stages[0].process.wait()
        os.kill(stages[1].process.pid, signal.SIGCONT)
        self.assertLess(stages[1].ping(seconds=2), 1)
        stages[0] = Stage(self, 0, program=self.program)
        self.assertEqual(stages[0].load(stages=2, layers=f"0-{DEMO_LAYERS // 2 - 1}", epoch=1, link="nccl").verb, "HELD")
        self.link(stages, 1)
        self.assertEqual(stages[0].after("GO", "LOADED").verb, "LOADED")
        self.assertEqual(self.decode(stages, 4, epoch=1), before)


DEVICES = f"sh -c 'shift; exec {BIN}/device-stage \"$@\"' -- {{stage}}"


class Engines(EbbtideTest):
    """An engine whose stages are linked as --link says."""

    prompt = golden()[10]["prompt_ids"][:100]

    def ids_and_ways(self, cards, **flags):
        """Greedy ids, and by what rows went on from each card but the last; no byte of a card is unexplained."""
        engine = self.serve(cards, log_level="info", kv_tokens=2048, **flags)
        ids = engine.ids("t", 24, self.prompt, ignore_eos=1)
        self.assertEqual([ledger["unexplained"] for ledger in engine.ledger().values()], [0] * cards)
        engine.finish()
        log = engine.log_path.read_text(errors="replace")
        return ids, [line.rsplit(" ", 1)[-1] for line in log.splitlines() if "rows go on to the next card by" in line]

    def test_a_ring_gives_the_ids_of_a_socket_for_every_split_and_chunk(self):
        wanted, _ = self.ids_and_ways(1)
        for cards in (2, 3, 4):
            for chunk in (1, 16, 64, 512):
                with self.subTest(cards=cards, chunk=chunk):
                    self.assertEqual(self.ids_and_ways(cards, chunk=chunk, link="ipc"), (wanted, ["ipc"] * (cards - 1)))
            self.assertEqual(self.ids_and_ways(cards, link="socket"), (wanted, ["socket"] * (cards - 1)))

    def test_nccl_gives_the_ids_of_a_socket_for_every_split_and_chunk(self):
        wanted, _ = self.ids_and_ways(1)
        for cards in (2, 3, 4):
            for chunk in (1, 16, 64, 512):
                with self.subTest(cards=cards, chunk=chunk):
                    self.assertEqual(self.ids_and_ways(cards, chunk=chunk, link="nccl", launch=DEVICES), (wanted, ["nccl"] * (cards - 1)))
        self.assertEqual(self.ids_and_ways(2, link="nccl"), (wanted, ["socket"]))

    def test_what_a_card_is_said_to_hold_counts_its_ring(self):
        plan = json.loads(self.command("plan", "--json", *self.flags(3, link="ipc", vram_mib=40, chunk=33)).stdout)
        engine = self.serve(3, link="ipc", vram_mib=40, chunk=33)
        self.assertEqual([card["link_bytes"] for card in plan["cards"]], [l["link"] for l in engine.ledger().values()])
        engine.finish()

    def stages_of(self, engine):
        """Process ids in the order of the cards."""
        pids = [pid for pid in descendants(engine.process.pid) if "--device" in command_name(pid)]
        return sorted(pids, key=lambda pid: command_name(pid).partition("--device ")[2])

    def test_tokens_go_on_identically_after_the_middle_stage_is_killed(self):
        wanted, _ = self.ids_and_ways(1)
        for link, flags in (("ipc", {}), ("ipc", {"launch": DEVICES}), ("nccl", {"launch": DEVICES})):
            with self.subTest(link=link, **flags):
                engine = self.serve(3, link=link, kv_tokens=2048, **flags)
                pids = self.stages_of(engine)
                self.assertEqual(len(pids), 3)
                begin = engine.gen("t", 400, self.prompt, ignore_eos=1)
                engine.wait("T", "t", begin)
                os.kill(pids[1], signal.SIGKILL)
                ids = engine.done("t", begin)[1]
                self.assertNotEqual(self.stages_of(engine), pids, "the killed stage was not killed in time")
                self.assertEqual(ids[:24], wanted)
                self.assertEqual(engine.ids("again", 400, self.prompt, ignore_eos=1), ids)
                self.assertEqual([ledger["unexplained"] for ledger in engine.ledger().values()], [0] * 3)
                engine.finish()

    def test_a_device_gives_the_ids_of_a_plain_card_over_rings(self):
        wanted, _ = self.ids_and_ways(1)
        for wakes in (0, 1):
            launch = f"env DEVICE_STAGE_WAKES={wakes} sh -c 'shift; exec {BIN}/device-stage \"$@\"' -- {{stage}}"
            for link, chunk in (("ipc", 7), ("ipc", 512), ("nccl", 7), ("nccl", 512)):
                self.assertEqual(self.ids_and_ways(3, link=link, launch=launch, chunk=chunk), (wanted, [link] * 2))

    def test_a_link_that_is_none_is_refused(self):
        result = self.command("run", "-m", DEMO, "--link", "wire", "--ids", "1")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn(b"auto|ipc|nccl|socket", result.stderr)

    def test_nccl_that_is_not_there_ends_the_start_with_the_reason(self):
        (self.sandbox / "libnccl.so.2").write_text("not a library")
        launch = f"env LD_LIBRARY_PATH={self.sandbox} {DEVICES}"
        result = self.command("run", "-m", DEMO, "--cards", "cpu:0,cpu:1", "--link", "nccl", "--launch", launch, "--ids", "1")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(b"link: nccl wanted: no NCCL", result.stderr)


del StageByHand, LinkedByHand  # the first's own file runs it over sockets
