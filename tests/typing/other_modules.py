"""What type checkers see of the modules beside the client. Nothing here runs (``make lint``)."""

from __future__ import annotations

from typing import assert_type

import jetspark
from jetspark import advisories, blocking, errors, events, models
from jetspark.arrow import ConsumeArrow, GetArrow, consume_arrow, get_arrow
from jetspark.metrics import MemoryMetrics, Metrics
from jetspark.server import Cluster, Server
from jetspark.tracing import Tracing


def names_of_the_package() -> None:
    """Modules are attributes of the package, also without an import of their own."""
    assert_type(jetspark.errors.NotFound, type[errors.NotFound])
    assert_type(jetspark.events.Closed, type[events.Closed])
    assert_type(jetspark.StreamConfig, type[models.StreamConfig])
    assert_type(jetspark.models.StreamState, type[models.StreamState])
    assert_type(jetspark.advisories.NakAdvisory, type[advisories.NakAdvisory])
    assert_type(errors.StreamNotFound.registry, dict[int, type[errors.ApiError]])
    _ = jetspark.NakAdvisory  # type: ignore[attr-defined]
    _ = errors.Nothing  # type: ignore[attr-defined]


def columns(consumer: jetspark.Consumer, threads: blocking.Consumer, stream: jetspark.Stream) -> None:
    assert_type(consume_arrow(consumer), ConsumeArrow)
    assert_type(consume_arrow(threads, columns=["data"]), ConsumeArrow)
    assert_type(get_arrow(stream, seq=5), GetArrow)


def observers() -> None:
    metrics: Metrics = MemoryMetrics()
    jetspark.connect(metrics=metrics, tracing=Tracing())


def servers() -> None:
    with Server() as server:
        assert_type(server.url, str)
    with Cluster(3) as cluster:
        assert_type(cluster.servers, list[Server])
