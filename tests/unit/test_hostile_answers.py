"""What the untrusted-server row of the faults table found, each by itself."""

from __future__ import annotations

import asyncio
import socket
import time
import tracemalloc
from typing import Any

import msgspec
import pytest

import jetspark
from jetspark import PubAck, StreamInfo
from jetspark.advisories import decode_advisory
from jetspark.connection import discovery, listening
from jetspark.connection.core import MAX_ERRORS_A_READ
from jetspark.errors import ApiError, ConnectionLost, NotJetStreamMessage, ProtocolError
from jetspark.jetstream.api import Api, decode_response
from jetspark.jetstream.errors import error_from_response
from jetspark.jetstream.flow.ack_reply import parse_ack_reply
from jetspark.jetstream.flow.statuses import Status
from jetspark.wire import Parser
from support.fake_server import FakeServer, Peer
from support.helpers import LIMIT, eventually

DEEP = b'{"x":' + b"[" * 200_000
LONG = "9" * 5000


@pytest.mark.parametrize(
    "decode", [decode_response, PubAck.from_response, decode_advisory, StreamInfo.from_wire]
)
def test_json_nested_without_end_is_a_protocol_error(decode: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(DEEP)


@pytest.mark.parametrize("decode", [decode_response, PubAck.from_response])
def test_an_error_that_is_no_object_is_still_an_error(decode: Any) -> None:
    with pytest.raises(ApiError):
        decode(b'{"error":"no"}')


@pytest.mark.parametrize("page", [{"streams": 7}, {"streams": {"a": 1}}, {"streams": ["a"], "total": "x"}])
async def test_a_page_of_the_wrong_shape_is_a_protocol_error(page: dict[str, Any]) -> None:
    api = Api.__new__(Api)

    async def request(operation: str, body: Any = None, timeout: float | None = None) -> dict[str, Any]:
        return page

    api.request = request  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match=r"STREAM\.NAMES"):
        await anext(api.pages("STREAM.NAMES", "streams", {}))


def test_numbers_of_thousands_of_digits_are_no_numbers() -> None:
    with pytest.raises(NotJetStreamMessage):
        parse_ack_reply(f"$JS.ACK.S.C.1.{LONG}.1.1.1")
    status = Status(409, f"Exceeded MaxRequestBatch of {LONG}", {"Nats-Pending-Messages": LONG})
    assert status.limit_count is None
    assert status.pending is None


def test_the_text_of_an_error_is_searched_in_no_time() -> None:
    started = time.process_time()
    error = error_from_response({"code": 400, "err_code": 10071, "description": "1" * 500_000 + "x"})
    assert isinstance(error, ApiError)
    assert time.process_time() - started < 1
    wrong = error_from_response({"code": 400, "err_code": 10071, "description": "wrong last sequence: 12"})
    assert wrong.last_sequence == 12  # type: ignore[attr-defined]


def test_a_message_in_drips_costs_no_more_than_its_size() -> None:
    parser = Parser()
    parser.feed(b"MSG s 1 9000000\r\n")
    tracemalloc.start()
    try:
        for _ in range(40_000):
            # Not a literal: that would be one object again and again.
            parser.feed(bytes(bytearray(b"xy")))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert parser.held > 80_000
    assert held < 2 * parser.held


@pytest.mark.slow
async def test_a_server_that_sends_and_answers_no_ping_is_dead() -> None:
    """The way to it is broken, the way back is not."""

    async def script(peer: Peer) -> None:
        await peer.welcome()
        sid = await peer.sid("s")
        peer.deafen()
        while True:
            await peer.send(f"MSG s {sid} 1\r\nx\r\n".encode())
            await asyncio.sleep(0.01)

    async with FakeServer(script) as server:
        nc = await jetspark.connect(server.url, reconnect=False, ping_interval=0.5)
        first = asyncio.Event()
        await nc.subscribe("s", callback=lambda message: first.set())
        await first.wait()
        with pytest.raises(ConnectionLost, match="PONG"):
            await nc.flush(timeout=LIMIT)
        await eventually(lambda: nc.is_closed)
        assert "PINGs unanswered" in str(nc.last_error)


async def test_pings_of_a_server_that_reads_nothing_are_not_hoarded() -> None:
    size, done = 2 << 20, asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.sid("s")
        peer.deafen()
        await peer.flood(b"PING\r\n", size)
        await done.wait()

    async with FakeServer(script) as server:
        nc = await jetspark.connect(server.url, reconnect=False, ping_interval=60, write_buffer_size=65_536)
        link = nc._core.link
        assert link is not None
        assert link._transport is not None
        # Small buffers on the way, or all the answers would fit into them.
        mine = link._transport.get_extra_info("socket")
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        await nc.subscribe("s")
        most = 0
        # What a flood has is a whole number of PINGs.
        while nc.stats.in_bytes < size - len(b"PING\r\n"):
            await asyncio.sleep(0)
            most = max(most, nc._core.outbox.size + link._transport.get_write_buffer_size())
        assert not link.writable
        # A read of the socket has 256 KiB of PINGs, and the answers to one or two may wait.
        assert most < size / 2
        done.set()
        await eventually(lambda: nc.is_closed)


async def test_a_listener_that_is_behind_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_WAITING_EVENTS", 20)
    go, seen = asyncio.Event(), []

    async def listener(event: jetspark.events.Event) -> None:
        await go.wait()
        seen.append(type(event).__name__)

    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.sid("s")
        for number in range(500):
            await peer.send(b"-ERR 'Permissions Violation for Publish to \"%d\"'\r\n" % number)
        await peer.stay()

    async with FakeServer(script) as server:
        nc = await jetspark.connect(server.url, listener=listener)
        await nc.subscribe("s")
        await eventually(lambda: nc.last_error is not None)
        await nc.flush()
        assert len(nc._core.listening.tasks) == 20
        go.set()
        await nc.close()
    assert seen.count("PermissionViolation") == 19
    assert seen[-1] == "Closed"


@pytest.mark.parametrize("text", [b"Slow Down", b"no. %d"])
async def test_a_flood_of_errors_makes_few_events_and_all_are_counted(text: bytes) -> None:
    sent, seen = 20_000, []
    lines = b"".join(b"-ERR '%b'\r\n" % text.replace(b"%d", b"%d" % number) for number in range(sent))

    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.sid("s")
        await peer.send(lines)
        await peer.stay()

    async with FakeServer(script) as server, jetspark.connect(server.url, listener=seen.append) as nc:
        await nc.subscribe("s")
        await eventually(lambda: nc.stats.server_errors == sent)
        assert nc.is_connected
        assert "server error: " in str(nc.last_error)
    errors = [event for event in seen if isinstance(event, jetspark.events.ServerError)]
    assert errors[0].message == text.replace(b"%d", b"0").decode()
    # How much a read has is the system's choice; a tenth leaves room for small ones.
    assert MAX_ERRORS_A_READ <= len(errors) < sent / 10


def infos(count: int) -> bytes:
    return b"".join(
        b'INFO {"ldm":%b,"connect_urls":["127.0.0.2:%d"]}\r\n' % ((b"false", b"true")[number % 2], number)
        for number in range(1, count + 1)
    )


async def test_of_a_flood_of_infos_the_newest_of_a_read_counts() -> None:
    sent, seen = 20_000, []

    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.sid("s")
        await peer.send(infos(sent))
        await peer.stay()

    async with FakeServer(script) as server, jetspark.connect(server.url, listener=seen.append) as nc:
        await nc.subscribe("s")
        await eventually(lambda: nc.discovered_servers == [f"nats://127.0.0.2:{sent}"])
        assert nc.server_info.ldm is False
    assert len(seen) < sent / 10


async def test_an_info_of_nonsense_makes_one_line_of_the_log_and_a_flood_of_them_few(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "INTERVAL", 3600.0)
    sent = 50
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        bad = b'INFO {"max_payload":%d,"connect_urls":[' + b",".join([b'"a b"'] * 1000) + b"]}\r\n"
        await peer.welcome()
        for number in range(sent):
            await peer.sid(f"s{number}")  # the client has read the one before
            await peer.send(bad % (1000 + number))
        await gate.wait()

    async with FakeServer(script) as server, jetspark.connect(server.url) as nc:
        for number in range(sent):
            await nc.subscribe(f"s{number}")
            await eventually(lambda number=number: nc.max_payload == 1000 + number)
        gate.set()
    lines = [record.getMessage() for record in caplog.records if "can't be read" in record.getMessage()]
    # One at once, and one for the newest when the interval or the link is over.
    assert len(lines) == 2
    assert "1000 addresses that can't be read, the first 'a b'; 1000 in all so far" in lines[0]


async def test_a_flood_of_announcements_and_lame_ducks_makes_few_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "INTERVAL", 3600.0)
    sent, seen = 200, []
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.welcome()
        for number in range(sent):
            await peer.sid(f"s{number}")
            await peer.send(
                b'INFO {"max_payload":%d,"ldm":%b,"connect_urls":["127.0.0.2:%d"]}\r\n'
                % (1000 + number, (b"false", b"true")[number % 2], number + 1)
            )
        await gate.wait()

    async with (
        FakeServer(script) as server,
        jetspark.connect(server.url, listener=seen.append, reconnect=False) as nc,
    ):
        for number in range(sent):
            await nc.subscribe(f"s{number}")
            await eventually(lambda number=number: nc.max_payload == 1000 + number)
        gate.set()
        await eventually(lambda: nc.is_closed)
        # The choice of the next server depends on the newest, so it is taken when the link ends.
        assert nc.discovered_servers == [f"nats://127.0.0.2:{sent}"]
    names = [type(event).__name__ for event in seen]
    assert names.count("LameDuck") == 1
    assert names.count("ServersDiscovered") == 2


async def test_a_status_with_bad_header_lines_costs_no_connection() -> None:
    block = b"NATS/1.0 404 No Messages\r\nno colon here\r\n\r\n"
    info = {"stream_name": "S", "name": "C", "config": {"durable_name": "C", "ack_policy": "explicit"}}

    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.answer("$JS.API.CONSUMER.INFO.S.C", msgspec.json.encode(info))
        to = await peer.reply_of("$JS.API.CONSUMER.MSG.NEXT.S.C")
        sid = await peer.inbox(to)
        line = f"HMSG {to} {sid} {len(block)} {len(block)}\r\n".encode()
        await peer.send(line + block + b"\r\n")
        await peer.stay()

    async with FakeServer(script) as server, jetspark.connect(server.url) as nc:
        consumer = await nc.jetstream().get_consumer("S", "C")
        assert [message async for message in consumer.fetch_no_wait(5)] == []
        assert nc.stats.reconnects == 0
        assert nc.is_connected
