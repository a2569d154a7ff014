"""JetStream for Python and Spark."""

from typing import TYPE_CHECKING

from jetspark._lazy import exports
from jetspark.jetstream import __all__ as _jetstream_names

if TYPE_CHECKING:
    from jetspark import errors, events
    from jetspark.connecting import Connection, connect
    from jetspark.connection import Msg, Statistics, Subscription
    from jetspark.jetstream import *  # noqa: F403
    from jetspark.wire.headers import Headers

__version__ = "0.1.0"

__all__ = [
    "Connection",
    "Headers",
    "Msg",
    "Statistics",
    "Subscription",
    "connect",
    "errors",
    "events",
    *_jetstream_names,
]

# The imports above, for run time. errors and events are modules, which need no place.
_PLACES = {
    "jetspark.connecting": "Connection connect",
    "jetspark.connection": "Msg Statistics Subscription",
    "jetspark.jetstream": " ".join(_jetstream_names),
    "jetspark.wire.headers": "Headers",
}

if not TYPE_CHECKING:
    __getattr__, __dir__, _ = exports(__name__, _PLACES)
