"""ebbtide top: frames as text, as JSON and on terminals of several sizes, of engines that run, end and come back."""
import json
import re
import signal
import unittest

from ebbtide import EBBTIDE, EbbtideTest
from engine_stand_in import StandIn
from screen import Terminal

CARD = re.compile(r"^card (\d+)  (\S+) +layers (\S+) +(\S+) +(\d+) MiB")
BAR = re.compile(r"^ \[([WK#\-PLXF?.r ]*)\]$")
SMALL = {"vram_mib": "24,24", "segment_mib": 1}

STAT = ("STAT device={0} kind=cuda name=Some%20Card state=running layers=0-3 total_mib=1000 free_mib=300 foreign_mib=100 "
        "reserve_mib=200 base_mib=50 segment_mib=10 cache_mib=400 cache_full_mib=600 cache_floor_mib=10 slots=40 slots_full=60 "
        "slots_floor=4 resident=20 kv_blocks=10 kv_blocks_free=4 kv_blocks_max=40 sequences=2 prompt_chunk=64 steps={1} tokens={2} hits={3} "
        "lookups={4} promotions=0 heat_resident=874 heat_layers=1000,999,500,0 novel=1")
LEDGER = "LEDGER device={0} " + " ".join(f"{owner}={mib << 20}" for owner, mib in dict(
    total=1000, free=300, foreign=100, unexplained=0, weights=100, kv=50, cache=400, workspace=20, stream=0, link=10, blas=10,
    context=10).items())


def answers(n_cards=1, leases=None):
    """Each round 10 steps, 20 tokens, 30 hits of 40 lookups."""
    return {
        "STAT": lambda n, _: [STAT.format(i, 10 * n, 20 * n, 30 * n, 40 * n) for i in range(n_cards)] + ["STAT-DONE"],
        "LEDGER": lambda n, _: [LEDGER.format(i) for i in range(n_cards)] + ["LEDGER-DONE"],
        "PLAN": lambda n, _: [f"PLAN device={i} card=cuda:{i}" for i in range(n_cards)] + ["PLAN-DONE"],
        "LEASES": lambda n, _: (leases + ["LEASES-DONE"]) if leases is not None else ["ERR - unsupported no leases here"],
    }


class Top(EbbtideTest):
    def stand_in(self, *args, **options):
        path = self.sandbox / "stand-in.sock"
        engine = StandIn(path, answers(*args, **options))
        self.addCleanup(engine.close)
        return path

    def top(self, *args, status=0):
        done = self.command("top", *args)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout.decode()

    def terminal(self, rows, columns, *args, term="xterm-256color"):
        terminal = Terminal([EBBTIDE, "top", *args], rows, columns, dict(self.env, TERM=term))
        self.addCleanup(terminal.close)
        return terminal

    def check_screen(self, lines, rows, columns, n_cards):
        """A whole frame: title, cards with bars of the full width, keys in the last line that is used."""
        self.assertEqual(len(lines), rows)
        self.assertTrue(lines[0].startswith("ebbtide top: "), lines)
        self.assertEqual([int(m[1]) for m in map(CARD.match, lines) if m], list(range(n_cards)))
        bars = [m[1] for m in map(BAR.match, lines) if m]
        self.assertEqual([len(bar) for bar in bars], [columns - 4] * n_cards)
        self.assertTrue([line for line in lines if line][-1].startswith(" q quit"), lines)

    def test_a_frame_says_what_the_engine_says(self):
        engine = self.serve(name="top", **SMALL)
        engine.vram("VRAM 11 1")
        lines = self.top("--once", "--interval", "0.1", "--name", "top").splitlines()
        stat, ledger = engine.stat(), engine.ledger()
        text = "\n".join(lines)
        self.assertLessEqual(max(map(len, lines)), 80)
        for device in (0, 1):
            card = next(m for m in map(CARD.match, lines) if m and int(m[1]) == device)
            self.assertEqual(card.groups()[1:], (f"cpu:{device}", stat[device]["layers"], "idle", "24"))
            self.assertIn("weights %.1f " % (ledger[device]["weights"] / 2**20), text)
            self.assertIn("free %.1f" % (ledger[device]["free"] / 2**20), text)
        self.assertIn("reserve 11", text)
        engine.finish()

    def test_the_bar_is_the_ledger_in_columns(self):
        path = self.stand_in()
        lines = self.top("--once", "--interval", "0", "--columns", "104", "--control", path).splitlines()
        bar = next(m[1] for m in map(BAR.match, lines) if m)
        self.assertEqual(bar, "W" * 10 + "K" * 5 + "#" * 20 + "-" * 20 + "PP" + "L" + "XX" + "F" * 10 + "." * 10 + "r" * 20)

    def test_rates_are_those_of_the_last_interval(self):
        path = self.stand_in()
        text = self.top("--once", "--interval", "0.5", "--control", path)
        self.assertIn("hits 75.0 %", text)
        steps = float(re.search(r"([\d.]+) steps/s", text)[1])
        self.assertGreater(steps, 2)
        self.assertLessEqual(steps, 20)
        self.assertIn("tok/s", text)
        self.assertIn("kv blocks 6 of 10 (up to 40)", text)
        self.assertIn("hits -", self.top("--once", "--interval", "0", "--control", path))

    def test_the_runs_rate_is_in_the_title_and_that_of_a_card_with_it(self):
        title, *lines = self.top("--once", "--interval", "0.5", "--control", self.stand_in(2)).splitlines()
        rate = float(re.search(r"([\d.]+) tok/s", title)[1])
        self.assertGreater(rate, 2)
        self.assertEqual([float(x) for x in re.findall(r"([\d.]+) tok/s", "\n".join(lines))], [rate] * 2)

    def test_heat_is_a_bar_of_layers(self):
        path = self.stand_in()
        text = self.top("--once", "--interval", "0", "--control", path)
        self.assertIn("\n  heat  87.4 % here [#950]\n", text)
        self.assertIn(" heat: a layer each", text)
        self.assertIn("87.4 % here [92]\n", self.top("--once", "--interval", "0", "--columns", "24", "--control", path))
        card = json.loads(self.top("--json", "--interval", "0", "--control", path))["cards"][0]
        self.assertEqual((card["heat_resident"], card["heat_layers"]), (874, [1000, 999, 500, 0]))
        engine = self.serve(name="top", **SMALL)
        engine.vram("VRAM 11 1")
        self.assertRegex(self.top("--once", "--interval", "0", "--name", "top"), r"(?s)100\.0 % here \[####\].*\d\d\.\d % here \[\d{4}\]")
        engine.finish()

    def test_json_has_typed_numbers_and_null_for_what_is_not_known(self):
        path = self.stand_in(2, leases=["LEASES lease=game device=1 reserve_mib=700 pid=42 novel=x"])
        said = json.loads(self.top("--json", "--interval", "0.2", "--control", path))
        self.assertEqual(said["engine"], "stand-in")
        card = said["cards"][1]
        self.assertEqual((card["device"], card["place"], card["name"], card["reserve_mib"]), (1, "cuda:1", "Some Card", 200))
        self.assertEqual(card["ledger"]["weights"], 100 << 20)
        self.assertEqual(card["hit_rate"], 0.75)
        self.assertEqual(said["tokens_per_s"], card["tokens_per_s"])
        self.assertGreater(card["tokens_per_s"], 10)
        self.assertEqual(said["leases"], [{"name": "game", "device": 1, "reserve_mib": 700, "until": "pid=42 novel=x"}])
        still = json.loads(self.top("--json", "--interval", "0", "--control", path))
        self.assertIsNone(still["cards"][0]["hit_rate"])
        self.assertIsNone(still["tokens_per_s"])

    def test_an_engine_without_leases_is_looked_at_all_the_same(self):
        path = self.stand_in()
        self.assertIsNone(json.loads(self.top("--json", "--interval", "0", "--control", path))["leases"])
        self.assertNotIn("lease", self.top("--once", "--interval", "0", "--control", path))

    def test_leases_are_listed(self):
        path = self.stand_in(leases=["LEASES lease=game device=0 reserve_mib=700 pid=42", "LEASES lease=comfy reserve_mib=900 for=60"])
        lines = self.top("--once", "--interval", "0", "--control", path).splitlines()
        self.assertIn("2 leases", lines[0])
        self.assertRegex("\n".join(lines), r"(?m)^  game +card 0 +700 MiB +pid=42$")
        self.assertRegex("\n".join(lines), r"(?m)^  comfy +every card +900 MiB +for=60$")

    def test_terminals_of_80_by_24_and_200_by_50_show_a_whole_frame(self):
        path = self.stand_in(2)
        for rows, columns in ((24, 80), (50, 200)):
            with self.subTest(f"{columns}x{rows}"):
                terminal = self.terminal(rows, columns, "--control", path, "--interval", "0.1")
                lines = terminal.see(lambda lines: "hits 75" in "\n".join(lines), "frame with a rate")
                self.check_screen(lines, rows, columns, 2)
                self.assertIn(b"\x1b[3", terminal.raw, "it has colours")
                terminal.type(b"q")
                self.assertEqual(terminal.end(), 0)
                self.assertTrue(terminal.attributes_are_restored())

    def test_a_resize_in_the_middle_gives_a_whole_frame_of_the_new_size(self):
        path = self.stand_in(2)
        terminal = self.terminal(24, 80, "--control", path, "--interval", "30")
        terminal.see(lambda lines: "card 1" in "\n".join(lines), "frame")
        for rows, columns in ((50, 200), (24, 80), (30, 120)):
            terminal.resize(rows, columns)
            lines = terminal.see(lambda lines: any(len(m[1]) == columns - 4 for m in map(BAR.match, lines) if m)
                                 and any(line.startswith(" q quit") for line in lines), "frame after the resize")
            self.check_screen(lines, rows, columns, 2)
        terminal.type(b"q")
        self.assertEqual(terminal.end(), 0)

    def test_a_terminal_smaller_than_the_cards_scrolls_and_a_tiny_one_lives(self):
        path = self.stand_in(6)
        terminal = self.terminal(14, 80, "--control", path, "--interval", "30", term="vt100")
        terminal.see(lambda lines: "card 0" in lines[1] and lines[13].startswith(" q quit"), "frame")
        terminal.type(b"\x1bOB")
        terminal.see(lambda lines: BAR.match(lines[1]) and lines[0].startswith("ebbtide top"), "frame one line down")
        terminal.type(b"\x1bOB" * 60)
        terminal.see(lambda lines: "card 5" in "\n".join(lines), "last card")
        for rows, columns in ((3, 10), (1, 1), (24, 80)):
            terminal.resize(rows, columns)
            terminal.see(lambda lines: lines[0].startswith("ebbtide top:"[:columns]), "first line")
        terminal.type(b"q")
        self.assertEqual(terminal.end(), 0)

    def test_a_terminal_without_colours_reads_the_same(self):
        path = self.stand_in(2)
        terminal = self.terminal(24, 80, "--control", path, "--interval", "30", term="vt100")
        self.check_screen(terminal.see(lambda lines: any(line.startswith(" q quit") for line in lines), "frame"), 24, 80, 2)
        self.assertNotRegex(terminal.raw, rb"\x1b\[[34]\dm")
        terminal.process.send_signal(signal.SIGTERM)
        self.assertEqual(terminal.end(), 143)
        self.assertTrue(terminal.attributes_are_restored())

    def test_keys_change_the_interval(self):
        terminal = self.terminal(24, 80, "--control", self.stand_in(), "--interval", "1")
        terminal.see(lambda lines: "every 1 s" in lines[0], "frame")
        terminal.type(b"+")
        terminal.see(lambda lines: "every 2 s" in lines[0], "longer interval")
        terminal.type(b"--")
        terminal.see(lambda lines: "every 0.5 s" in lines[0], "shorter interval")
        terminal.type(b"\x03")
        self.assertEqual(terminal.end(), 130)

    def test_an_engine_that_ends_is_told_and_waited_for(self):
        engine = self.serve(name="top", **SMALL)
        terminal = self.terminal(24, 80, "--name", "top", "--interval", "0.1")
        terminal.see(lambda lines: "idle" in "\n".join(lines), "frame")
        engine.finish()
        terminal.see(lambda lines: "engine gone" in lines[0] and "card 1" in "\n".join(lines), "notice")
        again = self.serve(name="top", **SMALL)
        terminal.see(lambda lines: lines[0].startswith("ebbtide top: top") and "gone" not in lines[0], "frame again")
        terminal.type(b"q")
        self.assertEqual(terminal.end(), 0)
        again.finish()

    def test_an_engine_that_answers_nonsense_is_shown_as_far_as_it_makes_sense(self):
        most = 2**64 - 1
        nonsense = ["STAT", "STAT device=x", "STAT device=-1 steps=5", "STAT device=0 total_mib=4611686018427387903 free_mib=4611686018427387903 "
                    "reserve_mib=4611686018427387903 cache_mib=%d slots=0 resident=9 kv_blocks=1 kv_blocks_free=9 hits=9 lookups=1 heat_layers=1,1001" % most,
                    "STAT device=1 name=%00%1B[2J%FF state= layers=" + "9" * 400, "STAT device=2 total_mib=-5 free_mib=1e3 steps=99999999999999999999 heat_layers=" + "7," * 999,
                    "STAT device=4 heat_layers=,", "STAT device=5 heat_layers=123456789012,1",
                    "NOVEL device=3", "T a 1 text=x", ""] + [f"STAT device={i}" for i in range(10, 90)]
        said = answers(1, leases=["LEASES", "LEASES lease=%1B device=-4 reserve_mib=x pid=%", "LEASES " + "a=b " * 200] + ["LEASES lease=a"] * 99)
        said["STAT"] = lambda n, _: nonsense + ["STAT-DONE"]
        said["LEDGER"] = lambda n, _: ["LEDGER device=0 total=1 free=%d weights=4611686018427387903 kv=-1" % most, "ERR - busy not now"]
        path = self.sandbox / "stand-in.sock"
        self.addCleanup(StandIn(path, said).close)
        for columns in (20, 80, 500):
            text = self.top("--once", "--interval", "0.05", "--columns", columns, "--control", path)
            self.assertRegex(text, r"\A[\n -~]+\Z", "plain characters alone")
            self.assertLessEqual(max(map(len, text.splitlines())), columns)
        self.assertIn("not all shown", text)
        self.assertEqual(len(json.loads(self.top("--json", "--interval", "0.05", "--control", path))["cards"]), 64)

    def test_what_it_cannot_do_is_told_in_a_line(self):
        done = self.command("top", "--once")
        self.assertEqual((done.returncode, done.stderr.count(b"\n")), (3, 1), done.stderr)
        for args in (["--interval", "x"], ["--interval", "-1"], ["--interval", "nan"], ["--columns", "3"], ["--colour"], ["more"],
                     ["--name", ""], ["--interval"]):
            with self.subTest(args=args):
                done = self.command("top", *args)
                self.assertEqual((done.returncode, done.stderr.count(b"\n")), (2, 1), done.stderr)
                self.assertIn(b"see ebbtide top --help", done.stderr)
        terminal = self.terminal(24, 80, "--control", self.stand_in(), term="no-such-terminal")
        self.assertEqual(terminal.end(), 1)
        self.assertIn(b"--once", terminal.raw)


if __name__ == "__main__":
    unittest.main()
