"""Credentials files in the command line: a server in operator mode, and files right, wrong and hurt."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import nkeys
import pytest

from jetspark.server import Server
from support.cli_runner import Ran, environment, inside
from support.helpers import unique
from support.jwt_mint import Key, Operator, User

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class World:
    """A server that trusts one operator with two accounts, and an account of another."""

    def __init__(self) -> None:
        operator = Operator()
        self.ours, self.others = operator.account("OURS"), operator.account("OTHERS")
        self.foreign = Operator("ELSEWHERE").account("OURS")
        self.server = Server(config=operator.resolver_config())


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    with made.server:
        yield made


@pytest.fixture
def env(tmp_path: Path, world: World) -> dict[str, str]:
    return environment(tmp_path, NATS_URL=world.server.url)


def write(folder: Path, user: User, name: str = "user.creds") -> str:
    path = folder / name
    path.write_text(user.creds())
    return str(path)


def refused(ran: Ran, *says: str) -> None:
    """Exit code 1, one or two lines that name the file and the remedy, and no secret."""
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) <= 2
    assert "Traceback" not in ran.err
    for text in says:
        assert text in ran.err
    unseen(ran)


def unseen(ran: Ran) -> None:
    # What a token and a seed begin with.
    assert re.search(r"eyJ[\w-]{8}|\bSU[A-Z2-7]{8}", ran.out + ran.err) is None


def test_good_ones_by_flag_and_by_variable(env: dict[str, str], tmp_path: Path, world: World) -> None:
    path = write(tmp_path, world.ours.user("joe"))
    refused(inside(env, "rtt", "1"), "give --user and --password, --token, --creds")
    for ran in (
        inside(env, "stream", "ls", "--json", "--creds", path),
        inside(env, "--creds", path, "stream", "ls", "--json"),
        inside({**env, "NATS_CREDS": path}, "stream", "ls", "--json"),
    ):
        assert (ran.code, ran.json, ran.err) == (0, [], "")
    # A flag goes before the variable.
    wrong = {**env, "NATS_CREDS": str(tmp_path / "nothing.creds")}
    assert inside(wrong, "rtt", "1", "--creds", path).code == 0
    refused(inside(wrong, "rtt", "1"), "nothing.creds")


def test_the_account_is_the_one_of_the_file(env: dict[str, str], tmp_path: Path, world: World) -> None:
    ours = write(tmp_path, world.ours.user("joe"), "ours.creds")
    others = write(tmp_path, world.others.user("ann"), "others.creds")
    name = unique("ACC")
    made = inside(env, "stream", "add", name, "--subjects", name, "--storage", "memory", "--creds", ours)
    assert made.code == 0, made.err
    assert name in [
        one["config"]["name"] for one in inside(env, "stream", "ls", "--json", "--creds", ours).json
    ]
    # The wrong account's are as good to the server, and see nothing of it.
    assert inside(env, "stream", "ls", "--json", "--creds", others).json == []
    refused(inside(env, "stream", "info", name, "--creds", others), f"no stream {name!r} here", "stream ls")
    assert inside(env, "stream", "rm", name, "--force", "--creds", ours).code == 0


def test_an_account_that_the_server_does_not_know(env: dict[str, str], tmp_path: Path, world: World) -> None:
    path = write(tmp_path, world.foreign.user("joe"))
    refused(inside(env, "rtt", "1", "--creds", path), "Authorization Violation", "--creds")


def test_ones_that_have_expired(env: dict[str, str], tmp_path: Path, world: World) -> None:
    path = write(tmp_path, world.ours.user("joe", expires_in=-60))
    refused(inside(env, "rtt", "1", "--creds", path), "--creds")


def test_the_seed_of_somebody_else(env: dict[str, str], tmp_path: Path, world: World) -> None:
    user = world.ours.user("joe")
    mixed = User("joe", Key(nkeys.PREFIX_BYTE_USER), user.jwt)
    refused(inside(env, "rtt", "1", "--creds", write(tmp_path, mixed)), "--creds")


def test_what_a_user_may_not_do_is_told(env: dict[str, str], tmp_path: Path, world: World) -> None:
    path = write(tmp_path, world.ours.user("joe", deny_publish=["secret.>"]))
    refused(inside(env, "pub", "secret.plan", "x", "--creds", path), "not permitted to publish 'secret.plan'")
    assert inside(env, "pub", "open.plan", "x", "--creds", path).code == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "just some text\n",
        lambda text: text.partition("-----BEGIN USER NKEY SEED")[0],
        lambda text: text.partition("\n\n")[2],
        lambda text: text.replace("BEGIN NATS USER JWT", "BEGIN SOMETHING"),
        lambda text: text.replace("\nSU", "\nSU1"),
        lambda text: text[: len(text) // 2],
    ],
    ids=["empty", "text", "no seed", "no token", "another title", "hurt seed", "cut in half"],
)
def test_a_file_that_is_none(
    env: dict[str, str], tmp_path: Path, world: World, change: Callable[[str], str]
) -> None:
    path = tmp_path / "user.creds"
    path.write_text(change(world.ours.user("joe").creds()))
    refused(inside(env, "rtt", "1", "--creds", str(path)), "user.creds")


def test_a_file_that_can_not_be_read(env: dict[str, str], tmp_path: Path) -> None:
    # For root every file may be read; a folder may be by nobody.
    refused(inside(env, "rtt", "1", "--creds", str(tmp_path)), str(tmp_path), "directory")
    refused(inside(env, "rtt", "1", "--creds", str(tmp_path / "none.creds")), "none.creds")
    (tmp_path / "loop.creds").symlink_to(tmp_path / "loop.creds")
    refused(inside(env, "rtt", "1", "--creds", str(tmp_path / "loop.creds")), "loop.creds")
    (tmp_path / "bytes.creds").write_bytes(b"\xff\xfe\x00" * 40)
    refused(inside(env, "rtt", "1", "--creds", str(tmp_path / "bytes.creds")), "bytes.creds")


def test_they_exclude_other_ways(env: dict[str, str], tmp_path: Path, world: World) -> None:
    user = world.ours.user("joe")
    seed = tmp_path / "user.nk"
    seed.write_text(user.seed)
    ran = inside(env, "rtt", "1", "--creds", write(tmp_path, user), "--nkey", str(seed))
    assert ran.code == 2
    assert "creds" in ran.err
    unseen(ran)


def test_contexts_that_name_them(tmp_path: Path, world: World) -> None:
    env = environment(tmp_path)
    folder = tmp_path / "config" / "nats" / "context"
    folder.mkdir(parents=True)
    good = write(tmp_path, world.ours.user("joe"))
    bad = write(tmp_path, world.foreign.user("joe"), "foreign.creds")
    for name, creds in {"good": good, "bad": bad, "gone": str(tmp_path / "gone.creds")}.items():
        (folder / f"{name}.json").write_text(json.dumps({"url": world.server.url, "creds": creds}))
    assert inside(env, "rtt", "1", "--context", "good").code == 0
    assert inside({**env, "NATS_CONTEXT": "good"}, "rtt", "1").code == 0
    refused(inside(env, "rtt", "1", "--context", "bad"), "Authorization Violation")
    refused(inside(env, "rtt", "1", "--context", "gone"), "gone.creds")
    # The flag goes before what the context says, in either direction.
    assert inside(env, "rtt", "1", "--context", "bad", "--creds", good).code == 0
    refused(inside(env, "rtt", "1", "--context", "good", "--creds", bad), "Authorization Violation")
    assert inside(env, "context", "select", "good").code == 0
    assert inside(env, "stream", "ls", "--json").json == []
    refused(inside(env, "rtt", "1", "--no-context", "-s", world.server.url), "--creds")
    shown = inside(env, "context", "show", "good", "--json")
    assert shown.json["creds"] == good
    unseen(shown)
