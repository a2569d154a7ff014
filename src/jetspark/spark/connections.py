"""One connection per process and set of options, opened at first use.

Spark forks its Python workers from a daemon and reuses them for many tasks. A connection made before the
fork would be dead in the child, and one per task would cost more than a small task itself. The process id is
part of the key, so a forked child never sees its parent's connection.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetspark import blocking
    from jetspark.blocking.jetstream import JetStream
    from jetspark.spark.options import ConnectionOptions

_open: dict[tuple[int, ConnectionOptions], blocking.Connection] = {}
_lock = threading.Lock()

#: Attempts before a connection is given up, about a minute. An idle worker should not try forever; the next
#: task opens a new one.
MAX_RECONNECTS = 30


def _after_fork() -> None:
    # A lock that another thread held at the fork would stay locked forever.
    global _lock
    _lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)


def connection(options: ConnectionOptions) -> blocking.Connection:
    """This process's connection for the options; a closed one is replaced."""
    from jetspark import blocking

    key = (os.getpid(), options)
    with _lock:
        found = _open.get(key)
        if found is None or found.is_closed:
            found = blocking.connect(max_reconnects=MAX_RECONNECTS, **options.connect_arguments())
            _open[key] = found
        return found


def jetstream(options: ConnectionOptions) -> JetStream:
    """JetStream over this process's connection."""
    return connection(options).jetstream(**options.jetstream_arguments())


def close(options: ConnectionOptions) -> None:
    """Close this process's connection for the options, if there is one."""
    with _lock:
        found = _open.pop((os.getpid(), options), None)
    if found is not None:
        found.close()
