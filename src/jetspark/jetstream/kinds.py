"""The classes that differ between asyncio and threads, because sinks and messages differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetspark.jetstream.consume.pull import PullSink
    from jetspark.jetstream.subscribe.push import PushSink
    from jetspark.wire.parser import Factory


@dataclass(frozen=True, slots=True)
class JetStreamKinds:
    """What a :class:`~jetspark.jetstream.context.JetStream` creates; the blocking facade passes its own."""

    message: Factory
    pull_sink: type[PullSink]
    push_sink: type[PushSink]
    # These know the context that they are created for, so their classes can't be named here.
    ordered_sink: Callable[..., PullSink]
    ordered_push_sink: Callable[..., PushSink]
    push_subscription: Callable[..., Any]
