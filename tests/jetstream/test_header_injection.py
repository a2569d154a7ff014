"""No argument of any publishing path can become a second header, a second command or another subject.

``Expect(last_msg_id="m4\\r\\nNats-Rollup: all")`` once emptied a stream by way of ``publish_many``. So each
path is tried with each of these, on a stream that would do what the smuggled header asks for, and the stream
is compared.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import jetspark
from jetspark import Expect, Headers, Publishing, Schedule, StoredMsg, StreamConfig, blocking
from jetspark.advisories import DeadLetter, MaxDeliveriesAdvisory
from jetspark.errors import InvalidArgument
from jetspark.jetstream.publish.many import Columns
from jetspark.models import Timestamp
from jetspark.wire.headers import HeaderBlock, decode_headers, encode_column, encode_headers, extend_block
from support.helpers import unique

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jetspark.server import Server

SMUGGLED = "Nats-Rollup: all"
LINES = [f"m4\r\n{SMUGGLED}", f"m4\n{SMUGGLED}", f"m4\r{SMUGGLED}", "m4\r", "\nm4", f"m4\r\n\r\n{SMUGGLED}"]
BLOCK = f"NATS/1.0\r\n{SMUGGLED}\r\n\r\n".encode()

HEADERS: list[Any] = [
    *({"A": text} for text in LINES),
    *({"A": ["fine", text]} for text in LINES[:2]),
    *({name: "x"} for name in ("A\r\nB", "A\nB", "A\rB", "A:B", "A B", "A\0B", "A\t", " A", "", "\u00e9")),
    *([(f"A: x\r\n{SMUGGLED}", "x")], [("A", 5)], [(5, "x")], [("A", None)], [("A", b"x")], {"A": "\udcff"}),
    *(BLOCK, bytearray(BLOCK), memoryview(BLOCK), HeaderBlock(BLOCK).decode(), BLOCK.decode(), 5),
]
MSG_IDS: list[Any] = [*LINES, "", " ", 5, b"m4", ["m4"], True, "\udcff"]
TTLS: list[Any] = [f"5s\r\n{SMUGGLED}", "5s\n", "never\r\n", b"5s", float("nan"), True]
EXPECTS: list[Any] = [
    *({"last_msg_id": one} for one in MSG_IDS),
    *({"stream": one} for one in (*LINES, "a b", 5, b"S")),
    *({"last_seq": one} for one in (f"5\r\n{SMUGGLED}", "5", 1.5, True, -1, 1 << 64)),
    *({"last_subject_seq": one} for one in (f"5\r\n{SMUGGLED}", "5", 1.5, True, -1, 1 << 64)),
    *({"last_subject_seq": 1, "last_subject_seq_subject": one} for one in (*LINES, "a b", 5, b"s")),
]
SCHEDULES: list[Any] = [
    *({"target": text, "every": 60} for text in LINES),
    *(
        {"target": "t", "cron": f"0 0 0 * * *\r\n{SMUGGLED}"},
        {"target": "t", "cron": f"@daily\r\n{SMUGGLED}"},
    ),
    {"target": "t", "cron": "@daily", "timezone": f"UTC\r\n{SMUGGLED}"},
    {"target": "t", "every": 60, "source": f"s\r\n{SMUGGLED}"},
    {"target": "t", "every": 60, "ttl": f"5s\r\n{SMUGGLED}"},
]
SUBJECTS: list[Any] = [
    *(
        "a\r\nPUB b 0\r\n",
        "a\nb",
        "a\rb",
        "a b",
        "a\tb",
        "a\0b",
        "",
        "a.*",
        "a.>",
        "a..b",
        5,
        b"a",
        None,
        "\udcff",
    )
]


def refusals() -> list[dict[str, Any]]:
    """Arguments of a publish, each with one thing wrong."""
    return [
        *({"subject": one} for one in SUBJECTS),
        *({"headers": one} for one in HEADERS),
        *({"msg_id": one} for one in MSG_IDS),
        *({"ttl": one} for one in TTLS),
        *({"data": one} for one in ("text", 5, None)),
    ]


@pytest.mark.parametrize("fields", EXPECTS, ids=repr)
def test_expectations_that_would_be_two_headers(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"expect\."):
        Expect(**fields)


@pytest.mark.parametrize("fields", SCHEDULES, ids=repr)
def test_schedules_that_would_be_two_headers(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"schedule\."):
        Schedule(**fields)


def forged() -> Expect:
    """An Expect that was never checked, as a subclass or a later field might be."""
    expect = Expect(last_msg_id="m4")
    msgspec.structs.force_setattr(expect, "last_msg_id", LINES[0])
    return expect


class World:
    """A stream with five messages and everything that can publish to it."""

    def __init__(self, js: jetspark.JetStream, stream: jetspark.Stream, subject: str) -> None:
        self.js, self.stream, self.subject = js, stream, subject
        self.nc: Any = js._core.message_owner

    async def state(self) -> Any:
        await self.nc.flush()
        state = (await self.stream.info()).state
        return state.messages, state.first_seq, state.last_seq

    async def nc_publish(self, subject: Any, data: Any = b"x", **options: Any) -> None:
        options.pop("msg_id", None)
        await self.nc.publish(subject, data, headers=options.get("headers"))

    async def request(self, subject: Any, data: Any = b"x", **options: Any) -> None:
        await self.nc.request(subject, data, headers=options.get("headers"), timeout=1)

    async def request_many(self, subject: Any, data: Any = b"x", **options: Any) -> None:
        async for _ in self.nc.request_many(subject, data, headers=options.get("headers"), timeout=1):
            pass

    async def respond(self, subject: Any, data: Any = b"x", **options: Any) -> None:
        await jetspark.Msg("s", subject, b"", None, self.nc).respond(data, headers=options.get("headers"))

    async def js_publish(self, subject: Any, data: Any = b"x", **options: Any) -> None:
        await self.js.publish(subject, data, **options)

    async def publisher(self, subject: Any, data: Any = b"x", **options: Any) -> None:
        async with self.js.publisher() as publisher:
            await (await publisher.publish(subject, data, **options))

    async def publish_many(self, subject: Any, data: Any = b"x", **options: Any) -> None:
        async with self.js.publisher() as publisher:
            await publisher.publish_many([Publishing(subject, data, **options)])

    async def atomic_batch(self, subject: Any, data: Any = b"x", **options: Any) -> None:
        async with self.js.atomic_batch() as batch:
            await batch.publish(subject, data, **options)

    async def fast_ingest(self, subject: Any, data: Any = b"x", **options: Any) -> None:
        async with self.js.fast_ingest() as batch:
            await batch.publish(subject, data, **options)

    async def increment(self, subject: Any, data: Any = b"x", **options: Any) -> None:
        await self.js.increment(subject, 1, msg_id=options.get("msg_id"))

    async def republish(self, subject: Any, data: Any = b"x", **options: Any) -> None:
        stored = StoredMsg(
            stream="S", subject="s", sequence=1, timestamp=Timestamp.from_ns(0), data=b"x", headers=Headers()
        )
        advisory = MaxDeliveriesAdvisory(type="x", stream="S", consumer="C", stream_seq=1, deliveries=1)
        await DeadLetter(self.js, advisory, stored).republish(subject, **options)


# Which of a publish's options a path has beside the subject.
PATHS: dict[str, set[str]] = {
    "nc_publish": {"data", "headers"},
    "request": {"data", "headers"},
    "request_many": {"data", "headers"},
    "respond": {"data", "headers"},
    "js_publish": {"data", "headers", "msg_id", "ttl", "expect", "schedule"},
    "publisher": {"data", "headers", "msg_id", "ttl", "expect", "schedule"},
    "publish_many": {"data", "headers", "msg_id", "ttl", "expect"},
    "atomic_batch": {"data", "headers", "msg_id", "ttl", "expect", "schedule"},
    "fast_ingest": {"data", "headers", "msg_id", "ttl", "expect", "schedule"},
    "increment": {"msg_id"},
    "republish": {"headers", "msg_id"},
}


@pytest.fixture
async def world(js: jetspark.JetStream) -> World:
    name = unique("INJ")
    config = StreamConfig(
        name=name,
        subjects=[f"{name}.>"],
        allow_rollup_hdrs=True,
        allow_atomic=True,
        allow_msg_ttl=True,
        allow_batched=True,
    )
    stream = await js.create_stream(config)
    for number in range(5):
        await js.publish(f"{name}.x", b"x", msg_id=f"m{number}")
    return World(js, stream, f"{name}.x")


@pytest.mark.parametrize("path", PATHS)
async def test_nothing_is_smuggled(world: World, path: str) -> None:
    publish: Callable[..., Awaitable[None]] = getattr(world, path)
    before = await world.state()
    cases = [given for given in refusals() if given.keys() <= PATHS[path] | {"subject"}]
    if "expect" in PATHS[path]:
        # Not even where the check of Expect itself is passed by; with and without an id, which differ within.
        cases += [{"expect": forged()}, {"expect": forged(), "msg_id": "m9"}, {"expect": {"last_seq": 1}}]
    if "schedule" in PATHS[path]:
        cases.append({"schedule": {"target": f"t\r\n{SMUGGLED}"}})
    assert cases
    for given in cases:
        with pytest.raises(InvalidArgument) as caught:
            await publish(**{"subject": world.subject, **given})
        assert len(str(caught.value)) < 1000, given
    assert await world.state() == before, "something reached the stream"
    assert world.nc.stats.reconnects == 0
    # The path works: a good message goes through it, where there is somebody to take it.
    if path not in ("request_many", "increment"):
        await publish(subject=world.subject)
        messages, _, last = await world.state()
        assert (messages, last) == (before[0] + 1, before[2] + 1)


@pytest.mark.parametrize("ids", [[LINES[0].encode()], [b"fine", b"m\n"], [b"m\r"]])
async def test_columns(world: World, ids: list[bytes]) -> None:
    before = await world.state()
    async with world.js.publisher() as publisher:
        columns = Columns([world.subject] * len(ids), [b"x"] * len(ids), ids)
        with pytest.raises(InvalidArgument, match="Nats-Msg-Id"):
            await publisher._publish_columns(columns)
        for given in (None, [b"m9"]):
            with pytest.raises(InvalidArgument, match="Nats-Expected-Last-Msg-Id"):
                await publisher._publish_columns(Columns([world.subject], [b"x"], given, forged()))
        with pytest.raises(InvalidArgument, match="subject"):
            await publisher._publish_columns(Columns(["a\r\nPUB b 0\r\n"], [b"x"], None))
    assert await world.state() == before


def test_blocking(server: Server) -> None:
    """The same checks: the blocking classes have code of their own on the way out."""
    name = unique("INJ")
    with blocking.connect(server.url) as nc:
        js = nc.jetstream()
        stream = js.create_stream(
            StreamConfig(name=name, subjects=[name], allow_rollup_hdrs=True, allow_batched=True)
        )
        js.publish(name, b"x")
        before = stream.info().state
        for given in [one for one in refusals() if one.keys() <= {"headers", "msg_id", "data", "subject"}]:
            arguments: dict[str, Any] = {"subject": name, "data": b"x", **given}
            with pytest.raises(InvalidArgument):
                js.publish(**arguments)
            with js.publisher() as publisher, pytest.raises(InvalidArgument):
                publisher.publish(**arguments).result(10)
            with pytest.raises(InvalidArgument), js.fast_ingest() as batch:
                batch.publish(**arguments)
            if "msg_id" not in arguments:
                with pytest.raises(InvalidArgument):
                    nc.publish(**arguments)
        nc.flush()
        assert stream.info().state == before


async def test_nul_is_a_character_of_a_value(world: World) -> None:
    """ADR-4 has any ASCII character but CR and LF in a value, and the server keeps all of them."""
    value = "a\0b:c\x7f\x01 d"
    ack = await world.js.publish(world.subject, headers={"A": value}, msg_id="m\x005")
    stored = await world.stream.get_msg(ack.seq)
    assert stored.headers["A"] == value
    assert stored.headers["Nats-Msg-Id"] == "m\x005"


# Where blocks are made


def test_only_one_module_writes_header_blocks() -> None:
    """Whoever puts a block together elsewhere is found here; reading has words of its own."""
    source = Path(jetspark.__file__).parent
    for path in source.rglob("*.py"):
        place = path.relative_to(source).as_posix()
        if place == "wire/headers.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                words = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                if "NATS/1.0\r\n" in words or (words.startswith("Nats-") and words.rstrip(" ").endswith(":")):
                    raise AssertionError(f"{place}:{node.lineno} writes headers by itself: {words!r}")


@pytest.mark.parametrize("value", LINES)
def test_every_function_that_makes_a_block_checks(value: str) -> None:
    received = Headers()
    received._pairs = [("A", value)]  # as one that was read from the wire, unchecked
    for make in (
        lambda: encode_headers(received),
        lambda: encode_headers({"A": value}),
        lambda: encode_headers([("A", value)]),
        lambda: extend_block(encode_headers({}), ("A", value)),
        lambda: encode_column("A", [b"fine", value.encode()]),
        lambda: encode_column("A", [b"fine"], [("B", value)]),
    ):
        with pytest.raises(InvalidArgument, match="CR or LF"):
            make()


def test_blocks_are_what_they_were() -> None:
    block = encode_headers([("A", "b")])
    assert block == b"NATS/1.0\r\nA: b\r\n\r\n"
    assert type(block) is HeaderBlock
    assert extend_block(block, ("C", "d")) == b"NATS/1.0\r\nA: b\r\nC: d\r\n\r\n"
    assert encode_column("A", [b"1", b"2"], [("C", "d")]) == [
        b"NATS/1.0\r\nA: 1\r\nC: d\r\n\r\n",
        b"NATS/1.0\r\nA: 2\r\nC: d\r\n\r\n",
    ]
    assert decode_headers(encode_column("A", [b"1"])[0]).items() == [("A", "1")]
