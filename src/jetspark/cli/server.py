"""``jetspark server``: a real nats-server with JetStream, here and now, until Ctrl-C."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from jetspark.cli import local, output
from jetspark.cli.declare import Json, command
from jetspark.cli.errors import CommandFailed, UsageError
from jetspark.cli.stopping import SIGNALS, Flag

# jetspark.server is imported where it is used: it brings an HTTP client, which no other command needs.
if TYPE_CHECKING:
    from jetspark.server import Cluster, Server

DEFAULT_PORT = 4222
_POLL = 0.1


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(
        app,
        "server",
        example="jetspark server\njetspark server --store ./data --port 4333\njetspark server --cluster 3 -v",
    )(server)


def server(
    store: Annotated[
        Path | None, typer.Option("--store", metavar="DIR", help="Keep the data here; default: temporary.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            help="Client port; 0: any free one. Default: 4222, or a free one when that is in use.",
            min=0,
            max=65535,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    http_port: Annotated[
        int | None, typer.Option("--http-port", metavar="N", help="Monitoring port; default: a free one.")
    ] = None,
    cluster: Annotated[
        int | None, typer.Option("--cluster", metavar="N", help="Run a cluster of N servers.", min=2, max=9)
    ] = None,
    websocket: Annotated[bool, typer.Option("--websocket", help="Listen for WebSocket, too.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="More nats-server configuration.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the server's log.")] = False,
    json: Json = False,
) -> None:
    """Run a nats-server with JetStream until Ctrl-C.

    Other commands find it by themselves when no server is given. Its data is deleted at the end, unless
    --store says where to keep it.
    """
    if cluster is not None and websocket:
        raise UsageError("--websocket needs a single server; leave out --cluster")
    if cluster is not None and (port or http_port):
        raise UsageError("--port and --http-port need a single server; a cluster takes free ports")
    text = ""
    if config is not None:
        if not config.is_file():
            raise UsageError(f"--config: {config} is not a file")
        text = config.read_text()
    with _stop_flag() as stop:
        if cluster is not None:
            running = _cluster(cluster, host, store, text)
            servers, stop_all = running.servers, running.stop
        else:
            one = _server(host, port, http_port, store, websocket, text)
            servers, stop_all = [one], one.stop
        noted: Path | None = None
        try:
            noted = local.note(
                [server.url for server in servers],
                [server.http_url for server in servers],
                None if store is None else str(store.absolute()),
            )
            _announce(servers, store, websocket, json)
            _watch(servers, stop, verbose)
        finally:
            if noted is not None:
                noted.unlink(missing_ok=True)
            stop_all()
    if not json:
        output.notice("stopped")


def _server(
    host: str, port: int | None, http_port: int | None, store: Path | None, websocket: bool, config: str
) -> "Server":
    from jetspark.server import Server, ServerStartError

    def make(wanted: int | None) -> Server:
        return Server(
            host=host, port=wanted, http_port=http_port, store_dir=store, websocket=websocket, config=config
        ).start()

    if port is not None:
        try:
            return make(port or None)
        except ServerStartError as error:
            if "Address already in use" in error.reason:
                raise CommandFailed(
                    f"port {port} is in use; leave out --port, or use --port 0 for a free one"
                ) from None
            raise
    try:
        return make(DEFAULT_PORT)
    except ServerStartError as error:
        if "Address already in use" not in error.reason:
            raise
        output.notice(f"port {DEFAULT_PORT} is in use; using a free one")
        return make(None)


def _cluster(size: int, host: str, store: Path | None, config: str) -> "Cluster":
    from jetspark.server import Cluster, Server

    cluster = Cluster(size, config=config)
    # The cluster's servers have temporary stores by default; these use the given folder.
    cluster.servers[:] = [
        Server(
            name=member.name,
            host=host,
            store_dir=None if store is None else store / member.name,
            config=config,
            ready_timeout=30.0,
        )
        for member in cluster.servers
    ]
    return cluster.start()


def _announce(servers: "list[Server]", store: Path | None, websocket: bool, json: bool) -> None:
    if json:
        output.print_json_line(
            {
                "servers": [
                    {
                        "name": server.name,
                        "url": server.url,
                        "monitoring": server.http_url,
                        "websocket": server.ws_url if websocket else None,
                        "pid": server.pid,
                        "store": str(server.store_dir),
                    }
                    for server in servers
                ]
            }
        )
        return
    for server in servers:
        also = f"  websocket {server.ws_url}" if websocket else ""
        output.line(f"{server.name} listens on {server.url}  monitoring {server.http_url}{also}")
    kept = "temporary, removed at the end" if store is None else str(store.absolute())
    output.line(f"data: {kept}")
    output.line("other jetspark commands on this machine find it by themselves; Ctrl-C ends it")
    sys.stdout.flush()


@contextlib.contextmanager
def _stop_flag() -> Iterator[Flag]:
    """Set by Ctrl-C or SIGTERM, also while servers start: they are waited for and stopped in order.

    A second signal interrupts.
    """
    stop = Flag()

    def handler(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _watch(servers: "list[Server]", stop: Flag, verbose: bool) -> None:
    """Wait for a signal. A server that ends by itself ends the command."""
    with contextlib.ExitStack() as closing:
        logs: list[tuple[str, IO[str]]] = []
        if verbose:
            for server in servers:
                path = server.config_path.parent / "server.log"
                logs.append((server.name, closing.enter_context(open(path, errors="replace"))))
        while not stop.wait(_POLL):
            _print_logs(logs)
            for server in servers:
                if not server.running:
                    from jetspark.server import ServerStartError

                    raise ServerStartError(f"server {server.name!r} ended unexpectedly", server.log())
        _print_logs(logs)


def _print_logs(logs: list[tuple[str, IO[str]]]) -> None:
    for name, log in logs:
        for text in log:
            output.notice(f"{name}: {text.rstrip()}" if len(logs) > 1 else text.rstrip())
