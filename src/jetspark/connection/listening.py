"""Reports connection events to the log and the listener, and errors of user code to the event loop.

An exception from a callback or a listener goes to the loop's exception handler, as with asyncio's own
callbacks: once, with its traceback. The default handler logs it under ``asyncio`` at ERROR, which is stderr
in a program without logging. So :class:`~jetspark.connection.events.CallbackFailed` is not logged again.

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

# How many events a listener may lag behind; further ones are only logged.
MAX_WAITING_EVENTS = 10_000

# Events that may occur once per message or per reconnect attempt. For each kind and subject (or server), one
# is logged as a warning every QUIET_SECONDS, the others at DEBUG. Listeners and counters get all of them.
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
    """Pass what user code raised to the loop's exception handler. Any thread may call this."""
    loop.call_exception_handler({"message": what, "exception": error})


def call_listener(
    listener: Callable[[Any], object],
    argument: object,
    what: str,
    loop: asyncio.AbstractEventLoop,
    tasks: set[asyncio.Task[None]],
) -> None:
    """Call a listener, async or not. An exception from it is reported as ``what``.

    ``tasks`` holds the unfinished work of async listeners.
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
        # Not our cancellation: something that the listener awaited was cancelled.
        report_failure(loop, what, error)
    except Exception as error:
        report_failure(loop, what, error)


class Listening:
    """``tasks``: the unfinished work of an async listener."""

    def __init__(self, options: ConnectOptions, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._loop = loop
        self._quiet_until: dict[tuple[type[ev.Event], str], float] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def tell(self, event: ev.Event) -> None:
        """Log the event and call the listener with it."""
        level = self._level(event)
        # Building the fields costs as much as everything else here, and most programs do not log INFO.
        if level and logger.isEnabledFor(level):
            logger.log(level, "%s", event, extra=fields(connection=self._options.name, **ev.as_dict(event)))
        listener = self._options.listener
        if listener is None:
            return
        if len(self.tasks) >= MAX_WAITING_EVENTS and not isinstance(event, ev.Closed):
            # A slow listener and a server that causes many events must not fill the memory. The log has all.
            return
        what = f"listener of the connection raised on {type(event).__name__}"
        call_listener(listener, event, what, self._loop, self.tasks)

    def _level(self, event: ev.Event) -> int:
        """The level to log it at; 0: do not log it."""
        if isinstance(event, ev.CallbackFailed):
            return 0  # the loop's exception handler reports it
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
