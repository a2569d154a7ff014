"""Finds the subscription that a server hung up on because its SUB line exceeds ``max_control_line``.

Servers do not announce this limit, and their error names no line. But only the length matters: if any SUB was
too long, the longest one was. So a new link is first tested with a command of that length: an UNSUB of
nothing, which has no effect. If the server refuses it, the longest subscriptions end, and the next link is
tested with the longest of the rest. If the server accepts it, the culprit was a publish. That publish is not
repeated, except by a publisher with ``retry``, until its ``ack_timeout``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from jetspark.errors import ConnectionLost, ControlLineExceeded
from jetspark.wire.commands import encode_sub

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetspark.connection.sink import Sink
    from jetspark.connection.transport import Link
    from jetspark.wire.parser import Event

_VERB_AND_CRLF = len("SUB \r\n")


async def find_long_lines(
    link: Link, sinks: Iterable[Sink], seconds: float
) -> tuple[deque[Event], list[tuple[Sink, ControlLineExceeded]]]:
    """Return what arrived meanwhile, and the subscriptions that are too long with the error for each.

    Waits for ``seconds`` at most. The link is gone if there are such subscriptions, and if this raises.
    """
    sizes = {sink: len(encode_sub(sink.subject, sink.queue, sink.sid)) - _VERB_AND_CRLF for sink in sinks}
    if not sizes:
        return deque(), []
    longest = max(sizes.values())
    seen: deque[Event] | None = None
    try:
        async with asyncio.timeout(seconds):
            seen = await link.probe_line(longest)
    except TimeoutError:
        raise ConnectionLost(f"{link.url.hostport} did not answer a PING within {seconds:g}s") from None
    finally:
        if seen is None:
            link.on_lost = lambda lost: None
            link.abort(ConnectionLost("handshake abandoned"))
    if seen is not None:
        return seen, []
    culprits = [sink for sink, size in sizes.items() if size == longest]
    return deque(), [(sink, ControlLineExceeded(sink.subject, longest)) for sink in culprits]
