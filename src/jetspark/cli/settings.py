"""Which server, as whom: the options that every command shares, and their precedence.

As in the ``nats`` tool each setting is taken from the first place that has it: its flag, its environment
variable, the context (``--context``, ``NATS_CONTEXT``, else the selected one). When no place names a server,
it is the newest one that ``jetspark server`` runs on this machine. There is no other default, so nothing is
ever sent to a server that the user did not name or start.

The client is imported where it is used: help and completion do not need it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from jetspark._secret import Secret
from jetspark.cli import local
from jetspark.cli.errors import CommandFailed
from jetspark.cli.output import notice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from jetspark import Consumer, JetStream, Stream
    from jetspark.connecting import Connection

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The connection as flags and environment describe it; see ``jetspark --help``."""

    server: str | None = None
    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    creds: str | None = None
    nkey: str | None = None
    tlscert: str | None = None
    tlskey: str | None = None
    tlsca: str | None = None
    tlsfirst: bool = False
    context: str | None = None
    no_context: bool = False
    timeout: float = 5.0
    js_domain: str | None = None
    js_api_prefix: str | None = None
    inbox_prefix: str | None = None
    connection_name: str = "jetspark-cli"
    debug: bool = False

    def connect_options(self) -> dict[str, Any]:
        """Keyword arguments for ``jetspark.connect``."""
        options: dict[str, Any] = {
            "servers": self.server,
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "creds": self.creds,
            "nkey": self.nkey,
            "tls_cert": self.tlscert,
            "tls_key": self.tlskey,
            "tls_ca": self.tlsca,
            "tls_handshake_first": self.tlsfirst or None,
            "inbox_prefix": self.inbox_prefix,
            "name": self.connection_name,
            "connect_timeout": self.timeout,
            "request_timeout": self.timeout,
        }
        if self.user is not None and self.password is None:
            # The nats tool reads a user without a password as a token.
            options["user"], options["token"] = None, self.token or Secret(self.user)
        from jetspark.connection.contexts import selected_context

        context = None if self.no_context else (self.context or selected_context())
        if context is not None:
            options["context"] = context
        elif self.server is None:
            options["servers"] = _local_servers()
        return {name: value for name, value in options.items() if value is not None}


_current = Settings()


def use(settings: Settings) -> None:
    """Make these the settings of the current command."""
    global _current
    _current = settings


def current() -> Settings:
    """The settings of the current command."""
    return _current


def _local_servers() -> list[str]:
    servers = local.running()
    if not servers:
        raise CommandFailed(
            "no server given: use --server URL, --context NAME or the environment variable NATS_URL\n"
            "or start one on this machine with 'jetspark server'; every command finds it"
        )
    return servers[0].urls


@asynccontextmanager
async def connection(*, listen: bool = False) -> AsyncIterator[Connection]:
    """A connection with the user's settings. ``listen``: print its events, for commands that stay."""
    # Errors and notices report what happens to the connection; the library's log would repeat it.
    import logging

    from jetspark.connecting import connect

    logging.getLogger("jetspark").addHandler(logging.NullHandler())
    options = _current.connect_options()
    async with connect(**options, listener=_tell if listen else None) as nc:
        yield nc


@asynccontextmanager
async def jetstream(*, listen: bool = False) -> AsyncIterator[JetStream]:
    """JetStream over a connection with the user's settings."""
    async with connection(listen=listen) as nc:
        yield nc.jetstream(
            domain=_current.js_domain, api_prefix=_current.js_api_prefix, timeout=_current.timeout
        )


async def find_stream(js: JetStream, name: str) -> Stream:
    """The stream, or an error that names it; the server's own does not."""
    from jetspark.errors import StreamNotFound

    try:
        return await js.get_stream(name)
    except StreamNotFound:
        raise CommandFailed(f"no stream {name!r} here\n'jetspark stream ls' lists the streams") from None


async def find_consumer(js: JetStream, stream: str, name: str) -> Consumer:
    """The consumer, or an error that names what is missing."""
    from jetspark.errors import ConsumerNotFound, StreamNotFound

    try:
        return await js.get_consumer(stream, name)
    except StreamNotFound:
        raise CommandFailed(f"no stream {stream!r} here\n'jetspark stream ls' lists the streams") from None
    except ConsumerNotFound:
        raise CommandFailed(
            f"no consumer {name!r} on stream {stream!r}\n'jetspark consumer ls {stream}' lists them"
        ) from None


def _tell(event: object) -> None:
    from jetspark.connection import events

    match event:
        case events.Disconnected(server=server, error=error):
            notice(f"connection to {server} lost{f': {error}' if error else ''}; reconnecting")
        case events.Reconnected(server=server):
            notice(f"reconnected to {server}")
        case events.SlowConsumer(subject=subject, dropped=dropped):
            notice(f"too slow for {subject}: {dropped} messages dropped")
        case events.PermissionViolation(message=message) | events.ServerError(message=message):
            notice(f"server: {message}")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine, on uvloop when it is installed."""
    import asyncio

    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)
