"""Bad options of connect: refused by name and rule when connect() is called, before anything is opened."""

from __future__ import annotations

import inspect

import pytest

import jetspark
from jetspark.errors import InvalidArgument

SECONDS = [0, -1, "1", None, True, float("nan"), float("inf")]
FLAGS = ["no", "", 0, 1, None]
BAD: dict[str, list[object]] = {
    "servers": [
        5,
        b"nats://a",
        [],
        "",
        {},
        ["nats://a", 5],
        "http://a",
        "nats://a:99999",
        "nats://",
        "nats://a b",
    ],
    "name": [5, b"x"],
    "user": [5, "", b"x"],
    "password": [5, "without a user"],
    "token": [5, "", b"x"],
    "nkey": [5, ""],
    "jwt": [5, ""],
    "creds": [5, "", b"x"],
    "auth": [5, "x"],
    "context": [5, "", "a/b", ".."],
    "tls": [5, "yes"],
    "tls_ca": [5, "", b"x", True],
    "tls_cert": [5, "", b"x", True],
    "tls_key": [5, "", b"x", "without-a-certificate.pem"],
    "tls_hostname": [5, "", b"x"],
    "tls_verify": FLAGS,
    "tls_handshake_first": FLAGS,
    "inbox_prefix": ["", 5, None, "a b", "a\tb", "a\r\nb", "a\0b", "a.*", ">", "a.", ".a", "a..b"],
    "connect_timeout": SECONDS,
    "ping_interval": SECONDS,
    "reconnect": FLAGS,
    "max_reconnects": [-1, 1.5, "1", True],
    "reconnect_wait": SECONDS,
    "reconnect_wait_max": [*SECONDS, 0.01],
    "reconnect_jitter": [-0.1, 1.1, "x", True, None, float("nan")],
    "reconnect_buffer_size": [-1, 1.5, "1", True, None],
    "write_buffer_size": [0, -1, 1.5, "1", True, None],
    "randomize": FLAGS,
    "ignore_discovered": FLAGS,
    "echo": FLAGS,
    "drain_timeout": SECONDS,
    "request_timeout": SECONDS,
    "listener": [5, "x"],
    "ws_headers": [5, ["a"], "a", {"a": 5}, {"a": None}],
    "tracing": FLAGS,
    "metrics": [5, "x", True, object],
}
CASES = [(option, value) for option, values in BAD.items() for value in values]


@pytest.mark.parametrize(("option", "value"), CASES, ids=[f"{name}={value!r:.30}" for name, value in CASES])
def test_a_bad_option_is_refused_by_name_and_rule(option: str, value: object) -> None:
    # No event loop runs here: nothing can have been opened.
    with pytest.raises(InvalidArgument) as caught:
        jetspark.connect(**{option: value})  # type: ignore[arg-type]
    assert caught.value.field == option
    assert caught.value.rule
    assert str(caught.value).startswith(f"{option}=")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"servers": "tls://a", "tls": False}, "tls"),
        ({"servers": "wss://a", "tls": False}, "tls"),
        ({"tls": False, "tls_ca": "ca.pem"}, "tls"),
        ({"tls": False, "tls_handshake_first": True}, "tls"),
        ({"tls": False, "tls_hostname": "a"}, "tls"),
        ({"servers": "ws://a", "tls": True}, "servers"),
        ({"servers": "ws://a,nats://b"}, "servers"),
        ({"servers": "ws://a", "ws_headers": {"a b": "c"}}, "ws_headers"),
        ({"servers": "ws://a", "ws_headers": {"Host": "c"}}, "ws_headers"),
        ({"servers": "ws://a", "ws_headers": {"a": "b\r\nc: d"}}, "ws_headers"),
        ({"reconnect_wait": 3.0}, "reconnect_wait_max"),
        ({"user": "u", "token": "t"}, "token"),
        ({"token": "t", "nkey": "SU"}, "token"),
        ({"creds": "a.creds", "jwt": "j"}, "creds"),
        ({"auth": lambda nonce: {}, "user": "u"}, "auth"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        jetspark.connect(**options)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_every_option_is_in_the_table() -> None:
    assert set(inspect.signature(jetspark.connect).parameters) == set(BAD)


def test_the_defaults_are_valid_without_an_event_loop() -> None:
    assert inspect.isawaitable(jetspark.connect())


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("max_messages", [-1, 1.5, "1", True, None]),
        ("pending_messages_limit", [-1, 1.5, "1", True, None]),
        ("pending_bytes_limit", [-1, 1.5, "1", True, None]),
        ("callback", [5, "x"]),
        ("queue", ["a b", "a\r\nb", "a\0", 5]),
    ],
)
async def test_bad_arguments_of_subscribe(server, argument: str, values: list[object]) -> None:
    async with jetspark.connect(server.url) as nc:
        for value in values:
            with pytest.raises(InvalidArgument) as caught:
                await nc.subscribe("a", **{argument: value})  # type: ignore[arg-type]
            assert caught.value.field == argument
        assert nc.stats.out_msgs == 0


@pytest.mark.parametrize(
    "subject", ["", "a b", "a\tb", "a\r\nPUB x 0\r\n", "a\0", ".a", "a.", "a..b", 5, None, b"a"]
)
async def test_bad_subjects_are_refused_everywhere(server, subject: object) -> None:
    async with jetspark.connect(server.url) as nc:
        calls = [
            lambda: nc.publish(subject),
            lambda: nc.subscribe(subject),
            lambda: nc.request(subject),
            lambda: anext(nc.request_many(subject)),
        ]
        for call in calls:
            with pytest.raises(InvalidArgument) as caught:
                await call()
            assert caught.value.field == "subject"
        if subject not in ("", None):  # both mean: no reply
            with pytest.raises(InvalidArgument) as caught:
                await nc.publish("a", reply=subject)
            assert caught.value.field == "reply"
        await nc.flush()
        assert nc.stats.out_msgs == 0


@pytest.mark.parametrize("subject", ["*", ">", "a.*", "a.>", "*.a"])
async def test_wildcards_are_for_subscribing_only(server, subject: str) -> None:
    async with jetspark.connect(server.url) as nc:
        with pytest.raises(InvalidArgument, match="wildcard"):
            await nc.publish(subject)
        with pytest.raises(InvalidArgument, match="wildcard"):
            await nc.request(subject)
        with pytest.raises(InvalidArgument, match="wildcard"):
            await nc.publish("a", reply=subject)
        assert (await nc.subscribe(subject)).subject == subject
