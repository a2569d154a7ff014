"""``jetspark.blocking.connect``: options in, a live connection out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from jetspark._secret import hides_locals
from jetspark.blocking._client import EngineConnection, EngineCore
from jetspark.blocking._engine import Engine, EngineLoop
from jetspark.blocking._facade import check_plain
from jetspark.blocking._mirror import documented_by
from jetspark.blocking._threads import ListenerThread
from jetspark.blocking.connection import Connection
from jetspark.connecting import Connecting, open_with
from jetspark.connecting import connect as async_connect
from jetspark.connection.events import Event
from jetspark.connection.options import MIB

if TYPE_CHECKING:
    import os
    import ssl

    from jetspark._secret import Secret
    from jetspark.connection.auth import AuthCallable, Authenticator, PathOrSecret, SecretSource
    from jetspark.connection.urls import Servers
    from jetspark.metrics import Metrics
    from jetspark.tracing import Tracing

Listener = Callable[[Event], None]


@documented_by(
    async_connect,
    note=(
        "The connection runs in a background thread of its own. The listener is called in another one, in\n"
        "the order of events, so it may block and use the connection; functions that supply credentials\n"
        "must not. Calling from a thread that runs an event loop works, but blocks that loop."
    ),
)
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
) -> Connection:
    check_plain("listener", listener)
    # The options refuse a listener that can't be called, before a thread is started for it.
    events: list[ListenerThread] = []
    connecting = async_connect(
        servers,
        name=name,
        user=user,
        password=password,
        token=token,
        nkey=nkey,
        jwt=jwt,
        creds=creds,
        auth=auth,
        context=context,
        tls=tls,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_hostname=tls_hostname,
        tls_verify=tls_verify,
        tls_handshake_first=tls_handshake_first,
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
        ws_headers=ws_headers,
        tracing=tracing,
        metrics=metrics,
        listener=(lambda event: events[0].put(event)) if callable(listener) else listener,
    )
    if listener is not None:
        events.append(ListenerThread(listener))
    engine = Engine()
    try:
        client = engine.run(_open, engine.loop, connecting)
    except BaseException:
        engine.stop()
        for thread in events:
            thread.stop(connect_timeout)
        raise
    return Connection(engine, client, events[0] if events else None)


async def _open(engine: EngineLoop, connecting: Connecting) -> EngineConnection:
    return await open_with(
        connecting,
        lambda options, jetstream_options: EngineConnection(EngineCore(engine, options), jetstream_options),
    )
