"""``jetspark.connect``: options in, a live connection out.

The composition root: here the connection, which knows nothing about JetStream, gets its JetStream API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from jetspark._secret import hides_locals
from jetspark.connection.auth import (
    AuthCallable,
    Authenticator,
    PathOrSecret,
    SecretSource,
    build_authenticator,
)
from jetspark.connection.client import Connection as CoreConnection
from jetspark.connection.client import core_of
from jetspark.connection.contexts import load_context
from jetspark.connection.core import Core
from jetspark.connection.options import MIB, ConnectOptions, Listener
from jetspark.connection.tls import build_ssl_context
from jetspark.connection.urls import Servers, parse_servers
from jetspark.connection.websocket import wrap_headers
from jetspark.errors import InvalidArgument

if TYPE_CHECKING:
    import os
    import ssl
    from collections.abc import Callable, Generator, Mapping
    from types import TracebackType

    from jetspark._secret import Secret
    from jetspark.jetstream.context import JetStream
    from jetspark.jetstream.kinds import JetStreamKinds
    from jetspark.metrics import Metrics
    from jetspark.tracing import Tracing


class Connection(CoreConnection):
    """A connection to NATS. Made by :func:`jetspark.connect`; end it with ``close`` or ``drain``."""

    def __init__(
        self,
        options: ConnectOptions,
        jetstream_defaults: Mapping[str, Any] | None = None,
        *,
        core: Core | None = None,
        jetstream_kinds: JetStreamKinds | None = None,
    ) -> None:
        super().__init__(core or Core(options))
        self._jetstream_kinds = jetstream_kinds
        # domain and api_prefix of the NATS context that this connection was made from.
        self._jetstream_defaults = dict(jetstream_defaults or {})

    def jetstream(
        self,
        *,
        domain: str | None = None,
        api_prefix: str | None = None,
        timeout: float = 5.0,
    ) -> JetStream:
        """The JetStream API over this connection; cheap to make, holds no server state.

        ``domain``: the JetStream domain to use, e.g. that of a leaf node (default: that of the connected
        server). ``api_prefix``: the subject prefix under which another account's API is imported, instead of
        ``$JS.API``; excludes ``domain``. ``timeout``: seconds to wait for each API answer (5).
        """
        # Imported lazily: core-NATS users never need it, and it is half of the import time.
        from jetspark.jetstream.context import JetStream

        if domain is None and api_prefix is None:
            domain = self._jetstream_defaults.get("domain")
            api_prefix = self._jetstream_defaults.get("api_prefix") if domain is None else None
        return JetStream(
            self, domain=domain, api_prefix=api_prefix, timeout=timeout, kinds=self._jetstream_kinds
        )


C = TypeVar("C", bound=Connection)

DEFAULT_SERVER = "nats://127.0.0.1:4222"


class Connecting:
    """What :func:`connect` returns: ``await`` it, or use it with ``async with``."""

    def __init__(
        self,
        options: ConnectOptions,
        jetstream_options: Mapping[str, Any],
        tracing: Tracing | None,
        metrics: Metrics | None,
    ) -> None:
        self._options = options
        self._jetstream_options = jetstream_options
        self._tracing = tracing
        self._metrics = metrics
        self._connection: Connection | None = None

    async def _open(self) -> Connection:
        return await open_with(self, Connection)

    def __await__(self) -> Generator[Any, None, Connection]:
        return self._open().__await__()

    async def __aenter__(self) -> Connection:
        self._connection = await self._open()
        return self._connection

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            await self._connection.close()


async def open_with(connecting: Connecting, make: Callable[[ConnectOptions, Mapping[str, Any]], C]) -> C:
    """Make the connection, attach its observers, and connect. The blocking facade makes its own."""
    connection = make(connecting._options, connecting._jetstream_options)
    core = core_of(connection)
    if connecting._metrics is not None:
        from jetspark.metrics import Meter  # only if metrics are used

        Meter(connection, connecting._metrics)
    if connecting._tracing is not None:
        from jetspark.tracing import Tracer  # only if tracing is used

        core.observe(Tracer(connecting._tracing, core))
    await core.connect_first()
    return connection


@hides_locals
def connect(
    servers: Servers | None = None,
    *,
    name: str | None = None,
    user: SecretSource | None = None,
    password: SecretSource | None = None,
    token: SecretSource | None = None,
    nkey: PathOrSecret | None = None,
    jwt: SecretSource | None = None,
    creds: PathOrSecret | None = None,
    auth: Authenticator | AuthCallable | None = None,
    context: str | None = None,
    tls: ssl.SSLContext | bool | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    tls_hostname: str | None = None,
    tls_verify: bool = True,
    tls_handshake_first: bool = False,
    inbox_prefix: str = "_INBOX",
    connect_timeout: float = 2.0,
    ping_interval: float = 20.0,
    reconnect: bool = True,
    max_reconnects: int | None = None,
    reconnect_wait: float = 0.05,
    reconnect_wait_max: float = 2.0,
    reconnect_jitter: float = 0.5,
    reconnect_buffer_size: int = 8 * MIB,
    write_buffer_size: int = MIB,
    randomize: bool = True,
    ignore_discovered: bool = False,
    echo: bool = True,
    drain_timeout: float = 30.0,
    request_timeout: float = 5.0,
    listener: Listener | None = None,
    ws_headers: Mapping[str, str | Secret] | None = None,
    tracing: Tracing | bool = False,
    metrics: Metrics | None = None,
) -> Connecting:
    """Connect to NATS: ``nc = await connect(...)`` or ``async with connect(...) as nc``.

    Options are checked here, before anything is opened (:class:`InvalidArgument`). Refused credentials
    (:class:`AuthorizationError`) and bad certificates (:class:`TLSError`) are final. If no server can be
    reached, it raises :class:`NoServersAvailable` with each server's reason.

    Servers and identity

    - ``servers``: URLs ``nats://``, ``tls://``, ``ws://``, ``wss://``, or ``host:port``; several as a list or
      separated by commas. Default ``nats://127.0.0.1:4222``. ``tls://`` means that only TLS is accepted.
    - ``name``: shown in the server's monitoring.
    - ``user`` and ``password``, ``token``, ``nkey`` (seed or path of a seed file), ``jwt`` with ``nkey``,
      ``creds`` (path of a ``.creds`` file): credentials. At each connect, functions without arguments are
      called again and files are read again, so rotated credentials are picked up. ``auth``: an object or a
      function that turns the server's nonce into CONNECT fields, for anything else.
    - ``context``: name of a context of the ``nats`` command line tool; other options override it.

    TLS

    - ``tls``: True to demand it, your own ``ssl.SSLContext``, or False to forbid it. Default: decided by the
      URL, the other ``tls_*`` options and the server. Once TLS was used, every later server must use it.
    - ``tls_ca``, ``tls_cert``, ``tls_key``: PEM files of the authority to trust and of the client's
      certificate. ``tls_hostname``: the name to expect in the server's certificate, default the URL's host.
      Each of these demands TLS: nothing is sent to a server that offers none.
      ``tls_verify``: False accepts any certificate; never use this outside a test.
      ``tls_handshake_first``: TLS before INFO; the server must be configured with ``handshake_first``.

    Staying connected

    - ``connect_timeout``: seconds for one server, from TCP to PONG (2).
    - ``ping_interval``: seconds between PINGs; a dead peer is noticed within twice this (20).
    - ``reconnect``: False closes the connection when it breaks (True). Credentials that a server refuses are
      read again and retried for two minutes; then the connection is closed.
    - ``max_reconnects``: failed attempts in a row after which a server is given up. When no server is left,
      the connection is closed (None: never; 0: no attempt at all, like ``reconnect=False``).
    - ``reconnect_wait``, ``reconnect_wait_max``, ``reconnect_jitter``: seconds before the second attempt at a
      server, doubled up to the maximum, and the fraction by which each wait is spread (0.05, 2.0, 0.5).
    - ``reconnect_buffer_size``: bytes of publishes kept while disconnected (8 MiB).
    - ``randomize``: try the servers in random order (True). ``ignore_discovered``: use only the given servers
      even if the cluster announces others (False). Over TLS, a server before 2.12 announces none that can be
      trusted; list them all, or use ``tls_handshake_first``.

    The rest

    - ``inbox_prefix``: first tokens of every inbox (``_INBOX``); permissions may require another.
    - ``write_buffer_size``: number of unsent bytes from which on publishers wait (1 MiB).
    - ``echo``: False keeps the server from sending us our own publishes (True).
    - ``drain_timeout`` (30), ``request_timeout`` (5): default seconds for ``drain`` and for requests.
    - ``listener``: a function, async or not, called with each connection event (:mod:`jetspark.events`).
    - ``ws_headers``: extra HTTP headers for the WebSocket upgrade.
    - ``tracing``: True, or a :class:`jetspark.tracing.Tracing` with options, for OpenTelemetry spans (False;
      needs the extra ``otel``). ``metrics``: a :class:`jetspark.metrics.Metrics` that gets the counters of
      the connection (None). Neither costs anything when it is not used.
    """
    given = {
        "user": user,
        "password": password,
        "token": token,
        "nkey": nkey,
        "jwt": jwt,
        "creds": creds,
        "auth": auth,
    }
    jetstream_options: Mapping[str, Any] = {}
    if context is not None:
        loaded = load_context(context)
        jetstream_options = loaded.jetstream_options()
        from_context = loaded.connect_options()
        if servers is None:
            servers = from_context["servers"]
        if all(value is None for value in given.values()):
            given.update({key: from_context[key] for key in given if key in from_context})
        if tls is None:
            tls_ca = tls_ca if tls_ca is not None else from_context.get("tls_ca")
            tls_cert = tls_cert if tls_cert is not None else from_context.get("tls_cert")
            tls_key = tls_key if tls_key is not None else from_context.get("tls_key")
        tls_handshake_first = tls_handshake_first or from_context.get("tls_handshake_first", False)
        if inbox_prefix == "_INBOX":
            inbox_prefix = from_context.get("inbox_prefix", inbox_prefix)
    if name is not None and not isinstance(name, str):
        raise InvalidArgument("name", name, "must be a string")
    urls = parse_servers(DEFAULT_SERVER if servers is None else servers)
    options = ConnectOptions(
        servers=tuple(urls),
        name=name,
        authenticator=build_authenticator(**given),  # type: ignore[arg-type]
        tls=tls,
        tls_hostname=tls_hostname,
        tls_verify=tls_verify,
        tls_handshake_first=tls_handshake_first,
        tls_context=build_ssl_context(tls, ca=tls_ca, cert=tls_cert, key=tls_key, verify=tls_verify),
        inbox_prefix=inbox_prefix,
        connect_timeout=connect_timeout,
        ping_interval=ping_interval,
        reconnect=reconnect,
        max_reconnects=max_reconnects,
        reconnect_wait=reconnect_wait,
        reconnect_wait_max=reconnect_wait_max,
        reconnect_jitter=reconnect_jitter,
        reconnect_buffer_size=reconnect_buffer_size,
        write_buffer_size=write_buffer_size,
        randomize=randomize,
        ignore_discovered=ignore_discovered,
        echo=echo,
        drain_timeout=drain_timeout,
        request_timeout=request_timeout,
        listener=listener,
        ws_headers=None if ws_headers is None else wrap_headers(ws_headers),
    )
    if metrics is not None:
        methods = [getattr(metrics, name, None) for name in ("count", "gauge", "observe")]
        if isinstance(metrics, type) or not all(map(callable, methods)):
            raise InvalidArgument(
                "metrics", metrics, "must be an object with the methods count, gauge and observe"
            )
    return Connecting(options, jetstream_options, _tracing(tracing), metrics)


def _tracing(wish: Tracing | bool) -> Tracing | None:
    if wish is False:
        return None
    try:
        from jetspark.tracing import Tracing  # only if OpenTelemetry is installed
    except ImportError:
        raise InvalidArgument(
            "tracing", wish, "needs OpenTelemetry; install it with: pip install 'jetspark[otel]'"
        ) from None
    if wish is True:
        return Tracing()
    if not isinstance(wish, Tracing):
        raise InvalidArgument("tracing", wish, "must be True, False or a jetspark.tracing.Tracing")
    return wish
