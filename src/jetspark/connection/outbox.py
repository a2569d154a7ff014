"""The commands that a connection has to send: they collect here and are written together.

Theory of operation
-------------------
Commands collect in ``pieces`` and are written once per turn of the event loop. Publishers that find ``size``
at ``FLUSH_AT`` or more call ``give_way``, which writes at once: they pay one system call per batch, and a
lone message waits only for the end of the current callback. ``give_way`` also waits while the transport holds
more than ``write_buffer_size`` unsent bytes.

When the link breaks, there are two kinds of commands. Whole publishes are kept for the next link. Everything
:func:`volatile` is dropped: SUB, UNSUB and PING, which renewing a link makes obsolete, and publishes whose
senders take care of them (pull requests, the pipelined publisher).

Every PUB and HPUB is framed here, except those of the pipelined publisher, which
:func:`~jetspark.wire.commands.encode_pub` frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from jetspark.connection.waiters import Waiters
from jetspark.errors import InvalidArgument, MaxPayloadExceeded, OutboundBufferFull
from jetspark.wire.commands import (
    MAX_TARGET,
    SIZE_LINES,
    body_line,
    pub_prefix,
    size_line,
    split_oversized,
    to_bytes,
)
from jetspark.wire.headers import HeaderBlock, Headers, encode_headers
from jetspark.wire.info import ServerInfo
from jetspark.wire.subjects import validate_subject

if TYPE_CHECKING:
    from jetspark.connection.observer import Observer
    from jetspark.connection.options import ConnectOptions
    from jetspark.connection.statistics import Statistics
    from jetspark.connection.transport import Link

HeadersLike = Headers | Mapping[str, str | Sequence[str]]

FLUSH_AT = 65_536
_CRLF = b"\r\n"
_PREFIX_CACHE = 4096


class _Volatile(bytes):
    """A command that must not survive its link."""


def volatile(commands: bytes) -> bytes:
    """Mark commands that must not survive their link."""
    return _Volatile(commands)


class Outbox:
    """The outgoing buffer of one connection. ``link`` is None while there is no server to write to."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: ConnectOptions,
        stats: Statistics,
        check_open: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.options = options
        self.stats = stats
        self.check_open = check_open
        self.link: Link | None = None
        self.pieces: list[bytes] = []
        self.size = 0
        #: How often all of ``pieces`` was handed to the link.
        self.writes = 0
        #: What the server accepts: the size of a message, and whether it may have headers.
        self.max_payload = ServerInfo().max_payload
        self.takes_headers = True
        #: ``PUB <subject> `` by subject: it is checked and encoded once.
        self.prefixes: dict[str, bytes] = {}
        self.waiters = Waiters()
        self.flush_scheduled = False
        self.closed = False
        self.observer: Observer | None = None

    # Publishes

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: HeadersLike | bytes | None = None,
        *,
        own_reply: bool = False,
    ) -> None:
        """Check and buffer one publish. ``own_reply``: the reply is our own inbox and needs no check.

        ``headers`` may be an encoded block, a ``HeaderBlock``, for callers that publish many messages of the
        same shape. Other bytes are refused, because they have not been checked.
        """
        if type(payload) is not bytes:
            payload = to_bytes(payload)
        size = len(payload)
        try:
            prefix = self.prefixes[subject]
        except (KeyError, TypeError):  # TypeError: it can't be hashed, so it is not a str
            prefix = self.remember_prefix(subject)
        if reply:
            if not own_reply:
                validate_subject(reply, field="reply")
            prefix += reply.encode() + b" "
            if len(prefix) > MAX_TARGET:
                raise InvalidArgument(
                    "reply", reply, f"with the subject exceeds {MAX_TARGET} bytes; shorten it"
                )
        if headers is None:
            if size > self.max_payload:
                raise MaxPayloadExceeded(size, self.max_payload)
            line = SIZE_LINES.get(size) or size_line(size)
            self.send((prefix, line, payload, _CRLF), len(prefix) + len(line) + size + 2)
        else:
            block = headers if type(headers) is HeaderBlock else encode_headers(headers)  # type: ignore[arg-type]
            self.check_headers()
            size += len(block)
            if size > self.max_payload:
                raise MaxPayloadExceeded(size, self.max_payload)
            line = b"%d %d\r\n" % (len(block), size)
            self.send((b"H", prefix, line, block, payload, _CRLF), len(prefix) + len(line) + size + 3)
        if self.observer is not None:
            self.observer.published(subject, payload, reply, headers, own_reply)

    def answer(self, target: bytes, line: bytes) -> None:
        """Buffer one publish to a reply subject that the server gave us, such as an ack.

        ``target``: the subject, followed by a space and the reply subject if there is one. ``line``: the body
        as :func:`~jetspark.wire.commands.body_line` makes it.
        """
        self.send((b"PUB ", target, line), len(target) + len(line) + 4)

    def publish_volatile(self, subject: str, payload: bytes, reply: str) -> None:
        """A publish that must not outlive its link, such as a pull request: the next link gets its own.

        Dropped while there is no link, and when the link breaks before it is written.
        """
        prefix = self.prefixes.get(subject)
        if prefix is None:
            prefix = self.remember_prefix(subject, literal=False)
        self.control(b"%b%b%b" % (prefix, reply.encode(), body_line(payload)))

    def send(self, pieces: tuple[bytes, ...], size: int) -> None:
        """Buffer one whole publish command."""
        if self.link is None:
            self.check_open()
            if self.size + size > self.options.reconnect_buffer_size:
                raise OutboundBufferFull(self.size + size, self.options.reconnect_buffer_size)
        elif not self.flush_scheduled:
            self.flush_scheduled = True
            self.loop.call_soon(self.flush)
        self.pieces += pieces
        self.size += size
        self.stats.out_msgs += 1

    def send_once(self, commands: bytes, count: int = 1) -> None:
        """Buffer ``count`` whole publishes that must not outlive their link: the sender takes care of them.

        A pipelined publisher sends them again, or fails them, when the link breaks.
        """
        self.pieces.append(_Volatile(commands))
        self.size += len(commands)
        self.stats.out_msgs += count
        if not self.flush_scheduled:
            self.flush_scheduled = True
            self.loop.call_soon(self.flush)

    def check_headers(self) -> None:
        """Raise if the connected server takes no headers: it would close the connection."""
        if not self.takes_headers and self.link is not None:
            # The error may reach logs and traces, so it does not show the headers.
            raise InvalidArgument("headers", "(not shown)", "the connected server does not support headers")

    def remember_prefix(self, subject: str, *, literal: bool = True) -> bytes:
        """The start of a publish to this subject, which it checks. ``literal=False`` allows wildcards."""
        prefix = pub_prefix(subject, literal=literal)
        if len(self.prefixes) >= _PREFIX_CACHE:
            self.prefixes.clear()
        self.prefixes[subject] = prefix
        return prefix

    def trust_subject(self, subject: str) -> None:
        """Let the next publish to this subject pass with wildcard tokens in it.

        JetStream's API puts filters into the subjects of requests, and there a wildcard is a literal.
        """
        if subject not in self.prefixes:
            self.remember_prefix(subject, literal=False)

    # Everything else

    def control(self, command: bytes) -> None:
        """Buffer a command that renewing a link makes obsolete; dropped while there is no link."""
        if self.link is None:
            return
        self.pieces.append(_Volatile(command))
        self.size += len(command)
        if not self.flush_scheduled:
            self.flush_scheduled = True
            self.loop.call_soon(self.flush)

    # Writing

    def flush(self, *, even_if_behind: bool = False) -> None:
        """Write what is buffered, unless the server is behind: then publishers have to wait."""
        self.flush_scheduled = False
        if self.pieces and self.link is not None and (self.link.writable or even_if_behind):
            pieces = self.pieces
            data = b"".join(pieces)
            pieces.clear()
            self.size = 0
            self.writes += 1
            self.stats.out_bytes += len(data)
            self.link.write(data)

    async def give_way(self) -> None:
        """Write what is buffered, let the loop read, and wait while the server is behind."""
        self.flush()
        await asyncio.sleep(0)
        while self.link is not None and not self.link.writable:
            await self.waiters.wait()
        self.check_open()

    def on_writable(self) -> None:
        """The server has caught up."""
        self.flush()
        self.waiters.wake()

    @property
    def is_behind(self) -> bool:
        """Whether the server reads so slowly that answers to what it sends should be left out."""
        link = self.link
        return link is not None and not link.writable and self.size >= self.options.write_buffer_size

    # Links come and go

    def gather(self) -> None:
        """Collect what other threads have left for this connection."""

    def drop_volatile(self) -> None:
        """The link is gone: whole publishes stay for the next one, volatile commands are dropped."""
        self.pieces = [piece for piece in self.pieces if not isinstance(piece, _Volatile)]
        self.size = sum(map(len, self.pieces))

    def limit(self, max_payload: int) -> list[tuple[str, int]]:
        """Apply a new server's limit; returns (subject, size) of the waiting messages it drops as too large.

        A server hangs up on a message that is too large, and everything else would be lost with it.
        """
        lower, self.max_payload = max_payload < self.max_payload, max_payload
        if not (lower and self.pieces):
            return []
        kept, oversized = split_oversized(b"".join(self.pieces), max_payload)
        self.pieces, self.size = [kept] if kept else [], len(kept)
        return oversized

    def close(self) -> None:
        """Nothing more will be sent."""
        self.closed = True
        self.pieces.clear()
        self.size = 0
        self.waiters.wake()
