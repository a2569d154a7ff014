"""A consumer's messages on their way from the loop's thread to the threads that read them.

Theory of operation
-------------------
The loop puts what arrives into the buffer as *runs*: lists, each with one list iterator that all readers
share. Advancing a list iterator is atomic in the interpreter, so each message goes to exactly one thread
without a lock. Readers chain those iterators in C (``itertools.chain``): a message costs no Python frame, and
Ctrl-C can't strike between taking a message out of the buffer and handing it to the ``for`` loop.

A run is as long as the stride in which the state machine needs progress reports. At its end the reader asks
the loop to report, once for however many are due: only the loop touches the state machine.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from itertools import chain
from operator import length_hint
from typing import TYPE_CHECKING, Any, cast

from jetspark.blocking import _process
from jetspark.blocking._threads import ThreadWaiters
from jetspark.jetstream.consume.flow_sink import FlowSink
from jetspark.jetstream.consume.ordered_chain import OrderedSink
from jetspark.jetstream.consume.pull import PullSink
from jetspark.jetstream.subscribe.push import PushSink
from jetspark.jetstream.subscribe.push_ordered import OrderedPushSink

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator

# Where limits are in bytes, arriving messages are cut into this many runs, to report in time.
_CUTS = 8


class Run:
    """Messages that arrived together. ``left`` is shared by all readers; ``end`` is its position in order."""

    __slots__ = ("end", "items", "left")

    def __init__(self, items: list[Any], end: int) -> None:
        self.items = items
        self.left = iter(items)
        self.end = end


class RunBuffer:
    """Messages that have arrived and were not taken. Filled by the loop, read by any thread."""

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()
        self.appended = 0
        # Messages beyond stop_after: counted, because the state machine counts them, but never handed out.
        self._hidden = 0
        _process.emptied_by_fork.add(self)

    def __len__(self) -> int:
        try:
            first = self._runs[0]
        except IndexError:
            return self._hidden
        # Only the first run can be partly taken: a run is removed when it is used up.
        return self.appended - first.end + length_hint(first.left) + self._hidden

    def append(self, items: list[Any]) -> None:
        """Add a run; the buffer owns the list from now on."""
        self.appended += len(items)
        self._runs.append(Run(items, self.appended))

    def hide(self, count: int) -> None:
        """Count messages that no reader will get."""
        self._hidden += count

    def first(self) -> Run | None:
        """The run that is currently being read."""
        try:
            return self._runs[0]
        except IndexError:
            return None

    def all(self) -> list[Run]:
        """Every run; the first may be partly taken."""
        return list(self._runs)

    def drop(self, run: Run) -> None:
        """Remove a run that is used up; another reader may have done so."""
        with contextlib.suppress(ValueError):
            self._runs.remove(run)

    def trim(self, count: int) -> None:
        """Discard the newest ``count`` messages."""
        while count > 0 and self._runs:
            run = self._runs[-1]
            cut = min(count, length_hint(run.left))
            del run.items[len(run.items) - cut :]
            run.end -= cut
            self.appended -= cut
            count -= cut
            if count:
                self._runs.pop()

    def take_all(self) -> list[Any]:
        """Take everything at once, so that no reader can get any of it meanwhile."""
        return list(chain.from_iterable([run.left for run in self._runs]))

    def clear(self) -> None:
        """Discard everything; readers in the middle of a run find its end."""
        for run in list(self._runs):
            run.items.clear()
        self._runs.clear()
        self._hidden = 0


class ReadByThreads(FlowSink):
    """Turns a kind of sink into one that is read by threads."""

    _exact: bool

    def __init__(self, source: Any, options: Any, on_warning: Any = None) -> None:
        make: Any = super().__init__  # of the class that it is mixed into
        make(source, options, on_warning)
        self.runs = RunBuffer()
        self.buffer = cast("deque[Any]", self.runs)
        self.readers = ThreadWaiters()
        limit = options.max_messages or options.buffer_messages or 1
        self._run_length = 0 if self._exact else max(1, limit // 16)
        self._wanted: int | None = options.stop_after
        self._taken_seen = 0
        self._signalled = False

    # In the loop's thread

    def _enqueue(self, items: list[Any]) -> None:
        count = len(items)
        self._unreported += count
        if self._wanted is not None:
            wanted, self._wanted = self._wanted, max(0, self._wanted - count)
            if count > wanted:
                self.runs.hide(count - wanted)
                items, count = items[:wanted], wanted
        cut = self._run_length or max(1, count // _CUTS)
        for begin in range(0, count, cut):
            self.runs.append(items[begin : begin + cut])
        if self._waiters:
            super()._wake()
        if self.readers:
            self.readers.wake_all()

    def _wake(self) -> None:
        super()._wake()
        self.readers.wake_all()

    def _report_now(self) -> None:
        # First: a reader that takes something from here on asks again.
        self._signalled = False
        first = self.runs.first()
        self._taken_seen = self.runs.appended if first is None else first.end - length_hint(first.left)
        self.report()

    # In threads of user code

    def parts(self, deadline: float | None = None) -> Iterator[Iterable[Any]]:
        """The rest of each run, one after the other; returns at the end of the consume."""
        buffer = self.runs
        while True:
            run = self._next_run(deadline)
            if run is None:
                return
            yield run.left
            buffer.drop(run)
            if not self._signalled and run.end - self._taken_seen >= (self._run_length or 1):
                self._signal()
            del run  # its messages must not stay alive until the next run arrives

    def batches(self) -> Iterator[Iterable[Any]]:
        """All messages that are there, repeatedly; returns at the end of the consume."""
        buffer = self.runs
        while self._next_run() is not None:
            runs = buffer.all()
            yield chain.from_iterable([run.left for run in runs])
            for run in runs:
                buffer.drop(run)
            self._signal()
            del run, runs  # as above

    def take(self, deadline: float | None = None) -> Any:
        """The next message, None at the end; raises TimeoutError at ``deadline`` (monotonic)."""
        for part in self.parts(deadline):
            for message in part:
                return message
        return None

    def _next_run(self, deadline: float | None = None) -> Run | None:
        """The run to read, waiting for it; None at the end."""
        owner = self.core.pid  # type: ignore[attr-defined]
        while True:
            if _process.pid != owner:
                raise _process.forked(owner)
            self._raise_due()
            # Checked first: what arrived before the end must be handed out.
            done = self.done
            run = self.runs.first()
            if run is not None:
                return run
            if done:
                return None
            # Whatever happened to earlier signals: the state machine must know that the buffer is empty.
            if self._taken_seen != self.runs.appended:
                self._signal()
            left = None if deadline is None else deadline - time.monotonic()
            if not self.readers.wait(self._ready, left):
                raise TimeoutError

    def _raise_due(self) -> None:
        """Raise what readers have to know before the next message."""

    def _ready(self) -> bool:
        return self.done or self.runs.first() is not None

    def _signal(self) -> None:
        self._signalled = True
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the sink has ended
            self.core.loop.call_soon_threadsafe(self._report_now)


class ThreadPullSink(ReadByThreads, PullSink):
    """A pull inbox that is read by threads."""


class PushedToThreads(ReadByThreads):
    """What push sinks that are read by threads have in addition."""

    trouble: deque[Any]
    received: int
    #: The thread that runs the callback, if there is one, and whether that thread is draining itself.
    worker: threading.Thread | None = None
    detached = False

    def _is_awaited(self) -> bool:
        return bool(self.readers) or bool(self._waiters)

    def _drop_newest(self, count: int) -> None:
        self.runs.trim(count)

    def _raise_due(self) -> None:
        with contextlib.suppress(IndexError):  # another reader was faster
            if self.trouble and self.received - len(self.runs) >= self.trouble[0][0]:
                raise self.trouble.popleft()[1]

    def _ready(self) -> bool:
        return super()._ready() or bool(self.trouble)


class ThreadPushSink(PushedToThreads, PushSink):
    """The same for push consumers."""


class ThreadOrderedPushSink(PushedToThreads, OrderedPushSink):
    """The same for ordered push consumers."""


class ThreadOrderedSink(ReadByThreads, OrderedSink):
    """The same for ordered consumers."""

    def _first_unread(self) -> Any:
        # These messages will be delivered again, so no reader may get them now: take_all removes them first.
        unread = self.runs.take_all()
        return unread[0] if unread else None
