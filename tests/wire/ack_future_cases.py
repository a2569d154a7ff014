"""Futures of the compiled core, a loop that meddles with them, and code that runs in between."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import TYPE_CHECKING, Any

from settle_cases import INBOX, Batch, rows_of, to

from jetspark.jetstream.puback import PubAck
from jetspark.wire._backend import speed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ACK = PubAck(stream="S", seq=1)
PLAIN_ACK = b'{"stream":"S","seq":1}'


class Nosy(asyncio.SelectorEventLoop):
    """A loop that counts how often it is asked whether it is being debugged, and does something then."""

    def __init__(self) -> None:
        self.asked = 0
        self.hook: Callable[[], Any] | None = None
        super().__init__()

    def get_debug(self) -> bool:
        self.asked += 1
        if self.hook is not None:
            hook, self.hook = self.hook, None
            hook()
        return super().get_debug()


@contextlib.contextmanager
def in_an_allocation(run: Callable[[], Any]) -> Iterator[None]:
    """Have code run when the core makes a list or a dictionary: that of a cycle that is collected then."""

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            run()

    gc.collect()
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        Cycle()
        # The interpreter has some of them in store, for which it would not collect anything.
        store: list[Any] = [([], {}) for _ in range(200)]
        gc.set_threshold(1)
        gc.enable()
        yield
        del store
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
    gc.collect()


class Sent:
    """Messages that were launched one by one."""

    def __init__(self, loop: Any, count: int = 1) -> None:
        assert speed is not None
        self.pending: dict[int, Any] = {}
        self.launcher = speed.Launcher(INBOX, self.pending, loop)
        self.futures = [self.launcher.launch([], b"PUB sub ", serial, "sub", b"") for serial in range(count)]

    def ack(self, data: bytes = PLAIN_ACK, serial: int = 0, kind: Any = PubAck) -> None:
        # Not through `settle`: a kind may fail.
        found = rows_of([to(serial, data)]).settle(len(INBOX), self.pending, kind, Batch, self.launcher)
        assert found[2] == []
        assert serial not in self.pending

    def pop(self) -> Any:
        return self.futures.pop()
