"""One connection for each process and set of options, opened at first use.

Spark forks its Python workers from a daemon and reuses them for many tasks: a connection made before the
fork would be a dead one in the child, and one for each task would cost more than a small task itself. The
process's id is part of the key, so that a forked child never sees its parent's.
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

#: Attempts after which a connection is given up, about a minute. An idle worker should not try for ever; the
#: next task opens a new one.
MAX_RECONNECTS = 30


def _after_fork() -> None:
    # A lock that another thread held at the fork would stay held for ever.
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
