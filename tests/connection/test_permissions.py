"""Permission violations: named by subject and operation, told to whom they concern, connection stays up."""

from __future__ import annotations

import asyncio
import time

import pytest

import jetspark
import jetspark.blocking
from jetspark.connection.server_errors import parse_violation
from jetspark.errors import PermissionViolationError
from jetspark.events import PermissionViolation
from jetspark.server import Server
from support.helpers import FOREVER, PROMPT, eventually
from support.monitoring import subscriptions
from support.recorder import Recorder

CONFIG = """
authorization {
  users = [
    { user: limited, password: pw, permissions: {
        publish: { deny: ["no.>", "größe.>"] }
        subscribe: { allow: ["ok.>", "_INBOX.>", "shared workers"] } } }
    { user: boxless, password: pw, permissions: { subscribe: { deny: ["_INBOX.>"] } } }
    { user: free, password: pw }
  ]
}
"""


@pytest.fixture(scope="module")
def guarded():
    with Server(jetstream=False, name="guarded", config=CONFIG) as server:
        yield server


def connect(server, user: str = "limited", **options) -> jetspark.connecting.Connecting:
    return jetspark.connect(server.url, user=user, password="pw", **options)


async def still_works(nc: jetspark.Connection) -> bool:
    sub = await nc.subscribe("ok.still")
    await nc.publish("ok.still", b"works")
    return (await sub.next()).data == b"works" and nc.stats.reconnects == 0


async def test_a_refused_publish_is_an_event_and_last_error(guarded) -> None:
    events = Recorder()
    async with connect(guarded, listener=events) as nc:
        await nc.publish("no.way", b"x")
        event = await events.wait(PermissionViolation)
        assert (event.operation, event.subject) == ("publish", "no.way")
        assert "Permissions Violation" in event.message
        assert isinstance(nc.last_error, PermissionViolationError)
        assert (nc.last_error.operation, nc.last_error.subject) == ("publish", "no.way")
        assert "publish" in str(nc.last_error)
        assert "no.way" in str(nc.last_error)
        assert await still_works(nc)


async def test_the_iterator_of_a_refused_subscription_raises(guarded) -> None:
    events = Recorder()
    async with connect(guarded, listener=events) as nc:
        sub = await nc.subscribe("secret.*")
        with pytest.raises(PermissionViolationError) as caught:
            await sub.next(timeout=30)
        assert (caught.value.operation, caught.value.subject) == ("subscribe", "secret.*")
        with pytest.raises(PermissionViolationError):
            async for _ in sub:
                pass
        assert sub.closed
        assert events.of(PermissionViolation)[0].operation == "subscribe"
        assert await still_works(nc)


async def test_a_refused_callback_subscription_ends_with_an_event(guarded) -> None:
    events = Recorder()
    async with connect(guarded, listener=events) as nc:
        sub = await nc.subscribe("secret", callback=print)
        assert (await events.wait(PermissionViolation)).subject == "secret"
        await eventually(lambda: sub._sink._runner.done())
        assert sub.closed
        assert await still_works(nc)


async def test_of_two_subscriptions_only_the_refused_one_ends(guarded) -> None:
    async with connect(guarded) as nc, connect(guarded, "free") as other:
        member = await nc.subscribe("shared", queue="workers")
        plain = await nc.subscribe("shared")
        stranger = await nc.subscribe("shared", queue="strangers")
        for refused in (plain, stranger):
            with pytest.raises(PermissionViolationError):
                await refused.next(timeout=30)
        assert not member.closed
        await other.publish("shared", b"for the worker")
        assert (await member.next()).data == b"for the worker"


async def test_a_refused_request_fails_at_once(guarded) -> None:
    async with connect(guarded) as nc:
        begin = time.monotonic()
        with pytest.raises(PermissionViolationError) as caught:
            await nc.request("no.service", timeout=FOREVER)
        assert (caught.value.operation, caught.value.subject) == ("publish", "no.service")
        with pytest.raises(PermissionViolationError):
            await anext(nc.request_many("no.service", timeout=FOREVER))
        assert time.monotonic() - begin < PROMPT
        assert await still_works(nc)
        await nc.flush()
        assert all(
            not name.startswith("_INBOX") or name.endswith(".*") for name in await subscriptions(guarded, nc)
        )


def test_a_refused_blocking_request_fails_at_once(guarded) -> None:
    with jetspark.blocking.connect(guarded.url, user="limited", password="pw") as nc:
        begin = time.monotonic()
        with pytest.raises(PermissionViolationError):
            nc.request("no.service", timeout=FOREVER)
        with pytest.raises(PermissionViolationError):
            next(nc.request_many("no.service", timeout=FOREVER))
        assert time.monotonic() - begin < PROMPT


async def test_a_refused_request_does_not_hurt_others(guarded) -> None:
    async with connect(guarded) as nc, connect(guarded, "free") as service:
        sub = await service.subscribe("ask")
        await service.flush()
        good = asyncio.create_task(nc.request("ask", timeout=10))
        msg = await sub.next()
        with pytest.raises(PermissionViolationError):
            await nc.request("no.service", timeout=30)
        await msg.respond(b"fine")
        assert (await good).data == b"fine"


async def test_a_refused_inbox_fails_each_request_at_once(guarded) -> None:
    async with connect(guarded, "boxless") as nc, connect(guarded, "free") as service:
        await service.subscribe("ask", callback=lambda msg: msg.respond(b"fine"))
        await service.flush()
        begin = time.monotonic()
        for _ in range(2):  # the second one must not wait on the dead inbox of the first
            with pytest.raises(PermissionViolationError) as caught:
                await nc.request("ask", timeout=FOREVER)
            assert caught.value.operation == "subscribe"
            assert caught.value.subject.startswith("_INBOX.")
        with pytest.raises(PermissionViolationError):
            await anext(nc.request_many("ask", timeout=FOREVER))
        assert time.monotonic() - begin < PROMPT
    async with connect(guarded, "boxless", inbox_prefix="box") as nc, connect(guarded, "free") as service:
        await service.subscribe("ask", callback=lambda msg: msg.respond(b"fine"))
        await service.flush()
        assert (await nc.request("ask")).data == b"fine"


async def test_subjects_that_the_server_has_to_quote(guarded) -> None:
    async with connect(guarded) as nc:
        for subject in ('se"cret', "back\\slash", "größe.温度"):
            sub = await nc.subscribe(subject)
            with pytest.raises(PermissionViolationError) as caught:
                await sub.next(timeout=30)
            assert caught.value.subject == subject
        with pytest.raises(PermissionViolationError):
            await nc.request("größe.温度", timeout=30)


async def test_a_permission_taken_away_while_connected_ends_the_subscription(start_server) -> None:
    user = (
        "authorization {{ users = [ {{ user: limited, password: pw, "
        "permissions: {{ subscribe: {{ allow: [{}] }} }} }} ] }}"
    )
    server, events = start_server(jetstream=False, config=user.format('"ok.>", "later"')), Recorder()
    async with connect(server, listener=events) as nc:
        sub = await nc.subscribe("later")
        await nc.flush()
        server.reload(user.format('"ok.>"'))
        with pytest.raises(PermissionViolationError) as caught:
            await sub.next(timeout=10)
        assert caught.value.subject == "later"
        assert await still_works(nc)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Permissions Violation for Publish to "a.b"', ("publish", "a.b", "")),
        ('Permissions Violation for Subscription to "a" using queue "q"', ("subscribe", "a", "q")),
        ('Permissions Violation for Subscription to "a" (sid "1")', ("subscribe", "a", "")),
        ('Permissions Violation for Publish with Reply of "_R_.a"', ("publish", "_R_.a", "")),
        ("Unknown Protocol Operation", None),
    ],
)
def test_texts_of_violations(text: str, expected: tuple[str, str, str] | None) -> None:
    assert parse_violation(text) == expected
