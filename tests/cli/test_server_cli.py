"""``jetspark server``: a real one, found by the other commands, ended by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from jetspark.cli import local
from support.cli_runner import SCRIPT, Terminal, environment, inside
from support.helpers import eventually_sync, gone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """No server is named here."""
    return environment(tmp_path)


class Running:
    """``jetspark server --json`` as a process."""

    def __init__(self, env: dict[str, str], *args: str) -> None:
        self.process = subprocess.Popen(
            [SCRIPT, "server", "--json", *args],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first, self.process.communicate(timeout=30)
        self.servers = json.loads(first)["servers"]

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str]:
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


@pytest.fixture
def start(home: dict[str, str]) -> Iterator[type[Running]]:
    started: list[Running] = []

    class Start(Running):
        def __init__(self, *args: str) -> None:
            started.append(self)
            super().__init__(home, *args)

    yield Start  # type: ignore[misc]
    for one in started:
        one.stop()


def test_it_is_found_by_the_others_and_forgotten_at_the_end(
    home: dict[str, str], start: type[Running], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    first = start("--port", "0", "--store", str(store), "--websocket")  # type: ignore[arg-type]
    (server,) = first.servers
    assert set(server) == {"name", "url", "monitoring", "websocket", "pid", "store"}
    assert server["websocket"].startswith("ws://")
    assert inside(home, "rtt", "--json").json["server"] == server["url"]
    assert inside(home, "stream", "add", "KEPT", "--subjects", "kept").code == 0
    assert first.stop() == (0, "")
    assert gone(server["pid"])
    assert inside(home, "rtt").code == 1
    # The data is where it was asked for, and a second server takes it up.
    second = start("--port", "0", "--store", str(store))  # type: ignore[arg-type]
    assert inside(home, "stream", "ls", "-n").out == "KEPT\n"
    assert second.stop(signal.SIGTERM) == (0, "")


def test_the_newest_of_several_is_taken(home: dict[str, str], start: type[Running]) -> None:
    start("--port", "0")  # type: ignore[arg-type]
    newer = start("--port", "0")  # type: ignore[arg-type]
    assert inside(home, "rtt", "--json").json["server"] == newer.servers[0]["url"]
    # Any place that names a server goes before it.
    named = inside({**home, "NATS_URL": "nats://127.0.0.1:1"}, "rtt")
    assert "127.0.0.1:1" in named.err


def test_a_note_of_a_killed_one_is_ignored_and_removed(
    home: dict[str, str], start: type[Running], tmp_path: Path
) -> None:
    killed = start("--port", "0")  # type: ignore[arg-type]
    killed.process.kill()
    killed.process.wait()
    notes = tmp_path / "state" / "jetspark" / "servers"
    assert len(list(notes.iterdir())) == 1
    ran = inside(home, "rtt")
    assert "no server given" in ran.err
    assert list(notes.iterdir()) == []
    (notes / "1.json").write_text("nonsense")
    assert "no server given" in inside(home, "rtt").err
    eventually_sync(lambda: gone(killed.servers[0]["pid"]))


def test_a_taken_port_is_told_with_the_remedy(start: type[Running], home: dict[str, str]) -> None:
    port = start("--port", "0").servers[0]["url"].rpartition(":")[2]  # type: ignore[arg-type]
    ran = inside(home, "server", "--port", port)
    assert ran.code == 1
    assert ran.err == f"error: port {port} is in use; leave out --port, or use --port 0 for a free one\n"


def test_a_configuration_the_server_refuses_is_told_in_its_own_words(
    home: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "more.conf"
    config.write_text("max_payload: oops")
    ran = inside(home, "server", "--port", "0", "--config", str(config))
    assert ran.code == 1
    assert "ended with exit code" in ran.err
    assert len(ran.err.splitlines()) <= 2


def test_in_a_terminal_with_its_log_until_ctrl_c(home: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "more.conf"
    config.write_text("max_payload: 2MB\n")
    with Terminal(home, "server", "--port", "0", "-v", "--config", str(config), columns=200) as shown:
        shown.expect("Ctrl-C ends it")
        shown.expect("Server is ready")
        assert "jetspark listens on nats://127.0.0.1:" in shown.text
        assert "data: temporary" in shown.text
        # max_payload of the file is in force.
        assert inside(home, "account", "info", "--json").json["connection"]["max_payload"] == 2_097_152
        shown.press("\x03")
        ran = shown.end()
    assert ran.code == 0
    assert ran.out.endswith("stopped\n")
    assert "Traceback" not in ran.out


def test_a_server_that_dies_ends_the_command(start: type[Running]) -> None:
    one = start("--port", "0")  # type: ignore[arg-type]
    os.kill(one.servers[0]["pid"], signal.SIGKILL)
    _, err = one.process.communicate(timeout=30)
    assert one.process.returncode == 1
    assert "server 'jetspark' ended unexpectedly" in err


def test_a_cluster_of_three(home: dict[str, str], start: type[Running], tmp_path: Path) -> None:
    three = start("--cluster", "3", "--store", str(tmp_path / "data"))  # type: ignore[arg-type]
    assert [server["name"] for server in three.servers] == ["n1", "n2", "n3"]
    made = inside(home, "stream", "add", "R3", "--subjects", "r3", "--replicas", "3", "--timeout", "20s")
    assert made.code == 0, made.err
    assert "Leader: n" in made.out
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["n1", "n2", "n3"]
    assert three.stop()[0] == 0
    assert all(gone(server["pid"]) for server in three.servers)


def test_notes_survive_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "none"))
    assert local.running() == []
    path = local.note(["nats://x:1"], ["http://x:2"], None)
    (found,) = local.running()
    assert (found.urls, found.pid, found.store) == (["nats://x:1"], os.getpid(), None)
    path.unlink()
    assert local.running() == []
