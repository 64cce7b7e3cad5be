"""Golden transcripts: plays a script against an engine and keeps the conversation (tests/golden/README.md)."""
import re

from ebbtide import golden
from processes import eventually

LINE_BYTES_MAX = 65536
EVENTS = ("RESUME", "PP", "T", "LOGITS", "DONE")
ANSWERED_BY = {"VRAM": "VRAM-DONE", "STAT": "STAT-DONE", "LEDGER": "LEDGER-DONE", "PLAN": "PLAN-DONE", "PING": "PONG",
               "UNLEASE": "VRAM-DONE", "LEASES": "LEASES-DONE", "WATCH": "WATCH-DONE",
               "GEN": "DONE", "SCORE": "DONE"}
TIMES = re.compile(r"\b(version|prefill_ms|decode_ms|wait_us|us)=[^ ]*")
LEFT = re.compile(r"\bfor=\d+")  # seconds that a lease has left
MACHINE = re.compile(r"\b(name|uuid)=[^ ]*")  # a CPU card is called like the processor, and after the host
PP_TIME = re.compile(r"^(PP [^ ]+ \d+ \d+) [^ ]+$")
PROMOTION_TIMES = re.compile(r"\b(hits|promotions|refill_done|refill_total|heat_resident|heat_layers)=[^ ]*")


def mask(line):
    return PP_TIME.sub(r"\1 *", MACHINE.sub(r"\1=*", LEFT.sub("for=*", TIMES.sub(r"\1=*", line))))


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
    """Plays a script. While a card's cache is not whole, which expert is promoted before which step is a matter of time,
    and so is the number of hits: it is masked then, in DONE; and in STAT, which sums up, from then on."""

    def __init__(self, engine, stat):
        """`stat` gives the cards' STAT now, over another connection, so that asking leaves no trace here."""
        self.engine, self.stat = engine, stat
        self.book = [i for case in (golden()[11], golden()[10]) for i in case["prompt_ids"]]
        self.transcript, self.seen = [], 0
        self.whole, self.always_whole = True, True

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
            m = lines[self.seen]
            line = mask(m.raw)
            if (m.verb == "DONE" and not self.whole) or (m.verb == "STAT" and not self.always_whole):
                line = PROMOTION_TIMES.sub(r"\1=*", line)
            self.transcript.append("< " + shown(line, 1000))
            self.seen += 1

    def settle(self):
        """Waits until every slot of the caches is filled, and notes whether they are whole."""
        def is_settled():
            cards = self.stat().values()
            self.whole = all(c["cache_mib"] == c["cache_full_mib"] for c in cards)
            return all(c["resident"] == c["slots"] for c in cards)
        if not eventually(is_settled)[0]:
            raise AssertionError(f"the caches do not fill: {self.stat()}")
        self.always_whole = self.always_whole and self.whole

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
        self.settle()
        since = len(self.engine.lines.all)
        self.transcript += ["> " + shown(text) for text, _ in requests]
        self.engine.write(b"".join(data for _, data in requests))
        self.await_answers(requests, since)
        fence = f"fence-{len(self.transcript)}"
        at_fence = self.engine.lines.wait(lambda m: m.verb == "PONG" and m.bare == [fence],
                                          self.engine.send(f"PING {fence}"), what="PONG")
        del self.engine.lines.all[at_fence]
        self.collect()
