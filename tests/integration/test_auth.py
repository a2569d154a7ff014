"""Every way to say who we are, good and bad, and what happens when it stops being true."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import nkeys
import pytest

import jetspark
from jetspark._secret import Secret
from jetspark.connection import events as ev
from jetspark.errors import AuthorizationError, ConnectionClosed, InvalidArgument, NoServersAvailable
from jetspark.server import Server
from jwt_mint import Account, Key, Operator, User
from recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

USER, PASSWORD, TOKEN = "alice", "p@ss/wörd:1", "t0ken"


class World:
    """Servers of each kind of authentication, and the identities that they accept."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.key = Key(nkeys.PREFIX_BYTE_USER)
        self.stranger_key = Key(nkeys.PREFIX_BYTE_USER)
        self.operator = Operator()
        self.account: Account = self.operator.account("A", jetstream=False)
        self.user: User = self.account.user("u")
        self.bearer: User = self.account.user("b", bearer=True)
        self.expired: User = self.account.user("e", expires_in=-60)
        self.stranger: User = Operator("OTHER").account("A", jetstream=False).user("s")
        users = f"{{ user: {USER}, password: {json.dumps(PASSWORD, ensure_ascii=False)} }}"
        users += f", {{ nkey: {self.key.public} }}"
        self.users = Server(name="users", jetstream=False, config=f"authorization {{ users: [ {users} ] }}")
        self.token = Server(name="token", jetstream=False, token=TOKEN)
        self.jwt = Server(name="jwt", jetstream=False, config=self.operator.resolver_config())

    def file(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text)
        return str(path)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("auth"))
    with world.users, world.token, world.jwt:
        yield world


def total_connections(server: Server) -> int:
    with urllib.request.urlopen(f"{server.http_url}/varz", timeout=5) as answer:
        total: int = json.load(answer)["total_connections"]
        return total


class Signer:
    """An authenticator of the user's own."""

    def __init__(self, key: Key) -> None:
        self.key = key

    def connect_fields(self, nonce: str | None) -> dict[str, Any]:
        return sign(self.key, nonce)


def sign(key: Key, nonce: str | None) -> dict[str, Any]:
    import base64

    signature = base64.urlsafe_b64encode(key.sign((nonce or "").encode())).rstrip(b"=").decode()
    return {"nkey": key.public, "sig": signature}


Options = dict[str, Any]

GOOD: dict[str, Callable[[World], tuple[Server, Options]]] = {
    "user and password": lambda w: (w.users, {"user": USER, "password": PASSWORD}),
    "secrets": lambda w: (w.users, {"user": Secret(USER), "password": Secret(PASSWORD)}),
    "functions": lambda w: (w.users, {"user": lambda: USER, "password": lambda: Secret(PASSWORD)}),
    "userinfo in the url": lambda w: (
        w.users,
        {"servers": w.users.url.replace("://", "://alice:p%40ss%2Fw%C3%B6rd%3A1@")},
    ),
    "token": lambda w: (w.token, {"token": TOKEN}),
    "token function": lambda w: (w.token, {"token": lambda: TOKEN}),
    "token in the url": lambda w: (w.token, {"servers": w.token.url.replace("://", f"://{TOKEN}@")}),
    "nkey seed": lambda w: (w.users, {"nkey": w.key.seed}),
    "nkey file": lambda w: (w.users, {"nkey": w.file("user.nk", w.key.seed + "\n")}),
    "auth function": lambda w: (w.users, {"auth": lambda nonce: sign(w.key, nonce)}),
    "auth object": lambda w: (w.users, {"auth": Signer(w.key)}),
    "jwt and nkey": lambda w: (w.jwt, {"jwt": w.user.jwt, "nkey": w.user.seed}),
    "jwt function": lambda w: (w.jwt, {"jwt": lambda: w.user.jwt, "nkey": Secret(w.user.seed)}),
    "bearer jwt": lambda w: (w.jwt, {"jwt": w.bearer.jwt}),
    "creds file": lambda w: (w.jwt, {"creds": w.file("good.creds", w.user.creds())}),
    "creds text": lambda w: (w.jwt, {"creds": Secret(w.user.creds())}),
    "options win over the url": lambda w: (
        w.token,
        {"servers": w.token.url.replace("://", "://wrong@"), "token": TOKEN},
    ),
}

BAD: dict[str, Callable[[World], tuple[Server, Options]]] = {
    "nothing at all": lambda w: (w.users, {}),
    "wrong password": lambda w: (w.users, {"user": USER, "password": "wrong"}),
    "wrong function": lambda w: (w.users, {"user": USER, "password": lambda: "wrong"}),
    "wrong userinfo": lambda w: (w.users, {"servers": w.users.url.replace("://", "://alice:wrong@")}),
    "wrong token": lambda w: (w.token, {"token": "wrong"}),
    "unknown nkey": lambda w: (w.users, {"nkey": w.stranger_key.seed}),
    "nkey without a nonce": lambda w: (w.token, {"nkey": w.key.seed}),
    "wrong auth fields": lambda w: (w.users, {"auth": lambda nonce: {"user": USER, "pass": "wrong"}}),
    "bad signature": lambda w: (w.users, {"auth": lambda nonce: sign(w.key, "another nonce")}),
    "auth function that raises": lambda w: (w.users, {"auth": lambda nonce: 1 / 0}),
    "auth object that raises": lambda w: (w.users, {"auth": Signer(None)}),  # type: ignore[arg-type]
    "fields that are no JSON": lambda w: (w.users, {"auth": lambda nonce: {"user": object()}}),
    "jwt of a stranger": lambda w: (w.jwt, {"jwt": w.stranger.jwt, "nkey": w.stranger.seed}),
    "seed of another user": lambda w: (w.jwt, {"jwt": w.user.jwt, "nkey": w.stranger.seed}),
    "jwt without seed": lambda w: (w.jwt, {"jwt": w.user.jwt}),
    "expired jwt": lambda w: (w.jwt, {"jwt": w.expired.jwt, "nkey": w.expired.seed}),
    "creds of a stranger": lambda w: (w.jwt, {"creds": w.file("s.creds", w.stranger.creds())}),
    "creds file that is missing": lambda w: (w.jwt, {"creds": str(w.directory / "none.creds")}),
    "creds file that holds something else": lambda w: (w.jwt, {"creds": w.file("bad.creds", "hello")}),
}


@pytest.mark.parametrize("case", GOOD)
async def test_accepted(world: World, case: str) -> None:
    server, options = GOOD[case](world)
    async with jetspark.connect(**{"servers": server.url, **options}) as nc:
        sub = await nc.subscribe("hello")
        await nc.publish("hello", b"world")
        assert (await sub.next()).data == b"world"


@pytest.mark.parametrize("case", BAD)
async def test_refused_at_once_and_not_tried_again(world: World, case: str) -> None:
    server, options = BAD[case](world)
    recorder = Recorder()
    before, start = total_connections(server), time.monotonic()
    with pytest.raises(AuthorizationError):
        await jetspark.connect(
            **{"servers": server.url, "listener": recorder, "connect_timeout": 60, **options}
        )
    assert time.monotonic() - start < 20
    assert total_connections(server) - before == 1
    assert recorder.events == []


async def test_a_server_that_accepts_is_found_behind_one_that_refuses(world: World) -> None:
    servers = [world.users.url, world.token.url]
    async with jetspark.connect(servers, token=TOKEN, randomize=False) as nc:
        assert nc.connected_url == world.token.url


async def test_refused_credentials_are_named_even_if_other_servers_are_down(
    world: World, unused_tcp_port: int
) -> None:
    servers = [f"nats://127.0.0.1:{unused_tcp_port}", world.users.url]
    with pytest.raises(AuthorizationError, match="refused the credentials"):
        await jetspark.connect(servers, token="wrong", randomize=False)


async def test_no_server_at_all_is_no_matter_of_credentials(unused_tcp_port: int) -> None:
    with pytest.raises(NoServersAvailable, match=f"{unused_tcp_port}: connection refused"):
        await jetspark.connect(f"nats://127.0.0.1:{unused_tcp_port}", token="any")


def test_contradicting_options_are_refused_before_anything_is_opened() -> None:
    with pytest.raises(InvalidArgument, match="can't be combined with"):
        jetspark.connect("nats://127.0.0.1:1", token="a", user="b", password="c")


async def test_functions_are_asked_again_at_each_reconnect(world: World) -> None:
    asked = 0

    def token() -> str:
        nonlocal asked
        asked += 1
        return TOKEN

    async with jetspark.connect(world.token.url, token=token) as nc:
        await nc.force_reconnect()
        await nc.flush()
        assert asked == 2


async def test_an_expiring_jwt_is_renewed_from_disk(world: World) -> None:
    path = world.file("rotating.creds", world.account.user("short", expires_in=4).creds())
    recorder = Recorder()
    async with jetspark.connect(world.jwt.url, creds=path, listener=recorder) as nc:
        sub = await nc.subscribe("after")
        world.file("rotating.creds", world.user.creds())
        expired = await recorder.wait(ev.AuthExpired)
        assert "expired" in expired.message.lower()
        await recorder.wait(ev.Reconnected)
        await nc.publish("after", b"x")
        assert (await sub.next()).data == b"x"
    names = recorder.names("ReconnectFailed")
    assert names == ["Connected", "AuthExpired", "Disconnected", "Reconnected", "Closed"]


async def test_an_expired_jwt_that_is_not_renewed_ends_the_connection(world: World) -> None:
    path = world.file("dying.creds", world.account.user("short", expires_in=4).creds())
    recorder = Recorder()
    nc = await jetspark.connect(world.jwt.url, creds=path, listener=recorder, max_reconnects=None)
    sub = await nc.subscribe("x")
    closed = await recorder.wait(ev.Closed)
    assert isinstance(closed.error, AuthorizationError)
    assert "expired" in str(closed.error)
    expected = ["Connected", "AuthExpired", "Disconnected", "ReconnectFailed", "ReconnectFailed", "Closed"]
    assert recorder.names() == expected
    with pytest.raises(AuthorizationError):
        await anext(sub)
    with pytest.raises(ConnectionClosed):
        await nc.publish("x")
    await nc.close()


def one_user(password: str) -> str:
    return f"authorization {{ users: [ {{ user: u, password: {password} }} ] }}"


async def test_revoked_while_connected_and_back_with_the_new_password() -> None:
    password = "one"
    recorder = Recorder()
    with Server(jetstream=False, config=one_user("one")) as server:
        options: Options = {"user": "u", "password": lambda: password, "listener": recorder}
        async with jetspark.connect(server.url, **options) as nc:
            password = "two"
            await asyncio.to_thread(server.reload, one_user("two"))
            await recorder.wait(ev.Reconnected)
            await nc.flush()
    names = recorder.names("ReconnectFailed")
    assert names == ["Connected", "AuthExpired", "Disconnected", "Reconnected", "Closed"]


async def test_revoked_for_good_is_tried_once_more_and_then_final() -> None:
    recorder = Recorder()
    with Server(jetstream=False, config=one_user("one")) as server:
        nc = await jetspark.connect(server.url, user="u", password="one", listener=recorder)
        await asyncio.to_thread(server.reload, one_user("two"))
        closed = await recorder.wait(ev.Closed)
        assert isinstance(closed.error, AuthorizationError)
        assert [event.attempt for event in recorder.of(ev.ReconnectFailed)] == [1, 2]
        assert nc.is_closed
        assert nc.last_error is closed.error
