"""The coordinator's Nth allocation, pipe, fork, poll, read, write or socket call fails, for every N of a whole run: it goes on with
the same tokens, or ends with status 1 and says why. Never a crash or a hang; no process, socket or shared memory is left."""
import concurrent.futures
import os
import shutil
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from ebbtide import BIN, EBBTIDE, EbbtideTest, golden, ids_text  # noqa: E402
from processes import eventually  # noqa: E402

SHIM = BIN / "libfail-calls.so"
KINDS = ("memory", "socket", "bind", "listen", "accept4", "socketpair", "pipe2", "fork", "poll", "read", "write")
TOKENS = 4
PER_KIND_MAX = 40  # of more calls than that, evenly spread ones are failed
HANG_SECONDS = 40
AT_ONCE = 3
PROMPT = golden()[1]["prompt_ids"]


class Outcome:
    """What became of one program with one call refused."""

    def __init__(self, code, out, err, log, left, seconds):
        self.code, self.out, self.err, self.left, self.seconds = code, out, err, left, seconds
        self.refused = "refused" in log
        counts = [line.split()[1] for line in log.splitlines() if line.startswith("calls ")]
        self.calls = int(counts[-1]) if counts else None

    def __repr__(self):
        return f"exit {self.code} after {self.seconds:.1f} s\nstdout: {self.out[-600:]}\nstderr: {self.err[-600:]}\nleft: {self.left}"


@unittest.skipUnless(SHIM.exists(), "no libfail-calls.so: this build has a sanitizer's allocator")
class CallFailures(EbbtideTest):
    def outcome(self, kind, nth, args, lines=""):
        """Runs the program in a runtime directory of its own; every process that carries it must be gone afterwards."""
        where = self.sandbox / f"{kind}-{nth}"
        where.mkdir(mode=0o700)
        log = where / "calls"
        log.write_text("")
        env = {**self.env, "XDG_RUNTIME_DIR": str(where), "LD_PRELOAD": str(SHIM), "EBBTIDE_FAIL_LOG": str(log),
               "EBBTIDE_FAIL_CALL": f"ebbtide {kind} {nth}"}
        begin = time.monotonic()
        args = [self.namespace + f"-{kind}-{nth}" if a == self.namespace else a for a in args]
        process = subprocess.Popen([str(EBBTIDE), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=env)
        try:
            out, err = process.communicate(lines.encode(), HANG_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += b"[it hung]"
        eventually(lambda: not self.carriers(where), 5)
        left = [f"process {pid}" for pid in self.carriers(where)]
        left += [str(p) for p in where.rglob("*.sock")]
        left += [f"/dev/shm/{p.name}" for p in Path("/dev/shm").glob(f"*{self.namespace}-{kind}-{nth}*")]
        result = Outcome(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"),
                         log.read_text(), left, time.monotonic() - begin)
        shutil.rmtree(where, ignore_errors=True)
        return result

    def carriers(self, where):
        mark, found = f"XDG_RUNTIME_DIR={where}\0".encode(), []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and mark in Path(f"/proc/{entry}/environ").read_bytes():
                    found.append(int(entry))
            except OSError:
                pass
        return found

    def fail_each(self, args, check_whole, lines=""):
        """Every call of every kind refused in turn; `check_whole(outcome)` where the program ended with 0."""
        whole = self.outcome("none", 0, args, lines)
        self.assertEqual(whole.code, 0, whole)
        check_whole(whole)
        told = []
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for kind in KINDS:
                n = self.outcome(kind, 0, args, lines).calls
                numbers = range(1, n + 3, max(1, n // PER_KIND_MAX))
                results = list(pool.map(lambda nth: self.outcome(kind, nth, args, lines), numbers))
                for nth, got in zip(numbers, results):
                    with self.subTest(f"{kind} {nth} of {n}"):
                        self.assertEqual(got.left, [], got)
                        self.assertIn(got.code, (0, 1), got)
                        if got.code == 0:
                            check_whole(got)
                        else:
                            self.assertTrue(got.refused, got)
                            self.assertRegex(got.err, r"(?m)^ebbtide: \S.*\S", got)
                ended = sum(got.code == 1 for got in results)
                told.append(f"{kind} {len(results)} ({ended} ended it)")
        print(f"{args[0]}: calls refused: " + ", ".join(told), file=sys.stderr)

    def test_a_run_goes_on_or_says_why_not(self):
        alone = self.run_ids("hello", TOKENS)

        def check(got):
            self.assertEqual(got.out, ids_text(alone) + "\n", got)

        self.fail_each(["run", *self.flags(), "--max-new", str(TOKENS), "--output", "ids", "hello"], check)

    def test_an_engine_with_a_controller_goes_on_or_says_why_not(self):
        requests = (f"GEN a {TOKENS} ids={ids_text(PROMPT)}\nVRAM 10 0\nSTAT\nGEN b {TOKENS} ids={ids_text(PROMPT)}\n"
                    "VRAM - 0\nLEDGER\nPING there\n")
        engine = self.serve()
        expected = engine.ids("alone", TOKENS, PROMPT)
        engine.finish()

        def check(got):
            """Each request has its answer: a whole one, or an error that names it."""
            verbs = [line.split(" ") for line in got.out.splitlines()]
            for tag in ("a", "b"):
                ids = [int(v[2]) for v in verbs if v[0] == "T" and v[1] == tag]
                ends = [v for v in verbs if v[0] in ("DONE", "ERR") and v[1] == tag]
                self.assertEqual(len(ends), 1, got)
                if ends[0][0] == "DONE" and ends[0][2] == "length":
                    self.assertEqual(len(ids), TOKENS, got)
                    self.assertEqual(ids, expected, got)
            for verb, n in (("VRAM-DONE", 2), ("STAT-DONE", 1), ("LEDGER-DONE", 1), ("PONG", 1)):
                answers = sum(v[0] == verb for v in verbs) + sum(v[:2] == ["ERR", "-"] for v in verbs)
                self.assertGreaterEqual(answers, n, got)

        self.fail_each(["serve", *self.flags(name="failing")], check, requests)

    def test_a_client_that_could_not_be_accepted_is_accepted_next(self):
        self.env = {**self.env, "LD_PRELOAD": str(SHIM), "EBBTIDE_FAIL_CALL": "ebbtide accept4 1",
                    "EBBTIDE_FAIL_LOG": str(self.sandbox / "calls")}
        engine = self.serve()
        self.client().ping()
        self.assertIn("refused", (self.sandbox / "calls").read_text())
        engine.finish()


if __name__ == "__main__":
    unittest.main()
