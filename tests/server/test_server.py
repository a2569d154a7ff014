"""The embedded server: its life, its injuries and what it leaves behind (nothing)."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jetspark.errors import InvalidArgument
from jetspark.server import (
    Server,
    ServerNotFound,
    ServerProcessError,
    ServerReloadError,
    ServerStartError,
    find_server,
)
from support.helpers import LIMIT, eventually_sync, gone, unique

if TYPE_CHECKING:
    from conftest import StartServer


class Wire:
    """The least of a client: enough to see that a server is the one we think it is."""

    def __init__(self, port: int, **connect: Any) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        self._file = self._socket.makefile("rb")
        self.info = json.loads(self._file.readline().removeprefix(b"INFO "))
        options = json.dumps({"verbose": False, "headers": True, "no_responders": True, **connect})
        self._socket.sendall(b"CONNECT %s\r\nPING\r\n" % options.encode())
        self.greeting = self.line()

    def line(self) -> bytes:
        """The next one that is no PING: the server sends one when a client is two seconds old."""
        return next(line.strip() for line in self._file if line != b"PING\r\n")

    def receive(self) -> bytes:
        """The same without waiting for longer than the socket's time-out."""
        while (received := self._socket.recv(6)) == b"PING\r\n":
            pass
        return received

    def ask(self, subject: str, body: Any = None) -> Any:
        payload = b"" if body is None else json.dumps(body).encode()
        self._socket.sendall(b"SUB answer 1\r\nPUB %s answer %d\r\n" % (subject.encode(), len(payload)))
        self._socket.sendall(payload + b"\r\n")
        header = next(line for line in self._file if line.startswith(b"MSG "))  # a PING may come first
        size = int(header.split()[-1])
        answer = json.loads(self._file.read(size + 2))
        self._socket.sendall(b"UNSUB 1\r\n")
        return answer

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT).close()
    except ConnectionRefusedError:
        return False
    return True


def test_starts_answers_and_leaves_nothing() -> None:
    with Server(name="hello", domain="here") as server:
        pid, port, folder = server.pid, server.port, server.config_path.parent
        assert server.running
        assert server.url == f"nats://127.0.0.1:{port}"
        assert repr(server) == f"<Server 'hello' nats://127.0.0.1:{port} pid={pid}>"
        with Wire(port) as client:
            assert client.info["server_name"] == "hello"
            assert client.info["domain"] == "here"
            assert client.greeting == b"PONG"
            assert client.ask("$JS.API.INFO")["streams"] == 0
        with urllib.request.urlopen(f"{server.http_url}/varz", timeout=LIMIT) as answer:
            assert json.load(answer)["server_id"] == client.info["server_id"]
        assert "Server is ready" in server.log()
    assert not server.running
    assert gone(pid)
    assert not folder.exists()
    assert not accepts(port)
    assert "Server Exiting" in server.log()


def test_starts_again_after_a_stop(start_server: StartServer) -> None:
    server = start_server()
    server.stop()
    server.stop()
    assert server.start().running
    assert server.start().running
    assert accepts(server.port)


def test_without_jetstream(start_server: StartServer) -> None:
    with Wire(start_server(jetstream=False).port) as client:
        assert "jetstream" not in client.info


def test_restart_keeps_ports_and_data(own_server: Server) -> None:
    before = (own_server.url, own_server.http_url, own_server.pid)
    name = unique("S")
    with Wire(own_server.port) as client:
        created = client.ask(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [name]})
        assert created["config"]["name"] == name
        assert client.ask(name, "x")["seq"] == 1
    own_server.restart()
    assert (own_server.url, own_server.http_url) == before[:2]
    assert own_server.pid != before[2]
    with Wire(own_server.port) as client:
        assert client.ask(f"$JS.API.STREAM.INFO.{name}")["state"]["messages"] == 1


def test_kill_then_restart(own_server: Server) -> None:
    port, pid = own_server.port, own_server.pid
    own_server.kill()
    assert not own_server.running
    assert not accepts(port)
    with pytest.raises(ServerProcessError, match="does not run"):
        own_server.suspend()
    own_server.restart()
    assert own_server.port == port
    assert own_server.pid != pid
    assert accepts(port)


def test_a_death_from_outside_is_seen(own_server: Server) -> None:
    os.kill(own_server.pid, signal.SIGKILL)
    assert eventually_sync(lambda: not own_server.running)
    own_server.restart()
    assert own_server.running


def test_the_port_stays_ours_while_the_server_is_down(own_server: Server) -> None:
    own_server.kill()
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(("127.0.0.1", own_server.port))


def test_suspend_and_resume(own_server: Server) -> None:
    with Wire(own_server.port) as client:
        own_server.suspend()
        own_server.suspend()
        assert own_server.running
        client._socket.settimeout(0.2)
        client._socket.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            client.receive()
        own_server.resume()
        client._socket.settimeout(LIMIT)
        assert client.receive() == b"PONG\r\n"


def test_a_suspended_server_can_be_stopped(own_server: Server) -> None:
    own_server.suspend()
    pid = own_server.pid
    own_server.stop()
    assert gone(pid)


def test_lame_duck_tells_clients(own_server: Server) -> None:
    with Wire(own_server.port, protocol=1) as client:  # 1: wants INFO at any time
        own_server.signal_lame_duck()
        infos = (json.loads(line.removeprefix(b"INFO ")) for line in client._file if line.startswith(b"INFO"))
        assert any(info.get("ldm") for info in infos)
    pid = own_server.pid
    own_server.stop()
    assert gone(pid)


def test_reload_applies_the_new_configuration(start_server: StartServer) -> None:
    server = start_server(config="max_payload: 1MB")
    server.reload("max_payload: 2MB")
    with Wire(server.port) as client:
        assert client.info["max_payload"] == 2 * 1024 * 1024
    server.reload()
    with pytest.raises(ServerReloadError, match="refused") as caught:
        server.reload("no_such_option: 1")
    assert "no_such_option" in caught.value.log
    assert server.running


def test_credentials(start_server: StartServer) -> None:
    by_user = start_server(user="ann", password='p"w\\d')
    with Wire(by_user.port, user="ann", **{"pass": 'p"w\\d'}) as client:
        assert client.greeting == b"PONG"
    with Wire(by_user.port) as client:
        assert client.greeting == b"-ERR 'Authorization Violation'"
    assert 'p"w' not in repr(by_user) + by_user.url
    by_token = start_server(token="t0ken")
    with Wire(by_token.port, auth_token="t0ken") as client:
        assert client.greeting == b"PONG"


def test_websocket(start_server: StartServer) -> None:
    server = start_server(websocket=True)
    port = int(server.ws_url.removeprefix("ws://127.0.0.1:"))
    assert port != server.port
    assert accepts(port)
    plain = start_server()
    with pytest.raises(ServerProcessError, match="websocket=True"):
        _ = plain.ws_url


def test_a_store_of_ones_own_is_kept(tmp_path: Path) -> None:
    store = tmp_path / "data"
    name = unique("S")
    with Server(store_dir=store) as first, Wire(first.port) as client:
        client.ask(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [name]})
    with Server(store_dir=store) as second, Wire(second.port) as client:
        assert client.ask(f"$JS.API.STREAM.INFO.{name}")["config"]["name"] == name
    assert store.is_dir()


def test_a_port_of_ones_own(start_server: StartServer) -> None:
    port = start_server().port
    with pytest.raises(ServerStartError, match="in use") as caught:
        start_server(port=port)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_configuration_file(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "mine.conf"
    file.write_text('server_name: "from-file"\nport: 4222\nmax_payload: 3MB\n')
    server = start_server(config_file=file)
    with Wire(server.port) as client:
        assert client.info["server_name"] == "from-file"
        assert client.info["max_payload"] == 3 * 1024 * 1024
        assert client.ask("$JS.API.INFO")["streams"] == 0
    file.write_text('server_name: "from-file"\nport: 4222\nmax_payload: 4MB\n')
    server.reload()
    with Wire(server.port) as client:
        assert client.info["max_payload"] == 4 * 1024 * 1024
    server.stop()
    assert file.exists()


def test_a_bad_configuration_shows_the_log() -> None:
    server = Server(config="no_such_option: 1")
    with pytest.raises(ServerStartError, match="exit code 1") as caught:
        server.start()
    assert "no_such_option" in caught.value.log
    assert "no_such_option" in str(caught.value)
    assert "no_such_option" in server.log()
    assert not server.running
    assert not server._ports
    assert server._folder is None
    assert server._watchdog is None
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.reason, copy.log) == (caught.value.reason, caught.value.log)


@pytest.mark.parametrize(
    "options",
    [
        {"user": "a"},
        {"password": "a"},
        {"user": "a", "password": "b", "token": "c"},
        {"domain": "d", "jetstream": False},
        {"config_file": "x.conf", "config": "y: 1"},
        {"config_file": "x.conf", "name": "n"},
    ],
)
def test_options_that_contradict(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Server(**options)


def test_before_start_there_is_nothing_to_ask() -> None:
    server = Server()
    assert not server.running
    assert server.log() == ""
    assert repr(server) == "<Server 'jetspark' not running>"
    for attribute in ("url", "pid", "http_url", "config_path"):
        with pytest.raises(ServerProcessError, match="start"):
            getattr(server, attribute)


# -- which binary -----------------------------------------------------------------------------------------


def script(folder: Path) -> Path:
    folder.mkdir()
    file = folder / "nats-server"
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_the_order_of_looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, on_path = script(tmp_path / "named"), script(tmp_path / "path")
    explicit = script(tmp_path / "explicit")
    monkeypatch.setenv("NATS_SERVER", str(named))
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_server(explicit) == explicit
    assert find_server() == named
    monkeypatch.delenv("NATS_SERVER")
    assert find_server() == on_path
    monkeypatch.setenv("PATH", str(tmp_path))
    from_wheel = find_server()
    assert from_wheel.name == "nats-server"
    version = subprocess.run([from_wheel, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("nats-server: v")


def test_a_named_binary_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServerNotFound, match="not an executable"):
        find_server(tmp_path / "missing")
    monkeypatch.setenv("NATS_SERVER", str(tmp_path))
    with pytest.raises(ServerNotFound, match=r"NATS_SERVER .*jetspark\[server\]"):
        find_server()
    with pytest.raises(ServerNotFound):
        Server().start()


def test_without_any_binary_the_remedy_is_named(tmp_path: Path) -> None:
    # A bare interpreter without site-packages stands for an environment without the wheel.
    code = f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parents[2] / "src")!r})
        import types; sys.modules["jetspark"] = package = types.ModuleType("jetspark")
        package.__path__ = [sys.path[0] + "/jetspark"]
        from jetspark.server import find_server, ServerNotFound
        try:
            find_server()
        except ServerNotFound as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'pip install "jetspark[server]"' in done.stdout
