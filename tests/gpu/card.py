"""The card under test, a second program on it, and models large enough for it.

EBBTIDE_GPU_CARD names the card (default cuda:0). With cpu:0 the same tests run on CPU cards, small: that is how they are themselves
tested where there is no GPU. Several stages on one GPU are that card named several times, each with a share of its memory; on CPU
cards they are as many cards. Tests of two cards (TwoCards) take those that it names, `cuda:0,cuda:1`. EBBTIDE_GPU_MODEL is a model that ebbtide-make-model made for these tests; without it the tests that
need one make it. Without a card or a program every test is skipped, with the reason.
"""
import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from ebbtide import BIN, EbbtideTest, golden  # noqa: E402

CARDS = os.environ.get("EBBTIDE_GPU_CARD", "cuda:0").split(",")
CARD = CARDS[0]
IS_CUDA = CARD.startswith("cuda:")
ORDINAL = int(CARD.partition(":")[2])
QUICK = os.environ.get("EBBTIDE_GPU_QUICK") == "1"
SHARE_MIB = 1024  # of a stage beside others: room for all of a small model
FOREIGN_CUDA, FOREIGN_CPU = BIN / "gpu-foreign", BIN / "foreign-holder"
SHAPE = "qwen3-30b-a3b" if IS_CUDA else "tiny-qwen3"


@functools.lru_cache(maxsize=None)
def cards_here():
    """The GPUs by number: (UUID, MiB); and why there are none."""
    if not FOREIGN_CUDA.exists():
        return {}, f"{FOREIGN_CUDA.name} is not built: no CUDA compiler was found"
    done = subprocess.run([str(FOREIGN_CUDA), "--list"], capture_output=True, text=True, timeout=60)
    rows = [line.split() for line in done.stdout.splitlines()]
    why = done.stderr.strip().splitlines()[:1]
    return {int(row[1]): (row[2], int(row[3])) for row in rows}, why[0] if why else "the driver lists no card"


def missing(names=(CARD,)):
    """Why tests of these cards cannot run here, or None."""
    if not IS_CUDA:
        return None
    cards, why = cards_here()
    for name in names:
        if int(name.partition(":")[2]) not in cards:
            return f"{name}: {why if not cards else f'the driver lists {len(cards)}'}"
    program = BIN / "ebbtide-stage-cuda"
    return None if program.exists() else f"{program.name} is not built"


@functools.lru_cache(maxsize=None)
def links_here():
    """What `link` may be set to, where there is such a setting; None stands for leaving it alone."""
    done = subprocess.run([str(BIN / "ebbtide"), "serve", "--help"], capture_output=True, text=True)
    if "--link " not in done.stdout:
        return (None,)
    return ("ipc", "socket") if IS_CUDA else ("socket",)


def byte_prompts(*numbers):
    """Prompts of golden cases, made of ids that every vocabulary has."""
    return [[i % 256 for i in golden()[number]["prompt_ids"]] for number in numbers]


class BigModel:
    """The model of SHAPE: what was given, or one that is made at the first use and gone with the process."""

    folder = None

    @classmethod
    def path(cls):
        given = os.environ.get("EBBTIDE_GPU_MODEL")
        if given:
            return Path(given)
        if cls.folder is None:
            cls.folder = tempfile.mkdtemp(prefix="ebbtide-gpu-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
            atexit.register(shutil.rmtree, cls.folder, ignore_errors=True)
            subprocess.run([str(BIN / "ebbtide-make-model"), SHAPE, "-o", f"{cls.folder}/big.gguf"], check=True,
                           capture_output=True, timeout=300)
        return Path(cls.folder) / "big.gguf"


class ForeignOnCuda:
    """gpu-foreign, spoken to in its lines, on the card of one of the engine's stages: by its UUID, however cards are numbered."""

    def __init__(self, test, engine, device=0):
        uuid = engine.stat()[device].text("uuid").decode()
        self.process = subprocess.Popen([str(FOREIGN_CUDA), "--uuid", uuid], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        test.addCleanup(self.end)
        self.ask("attach")

    def ask(self, line):
        """(held MiB, free MiB), or the words of a refusal as an OSError."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if answer[:1] != ["holds"]:
            raise OSError(" ".join(answer) or "gpu-foreign ended")
        return int(answer[1]), int(answer[3])

    def allocate(self, mib):
        self.ask(f"allocate {mib}")

    def free(self):
        self.ask("free")

    def free_mib(self):
        """What the driver says is free on the card."""
        return self.ask("memory")[1]

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class ForeignOnCpu:
    """foreign-holder, a process for every allocation. It is refused nothing, so what is free is held against it here."""

    def __init__(self, test, engine, device=0):
        self.test, self.engine, self.device, self.holders = test, engine, device, []
        test.addCleanup(self.free)

    def allocate(self, mib):
        if mib > self.free_mib():
            raise OSError("out of memory")
        self.hold(mib)

    def hold(self, mib):
        process = subprocess.Popen([str(FOREIGN_CPU), "--namespace", self.test.namespace, "--device", str(ORDINAL + self.device), "--mib", str(mib)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.test.env)
        self.holders.append(process)
        self.test.assertEqual(process.stdout.readline().split()[:1], [b"held"])

    def free(self):
        for process in self.holders:
            process.stdin.close()
            process.wait(10)
            process.stdout.close()
        self.holders = []

    def free_mib(self):
        return self.engine.stat()[self.device]["free_mib"]


class GpuTest(EbbtideTest):
    """A test on the card; skipped where there is none. Engines get their cards by count."""

    segment_mib = 2 if IS_CUDA else 1  # the least that the card's driver gives
    capacity_mib = SHARE_MIB

    def setUp(self):
        why = missing()
        if why is not None:
            self.skipTest(why)
        super().setUp()

    def cards_of(self, n):
        return ",".join(CARD if IS_CUDA else f"cpu:{ORDINAL + i}" for i in range(n))

    def flags(self, cards=1, **flags):
        if IS_CUDA and isinstance(cards, int) and cards > 1:
            flags.setdefault("vram_mib", [SHARE_MIB] * cards)
        return super().flags(cards, **flags)

    def serve(self, cards=1, wait=True, **flags):
        return super().serve(cards, wait, **flags)

    def foreign(self, engine, device=0):
        """A second program on one of the engine's cards."""
        return (ForeignOnCuda if IS_CUDA else ForeignOnCpu)(self, engine, device)


class TwoCards(GpuTest):
    """A test on two cards, mixed into a GpuTest; an engine of n cards takes the first n of those named."""

    def setUp(self):
        why = "two cards are wanted: --card cuda:0,cuda:1" if len(CARDS) < 2 else missing(CARDS)
        if why is not None:
            self.skipTest(why)
        super().setUp()

    def cards_of(self, n):
        return ",".join(CARDS[:n])

    def flags(self, cards=1, **flags):
        return EbbtideTest.flags(self, cards, **flags)

