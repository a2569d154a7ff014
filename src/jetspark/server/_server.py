"""One nats-server process: start, hurt, restart, stop.

Theory of operation. A :class:`Server` owns a private work folder (configuration, log and, unless
``store_dir`` is given, JetStream's files), its ports (see ``_ports``) and a watchdog (see ``_watchdog``)
from :meth:`Server.start` to :meth:`Server.stop`. The process itself may come and go in between:
:meth:`Server.kill` ends it and :meth:`Server.restart` brings it back on the same ports with the same data.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Self

from jetspark.errors import InvalidArgument
from jetspark.server._config import ServerTLS, Settings, render
from jetspark.server._find import find_server
from jetspark.server._ports import ReservedPort
from jetspark.server._watchdog import Watchdog
from jetspark.server.errors import ServerProcessError, ServerReloadError, ServerStartError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Server", "ServerTLS"]

_POLL = 0.005
_TAIL = 16 * 1024

_started: weakref.WeakSet[Server] = weakref.WeakSet()


class Server:
    """A nats-server of your own, as a context manager or with :meth:`start` and :meth:`stop`.

    ::

        with Server() as server:
            nc = await jetspark.connect(server.url)

    Every option is keyword-only:

    jetstream: enable JetStream. Default: True.
    store_dir: where JetStream keeps its files. Default: a temporary folder, removed by ``stop``. A folder
        you give is created when missing and kept.
    host: the address to listen on. Default: 127.0.0.1.
    port: the client port. Default: None, a free one, kept for ``restart``.
    http_port: the monitoring port; None (default) for a free one. Readiness is read from it.
    websocket: listen for WebSocket clients too, on a free port. Default: False.
    name: the server's name. Default: "jetspark".
    domain: the JetStream domain. Default: none.
    tls: :class:`ServerTLS`. Default: none.
    user, password, token: the credentials clients must present. Default: none. Give a token or a user,
        not both; for accounts, nkeys and JWTs use ``config``.
    config: more configuration text in nats-server's own language, appended to ours; a key that is
        repeated there wins. E.g. ``config="max_payload: 2MB"``. Default: none.
    config_file: run with this file instead of a generated one. The ports are still ours (given on the
        command line), and with ``jetstream=True`` so is the store; no other option above may be combined
        with it.
    binary: the nats-server to run; default: see :func:`find_server`.
    ready_timeout: seconds that ``start`` waits until the server answers. Default: 10.

    If the parent is killed with -9 the server dies with it, but its temporary folder stays.
    """

    def __init__(
        self,
        *,
        jetstream: bool = True,
        store_dir: str | os.PathLike[str] | None = None,
        host: str = "127.0.0.1",
        port: int | None = None,
        http_port: int | None = None,
        websocket: bool = False,
        name: str = "jetspark",
        domain: str | None = None,
        tls: ServerTLS | None = None,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        config: str = "",
        config_file: str | os.PathLike[str] | None = None,
        binary: str | os.PathLike[str] | None = None,
        ready_timeout: float = 10.0,
    ) -> None:
        if token is not None and user is not None:
            raise InvalidArgument("user", user, "give either a token or a user and password, not both")
        if (user is None) != (password is None):
            raise InvalidArgument("user", user, "user and password go together")
        if domain is not None and not jetstream:
            raise InvalidArgument("domain", domain, "a JetStream domain needs jetstream=True")
        if config_file is not None and (
            config or websocket or tls or user or token or domain or name != "jetspark"
        ):
            raise InvalidArgument(
                "config_file", os.fspath(config_file), "can't be combined with generated settings"
            )
        self.name = name
        self._jetstream = jetstream
        self._explicit_store = None if store_dir is None else os.path.abspath(store_dir)
        self._host = host
        self._port = port
        self._http_port = http_port
        self._websocket = websocket
        self._domain = domain
        self._tls = tls
        self._user = user
        self._password = password
        self._token = token
        self._config = config
        self._config_file = None if config_file is None else Path(config_file).absolute()
        self._binary = binary
        self._ready_timeout = ready_timeout

        self._cluster_block: str | None = None  # set by Cluster
        self._owner = os.getpid()
        self._folder: Path | None = None
        self._ports: dict[str, ReservedPort] = {}
        self._watchdog: Watchdog | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._last_log = ""

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        """The client port; known from ``start`` until ``stop``, also while the process is down."""
        return self._reserved("client").number

    @property
    def url(self) -> str:
        """``nats://host:port``, or ``tls://`` with TLS. Credentials are not part of it."""
        return f"{'tls' if self._tls else 'nats'}://{self._host}:{self.port}"

    @property
    def ws_url(self) -> str:
        """``ws://host:port``, or ``wss://`` with TLS; needs ``websocket=True``."""
        if not self._websocket:
            raise ServerProcessError("this server has no WebSocket listener: use Server(websocket=True)")
        return f"{'wss' if self._tls else 'ws'}://{self._host}:{self._reserved('websocket').number}"

    @property
    def http_url(self) -> str:
        """Where the monitoring endpoints are, such as ``/varz``."""
        return f"http://{self._host}:{self._reserved('http').number}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerProcessError(
                f"server {self.name!r} has no process: it was not started, or was stopped"
            )
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists; True for a suspended one."""
        return self._process is not None and self._process.poll() is None

    @property
    def config_path(self) -> Path:
        if self._config_file is not None:
            return self._config_file
        return self._work_folder() / "server.conf"

    @property
    def store_dir(self) -> Path:
        """Where JetStream's files are."""
        if self._explicit_store is not None:
            return Path(self._explicit_store)
        return self._work_folder() / "store"

    def log(self) -> str:
        """The last 16 KiB of what the server printed; after ``stop``, of its last run."""
        if self._folder is None:
            return self._last_log
        try:
            with open(self._folder / "server.log", "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - _TAIL))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def __repr__(self) -> str:
        state = f"pid={self.pid}" if self.running else "not running"
        where = f" {self.url}" if self._ports else ""
        return f"<Server {self.name!r}{where} {state}>"

    # -- life ------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the process and wait until it is ready. A no-op when it runs."""
        self._prepare()
        self._spawn()
        try:
            self.wait_ready(self._ready_timeout)
        except BaseException:
            self.stop(timeout=1.0)
            raise
        return self

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait until clients are accepted and, with JetStream, until the server reports itself healthy.

        Raises :class:`ServerStartError` with the end of the log when the process ends or time is up.
        """
        deadline = time.monotonic() + timeout
        while not self._answers():
            if not self.running:
                code = self._process.returncode if self._process else None
                raise ServerStartError(f"server {self.name!r} ended with exit code {code}", self.log())
            if time.monotonic() >= deadline:
                raise ServerStartError(f"server {self.name!r} was not ready in {timeout} s", self.log())
            time.sleep(_POLL)

    def stop(self, timeout: float = 5.0) -> None:
        """End the process in order, or with SIGKILL after ``timeout`` seconds; free ports and folder."""
        if self._owner != os.getpid():
            return  # a forked copy of the handle: the server belongs to the parent
        self.terminate(timeout)
        self._process = None
        if self._watchdog is not None:
            self._watchdog.end()
            self._watchdog = None
        for port in self._ports.values():
            port.release()
        self._ports.clear()
        if self._folder is not None:
            self._last_log = self.log()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        _started.discard(self)

    def kill(self) -> None:
        """SIGKILL the process and wait until it is gone. Ports and data stay for :meth:`restart`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self, timeout: float = 5.0) -> None:
        """End the process in order, or with SIGKILL after ``timeout``; ports and data stay."""
        if self.running and self._process is not None:
            # Both SIGINT and SIGTERM are orderly, but a server in lame duck mode ignores SIGTERM.
            self._process.send_signal(signal.SIGINT)
            self._process.send_signal(signal.SIGCONT)  # a suspended process sees SIGINT only then
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()

    def restart(self, timeout: float = 5.0) -> None:
        """Bring the process back on the same ports with the same data; ends it first when it runs."""
        self.terminate(timeout)
        self.start()

    def suspend(self) -> None:
        """SIGSTOP: the process keeps its connections and answers nothing, like a hanging machine.

        Returns when all its threads have stopped: the signal takes effect with a delay.
        """
        self._signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
            # WNOWAIT: only look. Popen collects the exit status, and a second suspend() must not block.
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT: go on after :meth:`suspend`."""
        self._signal(signal.SIGCONT)

    def signal_lame_duck(self) -> None:
        """SIGUSR2: tell clients to leave, then shut down after the grace period (10 s by default)."""
        self._signal(signal.SIGUSR2)

    def reload(self, config: str | None = None, *, timeout: float = 5.0) -> None:
        """Reload the configuration (SIGHUP) and wait for the server's verdict.

        config: replaces the ``config`` text given to the constructor. Raises :class:`ServerReloadError`
        when the server refuses it; the file then keeps the refused text.
        """
        if config is not None:
            if self._config_file is not None:
                raise InvalidArgument("config", config, "edit config_file itself, then call reload()")
            self._config = config
            self.config_path.write_text(render(self._settings()))
        before = self._verdicts()
        self._signal(signal.SIGHUP)
        deadline = time.monotonic() + timeout
        while (after := self._verdicts()) == before:
            if time.monotonic() >= deadline or not self.running:
                raise ServerReloadError(f"no verdict on the reload in {timeout} s", self.log())
            time.sleep(_POLL)
        if after[1] > before[1]:
            raise ServerReloadError(f"server {self.name!r} refused the configuration", self.log())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- how it is done --------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Reserve what lasts until stop: ports, folder, watchdog."""
        if self._owner != os.getpid():
            raise ServerProcessError(
                "this handle was copied by a fork; make a Server of your own in the child"
            )
        if self._folder is not None:
            return
        binary = find_server(self._binary)  # first: it may raise, and there is nothing to undo yet
        self._binary = binary
        _started.add(self)
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="jetspark-server-"))
            self._ports["client"] = ReservedPort(self._host, self._port)
            self._ports["http"] = ReservedPort(self._host, self._http_port)
            if self._websocket:
                self._ports["websocket"] = ReservedPort(self._host)
            self._watchdog = Watchdog()
        except OSError as error:
            self.stop()
            raise ServerStartError(f"can't prepare server {self.name!r}: {error}", "") from error

    def _spawn(self) -> None:
        if self.running:
            return
        folder = self._work_folder()
        if self._watchdog is None or not self._watchdog.alive:
            self._watchdog = Watchdog()
        arguments = [str(self._binary), "-c", str(self.config_path)]
        if self._config_file is None:
            self.config_path.write_text(render(self._settings()))
        else:
            arguments += ["-a", self._host, "-p", str(self.port)]
            arguments += ["-m", str(self._reserved("http").number)]
            if self._jetstream:
                arguments += ["-js", "-sd", str(self.store_dir)]
        for port in self._ports.values():
            port.about_to_listen()
        with open(folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                arguments,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=self._watchdog.group,
            )

    def _settings(self) -> Settings:
        return Settings(
            host=self._host,
            port=self.port,
            http_port=self._reserved("http").number,
            websocket_port=self._reserved("websocket").number if self._websocket else None,
            name=self.name,
            domain=self._domain,
            store_dir=str(self.store_dir) if self._jetstream else None,
            tls=self._tls,
            user=self._user,
            password=self._password,
            token=self._token,
            cluster=self._cluster_block,
            config=self._config,
        )

    def _answers(self) -> bool:
        """One try: INFO on the client port, then health (which covers JetStream's recovery)."""
        if not self.running:
            return False
        try:
            with socket.create_connection((self._host, self.port), timeout=1.0) as client:
                silent = self._tls is not None and self._tls.handshake_first
                if not silent and not client.recv(4).startswith(b"INFO"):
                    return False
            with urllib.request.urlopen(f"{self.http_url}/healthz", timeout=1.0) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()  # 503: up, but JetStream is not ready
            return False
        except OSError:
            return False

    def _verdicts(self) -> tuple[int, int]:
        """How many reloads were accepted and refused so far."""
        accepted = refused = 0
        with open(self._work_folder() / "server.log", errors="replace") as log:
            for line in log:
                accepted += "Reloaded server configuration" in line
                refused += "Failed to reload server configuration" in line
        return accepted, refused

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or not self.running:
            raise ServerProcessError(f"server {self.name!r} does not run; start() or restart() it first")
        self._process.send_signal(number)

    def _reserved(self, role: str) -> ReservedPort:
        try:
            return self._ports[role]
        except KeyError:
            raise ServerProcessError(f"server {self.name!r} has no ports yet: start() it first") from None

    def _work_folder(self) -> Path:
        if self._folder is None:
            raise ServerProcessError(f"server {self.name!r} has no files: it was not started, or was stopped")
        return self._folder


@atexit.register
def _stop_what_is_left() -> None:
    # The watchdog would kill them too; an orderly stop is better for the data and removes the folders.
    for server in list(_started):
        server.stop()
