"""What /proc says of the processes that a test started, and waiting for something to become true."""
import os
import time
from pathlib import Path


def command_name(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def is_alive(pid):
    """Whether the process still runs; one that is dead and that nobody has reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def descendants(pid):
    """Living processes below `pid`, oldest first."""
    parent = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                after_name = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if after_name[0] != "Z":
                parent[int(entry)] = int(after_name[1])
    found = {pid}
    while True:
        more = {child for child, above in parent.items() if above in found} - found
        if not more:
            return sorted(found - {pid})
        found |= more


def eventually(holds, seconds=10.0, step=0.01):
    """Whether `holds()` comes true within the time; how long it took."""
    begin = time.monotonic()
    while True:
        if holds():
            return True, time.monotonic() - begin
        if time.monotonic() - begin > seconds:
            return False, seconds
        time.sleep(step)


def memory_files(pid):
    """The anonymous memory files that a process holds, inode -> bytes: what a CPU card's segments are made of."""
    sizes = {}
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            if os.readlink(f"{folder}/{name}").startswith("/memfd:"):
                status = os.stat(f"{folder}/{name}")
                sizes[status.st_ino] = status.st_size
    except OSError:
        pass
    return sizes


def holders_of(inodes):
    """Processes that hold one of these memory files."""
    return {int(entry) for entry in os.listdir("/proc") if entry.isdigit() and inodes & memory_files(entry).keys()}
