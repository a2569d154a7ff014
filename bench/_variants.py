"""The ways of doing one thing that bench/experiments.py compares: functions that handle `n` messages.

`python _variants.py GROUP NAME N REPEATS` prints the least nanoseconds of processor time a message of so many
repeats; with 0 repeats it runs the function once and prints nothing, for those who count instructions.

They keep the processor busy and nothing else: no server, no clock, so that their instructions can be counted.
The prototypes of a parser check less than a real one would: they are lower bounds of their kind.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jetspark import Msg
from jetspark.wire.parser import Parser

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

RUN = 500  # messages of a chunk: what a read of a busy connection brings, about 120 kB
REPLY = b"$JS.ACK.ORDERS.worker.1.%d.%d.1763244000123456789.%d"


def chunk(first: int = 100_000) -> bytes:
    """A run of deliveries of a pull consumer, 128 bytes each."""
    data = b"0123456789abcdef" * 8
    lines = [
        b"MSG orders.new 7 %b 128\r\n%b\r\n" % (REPLY % (i, i, 900_000 - i), data)
        for i in range(first, first + RUN)
    ]
    return b"".join(lines)


# --- parse: bytes to message objects ----------------------------------------------------------------


def parse_regex(n: int) -> None:
    buf, match = chunk(), re.compile(rb"MSG (\S+) (\S+) (?:(\S+) )?(\d+)\r\n").match
    for _ in range(n // RUN):
        pos, made = 0, []
        while found := match(buf, pos):
            subject, _, reply, digits = found.groups()
            start = found.end()
            end = start + int(digits)
            made.append(Msg(subject.decode(), reply.decode() if reply else "", buf[start:end], None, None))
            pos = end + 2


def parse_find_split(n: int) -> None:
    buf, sizes = chunk(), {"128": 128}
    find, total = buf.find, len(buf)
    for _ in range(n // RUN):
        pos, made = 0, []
        while pos < total:
            eol = find(b"\n", pos)
            _, subject, _, reply, digits = buf[pos : eol - 1].decode().split(" ")
            end = eol + 1 + sizes[digits]
            made.append(Msg(subject, reply, buf[eol + 1 : end], None, None))
            pos = end + 2


def parse_split_bytes(n: int) -> None:
    """Splits before it decodes: two small decodes instead of a large one."""
    buf, sizes = chunk(), {b"128": 128}
    find, total = buf.find, len(buf)
    for _ in range(n // RUN):
        pos, made = 0, []
        while pos < total:
            eol = find(b"\n", pos)
            _, subject, _, reply, digits = buf[pos : eol - 1].split(b" ")
            end = eol + 1 + sizes[digits]
            made.append(Msg(subject.decode(), reply.decode(), buf[eol + 1 : end], None, None))
            pos = end + 2


def parse_memoryview(n: int) -> None:
    """Payloads are views instead of copies; whoever wants bytes still has to copy."""
    buf, sizes = chunk(), {"128": 128}
    view, find, total = memoryview(buf), buf.find, len(buf)
    for _ in range(n // RUN):
        pos, made = 0, []
        while pos < total:
            eol = find(b"\n", pos)
            _, subject, _, reply, digits = str(view[pos : eol - 1], "utf-8").split(" ")
            end = eol + 1 + sizes[digits]
            made.append(Msg(subject, reply, view[eol + 1 : end], None, None))  # type: ignore[arg-type]
            pos = end + 2


def _feed(n: int, *, compiled: bool) -> None:
    buf, parser = chunk(), Parser(compiled=compiled)
    parser.routes["7"] = (Msg, None)
    for _ in range(n // RUN):
        (event,) = parser.feed(buf)
        assert len(event.items) == RUN  # type: ignore[union-attr]


def parse_pure(n: int) -> None:
    _feed(n, compiled=False)


def parse_c(n: int) -> None:
    _feed(n, compiled=True)


# --- message: what an object costs to make, read and drop ---------------------------------------------


class Slotted:
    __slots__ = ("_headers", "_owner", "data", "header_block", "reply", "subject")

    def __init__(self, subject: str, reply: str, data: bytes, header: bytes | None, owner: Any) -> None:
        self.subject, self.reply, self.data = subject, reply, data
        self.header_block, self._owner, self._headers = header, owner, None


class Plain:
    def __init__(self, subject: str, reply: str, data: bytes, header: bytes | None, owner: Any) -> None:
        self.subject, self.reply, self.data = subject, reply, data
        self.header_block, self._owner, self._headers = header, owner, None


@dataclass(slots=True)
class Data:
    subject: str
    reply: str
    data: bytes
    header_block: bytes | None
    _owner: Any
    _headers: Any = None


class Tracked(msgspec.Struct):
    subject: str
    reply: str
    data: bytes
    header_block: bytes | None
    _owner: Any
    _headers: Any = None


class Untracked(Tracked, gc=False):
    pass


class Named(NamedTuple):
    subject: str
    reply: str
    data: bytes
    header: bytes | None
    owner: Any
    parsed: Any = None


def _objects(n: int, make: Callable[..., Any]) -> None:
    """A thousand live at a time, as in the buffer of a consumer."""
    subject, reply, data = "orders.new", REPLY.decode(), b"x" * 128
    for _ in range(n // 1000):
        kept = [make(subject, reply, data, None, None) for _ in range(1000)]
        for one in kept:
            one.subject, one.data  # noqa: B018


def message_class(n: int) -> None:
    _objects(n, Plain)


def message_slots(n: int) -> None:
    _objects(n, Slotted)


def message_dataclass_slots(n: int) -> None:
    _objects(n, Data)


def message_namedtuple(n: int) -> None:
    _objects(n, Named)


def message_struct(n: int) -> None:
    _objects(n, Tracked)


def message_struct_no_gc(n: int) -> None:
    _objects(n, Untracked)


def message_tuple(n: int) -> None:
    """Read by position: no names, so no API; the lower bound."""
    subject, reply, data = "orders.new", REPLY.decode(), b"x" * 128
    for _ in range(n // 1000):
        kept = [(subject, reply, data, None, None, None) for _ in range(1000)]
        for one in kept:
            one[0], one[2]


# --- intern: subjects and the constant front of ack replies -------------------------------------------


def intern_decode(n: int) -> None:
    buf = b"orders.new"
    for _ in range(n // 1000):
        [buf.decode() for _ in range(1000)]


def intern_cache(n: int) -> None:
    """One str a distinct subject, found by its bytes, which have to be cut out first either way."""
    buf, cache = b"orders.new", {b"orders.new": "orders.new"}
    get = cache.get
    for _ in range(n // 1000):
        [get(buf) for _ in range(1000)]


def intern_sys(n: int) -> None:
    buf, intern = b"orders.new", sys.intern
    for _ in range(n // 1000):
        [intern(buf.decode()) for _ in range(1000)]


def intern_reply_whole(n: int) -> None:
    reply = REPLY % (100_000, 100_000, 900_000)
    for _ in range(n // 1000):
        [reply.decode() for _ in range(1000)]


def intern_reply_prefix(n: int) -> None:
    """The front is shared, the numbers are kept; an ack has to join them again."""
    reply, front, text = (
        REPLY % (100_000, 100_000, 900_000),
        b"$JS.ACK.ORDERS.worker.",
        "$JS.ACK.ORDERS.worker.",
    )
    size = len(front)
    for _ in range(n // 1000):
        [(text, reply[size:].decode()) if reply.startswith(front) else None for _ in range(1000)]


# --- buffer: in by runs, out one by one -----------------------------------------------------------------

ITEMS = [object()] * RUN


def buffer_deque_append(n: int) -> None:
    buffer: deque[Any] = deque()
    for _ in range(n // RUN):
        for one in ITEMS:
            buffer.append(one)
        while buffer:
            buffer.popleft()


def buffer_deque_extend(n: int) -> None:
    buffer: deque[Any] = deque()
    for _ in range(n // RUN):
        buffer.extend(ITEMS)
        while buffer:
            buffer.popleft()


def buffer_list_pop0(n: int) -> None:
    buffer: list[Any] = []
    for _ in range(n // RUN):
        buffer += ITEMS
        while buffer:
            buffer.pop(0)


def buffer_list_index(n: int) -> None:
    buffer: list[Any] = []
    for _ in range(n // RUN):
        buffer += ITEMS
        at, count = 0, len(buffer)
        while at < count:
            buffer[at]
            at += 1
        buffer.clear()


def buffer_list_reversed(n: int) -> None:
    for _ in range(n // RUN):
        buffer = ITEMS[::-1]
        while buffer:
            buffer.pop()


def buffer_list_iterator(n: int) -> None:
    """A run is iterated as it came: what `next` costs."""
    for _ in range(n // RUN):
        for _one in list(ITEMS):
            pass


# --- wake: how a waiting task learns of messages ----------------------------------------------------------


def wake_queue(n: int) -> None:
    """asyncio.Queue: a put and a get for each message."""

    async def main() -> None:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        loop, rounds = asyncio.get_running_loop(), n // RUN

        def arrive() -> None:
            nonlocal rounds
            for one in ITEMS:
                queue.put_nowait(one)
            rounds -= 1
            if rounds:
                loop.call_soon(arrive)

        loop.call_soon(arrive)
        for _ in range(n):
            await queue.get()

    asyncio.run(main())


def wake_each(n: int) -> None:
    """A future for each message: the task is resumed by the loop every time."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(n):
            waiter = loop.create_future()
            loop.call_soon(waiter.set_result, None)
            await waiter

    asyncio.run(main())


class _Buffer:
    """Woken once a run; `__anext__` takes what is there without going back to the loop."""

    def __init__(self, n: int) -> None:
        self.loop, self.rounds, self.left = asyncio.get_running_loop(), n // RUN, n
        self.items: deque[Any] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.loop.call_soon(self.arrive)

    def arrive(self) -> None:
        self.items.extend(ITEMS)
        self.rounds -= 1
        if self.waiter is not None:
            self.waiter.set_result(None)
            self.waiter = None
        if self.rounds:
            self.loop.call_soon(self.arrive)

    async def wait(self) -> None:
        while not self.items:
            self.waiter = self.loop.create_future()
            await self.waiter

    def __aiter__(self) -> _Buffer:
        return self

    async def __anext__(self) -> Any:
        if not self.items:
            if not self.left:
                raise StopAsyncIteration
            await self.wait()
        self.left -= 1
        return self.items.popleft()


def wake_run(n: int) -> None:
    async def main() -> None:
        async for _ in _Buffer(n):
            pass

    asyncio.run(main())


def wake_generator(n: int) -> None:
    """The same with an async generator in place of `__anext__`."""

    async def messages(buffer: _Buffer) -> AsyncIterator[Any]:
        left = n
        while left:
            await buffer.wait()
            while buffer.items:
                left -= 1
                yield buffer.items.popleft()

    async def main() -> None:
        async for _ in messages(_Buffer(n)):
            pass

    asyncio.run(main())


def wake_batch(n: int) -> None:
    """A list for each wake-up, iterated without `async`."""

    async def main() -> None:
        buffer, left = _Buffer(n), n
        while left:
            await buffer.wait()
            batch = list(buffer.items)
            buffer.items.clear()
            for _ in batch:
                left -= 1

    asyncio.run(main())


# Name, how the table calls it, messages for one count of instructions.
GROUPS: dict[str, dict[str, tuple[str, Callable[[int], None], int]]] = {
    "parse": {
        "regex": ("regular expression", parse_regex, 4_000),
        "find_split": ("find, decode, split", parse_find_split, 4_000),
        "split_bytes": ("find, split, decode twice", parse_split_bytes, 4_000),
        "memoryview": ("find, split, payload as memoryview", parse_memoryview, 4_000),
        "pure": ("Parser, pure Python, every check", parse_pure, 4_000),
        "c": ("Parser, compiled core, every check", parse_c, 4_000),
    },
    "message": {
        "class": ("class with __dict__", message_class, 20_000),
        "slots": ("class with __slots__", message_slots, 20_000),
        "dataclass_slots": ("dataclass(slots=True)", message_dataclass_slots, 20_000),
        "namedtuple": ("NamedTuple", message_namedtuple, 20_000),
        "struct": ("msgspec.Struct", message_struct, 20_000),
        "struct_no_gc": ("msgspec.Struct, gc=False", message_struct_no_gc, 20_000),
        "tuple": ("tuple, read by position", message_tuple, 20_000),
    },
    "intern": {
        "decode": ("subject: decode each", intern_decode, 100_000),
        "cache": ("subject: dict of known ones", intern_cache, 100_000),
        "sys": ("subject: decode, sys.intern", intern_sys, 100_000),
        "reply_whole": ("reply: decode the whole", intern_reply_whole, 100_000),
        "reply_prefix": ("reply: shared front, own numbers", intern_reply_prefix, 100_000),
    },
    "buffer": {
        "deque_append": ("deque: append each, popleft", buffer_deque_append, 100_000),
        "deque_extend": ("deque: extend by runs, popleft", buffer_deque_extend, 100_000),
        "list_pop0": ("list: pop(0)", buffer_list_pop0, 100_000),
        "list_index": ("list: an index that moves", buffer_list_index, 100_000),
        "list_reversed": ("list: reversed, pop()", buffer_list_reversed, 100_000),
        "list_iterator": ("list: iterated whole", buffer_list_iterator, 100_000),
    },
    "wake": {
        "each": ("a future a message", wake_each, 10_000),
        "queue": ("asyncio.Queue, put and get", wake_queue, 10_000),
        "generator": ("wake-up a run, async generator", wake_generator, 20_000),
        "run": ("wake-up a run, __anext__", wake_run, 20_000),
        "batch": ("wake-up a run, list", wake_batch, 20_000),
    },
}


def main() -> None:
    group, name, n, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    _, function, _ = GROUPS[group][name]
    if not repeats:
        function(n)
        return
    best = float("inf")
    for _ in range(repeats):
        begun = time.process_time_ns()
        function(n)
        best = min(best, (time.process_time_ns() - begun) / n)
    print(json.dumps(best))


if __name__ == "__main__":
    main()
