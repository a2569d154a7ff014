"""Telling the log and the listener what happens to a connection, and the loop what user code raised.

What a callback or a listener raises goes to the loop's exception handler, as with asyncio's own callbacks:
once, with its traceback. The default handler logs it under ``asyncio`` at ERROR, which is stderr in a program
without logging. So the event :class:`~jetspark.connection.events.CallbackFailed` is not logged again.

A listener does not change what is logged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any

from jetspark._log import fields, get_logger
from jetspark.connection import events as ev

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jetspark.connection.options import ConnectOptions

logger = get_logger("connection")

# Events that a listener may be behind; further ones are logged only.
MAX_WAITING_EVENTS = 10_000

# Events that may come once per message or per attempt to reconnect. For each kind and subject (or server) one
# of them is logged as a warning every QUIET_SECONDS, the others at DEBUG. Listeners and counters get all.
_FREQUENT = (
    ev.SlowConsumer,
    ev.PermissionViolation,
    ev.PublishDropped,
    ev.ConsumerDisturbed,
    ev.ReconnectFailed,
)
QUIET_SECONDS = 10.0
_MAX_REMEMBERED = 1000


def report_failure(loop: asyncio.AbstractEventLoop, what: str, error: BaseException) -> None:
    """Hand what user code raised to the loop's exception handler. May be called by any thread."""
    loop.call_exception_handler({"message": what, "exception": error})


def call_listener(
    listener: Callable[[Any], object],
    argument: object,
    what: str,
    loop: asyncio.AbstractEventLoop,
    tasks: set[asyncio.Task[None]],
) -> None:
    """Call a listener, async or not. What it raises is reported as ``what``.

    ``tasks`` holds what an async one has still to do.
    """
    try:
        result = listener(argument)
    except Exception as error:
        report_failure(loop, what, error)
        return
    if result is not None and inspect.isawaitable(result):
        task = loop.create_task(_finish(result, what, loop))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _finish(result: Awaitable[object], what: str, loop: asyncio.AbstractEventLoop) -> None:
    try:
        await result
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Not ours: something that the listener waited for was cancelled.
        report_failure(loop, what, error)
    except Exception as error:
        report_failure(loop, what, error)


class Listening:
    """``tasks``: what an async listener has still to do."""

    def __init__(self, options: ConnectOptions, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._loop = loop
        self._quiet_until: dict[tuple[type[ev.Event], str], float] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def tell(self, event: ev.Event) -> None:
        """Log the event and call the listener with it."""
        level = self._level(event)
        # Making the fields costs as much as the rest, and most programs do not log INFO.
        if level and logger.isEnabledFor(level):
            logger.log(level, "%s", event, extra=fields(connection=self._options.name, **ev.as_dict(event)))
        listener = self._options.listener
        if listener is None:
            return
        if len(self.tasks) >= MAX_WAITING_EVENTS and not isinstance(event, ev.Closed):
            # A slow listener and a server that makes events must not fill the memory; the log has them all.
            return
        what = f"listener of the connection raised on {type(event).__name__}"
        call_listener(listener, event, what, self._loop, self.tasks)

    def _level(self, event: ev.Event) -> int:
        """The level to log it at, 0 for not at all."""
        if isinstance(event, ev.CallbackFailed):
            return 0  # the loop's exception handler has it
        if ev.is_informational(event):
            return logging.INFO
        if not isinstance(event, _FREQUENT):
            return logging.WARNING
        key = type(event), event.server if isinstance(event, ev.ReconnectFailed) else event.subject
        now = self._loop.time()
        if now < self._quiet_until.get(key, 0.0):
            return logging.DEBUG
        if len(self._quiet_until) >= _MAX_REMEMBERED:
            self._quiet_until.clear()
        self._quiet_until[key] = now + QUIET_SECONDS
        return logging.WARNING
