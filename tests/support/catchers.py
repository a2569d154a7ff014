"""Peers that want credentials: they greet like a NATS server and keep every byte that clients send."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.pki import CertFiles


def info(**fields: Any) -> bytes:
    """The greeting of a server, with other fields."""
    text = {"server_id": "FAKE", "version": "2.15.1", "max_payload": 1_000_000, "headers": True, "nonce": "n"}
    return b"INFO " + json.dumps({**text, **fields}).encode() + b"\r\n"


class PlainServer:
    """Sends what it is told to, then keeps every byte that clients send to it."""

    def __init__(self, greeting: bytes) -> None:
        self.greeting = greeting
        self.received = b""
        self.clients = 0
        self.gone = asyncio.Event()
        self.host = "127.0.0.1"
        self.port = 0
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients += 1
        writer.write(self.greeting)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._listen(reader, writer)
        writer.close()
        self.gone.set()

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            self.received += data

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[PlainServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.url = f"tls://127.0.0.1:{self.port}"
        async with server:
            yield self


class TLSServer(PlainServer):
    """The same over TLS, with a certificate; it lets everybody in. ``after`` follows its first PONG."""

    def __init__(self, files: CertFiles, after: bytes = b"", **fields: Any) -> None:
        super().__init__(info(tls_required=True, **fields))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.cert, files.key)
        self._after = after

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await writer.start_tls(self._context)
        first = True
        while line := await reader.readline():
            self.received += line
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n" + (self._after if first else b""))
                first = False
