from __future__ import annotations

import copy
import dataclasses
import pickle
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetspark import Secret
from jetspark.connection.urls import (
    Servers,
    ServerURL,
    discovered_url,
    parse_server_url,
    parse_servers,
    redact_url,
)
from jetspark.errors import InvalidArgument

CANARY = "c4n4ry-S3cret"


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port", "shown"),
    [
        ("localhost", "nats", "localhost", 4222, "nats://localhost:4222"),
        ("localhost:4333", "nats", "localhost", 4333, "nats://localhost:4333"),
        ("  nats://Host.Example  ", "nats", "host.example", 4222, "nats://host.example:4222"),
        ("NATS://h:1", "nats", "h", 1, "nats://h:1"),
        ("tls://h", "tls", "h", 4222, "tls://h:4222"),
        ("nats://h/", "nats", "h", 4222, "nats://h:4222"),
        ("ws://h", "ws", "h", 80, "ws://h:80"),
        ("wss://h", "wss", "h", 443, "wss://h:443"),
        ("wss://h:8443/nats/ws", "wss", "h", 8443, "wss://h:8443/nats/ws"),
        ("[::1]", "nats", "::1", 4222, "nats://[::1]:4222"),
        ("[::1]:9", "nats", "::1", 9, "nats://[::1]:9"),
        ("tls://[2001:DB8::1]:65535", "tls", "2001:db8::1", 65535, "tls://[2001:db8::1]:65535"),
        ("nats://[fe80::1%25eth0]:4222", "nats", "fe80::1%eth0", 4222, "nats://[fe80::1%eth0]:4222"),
        ("10.0.0.1:4222", "nats", "10.0.0.1", 4222, "nats://10.0.0.1:4222"),
        ("my_service.ns", "nats", "my_service.ns", 4222, "nats://my_service.ns:4222"),
        ("bücher.example", "nats", "bücher.example", 4222, "nats://bücher.example:4222"),
    ],
)
def test_address_forms(text: str, scheme: str, host: str, port: int, shown: str) -> None:
    url = parse_server_url(text)
    assert (url.scheme, url.host, url.port) == (scheme, host, port)
    assert str(url) == shown
    assert not url.has_credentials


def test_scheme_decides_tls_and_websocket() -> None:
    table = {"nats": (False, False), "tls": (True, False), "ws": (False, True), "wss": (True, True)}
    for scheme, expected in table.items():
        url = parse_server_url(f"{scheme}://h")
        assert (url.needs_tls, url.is_websocket) == expected


@pytest.mark.parametrize(
    ("text", "user", "password", "token"),
    [
        ("nats://bob:pw@h", "bob", "pw", None),
        ("bob:pw@h", "bob", "pw", None),
        ("nats://bob:@h", "bob", "", None),
        ("nats://t0ken@h", None, None, "t0ken"),
        ("nats://a%40b:p%2Fw%3A%25@h", "a@b", "p/w:%", None),
        ("nats://u:p:q@h", "u", "p:q", None),
        ("nats://u:p@q@h", "u", "p@q", None),
        ("nats://%C3%BC:%20@h", "ü", " ", None),
    ],
)
def test_userinfo(text: str, user: str | None, password: str | None, token: str | None) -> None:
    url = parse_server_url(text)
    assert url.host == "h"
    for found, expected in ((url.user, user), (url.password, password), (url.token, token)):
        assert found == (None if expected is None else Secret(expected))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "no host"),
        ("nats://", "no host"),
        ("nats://:4222", "no host"),
        ("http://h", "scheme must be one of"),
        ("nats://h:0", "1 to 65535"),
        ("nats://h:65536", "1 to 65535"),
        ("nats://h:", "1 to 65535"),
        ("nats://h:٣", "1 to 65535"),
        ("nats://h:+42", "1 to 65535"),
        ("::1", "brackets"),
        ("nats://[::1", "brackets must hold"),
        ("nats://[zz]", "brackets must hold"),
        ("nats://[::1]4222", "only :port"),
        ("nats://a b", "letters, digits"),
        ("nats://h\r\nPING", "letters, digits"),
        ("nats://h/path", "no path"),
        ("nats://h?x=1", "no path"),
        ("ws://h/#frag", "no fragment"),
        ("ws://h/a b", "percent-encoded"),
        ("ws://h/a\r\nX: y", "percent-encoded"),
        ("ws://h/%zz", "percent-encoded"),
        ("nats://@h", "no user and no token"),
        ("nats://:pw@h", "no user and no token"),
        ("nats://u:%zz@h", "%25"),
        ("nats://u:%ff@h", "UTF-8"),
    ],
)
def test_bad_urls_are_refused_with_the_rule(text: str, rule: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^servers=") as caught:
        parse_server_url(text)
    assert rule in str(caught.value)


def test_not_a_string() -> None:
    with pytest.raises(InvalidArgument, match="string"):
        parse_server_url(b"nats://h")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="string"):
        parse_servers([4222])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("a", ["nats://a:4222"]),
        ("a, tls://b:1 ,", ["nats://a:4222", "tls://b:1"]),
        (["a", "b,c"], ["nats://a:4222", "nats://b:4222", "nats://c:4222"]),
        (("b", "a", "nats://B:4222"), ["nats://b:4222", "nats://a:4222"]),
        (Secret("a,b"), ["nats://a:4222", "nats://b:4222"]),
        ([Secret("a"), parse_server_url("tls://b"), "c"], ["nats://a:4222", "tls://b:4222", "nats://c:4222"]),
        (parse_server_url("a:1"), ["nats://a:1"]),
    ],
)
def test_server_lists(servers: Servers, expected: list[str]) -> None:
    assert [str(url) for url in parse_servers(servers)] == expected


@pytest.mark.parametrize("servers", ["", " , ", [], [""]])
def test_empty_server_lists_are_refused(servers: str | list[str]) -> None:
    with pytest.raises(InvalidArgument, match="at least one"):
        parse_servers(servers)


def test_discovered_servers_inherit_scheme_path_and_credentials() -> None:
    like = parse_server_url("wss://u:p@first:1/ws")
    found = discovered_url("[::2]:4223", like)
    assert str(found) == "wss://[::2]:4223/ws"
    assert (found.user, found.password) == (Secret("u"), Secret("p"))


@pytest.mark.parametrize("entry", ["nats://h:1", "u:p@h:1", "h:1/x", "h:x", ""])
def test_discovered_servers_are_host_and_port_only(entry: str) -> None:
    with pytest.raises(InvalidArgument):
        discovered_url(entry, parse_server_url("tls://h"))


CARRIERS = [
    f"nats://user:{CANARY}@h",
    f"nats://{CANARY}@h",
    f"nats://{CANARY}:pw@h",
    f"wss://h/ws?access_token={CANARY}",
]


@pytest.mark.parametrize("text", CARRIERS)
def test_a_parsed_url_never_shows_its_secrets(text: str) -> None:
    url = parse_server_url(text)
    values = [str(url), repr(url), f"{url}", f"{url!r}", format(url), url.hostport, repr([url])]
    values += [repr(dataclasses.asdict(url)), repr(dataclasses.astuple(url)), repr(copy.deepcopy(url))]
    values += [repr(getattr(url, field.name)) for field in dataclasses.fields(url)]
    assert not [value for value in values if CANARY in value]
    assert not hasattr(url, "__dict__")
    assert pickle.loads(pickle.dumps(url)) == url


@pytest.mark.parametrize(
    "text",
    [
        f"nats://user:{CANARY}@h:bad",
        f"http://user:{CANARY}@h",
        f"nats://user:{CANARY}/x@h",
        f"nats://user:x/{CANARY}@h",
        f"nats://user:x#{CANARY}@h",
        f"nats://user:{CANARY}",
        f"user:{CANARY}",
        f"nats://user:{CANARY}%zz@h",
        f"nats://user:{CANARY}%ff@h",
        f"nats://:{CANARY}@h",
        f"ws://u:80/{CANARY}@h",
        f"ws://h/?t={CANARY}#x",
        f"nats://u:p,{CANARY}@h:x",
        f"nats://u:p://{CANARY}@h:x",
        f"{CANARY}://u:p@h",
        f"u:{CANARY}://x@h:y",
    ],
)
def test_a_refused_url_never_shows_its_secrets(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_servers(text)
    error: BaseException | None = caught.value
    while error is not None:
        assert CANARY not in f"{error} {error!r} {error.args} {vars(error)}"
        error = error.__cause__ or error.__context__


@given(st.text(), st.text(min_size=1))
def test_any_password_survives_percent_encoding(password: str, user: str) -> None:
    url = parse_server_url(f"nats://{quote(user, safe='')}:{quote(password, safe='')}@h:1")
    assert (url.user, url.password) == (Secret(user), Secret(password))


@given(st.text())
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        url: ServerURL | None = parse_server_url(text)
    except InvalidArgument:
        url = None
    if url is None:
        with pytest.raises(InvalidArgument) as caught:
            parse_server_url(text)
        assert caught.value.value == redact_url(text.strip())
    else:
        assert url.host
        assert 1 <= url.port <= 65535


@given(st.text(alphabet="ab/:@?#%[]., ", max_size=12), st.text(alphabet="/:@?#% ,", max_size=3))
def test_redaction_hides_everything_before_the_last_at(before: str, after: str) -> None:
    assert CANARY not in redact_url(f"nats://{before}{CANARY}{after}@host:1")
