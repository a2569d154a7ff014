"""A hostile peer: it shakes hands like a NATS server and then does what its script says.

Never a stand-in for a real server: it exists for what no real server does. ``FakeServer(one, two)`` serves
the first connection with the script ``one``, the second and all later ones with ``two``. A script takes a
:class:`Peer`; when it returns, the connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType

    Script = Callable[["Peer"], Awaitable[None]]

INFO = {"server_id": "F", "version": "2.12.0", "headers": True, "max_payload": 1_048_576, "proto": 1}


class Peer:
    """One client, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.subscribed: dict[str, str] = {}
        """Subject -> sid."""
        self.published: dict[str, str] = {}
        """Subject -> reply, of the last publish to it."""
        self.sent = 0
        """Bytes so far."""
        self._listens = asyncio.Event()
        self._listens.set()
        self._waiters: list[asyncio.Future[None]] = []
        self._hearing: asyncio.Task[None] | None = None

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()
        self.sent += len(data)

    async def flood(self, chunk: bytes, size: int) -> None:
        """The chunk again and again, ``size`` bytes in all; less when the client hangs up."""
        repeated = chunk * max(1, 262_144 // len(chunk))
        for _ in range(max(1, size // len(repeated))):
            await self.send(repeated)

    async def welcome(self, info: dict[str, Any] | None = None) -> None:
        """The handshake as it should be; from then on PINGs are answered and subscriptions noted."""
        await self.send(b"INFO " + json.dumps(INFO | (info or {})).encode() + b"\r\n")
        self.hear()

    def hear(self) -> None:
        """Read what the client sends, answer its PINGs, note its subscriptions and publishes."""
        self._hearing = asyncio.ensure_future(self._hear())
        self._hearing.add_done_callback(self._wake)

    async def sid(self, subject: str) -> str:
        """The sid of the client's subscription to the subject, once it is there."""
        while subject not in self.subscribed:
            await self._change()
        return self.subscribed[subject]

    async def reply_of(self, subject: str) -> str:
        """The reply subject of the client's publish to the subject, once it is there; forgotten then."""
        while subject not in self.published:
            await self._change()
        return self.published.pop(subject)

    async def inbox(self, reply: str) -> str:
        """The sid of the wildcard subscription that a reply goes to."""
        for subject, sid in self.subscribed.items():
            if reply == subject or (subject.endswith("*") and reply.startswith(subject[:-1])):
                return sid
        raise AssertionError(f"nobody listens on {reply}")

    async def answer(self, subject: str, body: bytes) -> None:
        """Answer the client's request to the subject."""
        reply = await self.reply_of(subject)
        await self.send(
            b"MSG %b %b %d\r\n%b\r\n" % (reply.encode(), (await self.inbox(reply)).encode(), len(body), body)
        )

    async def stay(self) -> None:
        """Until the client hangs up."""
        if self._hearing is not None:
            await self._hearing

    async def _change(self) -> None:
        if self._hearing is None or self._hearing.done():
            raise ConnectionError("the client has gone")
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self, *_: object) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _hear(self) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while line := await self._reader.readline():
                await self._listens.wait()
                words = line.decode(errors="replace").split()
                match [words[0].upper() if words else "", *words[1:]]:
                    case ["PING"]:
                        await self.send(b"PONG\r\n")
                    case ["SUB", subject, *_, sid]:
                        self.subscribed[subject] = sid
                    case ["PUB" | "HPUB" as verb, subject, *others]:
                        size = int(others[-1])
                        await self._reader.readexactly(size + 2)
                        reply = others[0] if len(others) > (1 if verb == "PUB" else 2) else ""
                        self.published[subject] = reply
                self._wake()

    def deafen(self, deaf: bool = True) -> None:
        """Leave what the client sends unread from now on, or read it again."""
        # Megabytes would fit into the system's buffer, and the client would not notice.
        own = self._writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192 if deaf else 1 << 20)
        if deaf:
            self._listens.clear()
        else:
            self._listens.set()

    async def leave(self) -> None:
        self._writer.transport.abort()
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.wait([self._hearing])
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class FakeServer:
    """``async with FakeServer(script, ...) as server``; clients connect to ``server.url``."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self._tasks: set[asyncio.Task[Any]] = set()
        self._peers: list[Peer] = []
        self.accepted = 0
        self.errors: list[BaseException] = []

    @property
    def sent(self) -> int:
        """Bytes to all clients so far."""
        return sum(peer.sent for peer in self._peers)

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for peer in self._peers:
            await peer.leave()
        await self._listener.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts[min(self.accepted, len(self._scripts) - 1)]
        self.accepted += 1
        peer = Peer(reader, writer)
        self._peers.append(peer)
        task = asyncio.ensure_future(self._serve(script, peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, script: Script, peer: Peer) -> None:
        playing = asyncio.ensure_future(script(peer))
        try:
            await asyncio.wait([playing])
        finally:
            playing.cancel()
            await asyncio.wait([playing])
            await peer.leave()
            error = None if playing.cancelled() else playing.exception()
            # That the client hangs up is what it should do on much of this.
            if error is not None and not isinstance(error, OSError):
                self.errors.append(error)


def chunked(pieces: Iterable[bytes], size: int = 262_144) -> Iterable[bytes]:
    """Join small pieces, so that a system call carries many of them."""
    held: list[bytes] = []
    length = 0
    for piece in pieces:
        held.append(piece)
        length += len(piece)
        if length >= size:
            yield b"".join(held)
            held.clear()
            length = 0
    if held:
        yield b"".join(held)
