"""A TCP proxy before a real server that reads frames and loses or holds those that a test chooses.

``async with FrameProxy(server) as proxy``; connect to ``proxy.url``. ``lose_up`` and ``lose_down`` are called
with each whole frame (its line and its body) that a client or the server sends; a true answer loses it.
``hold_down`` keeps frames of the server until ``release``; others overtake them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from jetspark.server import Server

Loses = Callable[[bytes], bool]
_WITH_BODY = (b"PUB", b"HPUB", b"MSG", b"HMSG")


def _never(frame: bytes) -> bool:
    return False


class FrameProxy:
    """See the module."""

    def __init__(self, server: Server) -> None:
        self._target = server
        self._links: set[asyncio.Task[None]] = set()
        self.lose_up: Loses = _never
        self.lose_down: Loses = _never
        self.hold_down: Loses = _never
        self.lost: list[bytes] = []
        """The frames that were lost."""
        self.held: list[tuple[asyncio.StreamWriter, bytes]] = []
        """The frames that are held, and where they go."""

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for link in self._links:
            link.cancel()
        if self._links:
            await asyncio.wait(self._links)
        await self._listener.wait_closed()

    def release(self) -> None:
        """Let what is held go, and hold no more."""
        self.hold_down = _never
        held, self.held = self.held, []
        for sink, frame in held:
            sink.write(frame)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        up, down = await asyncio.open_connection(self._target.host, self._target.port)
        pumps = [
            asyncio.ensure_future(self._pump(reader, down, upwards=True)),
            asyncio.ensure_future(self._pump(up, writer, upwards=False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the end of the test
        finally:
            for end in (down, writer):
                end.transport.abort()
            await asyncio.wait(pumps)
            self._links.discard(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, upwards: bool) -> None:
        held = bytearray()
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 20):
                held += data
                passed = bytearray()
                begin = 0
                while (end := _end_of_frame(held, begin)) is not None:
                    frame = bytes(held[begin:end])
                    if (self.lose_up if upwards else self.lose_down)(frame):
                        self.lost.append(frame)
                    elif not upwards and self.hold_down(frame):
                        self.held.append((sink, frame))
                    else:
                        passed += frame
                    begin = end
                del held[:begin]
                if passed:
                    sink.write(passed)
                    await sink.drain()


def _end_of_frame(data: bytearray, begin: int) -> int | None:
    """Where the frame that begins there ends; None when it is not complete."""
    line_end = data.find(b"\r\n", begin)
    if line_end < 0:
        return None
    words = data[begin:line_end].split()
    end = line_end + 2
    if words and bytes(words[0]).upper() in _WITH_BODY:
        end += int(words[-1]) + 2
    return end if end <= len(data) else None
