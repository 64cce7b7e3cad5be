"""ebbtide stat as scripts use it: JSON whose numbers are numbers, the ledger in bytes, exit statuses, completion of its flags."""
import json
import re
import socket
import subprocess
import unittest

from ebbtide import EBBTIDE, OWNERS, EbbtideTest

SMALL = {"vram_mib": "24,24", "segment_mib": 1}
TEXTS = {"kind", "name", "uuid", "state", "layers", "place"}


class Stat(EbbtideTest):
    def stat(self, *args):
        done = self.command("stat", "--json", *args)
        self.assertEqual((done.returncode, done.stdout.count(b"\n")), (0, 1), done.stderr)
        return json.loads(done.stdout)["cards"]

    def test_json_has_every_key_of_the_line_and_its_numbers_are_numbers(self):
        engine = self.serve(name="stat", **SMALL)
        engine.ids("a", 8, "The whale")
        lines, cards = engine.stat(), self.stat()
        self.assertEqual([card["device"] for card in cards], [0, 1])
        for card in cards:
            line = lines[card["device"]]
            self.assertEqual(set(card), set(line.keys) | {"place"})
            for key, value in card.items():
                self.assertIs(type(value), str if key in TEXTS else list if key == "heat_layers" else int, key)
            self.assertEqual(card["place"], f"cpu:{card['device']}")
            self.assertGreater(card["steps"], 0)
            self.assertEqual(card["name"], line.text("name").decode())
        self.assertEqual(self.stat("1"), cards[1:])
        engine.finish()

    def test_it_names_the_card_as_every_program_does_and_counts_what_was_sampled(self):
        engine = self.serve(name="stat", **SMALL)
        self.assertEqual([card["uuid"] for card in self.stat()], [f"CPU-{socket.gethostname()}-{i}" for i in (0, 1)])
        self.assertEqual([card["tokens"] for card in self.stat()], [0, 0])
        n_sampled = len(engine.ids("a", 8, "The whale", ignore_eos=1)) + len(engine.ids("b", 5, "The ship", ignore_eos=1))
        for card in self.stat():
            self.assertGreaterEqual(card["tokens"], n_sampled)  # and one that was sampled ahead, then dropped
            self.assertLessEqual(card["tokens"], n_sampled + 2)
        engine.finish()

    def test_it_tells_how_much_of_the_heat_is_resident_by_layer(self):
        engine = self.serve(name="stat", **SMALL)
        for card in self.stat():
            self.assertEqual((card["heat_resident"], card["heat_layers"]), (1000, [1000] * 4))
        cold = engine.stat()[1]
        engine.vram(f"VRAM {cold['free_mib'] + cold['cache_mib'] // 2} 1")
        whole, half = self.stat()
        self.assertEqual(whole["heat_resident"], 1000)
        self.assertGreater(half["heat_resident"], 1000 * half["resident"] // 64, "of unlike heat the hotter half stays")
        self.assertLess(half["heat_resident"], 1000)
        engine.ids("a", 40, "The whale", ignore_eos=1)
        warm = self.stat("1")[0]
        self.assertGreater(warm["heat_resident"], 600, "what is hot is resident")
        self.assertLess(warm["heat_resident"], 1000)
        self.assertAlmostEqual(sum(warm["heat_layers"]) / 4, warm["heat_resident"], delta=10)  # every layer routes alike
        engine.finish()

    def test_the_ledger_in_json_is_bytes_that_add_up(self):
        engine = self.serve(name="stat", **SMALL)
        for card in self.stat("--ledger"):
            self.assertEqual(card["total"], 24 << 20)
            self.assertEqual(sum(card[owner] for owner in OWNERS + ("free", "foreign", "unexplained")), card["total"])
        engine.finish()

    def test_exit_statuses_tell_scripts_what_went_wrong(self):
        self.assertEqual(self.command("stat").returncode, 3)
        self.assertEqual(self.command("stat", "x").returncode, 2)
        self.assertEqual(self.command("stat", "0", "1").returncode, 2)
        engine = self.serve(name="stat", **SMALL)
        done = self.command("stat", "--json", "7")
        self.assertEqual((done.returncode, done.stdout, done.stderr.count(b"\n")), (1, b"", 1), done.stderr)
        engine.finish()
        for tool in ("stat", "vram", "top", "leases", "unlease", "comfy-handoff"):
            page = self.command(tool, "--help").stdout.decode()
            for status in (0, 1, 2, 3, 4, 5, 130, 143):
                self.assertRegex(page, rf"(?m)^ +{status}  \w", tool)

    def test_the_flags_of_a_tool_complete_as_its_page_tells_them(self):
        script = self.command("help", "--completion").stdout.decode()
        for tool in ("stat", "top", "vram", "leases", "unlease", "comfy-handoff"):
            page = self.command(tool, "--help").stdout.decode()
            lines = f"{script}\nCOMP_WORDS=({EBBTIDE} {tool} --)\nCOMP_CWORD=2\n_ebbtide\necho ${{COMPREPLY[*]}}\n"
            done = subprocess.run(["bash", "-c", lines], env=self.env, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(set(done.stdout.split()), set(re.findall(r"--[a-z][a-z-]*", page)), done.stderr)
            self.assertIn("--json", done.stdout)

    def test_the_manual_names_every_tool_and_how_to_call_it(self):
        page = self.command("help", "--man").stdout.decode()
        for tool in ("stat", "vram", "top", "leases", "unlease"):
            self.assertIn(f".SS {tool}\n.B ebbtide {tool}\n", page)


if __name__ == "__main__":
    unittest.main()
