"""A TCP proxy before a real server that does to connections what networks do.

``async with FaultProxy(server) as proxy``; clients connect to ``proxy.url``. Faults that last are attributes:
set them, and call ``heal`` to be a plain proxy again. Faults of a moment are methods; they strike all
connections that are open.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Target(Protocol):
    """A server, or somebody in its place."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class Line:
    """One client and its connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.from_client, self.to_client = reader, writer
        self.from_server: asyncio.StreamReader
        self.to_server: asyncio.StreamWriter
        self.passed_down = 0
        self.ready = False

    def drop(self) -> None:
        self.to_client.transport.abort()
        if self.ready:
            self.to_server.transport.abort()


class FaultProxy:
    """See the module."""

    def __init__(self, server: Target) -> None:
        self.target: Target = server
        """Where new connections lead."""
        self._lines: dict[asyncio.Task[None], Line] = {}
        self._flow = asyncio.Event()
        self.accepted = 0
        """Connections so far."""
        self.heal()

    def heal(self) -> None:
        """No fault any more; a stalled connection goes on where it stopped."""
        self.stall_up = self.stall_down = False
        self.delay = 0.0
        """Seconds that each chunk is late."""
        self.bandwidth = 0
        """Bytes a second; 0: all there are."""
        self.slices = False
        """Whether bytes arrive one by one."""
        self.silent = False
        """Whether new connections are accepted and never served."""
        self.rewrite: Callable[[bytes], bytes] | None = None
        """What becomes of the first line from the server: a man in the middle's hand."""
        self.handshake_pause = 0.0
        """Seconds before each of the first bytes from the server."""
        self._flow.set()
        self._flow = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        lines = dict(self._lines)
        for task in lines:
            task.cancel()
        if lines:
            await asyncio.wait(lines)
        await self._listener.wait_closed()

    # Faults of a moment

    def cut(self) -> None:
        """Both ends see the connection end."""
        for line in self._lines.values():
            line.drop()

    def reset(self) -> None:
        """The client sees a reset: what it had not read yet is gone."""
        for line in self._lines.values():
            sock: socket.socket = line.to_client.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            line.drop()

    def half_close(self, *, to_client: bool) -> None:
        """One side says that it has no more to send, while the other direction stays open."""
        for line in self._lines.values():
            writer = line.to_client if to_client else line.to_server
            with contextlib.suppress(OSError):
                writer.write_eof()

    def inject(self, garbage: bytes, *, to_client: bool) -> None:
        """Bytes that nobody sent."""
        for line in self._lines.values():
            (line.to_client if to_client else line.to_server).write(garbage)

    # The lines

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        line = Line(reader, writer)
        task = asyncio.ensure_future(self._serve(line))
        self._lines[task] = line
        task.add_done_callback(self._lines.pop)

    async def _serve(self, line: Line) -> None:
        pumps: list[asyncio.Future[None]] = []
        try:
            if self.silent:
                # Until the client loses patience; what it says meanwhile is lost.
                with contextlib.suppress(OSError):
                    while await line.from_client.read(65_536):
                        pass
                return
            line.from_server, line.to_server = await asyncio.open_connection(
                self.target.host, self.target.port
            )
            line.ready = True
            for writer in (line.to_client, line.to_server):
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pumps = [
                asyncio.ensure_future(self._pump(line, upwards=True)),
                asyncio.ensure_future(self._pump(line, upwards=False)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # no server behind
        finally:
            line.drop()
            for pump in pumps:
                pump.cancel()
            if pumps:
                await asyncio.wait(pumps)
            for writer in (line.to_client, line.to_server) if line.ready else (line.to_client,):
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _pump(self, line: Line, *, upwards: bool) -> None:
        source, sink = (line.from_client, line.to_server) if upwards else (line.from_server, line.to_client)
        with contextlib.suppress(OSError):
            if self.rewrite is not None and not upwards:
                sink.write(self.rewrite(await source.readline()))
            while data := await source.read(65_536):
                while self.stall_up if upwards else self.stall_down:
                    await self._flow.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                if self.bandwidth:
                    await asyncio.sleep(len(data) / self.bandwidth)
                pause = 0.0 if upwards or line.passed_down else self.handshake_pause
                if not upwards:
                    line.passed_down += len(data)
                if self.slices or pause:
                    for at in range(len(data)):
                        if pause and at < 40:
                            await asyncio.sleep(pause)
                        sink.write(data[at : at + 1])
                        await asyncio.sleep(0)
                else:
                    sink.write(data)
                await sink.drain()
