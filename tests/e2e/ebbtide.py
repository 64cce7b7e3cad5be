"""The harness of the end-to-end tests: engines as real processes, spoken to in the line protocol.

`EbbtideTest` gives every test a runtime directory and a namespace of its own, so that tests neither meet each other nor
an engine of the user, and looks after the test that no process of it is left. `Engine` is one `ebbtide serve`: a reader
thread keeps every line with the time it came; helpers send a request and wait for what the grammar says must follow. A
wait never hangs: it ends with the line, with the engine's death (its log is shown), or at its time limit.
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

from processes import command_name, descendants, eventually

REPO = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("EBBTIDE_BIN") or REPO / "build" / "bin")
EBBTIDE = BIN / "ebbtide"
DATA = REPO / "tests" / "data"
DEMO = DATA / "demo-moe-30m-q4_k_m.gguf"
DEMO_LAYERS = 8
MIB = 1 << 20
PATIENCE = 120.0  # seconds that a wait may last before it counts as a hang
OWNERS = ("weights", "kv", "cache", "workspace", "stream", "link", "blas", "context")
FULL = os.environ.get("EBBTIDE_FULL") == "1"
PASSED_ON = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS",  # what a test's processes get of the environment of the tests
             "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-")


def golden():
    return json.loads((DATA / "golden_public.json").read_text(encoding="utf-8"))


def processor_has(*flags):
    """Whether the processor, and the system on it, offers all of these, as /proc/cpuinfo calls them."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    offered = re.search(r"^flags\s*:(.*)$", cpuinfo, re.M)
    return offered is not None and set(flags) <= set(offered[1].split())


AVX512 = processor_has("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni")


def encode(text):
    """Percent-encodes whatever is not plainly safe, which the grammar allows."""
    data = text.encode() if isinstance(text, str) else text
    return "".join(chr(b) if b in _SAFE else "%%%02X" % b for b in data)


def decode(value):
    return re.sub(rb"%([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), value.encode())


def ids_text(ids):
    return ",".join(str(i) for i in ids)


class Message:
    """One line: verb, bare fields, keys (still encoded), and when it came."""

    def __init__(self, raw, when=0.0):
        self.raw, self.when = raw, when
        fields = raw.split(" ")
        self.verb, self.bare, self.keys = fields[0], [], {}
        if self.verb == "ERR":
            self.bare = raw.split(" ", 3)[1:]
            return
        for field in fields[1:]:
            key, equals, value = field.partition("=")
            if equals:
                self.keys[key] = value
            else:
                self.bare.append(field)

    def __getitem__(self, key):
        """The value of a key, as a number where it is one."""
        value = self.keys[key]
        return int(value) if re.fullmatch(r"-?\d+", value) else value

    def text(self, key):
        return decode(self.keys[key])

    def __repr__(self):
        return self.raw if len(self.raw) < 300 else self.raw[:300] + "…"


class EngineGone(AssertionError):
    pass


class Lines:
    """Lines that arrive on a stream, kept in order; waiting for one that fits."""

    def __init__(self, stream, on_end=lambda: ""):
        self.all, self.ended, self.on_end = [], False, on_end
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream):
        try:
            for raw in stream:
                message = Message(raw.decode("utf-8", "surrogateescape").rstrip("\n"), time.monotonic())
                with self._changed:
                    self.all.append(message)
                    self._changed.notify_all()
        except (OSError, ValueError):
            pass
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def wait(self, fits, since=0, seconds=PATIENCE, what="a line"):
        """The index of the first line from `since` on that fits."""
        limit = time.monotonic() + seconds
        at = since
        with self._changed:
            while True:
                while at < len(self.all):
                    if fits(self.all[at]):
                        return at
                    at += 1
                if self.ended:
                    raise EngineGone(f"the connection ended before {what}; last lines {self.all[-5:]}\n{self.on_end()}")
                left = limit - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"no {what} within {seconds} s; last lines {self.all[-8:]}\n{self.on_end()}")
                self._changed.wait(left)

    def wait_end(self, seconds):
        self._thread.join(seconds)
        return not self._thread.is_alive()


class Connection:
    """What can be asked over a connection, the controller's pipes or a socket."""

    lines: Lines

    def write(self, data):
        raise NotImplementedError

    def send(self, *requests):
        """Sends lines in one write. Returns where their answers begin."""
        since = len(self.lines.all)
        self.write("".join(request + "\n" for request in requests).encode("utf-8", "surrogateescape"))
        return since

    def wait(self, verb, tag=None, since=0, seconds=PATIENCE):
        def fits(m):
            return m.verb == verb and (tag is None or (m.bare and m.bare[0] == tag))
        at = self.lines.wait(fits, since, seconds, f"{verb} {tag or ''}".strip())
        return self.lines.all[at]

    def ask(self, request, seconds=PATIENCE):
        """A request that is answered by lines per card and a …-DONE, or by an ERR: the lines, the last one last."""
        verb = request.split()[0]
        since = self.send(request)
        at = self.lines.wait(lambda m: m.verb in (verb + "-DONE", "ERR"), since, seconds, f"answer to {request!r}")
        return [m for m in self.lines.all[since:at + 1] if m.verb in (verb, verb + "-DONE", "ERR")]

    def error(self, request, tag="-"):
        """A request that must be refused: the ERR's code and text."""
        since = self.send(request)
        at = self.lines.wait(lambda m: m.verb == "ERR" or m.verb.endswith("-DONE"), since, what=f"ERR to {request!r}")
        message = self.lines.all[at]
        if message.verb != "ERR" or message.bare[0] != tag:
            raise AssertionError(f"{request[:80]!r} was answered {message.raw!r}, wanted ERR {tag}")
        return message.bare[1], message.bare[2]

    def per_card(self, request):
        answer = self.ask(request)
        if answer[-1].verb == "ERR":
            raise AssertionError(f"{request!r}: {answer[-1].raw}")
        return {m["device"]: m for m in answer[:-1]}

    def vram(self, request):
        """A VRAM command that must be served: receipts by card."""
        return self.per_card(request)

    def stat(self):
        return self.per_card("STAT")

    def ledger(self):
        return self.per_card("LEDGER")

    def ping(self, token="here", seconds=PATIENCE):
        begin = time.monotonic()
        since = self.send(f"PING {token}")
        return self.wait("PONG", token, since, seconds).when - begin

    def part(self, tag, ids, at_most=400):
        for i in range(0, len(ids), at_most):
            self.send(f"PART {tag} ids={ids_text(ids[i:i + at_most])}")

    def gen(self, tag, max_new, prompt=None, **options):
        """Starts a generation; `prompt` is text, ids, or None where PARTs went before. Returns where it begins."""
        fields = [f"{key}={value}" for key, value in options.items()]
        if isinstance(prompt, str):
            fields.append("text=" + encode(prompt))
        elif prompt is not None and len(prompt) > 400:
            self.part(tag, prompt)
        elif prompt is not None:
            fields.append("ids=" + ids_text(prompt))
        return self.send(" ".join(["GEN", tag, str(max_new)] + fields))

    def tokens(self, tag, since=0):
        return [m for m in self.lines.all[since:] if m.verb == "T" and m.bare[0] == tag]

    def done(self, tag, since=0, seconds=PATIENCE):
        """Waits for the end of a generation: the DONE, its ids, its bytes."""
        def fits(m):
            return m.verb in ("DONE", "ERR") and m.bare and m.bare[0] == tag
        at = self.lines.wait(fits, since, seconds, f"DONE {tag}")
        end = self.lines.all[at]
        if end.verb == "ERR":
            raise AssertionError(f"generation {tag}: {end.raw}")
        tokens = [m for m in self.lines.all[since:at] if m.verb == "T" and m.bare[0] == tag]
        text = b"".join(m.text("text") for m in tokens) + (end.text("tail") if "tail" in end.keys else b"")
        return end, [int(m.bare[1]) for m in tokens], text

    def ids(self, tag, max_new, prompt, **options):
        """A whole generation, ids only."""
        since = self.gen(tag, max_new, prompt, **options)
        end, ids, _ = self.done(tag, since)
        if end.bare[1] not in ("stop", "length"):
            raise AssertionError(f"generation {tag} ended {end.raw}")
        return ids

    def score(self, tag, ids, top, seconds=PATIENCE):
        """For every position of `ids`: the `top` largest logits after it, as a list of (id, logit)."""
        self.part(tag, ids)
        since = self.send(f"SCORE {tag} top={top}")
        self.done(tag, since, seconds)
        rows = {}
        for m in self.lines.all[since:]:
            if m.verb == "LOGITS" and m.bare[0] == tag:
                pairs = (pair.split(":") for pair in m.keys["top"].split(","))
                rows[int(m.bare[1])] = (int(m.bare[2]), [(int(i), float(x)) for i, x in pairs])
        if [rows[p][0] for p in sorted(rows)] != list(ids):
            raise AssertionError(f"SCORE {tag} gave {len(rows)} positions for {len(ids)} ids, or others")
        return [rows[p][1] for p in range(len(ids))]


class Engine(Connection):
    """One `ebbtide serve` with the controller's pipes."""

    def __init__(self, test, args, env, log_path):
        self.log_path = log_path
        with open(log_path, "wb") as log:
            self.process = subprocess.Popen([str(EBBTIDE), "serve", *args], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=log, env=env, cwd=REPO)
        self.pid = self.process.pid
        self.lines = Lines(self.process.stdout, self.log)
        self.test = test

    def log(self):
        text = Path(self.log_path).read_text(encoding="utf-8", errors="replace")
        return f"[exit {self.process.poll()}; its log:\n{text[-3000:]}]"

    def write(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def ready(self, seconds=PATIENCE):
        self.lines.wait(lambda m: m.verb == "READY", 0, seconds, "READY")
        return self

    def stages(self):
        """Process ids of the stages, in the order they were started."""
        return [pid for pid in descendants(self.pid) if "ebbtide-stage" in command_name(pid)]

    def finish(self, seconds=30):
        """The controller closes stdin: the engine finishes and says so with 0."""
        self.process.stdin.close()
        code = self.process.wait(seconds)
        self.lines.wait_end(5)
        self.test.assertEqual(code, 0, self.log())

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            try:
                stream.close()
            except OSError:
                pass


class Client(Connection):
    """A connection to the control socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.lines = Lines(self.socket.makefile("rb"))

    def write(self, data):
        self.socket.sendall(data)

    def half_close(self):
        self.socket.shutdown(socket.SHUT_WR)

    def close(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()


class EbbtideTest(unittest.TestCase):
    """A test with a runtime directory, a temporary directory and a namespace of its own."""

    maxDiff = None
    segment_mib = 1  # small, so that a small model's cache has several
    _counter = 0

    def setUp(self):
        if not EBBTIDE.exists():
            self.fail(f"{EBBTIDE} is missing: build first, or set EBBTIDE_BIN")
        EbbtideTest._counter += 1
        self.sandbox = Path(tempfile.mkdtemp(prefix="e2e-"))
        self.addCleanup(shutil.rmtree, self.sandbox, ignore_errors=True)
        self.runtime = self.sandbox / "run"
        self.runtime.mkdir(mode=0o700)
        self.namespace = f"e2e-{os.getpid()}-{EbbtideTest._counter}"
        self.env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(self.sandbox), "LANG": "C.UTF-8",
                    "XDG_RUNTIME_DIR": str(self.runtime), "TMPDIR": str(self.sandbox)}
        self.env.update({key: os.environ[key] for key in PASSED_ON if key in os.environ})
        self.addCleanup(self.end_survivors)
        self.engines = []
        self.addCleanup(self.end_engines)

    def end_engines(self):
        """Kills the engines that still run: after a failure, so that the next subtest begins with free cards."""
        for engine in self.engines:
            engine.kill()

    def end_survivors(self):
        """Every test ends with this: what it started is gone, or it failed."""
        gone, _ = eventually(lambda: not self.survivors(), 5)
        left = [(pid, command_name(pid)) for pid in self.survivors()]
        for pid, _ in left:
            os.kill(pid, signal.SIGKILL)
        self.assertTrue(gone, f"processes left behind: {left}")

    def survivors(self):
        """Living processes that carry this test's environment, whoever their parent is now."""
        mark, found = f"XDG_RUNTIME_DIR={self.runtime}\0".encode(), []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                try:
                    if mark in Path(f"/proc/{entry}/environ").read_bytes():
                        found.append(int(entry))
                except OSError:
                    pass
        return found

    def cards_of(self, n):
        """The cards of a run over n stages."""
        return ",".join(f"cpu:{i}" for i in range(n))

    def flags(self, cards="cpu:0,cpu:1", model=DEMO, **flags):
        """Flags as a command wants them: segment_mib=1 -> --segment-mib 1; lists are joined by commas."""
        if isinstance(cards, int):
            cards = self.cards_of(cards)
        out = ["--model", str(model), "--cards", cards, "--namespace", self.namespace]
        for key, value in flags.items():
            if isinstance(value, (list, tuple)):
                value = ",".join(str(v) for v in value)
            out += ["--" + key.replace("_", "-"), str(value)]
        return out

    def serve(self, cards="cpu:0,cpu:1", wait=True, **flags):
        engine = Engine(self, self.flags(cards, **flags), self.env, self.sandbox / f"serve-{len(self.engines)}.err")
        self.engines.append(engine)
        return engine.ready() if wait else engine

    def hold(self, device, mib):
        """Another process that holds memory of a CPU card until its input ends."""
        program = BIN / "foreign-holder"
        if not program.exists():
            self.fail(f"{program} is missing")
        process = subprocess.Popen([str(program), "--namespace", self.namespace, "--device", str(device), "--mib", str(mib)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.env)
        self.addCleanup(process.__exit__, None, None, None)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline().split()[:1], [b"held"])
        return process

    def client(self, name=None):
        sockets = sorted((self.runtime / "ebbtide").glob(f"{name or '*'}.sock"))
        self.assertEqual(len(sockets), 1, f"control sockets: {sockets}")
        client = Client(sockets[0])
        self.addCleanup(client.close)
        return client

    def command(self, *args, seconds=PATIENCE, stdin=subprocess.DEVNULL, **options):
        """Runs `ebbtide …` to its end."""
        return subprocess.run([str(EBBTIDE), *map(str, args)], env=self.env, cwd=REPO, stdin=stdin,
                              capture_output=True, timeout=seconds, **options)

    def run_ids(self, prompt, max_new=48, **flags):
        """`ebbtide run --output ids`: the ids it prints, and nothing else may stand there."""
        result = self.command("run", *self.flags(**flags), "--max-new", max_new, "--output", "ids", prompt)
        self.assertEqual(result.returncode, 0, result.stderr.decode(errors="replace"))
        self.assertRegex(result.stdout.decode(), r"\A\d+(,\d+)*\n\Z")
        return [int(i) for i in result.stdout.decode().split(",")]
