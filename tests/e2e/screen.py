"""A terminal for tests: a program on a pty, and what its screen shows.

`Terminal` runs a program with its input and output on a pty of a given size, keeps a screen of characters from what it writes
(the sequences that ncurses uses for vt100 and xterm, no more), can be resized, and can be typed at.
"""
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

SEQUENCE = re.compile(rb"\x1b(\[[?>]?([0-9;]*)([@-~])|\][^\x07]*\x07|[()].|[=>78MDEHc])")


class Screen:
    def __init__(self, rows, columns):
        self.pending = b""
        self.resize(rows, columns)

    def resize(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.cells = [[" "] * columns for _ in range(rows)]
        self.row = self.column = 0
        self.top, self.bottom = 0, rows - 1

    def lines(self):
        return ["".join(row).rstrip() for row in self.cells]

    def feed(self, data):
        data = self.pending + data
        at = 0
        while at < len(data):
            if data[at] == 0x1B:
                found = SEQUENCE.match(data, at)
                if not found:
                    break
                if found[3]:
                    self.control(found[3], [int(n) if n else 0 for n in found[2].split(b";")])
                elif found[1] == b"M":
                    self.scroll(self.row, self.bottom, -1)
                at = found.end()
            else:
                self.character(data[at])
                at += 1
        self.pending = data[at:]
        if len(self.pending) > 100:
            raise AssertionError(f"a sequence that this terminal does not know: {self.pending[:40]!r}")

    def character(self, byte):
        if byte == 0x0D:
            self.column = 0
        elif byte == 0x0A:
            if self.row == self.bottom:
                self.scroll(self.top, self.bottom, 1)
            else:
                self.row = min(self.row + 1, self.rows - 1)
        elif byte == 0x08:
            self.column = max(self.column - 1, 0)
        elif byte >= 0x20:
            self.column = min(self.column, self.columns - 1)
            self.cells[self.row][self.column] = chr(byte)
            self.column += 1

    def scroll(self, first, last, n):
        for _ in range(abs(n)):
            blank = [" "] * self.columns
            if n > 0:
                self.cells[first:last + 1] = self.cells[first + 1:last + 1] + [blank]
            else:
                self.cells[first:last + 1] = [blank] + self.cells[first:last]

    def control(self, final, numbers):
        n = max(numbers[0], 1)
        line = self.cells[self.row]
        if final in b"Hf":
            self.row = min(n, self.rows) - 1
            self.column = min(max(numbers[1] if len(numbers) > 1 else 1, 1), self.columns) - 1
        elif final in b"ABCDGd":
            move = {b"A": (-n, 0), b"B": (n, 0), b"C": (0, n), b"D": (0, -n), b"G": (0, n - 1 - self.column),
                    b"d": (n - 1 - self.row, 0)}[final]
            self.row = min(max(self.row + move[0], 0), self.rows - 1)
            self.column = min(max(self.column + move[1], 0), self.columns - 1)
        elif final == b"J":
            rows = range(self.rows) if numbers[0] == 2 else range(self.row + 1, self.rows) if numbers[0] == 0 else range(self.row)
            for row in rows:
                self.cells[row] = [" "] * self.columns
            if numbers[0] != 2:
                self.control(b"K", numbers)
        elif final == b"K":
            span = {0: (self.column, self.columns), 1: (0, self.column + 1), 2: (0, self.columns)}[numbers[0]]
            for i in range(*span):
                self.cells[self.row][min(i, self.columns - 1)] = " "
        elif final == b"X":
            for i in range(self.column, min(self.column + n, self.columns)):
                line[i] = " "
        elif final == b"b":
            for _ in range(n):
                self.character(ord(line[self.column - 1]))
        elif final == b"P":
            self.cells[self.row] = line[:self.column] + line[self.column + n:] + [" "] * min(n, self.columns - self.column)
        elif final == b"@":
            self.cells[self.row] = (line[:self.column] + [" "] * n + line[self.column:])[:self.columns]
        elif final in b"LM":
            self.scroll(self.row, self.bottom, n if final == b"M" else -n)
        elif final in b"ST":
            self.scroll(self.top, self.bottom, n if final == b"S" else -n)
        elif final == b"r":
            self.top = n - 1
            self.bottom = (numbers[1] if len(numbers) > 1 and numbers[1] else self.rows) - 1
            self.row = self.column = 0
        elif final not in b"mhltnc":
            raise AssertionError(f"a sequence that this terminal does not know: {final!r}")


class Terminal:
    """A program on a pty. `see()` waits for a screen that fits."""

    def __init__(self, arguments, rows, columns, env):
        self.master, slave = pty.openpty()
        self.screen, self.raw = Screen(rows, columns), b""
        self._size(slave, rows, columns)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen([str(a) for a in arguments], stdin=slave, stdout=slave, stderr=slave, env=env,
                                        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def _size(self, fd, rows, columns):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, rows, columns):
        self.read(0.1)
        self.screen.resize(rows, columns)
        self._size(self.master, rows, columns)

    def type(self, data):
        os.write(self.master, data)

    def read(self, seconds):
        until = time.monotonic() + seconds
        while select.select([self.master], [], [], max(until - time.monotonic(), 0))[0]:
            data = os.read(self.master, 65536)
            self.raw += data
            self.screen.feed(data)

    def see(self, fits, what, seconds=20.0):
        """The lines of the first screen that fits."""
        until = time.monotonic() + seconds
        while True:
            self.read(0.05)
            lines = self.screen.lines()
            if fits(lines):
                return lines
            if time.monotonic() > until:
                raise AssertionError(f"no {what} within {seconds} s:\n" + "\n".join(lines))

    def end(self, seconds=20.0):
        """The exit status, once it has ended."""
        until = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < until:
            self.read(0.05)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"it did not end within {seconds} s")
        self.read(0.1)
        return self.process.returncode

    def attributes_are_restored(self):
        return termios.tcgetattr(self.slave) == self.before

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)
