"""A replica that is behind its leader: what reads from it must not take its end for the stream's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from jetspark.errors import NoStreamResponse
from support.helpers import eventually_sync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetspark import blocking
    from jetspark.server import Cluster, Server

BURST = 20_000
"""Messages that the replica has to catch up with, which takes it a good part of a second."""


def follower_of(cluster: Cluster, js: blocking.JetStream, stream: str) -> Server:
    """A server that neither leads the stream nor has our connection.

    Who connects there gets its direct gets answered there.
    """
    placed = js.get_stream(stream).cached_info.cluster
    assert placed is not None
    return next(
        server
        for server in cluster.servers
        if server.name != placed.leader and server.url != js.connection.connected_url
    )


def _settled(js: blocking.JetStream, stream: str, subject: str) -> bool:
    """Whether all replicas are there and our server knows whom to send the subject to."""
    placed = js.get_stream(stream).cached_info.cluster
    try:
        js.publish(subject, b"")
    except NoStreamResponse:
        return False
    return placed is not None and len(placed.replicas) == 2 and all(one.current for one in placed.replicas)


@contextmanager
def behind(follower: Server, js: blocking.JetStream, stream: str, subject: str) -> Iterator[int]:
    """Publish a burst while the follower is stopped; in the block it catches up. Yields the last sequence."""
    eventually_sync(lambda: _settled(js, stream, subject), 30)
    follower.suspend()
    try:
        with js.publisher() as publisher:
            for number in range(BURST):
                publisher.publish(subject, b"%0200d" % number)
        last = js.get_stream(stream).cached_info.state.last_seq
    finally:
        follower.resume()
    yield last
