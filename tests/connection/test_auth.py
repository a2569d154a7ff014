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
from jetspark import Secret
from jetspark.connection import events as ev
from jetspark.connection import pool
from jetspark.errors import AuthorizationError, ConnectionClosed, InvalidArgument, NoServersAvailable
from jetspark.server import Server
from support.jwt_mint import Account, Key, Operator, User
from support.recorder import Recorder

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


@pytest.mark.slow
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


@pytest.fixture
def short_window(monkeypatch: pytest.MonkeyPatch) -> float:
    """Refused credentials are tried again for this long, instead of two minutes (tests/unit/test_pool.py)."""
    monkeypatch.setattr(pool, "REFUSAL_WINDOW", 0.5)
    return 0.5


def check_refusals(recorder: Recorder, window: float) -> None:
    """At least two, over at least the window, each by a server."""
    refusals = recorder.of(ev.ReconnectFailed)
    assert len(refusals) >= 2
    assert all("refused the credentials" in str(event.error) for event in refusals)
    assert recorder.time_of(ev.Closed) - recorder.time_of(ev.ReconnectFailed) >= window


@pytest.mark.slow
async def test_an_expired_jwt_that_is_not_renewed_ends_the_connection(
    world: World, short_window: float
) -> None:
    path = world.file("dying.creds", world.account.user("short", expires_in=4).creds())
    recorder = Recorder()
    nc = await jetspark.connect(world.jwt.url, creds=path, listener=recorder, max_reconnects=None)
    sub = await nc.subscribe("x")
    closed = await recorder.wait(ev.Closed)
    assert isinstance(closed.error, AuthorizationError)
    assert "the user JWT expired at 20" in str(closed.error)
    names = recorder.names("ReconnectFailed")
    assert (names[:3], names[-1]) == (["Connected", "AuthExpired", "Disconnected"], "Closed")
    # In the second of its end the server still lets it in, and out again at once.
    assert set(names[3:-1]) <= {"AuthExpired", "Disconnected", "Reconnected"}
    check_refusals(recorder, short_window)
    with pytest.raises(AuthorizationError):
        await anext(sub)
    with pytest.raises(ConnectionClosed):
        await nc.publish("x")
    await nc.close()


async def test_a_jwt_renewed_after_many_refusals_is_taken_up(world: World) -> None:
    path = world.file("late.creds", world.account.user("short", expires_in=4).creds())
    recorder = Recorder()
    options: Options = {"creds": path, "listener": recorder, "reconnect_wait_max": 0.2}
    async with jetspark.connect(world.jwt.url, **options) as nc:
        sub = await nc.subscribe("after")
        await recorder.wait(ev.ReconnectFailed, 4)
        # Half of a file, as somebody may be writing it: not a refusal, and not the end.
        world.file("late.creds", world.user.creds()[:100])
        halves = len(recorder.of(ev.ReconnectFailed)) + 2
        await recorder.wait(ev.ReconnectFailed, halves)
        (world.directory / "late.creds").unlink()
        await recorder.wait(ev.ReconnectFailed, halves + 2)
        world.file("late.creds", world.user.creds())
        await recorder.wait(ev.Reconnected)
        await nc.publish("after", b"x")
        assert (await sub.next()).data == b"x"


async def test_what_our_own_side_can_not_read_is_tried_without_end(world: World, short_window: float) -> None:
    path = world.file("gone.creds", world.user.creds())
    recorder = Recorder()
    async with jetspark.connect(world.jwt.url, creds=path, listener=recorder, reconnect_wait_max=0.1) as nc:
        (world.directory / "gone.creds").unlink()
        reconnecting = asyncio.create_task(nc.force_reconnect())
        await recorder.wait(ev.ReconnectFailed, 20)
        assert not nc.is_closed
        world.file("gone.creds", world.user.creds())
        await recorder.wait(ev.Reconnected)
        await asyncio.wait([reconnecting])


async def test_the_clients_own_clock_ends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world.file("hour.creds", world.account.user("hour", expires_in=3600).creds())
    recorder = Recorder()
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 7200)
    async with jetspark.connect(world.jwt.url, creds=path, listener=recorder) as nc:
        await nc.force_reconnect()
        await nc.flush()
    assert recorder.names() == ["Connected", "Disconnected", "Reconnected", "Closed"]


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


async def test_revoked_for_good_is_tried_for_a_while_and_then_final(short_window: float) -> None:
    recorder = Recorder()
    with Server(jetstream=False, config=one_user("one")) as server:
        nc = await jetspark.connect(server.url, user="u", password="one", listener=recorder)
        await asyncio.to_thread(server.reload, one_user("two"))
        closed = await recorder.wait(ev.Closed)
        assert isinstance(closed.error, AuthorizationError)
        check_refusals(recorder, short_window)
        assert nc.is_closed
        assert nc.last_error is closed.error


async def test_other_credentials_have_a_while_of_their_own(short_window: float) -> None:
    recorder = Recorder()
    asked = 0

    def password() -> str:
        nonlocal asked
        asked += 1
        return "one" if asked == 1 else f"wrong {asked}"

    with Server(jetstream=False, config=one_user("one")) as server:
        options: Options = {"user": "u", "password": password, "reconnect_wait_max": 0.1}
        async with jetspark.connect(server.url, **options, listener=recorder) as nc:
            reconnecting = asyncio.create_task(nc.force_reconnect())
            # Many refusals over more than the window, and no two of the same credentials.
            await recorder.wait(ev.ReconnectFailed, 20)
            assert not nc.is_closed
            asked = 0
            await recorder.wait(ev.Reconnected)
            await asyncio.wait([reconnecting])
