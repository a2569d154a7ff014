"""Telling the log and the listener what happens to a connection."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING

from jetspark._log import fields, get_logger
from jetspark.connection import events as ev

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from jetspark.connection.options import ConnectOptions

logger = get_logger("connection")

# Events that a listener may be behind; further ones are logged only.
MAX_WAITING_EVENTS = 10_000


class Listening:
    """``tasks``: what an async listener has still to do."""

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options
        self.tasks: set[asyncio.Task[None]] = set()

    def tell(self, event: ev.Event) -> None:
        """Log the event and call the listener with it. What the listener raises is logged."""
        level = logging.INFO if ev.is_informational(event) else logging.WARNING
        # Making the fields costs as much as the rest, and most programs do not log INFO.
        if logger.isEnabledFor(level):
            logger.log(level, "%s", event, extra=fields(connection=self._options.name, **ev.as_dict(event)))
        listener = self._options.listener
        if listener is None:
            return
        if len(self.tasks) >= MAX_WAITING_EVENTS and not isinstance(event, ev.Closed):
            # A slow listener and a server that makes events must not fill the memory; the log has them all.
            return
        try:
            result = listener(event)
        except Exception:
            logger.exception("the listener raised on %s", type(event).__name__)
            return
        if result is not None and inspect.isawaitable(result):
            task = asyncio.ensure_future(_finish(result))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)


async def _finish(result: Awaitable[object]) -> None:
    try:
        await result
    except Exception:
        logger.exception("the listener raised")
