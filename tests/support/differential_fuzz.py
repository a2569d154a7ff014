"""The compiled core against pure Python, on random input, for a while: ``make sanitize`` runs it.

``python tests/support/differential_fuzz.py --seconds 120 --seed 1``. Both must say the same of every input,
whatever it is: the same messages, the same bytes, the same errors. The first difference ends it with the seed
and the input. Under the sanitizers a memory error ends it as well.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from jetspark.arrow import SCHEMA, to_record_batch
from jetspark.errors import JetsparkError
from jetspark.jetstream.publish.many import plain_frames
from jetspark.wire import Parser, backend
from jetspark.wire._backend import speed
from jetspark.wire.columns import ANSWERS, COLUMNAR, AnyColumns, join_columns
from jetspark.wire.parser import Messages
from support import parser_fuzz

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

COLUMNS: list[str] = SCHEMA.names
NS = b"1700000000123456789"
NUMBERS = [
    *(b"0", b"1", b"7", b"42", b"999999999", b"9223372036854775807", b"9223372036854775808", NS, NS[:-1]),
    *(b"18446744073709551615", b"18446744073709551616", b"9" * 21, b"", b"-1", b"+1", b"0x1", b"1x", b"\xff"),
]
SUBJECTS = [b"a", b"a.b", b"orders.new.1", b"s" * 300, b"\xc3\xa9", b"\xff\xfe", b"a\tb"]
BLOCKS = [
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nA: b\r\n\r\n",
    b"NATS/1.0\r\nA: b\r\nA:c\r\nbad\r\n\r\n",
    b"NATS/1.0 404\r\n\r\n",
]


def cut(chance: Random, wire: bytes) -> list[bytes]:
    """The bytes in chunks: whole, in equal ones, or anyhow."""
    match chance.randrange(4):
        case 0:
            return [wire]
        case 1:
            return parser_fuzz.cut(wire, chance.randint(1, 64))
        case _:
            places = sorted(chance.randint(0, len(wire)) for _ in range(chance.randint(1, 6)))
            return [wire[start:end] for start, end in zip([0, *places], [*places, len(wire)], strict=True)]


# Whatever may come


def any_bytes(chance: Random) -> None:
    data = next(parser_fuzz.mutations(chance))
    chunks = cut(chance, data[2:])
    wish = chance.randrange(4)
    compiled, pure = (parser_fuzz.play(one, chunks, wish) for one in parser_fuzz.backends())
    assert compiled == pure, f"{chunks!r}\nwish {wish}\n{compiled}\n{pure}"


def answers(chance: Random) -> None:
    """The route of a publisher's acks, columns in C and objects in Python."""
    chunks = cut(chance, next(parser_fuzz.mutations(chance))[2:])
    seen = []
    for compiled in (True, False):
        parser = Parser(compiled=compiled)
        for sid in ("1", "2"):
            parser.routes[sid] = (ANSWERS, (lambda *message: message[:4], None))
        items: list[Any] = []
        error = ""
        try:
            for chunk in chunks:
                for event in parser.feed(chunk):
                    if isinstance(event, Messages):
                        items += event.items
                    elif isinstance(event, AnyColumns):
                        items += [
                            (text(subject), text(reply), payload, block)
                            for _, subject, reply, payload, block in parser_fuzz.rows_of(event)
                        ]
                    else:
                        items.append(repr(event))
        except JetsparkError as caught:
            error = repr(caught)
        seen.append((items, error, str(parser.error), parser.held))
    assert seen[0] == seen[1], f"{chunks!r}\n{seen[0]}\n{seen[1]}"


def text(word: bytes) -> str:
    return word.decode("utf-8", "surrogateescape")


# A consumer's messages as Arrow


def reply(chance: Random) -> bytes:
    usual = chance.random() < 0.9
    numbers = [
        b"1",
        b"%d" % chance.randrange(1 << 40) if usual else chance.choice(NUMBERS),
        b"%d" % chance.randrange(1 << 30) if usual else chance.choice(NUMBERS),
        NS if chance.random() < 0.9 else chance.choice(NUMBERS),
        b"%d" % chance.randrange(1000) if usual else chance.choice(NUMBERS),
    ]
    if chance.random() < 0.05:
        numbers[0] = chance.choice(NUMBERS)
    front = chance.choice([b"$JS.ACK.S.c", b"$JS.ACK.S.c", b"$JS.ACK.hub.hash.S.c", b"$JS.ACK._.h.S.c"])
    more = [b"x"] * chance.choice([0, 0, 0, 0, 1, 3])
    made = b".".join([front, *numbers, *more])
    if chance.random() < 0.03:
        made = chance.choice(
            [b"_INBOX.a.b", made[1:], made + b".", made.replace(b".", b"", 1), b"$JS.ACK" * 3]
        )
    return made


def messages(chance: Random) -> bytes:
    alike = reply(chance) if chance.random() < 0.3 else None
    subject = chance.choice(SUBJECTS)
    parts = []
    for _ in range(chance.choice([1, 2, 5, 40])):
        to = alike or reply(chance)
        if chance.random() < 0.2:
            subject = chance.choice(SUBJECTS)
        data = chance.randbytes(chance.choice([0, 1, 5, 12, 13, 40, 3000]))
        if chance.random() < 0.05:
            block = chance.choice(BLOCKS)
            sizes = b"%d %d" % (len(block), len(block) + len(data))
            parts.append(b"HMSG %b 1 %b %b\r\n%b%b\r\n" % (subject, to, sizes, block, data))
        else:
            parts.append(b"MSG %b 1 %b %d\r\n%b\r\n" % (subject, to, len(data), data))
    return b"".join(parts)


def record_batches(chance: Random) -> None:
    chunks = cut(chance, messages(chance))
    names = chance.sample(COLUMNS, chance.randint(1, len(COLUMNS)))
    views, keep = chance.random() < 0.5, chance.choice([None, None, 1, 3])
    seen = []
    for compiled in (True, False):
        parser = Parser(compiled=compiled)
        parser.routes["1"] = (COLUMNAR, (lambda *message: message[:4], None))
        events = [event for chunk in chunks for event in parser.feed(chunk)]
        parts = [event for event in events if isinstance(event, AnyColumns)]
        others = [event for event in events if not isinstance(event, AnyColumns)]
        result: Any = None
        if parts:
            columns = join_columns(parts)
            if keep is not None:
                columns.truncate(keep)
            try:
                result = to_record_batch(columns, names, "S", views=views).to_pylist()
            except JetsparkError as error:
                result = repr(error)
        seen.append((result, others, str(parser.error)))
    assert seen[0] == seen[1], f"{chunks!r}\n{names} {views} {keep}\n{seen[0]}\n{seen[1]}"


# Publishes


def frames(chance: Random) -> None:
    assert speed is not None
    count = chance.randint(1, 20)
    prefixes = [b"PUB %b " % chance.choice(SUBJECTS) for _ in range(count)]
    datas = [chance.randbytes(chance.choice([0, 1, 100, 5000])) for _ in range(count)]
    blocks = [chance.choice(BLOCKS) for _ in range(count)] if chance.random() < 0.5 else None
    serial = chance.choice([0, 1, 99, 1 << 40, (1 << 64) - 1 - count])
    start = chance.randint(0, count)
    given = (prefixes, b"_INBOX.x.", serial, blocks, datas, start, chance.randint(start, count))
    assert speed.frames(*given) == plain_frames(*given), repr(given)


PARTS: list[Callable[[Random], None]] = [any_bytes, answers, record_batches, frames]


def fuzz(seconds: float, seed: int) -> Counter[str]:
    """So many inputs of each kind as the time allows; raises AssertionError at the first difference."""
    done: Counter[str] = Counter()
    ends = time.monotonic() + seconds
    number = 0
    while time.monotonic() < ends:
        part = PARTS[number % len(PARTS)]
        # Each input has a seed of its own, so that one can be played again without those before it.
        one = f"{seed}.{number}"
        try:
            part(random.Random(one))
        except AssertionError as error:
            raise AssertionError(f"{part.__name__}, seed {one}: {error}") from None
        except BaseException:
            print(f"{part.__name__}, seed {one}", file=sys.stderr, flush=True)
            raise
        done[part.__name__] += 1
        number += 1
    return done


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=120.0)
    options.add_argument("--seed", type=int, default=int(time.time()))
    given = options.parse_args()
    if backend != "c":
        print("there is no compiled core to compare with", file=sys.stderr)
        return 2
    print(f"differential fuzz: {given.seconds:g} s, seed {given.seed}", flush=True)
    try:
        done = fuzz(given.seconds, given.seed)
    except AssertionError as error:
        print(f"compiled core and Python differ: {error}", file=sys.stderr)
        return 1
    print("no difference in " + ", ".join(f"{count} {name}" for name, count in done.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
