"""Reads of the socket grow while large messages come in, and only then; the test gives what is read."""

from __future__ import annotations

from typing import Any

from jetspark.connection.transport import Link
from jetspark.connection.urls import parse_server_url

SMALL, LARGE = 262_144, 1_048_576


class Socket:
    """What a link sees of asyncio's transport here."""

    max_size = SMALL


class Other:
    """A transport without the setting, such as TLS."""


def link_on(transport: Any) -> Link:
    link = Link(parse_server_url("nats://127.0.0.1:4222"))
    link.connection_made(transport)
    link.on_events = lambda events: None
    return link


def messages(size: int) -> bytes:
    return (b"MSG a 1 %d\r\n" % size + bytes(size) + b"\r\n") * (3 * LARGE // size + 1)


async def test_large_messages_are_read_more_at_a_time() -> None:
    socket = Socket()
    link = link_on(socket)
    wire = messages(100_000)
    link.data_received(wire[: SMALL - 1])
    assert socket.max_size == SMALL, "not full, so nothing waits in the socket"
    link.data_received(wire[SMALL - 1 : 2 * SMALL - 1])
    assert socket.max_size == LARGE
    link.data_received(wire[2 * SMALL - 1 : 2 * SMALL + 100])
    assert socket.max_size == SMALL, "little comes, so little memory is asked for"


async def test_small_messages_are_not() -> None:
    socket = Socket()
    link = link_on(socket)
    wire = messages(100)
    for begin in range(0, len(wire), SMALL):
        link.data_received(wire[begin : begin + SMALL])
        assert socket.max_size == SMALL


async def test_small_messages_behind_large_ones_end_it() -> None:
    socket = Socket()
    link = link_on(socket)
    link.data_received(messages(100_000)[:SMALL])
    assert socket.max_size == LARGE
    rest = messages(100_000)[SMALL : 3 * 100_018]
    link.data_received(rest + messages(100)[: LARGE - len(rest)])
    assert socket.max_size == SMALL


async def test_transports_without_the_setting_are_left_alone() -> None:
    other = Other()
    link = link_on(other)
    link.data_received(messages(100_000)[:SMALL])
    assert vars(other) == {}
