"""One stage as a process, driven by its lines alone, as a person would at a terminal."""
import subprocess
import tempfile
from pathlib import Path

from ebbtide import BIN, DEMO, Connection, Lines, encode


class Stage(Connection):
    def __init__(self, test, device, vram_mib=64, program=("ebbtide-stage-cpu",)):
        with tempfile.NamedTemporaryFile("wb", prefix=f"stage-{device}-", suffix=".err", dir=test.sandbox, delete=False) as log:
            self.log_path = Path(log.name)
            self.process = subprocess.Popen(
                [str(BIN / program[0]), *program[1:], "--device", str(device), "--vram-mib", str(vram_mib),
                 "--namespace", test.namespace],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=test.env)
        self.lines = Lines(self.process.stdout, lambda: self.log_path.read_text(errors="replace")[-2000:])
        test.addCleanup(self.kill)
        self.wait("HELLO")

    def write(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            try:
                stream.close()
            except OSError:
                pass

    def after(self, request, verb):
        """The answer of that verb, or the ERR that came instead."""
        since = self.send(request)
        at = self.lines.wait(lambda m: m.verb in (verb, "ERR"), since, what=f"{verb} after {request[:60]!r}")
        return self.lines.all[at]

    def load(self, **keys):
        fields = {"model": encode(str(DEMO)), "segment_mib": 1, "threads": 1, "chunk": 64, **keys}
        return self.after("LOAD " + " ".join(f"{k}={v}" for k, v in fields.items()), "HELD")


def rows(step, seq, pos, ids, epoch=0, **keys):
    extra = "".join(f" {k}={v}" for k, v in keys.items())
    return f"ROWS epoch={epoch} step={step} seq={seq} pos={pos} ids={ids}{extra}"
