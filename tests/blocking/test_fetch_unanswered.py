"""The blocking face of ``tests/jetstream/test_fetch_unanswered.py``: empty means that the server said so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jetspark import ConsumerConfig, StreamConfig, blocking
from jetspark.errors import NotConnected, PullUnanswered
from support.helpers import eventually_sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetspark.server import Server

FACES: dict[str, Callable[[blocking.Consumer], Any]] = {
    "fetch": lambda consumer: consumer.fetch(3, expires=0.3),
    "fetch_bytes": lambda consumer: consumer.fetch_bytes(1000, expires=0.3),
    "fetch_no_wait": lambda consumer: consumer.fetch_no_wait(3),
    "next": lambda consumer: consumer.next(expires=0.3),
}
faces = pytest.mark.parametrize("face", FACES.values(), ids=FACES)


def with_work(nc: blocking.Connection, *, ordered: bool = False) -> blocking.Consumer:
    js = nc.jetstream()
    stream = js.create_stream(StreamConfig(name="S", subjects=["s"]))
    for _ in range(3):
        js.publish("s", b"work")
    if ordered:
        return stream.create_ordered_consumer()
    return stream.create_consumer(ConsumerConfig(durable_name="worker"))


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
@faces
def test_without_a_link_it_says_so(own_server: Server, face: Callable[[Any], Any], ordered: bool) -> None:
    with blocking.connect(own_server.url) as nc:
        consumer = with_work(nc, ordered=ordered)
        own_server.kill()
        eventually_sync(lambda: not nc.is_connected)
        with pytest.raises(NotConnected, match=f"{own_server.host}:{own_server.port}"):
            face(consumer)


@faces
def test_a_server_that_hangs_is_not_an_empty_one(own_server: Server, face: Callable[[Any], Any]) -> None:
    with blocking.connect(own_server.url) as nc:
        consumer = with_work(nc)
        own_server.suspend()
        try:
            with pytest.raises(PullUnanswered):
                face(consumer)
        finally:
            own_server.resume()


def test_a_pull_subscription_without_a_link_says_so(own_server: Server) -> None:
    with blocking.connect(own_server.url) as nc:
        with_work(nc)
        sub = nc.jetstream().pull_subscribe("s", "worker")
        own_server.kill()
        eventually_sync(lambda: not nc.is_connected)
        for batch in (1, 3):
            with pytest.raises(NotConnected):
                sub.fetch(batch, timeout=0.3)
