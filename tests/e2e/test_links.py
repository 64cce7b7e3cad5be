"""Rows between the stages of one host: over a socket, and through a ring of the receiver's card that both stages map. Both give the same
tokens, whatever the split; what a ring cannot serve goes over the socket; a lost or stopped neighbour leaves nothing behind.
"""
import json
import os
import signal
from pathlib import Path

from ebbtide import BIN, DEMO, DEMO_LAYERS, EbbtideTest, golden
from processes import command_name, descendants, holders_of, memory_files
from stage import Stage, rows
from test_stage_by_hand import StageByHand


class RingByHand(StageByHand):
    """Every promise of stages driven by hand, held over a ring too."""

    def started(self, n=1, **keys):
        return super().started(n, **{"link": "ipc", **keys})

    def became(self, stages, way="out"):
        return [next(m.keys["link"] for m in reversed(s.lines.all) if m.verb == "LINKED" and way in m.keys) for s in stages]

    def assert_all_is_explained(self, stages):
        for s in stages:
            (ledger,) = s.ledger().values()
            self.assertEqual(ledger["unexplained"], 0, ledger)

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

    def test_pieces_of_every_size_arrive_whole(self):
        self.prompt = self.prompt * 6
        for chunk in (16, 64, 512):
            ids = []
            for link in ("socket", "ipc"):
                self.namespace += "x"
                ids.append(self.decode(self.started(2, chunk=max(chunk, len(self.prompt)), link=link), 6))
            self.assertEqual(ids[0], ids[1], chunk)

    def test_a_link_word_that_is_none_is_refused(self):
        refused = Stage(self, 0).load(link="nccl")
        self.assertEqual(refused.verb, "ERR")
        self.assertIn("ipc or socket", refused.raw)

    def pair(self, programs, link="ipc"):
        """Two linked stages of these programs."""
        self.namespace += "x"
        stages = [Stage(self, i, program=p) for i, p in enumerate(programs)]
        half = DEMO_LAYERS // 2
        for i, s in enumerate(stages):
            held = s.load(device=i, stage=i, stages=2, layers=f"{i * half}-{(i + 1) * half - 1}", link=link)
            self.assertEqual(held.verb, "HELD", held.raw)
        self.link(stages, 0)
        for s in stages:
            self.assertEqual(s.after("GO", "LOADED").verb, "LOADED")
        return stages

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
        stages[1].process.send_signal(signal.SIGKILL)
        stages[1].process.wait()
        stages[1] = Stage(self, 1)
        half = DEMO_LAYERS // 2
        self.assertEqual(stages[1].load(device=1, stage=1, stages=2, layers=f"{half}-{DEMO_LAYERS - 1}", epoch=1,
                                        link="ipc").verb, "HELD")
        self.link(stages, 1)
        self.assertEqual(stages[1].after("GO", "LOADED").verb, "LOADED")
        self.assertEqual(holders_of(inodes), set(), "the dead stage's memory is still held")
        maps = Path(f"/proc/{stages[0].process.pid}/maps").read_text(encoding="utf-8")
        self.assertFalse([line for line in maps.splitlines() if "memfd" in line and int(line.split()[4]) in inodes])
        self.assertEqual(self.became(stages[:1]), ["ipc"])
        self.assertEqual(self.decode(stages, 8, epoch=1), before)
        self.assert_all_is_explained(stages)

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
        for device in (False, True):
            flags = {"launch": f"sh -c 'shift; exec {BIN}/device-stage \"$@\"' -- {{stage}}"} if device else {}
            with self.subTest(device=device):
                engine = self.serve(3, link="ipc", kv_tokens=2048, **flags)
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
            for chunk in (7, 512):
                self.assertEqual(self.ids_and_ways(3, link="ipc", launch=launch, chunk=chunk), (wanted, ["ipc"] * 2))

    def test_a_link_that_is_not_built_is_refused(self):
        result = self.command("run", "-m", DEMO, "--link", "nccl", "--ids", "1")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn(b"auto|ipc|socket", result.stderr)


del StageByHand  # its own file runs it over sockets
