"""JetStream for Python and Spark."""

from jetspark import errors, events
from jetspark.connecting import Connection, connect
from jetspark.connection import Msg, Statistics, Subscription
from jetspark.jetstream import *  # noqa: F403
from jetspark.jetstream import __all__ as _jetstream_names
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
