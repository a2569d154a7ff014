"""A TCP proxy before a real server that swallows or holds what passes, and cuts connections."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from jetspark.server import Server


class LossyProxy:
    """``async with LossyProxy(server) as proxy``; connect to ``proxy.url``."""

    def __init__(self, server: Server) -> None:
        self._target = server
        self._links: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.swallow_up = False
        """Whether what clients send gets lost from now on."""
        self.swallow_down = False
        """Whether what the server sends gets lost from now on."""
        self.swallowed = 0
        """Bytes lost so far."""
        self.lost = bytearray()
        """Those bytes."""
        self.held = bytearray()
        """What the server sent while ``hold_down`` was on."""
        self._holding = False
        self._kept: list[tuple[asyncio.StreamWriter, bytes]] = []
        self.accepted = 0
        """Connections so far."""

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        self.url = f"nats://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        await self.cut()
        await self._listener.wait_closed()

    @property
    def hold_down(self) -> bool:
        """Whether what the server sends is kept back; all of it arrives when this is switched off."""
        return self._holding

    @hold_down.setter
    def hold_down(self, holding: bool) -> None:
        self._holding = holding
        kept, self._kept = ([], self._kept) if holding else (self._kept, [])
        for sink, data in kept:
            sink.write(data)

    async def cut(self) -> None:
        """Drop every connection with all that is in it; what comes after passes again."""
        links = dict(self._links)
        for writer in links.values():
            writer.transport.abort()
        if links:
            await asyncio.wait(links)
        self.swallow_up = self.swallow_down = self._holding = False
        self._kept = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = writer
        self.accepted += 1
        try:
            try:
                up, down = await asyncio.open_connection(self._target.host, self._target.port)
            except OSError:  # the server is down, and so is the way to it
                writer.transport.abort()
                return
            pumps = [
                asyncio.ensure_future(self._pump(reader, down, upwards=True)),
                asyncio.ensure_future(self._pump(up, writer, upwards=False)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for end in (down, writer):
                end.transport.abort()
            await asyncio.wait(pumps)
        finally:
            del self._links[task]

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, upwards: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                if self.swallow_up if upwards else self.swallow_down:
                    self.swallowed += len(data)
                    self.lost += data
                    continue
                if self._holding and not upwards:
                    self.held += data
                    self._kept.append((sink, data))
                    continue
                sink.write(data)
                await sink.drain()
