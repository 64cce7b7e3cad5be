"""Golden transcripts: plays a script against an engine and keeps the conversation (tests/golden/README.md)."""
import re

from ebbtide import golden

LINE_BYTES_MAX = 65536
EVENTS = ("RESUME", "PP", "T", "LOGITS", "DONE")
ANSWERED_BY = {"VRAM": "VRAM-DONE", "STAT": "STAT-DONE", "LEDGER": "LEDGER-DONE", "PLAN": "PLAN-DONE", "PING": "PONG",
               "GEN": "DONE", "SCORE": "DONE"}
TIMES = re.compile(r"\b(version|prefill_ms|decode_ms|wait_us|us)=[^ ]*")
PP_TIME = re.compile(r"^(PP [^ ]+ \d+ \d+) [^ ]+$")


def mask(line):
    return PP_TIME.sub(r"\1 *", TIMES.sub(r"\1=*", line))


def shown(line, at_most=160):
    return line if len(line) <= at_most else f"{line[:60]}… ({len(line.encode())} bytes)"


def tag_of(line):
    """The order that a reply belongs to."""
    fields = line.split(" ")
    return fields[1] if fields[0] in EVENTS or (fields[0] == "ERR" and len(fields) > 1) else "-"


def by_tag(replies):
    orders = {}
    for line in replies:
        orders.setdefault(tag_of(line), []).append(line)
    return orders


class Player:
    def __init__(self, engine, stat):
        """`stat` gives the cards' STAT now, over another connection, so that asking leaves no trace here."""
        self.engine, self.stat = engine, stat
        self.book = [i for case in (golden()[11], golden()[10]) for i in case["prompt_ids"]]
        self.transcript, self.seen = [], 0

    def fill(self, line):
        def number(match):
            card = self.stat()[int(match[1])]
            return str(card[match[2]] + int(match[3] or 0))

        def ids(match):
            return ",".join(map(str, self.book[int(match[1]):int(match[2])]))
        return re.sub(r"\{book:(\d+):(\d+)\}", ids, re.sub(r"\{card(\d+)\.(\w+)([+-]\d+)?\}", number, line))

    def bytes_of(self, line):
        """What goes out for a line of the script, and how the transcript shows it."""
        if line.startswith("@crlf"):
            text = self.fill(line[6:])
            return text, text.encode() + b"\r\n"
        if line.startswith("@long"):
            _, count, text = line.split(" ", 2)
            text += "x" * (int(count) - len(text))
        else:
            text = self.fill(line)
        return text, text.encode() + b"\n"

    def collect(self):
        lines = self.engine.lines.all
        while self.seen < len(lines):
            self.transcript.append("< " + shown(mask(lines[self.seen].raw), 400))
            self.seen += 1

    def await_answers(self, requests, since):
        """Waits for what must follow each request; nothing follows a PART that is taken or an empty line."""
        wanted = {}
        for text, _ in requests:
            verb, _, rest = text.strip().partition(" ")
            if verb in ANSWERED_BY and len(text) < LINE_BYTES_MAX:
                end = ANSWERED_BY[verb]
                tag = rest.strip().split(" ")[0] if end in ("PONG", "DONE") else None
                wanted[end, tag] = wanted.get((end, tag), 0) + 1
        for (end, tag), count in wanted.items():
            left = [count]

            def fits(m, end=end, tag=tag, left=left):
                if (m.verb == end and (tag is None or m.bare[:1] == [tag])) or \
                        (m.verb == "ERR" and m.bare[0] in (tag or "-", "-")):
                    left[0] -= 1
                return left[0] == 0
            self.engine.lines.wait(fits, since, what=f"{count} answers {end} {(tag or '')[:70]}")

    def play(self, script):
        burst = None
        for line in script.splitlines():
            if line.startswith("#"):
                continue
            if line == "@burst":
                burst = []
            elif line == "@end":
                self.exchange(burst)
                burst = None
            elif burst is not None:
                burst.append(self.bytes_of(line))
            else:
                self.exchange([self.bytes_of(line)])
        return self.transcript

    def exchange(self, requests):
        """Sends in one write; then a PING of its own closes what has no other end."""
        self.collect()
        since = len(self.engine.lines.all)
        self.transcript += ["> " + shown(text) for text, _ in requests]
        self.engine.write(b"".join(data for _, data in requests))
        self.await_answers(requests, since)
        fence = f"fence-{len(self.transcript)}"
        at_fence = self.engine.lines.wait(lambda m: m.verb == "PONG" and m.bare == [fence],
                                          self.engine.send(f"PING {fence}"), what="PONG")
        del self.engine.lines.all[at_fence]
        self.collect()
