from __future__ import annotations

import dataclasses
import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import Secret
from jetspark.connection.contexts import known_contexts, load_context, selected_context
from jetspark.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

CANARY = "c4n4ry-S3cret"

# Every field of the command line's files, all unset, as it writes them.
EMPTY = {
    "description": "",
    "url": "",
    "socks_proxy": "",
    "token": "",
    "user": "",
    "password": "",
    "creds": "",
    "nkey": "",
    "cert": "",
    "key": "",
    "ca": "",
    "nsc": "",
    "jetstream_domain": "",
    "jetstream_api_prefix": "",
    "jetstream_event_prefix": "",
    "inbox_prefix": "",
    "user_jwt": "",
    "user_seed": "",
    "color_scheme": "",
    "tls_first": False,
    "windows_cert_store": "",
    "windows_ca_certs_match": None,
}


class Home:
    """A configuration directory of its own."""

    def __init__(self, config: Path) -> None:
        self.nats = config / "nats"
        (self.nats / "context").mkdir(parents=True)

    def write(self, name: str, settings: Any) -> Path:
        path = self.nats / "context" / f"{name}.json"
        path.write_text(settings if isinstance(settings, str) else json.dumps(settings))
        return path

    def select(self, text: str) -> None:
        (self.nats / "context.txt").write_text(text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    return Home(tmp_path / "xdg")


def test_default_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in (None, ""):
        if value is None:
            monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        else:
            monkeypatch.setenv("XDG_CONFIG_HOME", value)
        assert known_contexts() == []
    Home(tmp_path / ".config").write("ngs", EMPTY)
    assert known_contexts() == ["ngs"]
    assert load_context("ngs").path == str(tmp_path / ".config/nats/context/ngs.json")


@pytest.mark.parametrize("settings", [{}, EMPTY, {"future_field": {"a": 1}}])
def test_unset_and_unknown_fields_leave_the_defaults(home: Home, settings: dict[str, Any]) -> None:
    home.write("x", settings)
    context = load_context("x")
    assert context.connect_options() == {"servers": Secret("nats://127.0.0.1:4222")}
    assert context.jetstream_options() == {}


def test_every_supported_field(home: Home) -> None:
    home.write(
        "full",
        {
            **EMPTY,
            "description": "all of it",
            "url": "tls://a:1,tls://b:2",
            "user": "u",
            "password": "p",
            "cert": "/c.pem",
            "key": "/k.pem",
            "ca": "/ca.pem",
            "tls_first": True,
            "inbox_prefix": "_me",
            "jetstream_domain": "hub",
            "jetstream_api_prefix": "JS.x.API",
        },
    )
    context = load_context("full")
    assert (context.name, context.description) == ("full", "all of it")
    assert context.connect_options() == {
        "servers": Secret("tls://a:1,tls://b:2"),
        "user": Secret("u"),
        "password": Secret("p"),
        "tls_cert": "/c.pem",
        "tls_key": "/k.pem",
        "tls_ca": "/ca.pem",
        "tls_handshake_first": True,
        "inbox_prefix": "_me",
    }
    assert context.jetstream_options() == {"domain": "hub", "api_prefix": "JS.x.API"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"token": "t"}, {"token": Secret("t")}),
        ({"user": "u"}, {"user": Secret("u")}),
        ({"creds": "/a.creds"}, {"creds": "/a.creds"}),
        ({"nkey": "/a.nk"}, {"nkey": "/a.nk"}),
        ({"user_jwt": "j"}, {"jwt": Secret("j")}),
        ({"user_jwt": "j", "user_seed": "s"}, {"jwt": Secret("j"), "nkey": Secret("s")}),
        ({"creds": "/a.creds", "token": "t"}, {"creds": "/a.creds", "token": Secret("t")}),
        ({"user": "u", "creds": "/a", "nkey": "/b", "user_jwt": "j", "token": "t"}, {"user": Secret("u")}),
        ({"creds": "/a", "nkey": "/b", "user_jwt": "j"}, {"creds": "/a"}),
        ({"nkey": "/b", "user_jwt": "j", "user_seed": "s"}, {"nkey": "/b"}),
    ],
)
def test_one_way_to_authenticate(home: Home, settings: dict[str, str], expected: dict[str, Any]) -> None:
    home.write("x", settings)
    options = load_context("x").connect_options()
    del options["servers"]
    assert options == expected


def test_home_and_variables_are_expanded_in_paths_only(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYS", "/run/keys")
    home.write(
        "x",
        {
            "creds": "~/a.creds",
            "ca": "$KEYS/ca.pem",
            "cert": "${KEYS}/c.pem",
            "token": "$KEYS",
            "key": "$NOPE/k",
        },
    )
    context = load_context("x")
    assert context.creds == str(tmp_path / "a.creds")
    assert (context.ca, context.cert, context.key) == ("/run/keys/ca.pem", "/run/keys/c.pem", "$NOPE/k")
    assert context.token == Secret("$KEYS")


def test_selected_context(home: Home) -> None:
    assert selected_context() is None
    home.write("ngs.js", {"url": "h"})
    with pytest.raises(InvalidArgument, match=r"no context is selected.*known: ngs\.js"):
        load_context(None)
    home.select("ngs.js\n")
    assert selected_context() == "ngs.js"
    assert load_context().name == "ngs.js"
    home.select("../../evil")
    with pytest.raises(InvalidArgument, match="file name"):
        load_context()
    home.select(" \n")
    assert selected_context() is None


def test_unknown_context_lists_the_known_ones(home: Home) -> None:
    with pytest.raises(InvalidArgument, match="no such context; there are none in"):
        load_context("a")
    home.write("b", {})
    home.write("a", {})
    (home.nats / "context" / "notes.txt").write_text("")
    with pytest.raises(InvalidArgument, match="context='c': no such context; known: a, b"):
        load_context("c")


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "a\\b", "/etc/passwd", "a\0b", "a\nb", 5])
def test_names_can_not_leave_the_directory(home: Home, name: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"file name|name of a context"):
        load_context(name)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (f'{{"password": "{CANARY}",}}', "not valid JSON at line 1, column"),
        (f'{{\n"password": "{CANARY}"', "not valid JSON at line 2, column"),
        ("", "not valid JSON"),
        (f'["{CANARY}"]', "must hold a JSON object"),
        ('{"url": 5}', "url in .* must be a string, not int"),
        (f'{{"password": ["{CANARY}"], "user": "u"}}', "password in .* must be a string, not list"),
        ('{"tls_first": "yes"}', "tls_first in .* must be true or false"),
        (f'{{"password": "{CANARY}"}}', "has a password but no user"),
        (f'{{"url": "nats://u:{CANARY}@h:x"}}', r"url in .*nats://\*\*\*@h"),
        (f'{{"socks_proxy": "socks5://u:{CANARY}@h"}}', "socks_proxy in .*SOCKS proxies are not supported"),
        ('{"windows_cert_store": "windowscurrentuser"}', "windows_cert_store in .*not supported"),
        ('{"nsc": "nsc://o/a/u"}', "nsc in .*set url and creds"),
        (f'{{"creds": "op://vault/{CANARY}"}}', "creds in .*op:// look-ups are not supported"),
        (f'{{"token": "env://{CANARY}"}}', "token in .*env:// look-ups are not supported"),
    ],
)
def test_bad_files_are_refused_without_their_content(home: Home, content: str, text: str) -> None:
    path = home.write("bad", content)
    with pytest.raises(InvalidArgument, match=text) as caught:
        load_context("bad")
    assert str(path) in str(caught.value)
    error: BaseException | None = caught.value
    while error is not None:
        assert CANARY not in f"{error} {error!r} {error.args} {vars(error)}"
        error = error.__cause__ or error.__context__


def test_file_that_is_no_text(home: Home) -> None:
    home.write("x", {}).write_bytes(b"\xff" + CANARY.encode())
    with pytest.raises(InvalidArgument, match="not UTF-8") as caught:
        load_context("x")
    assert caught.value.__context__ is None


def test_unreadable_file(home: Home) -> None:
    (home.nats / "context" / "dir.json").mkdir()
    with pytest.raises(InvalidArgument, match="can't be read: Is a directory"):
        load_context("dir")


def test_nsc_is_ignored_when_it_has_nothing_to_add(home: Home) -> None:
    home.write("x", {"nsc": "nsc://o", "url": "h", "creds": "/a.creds"})
    assert load_context("x").connect_options() == {"servers": Secret("h"), "creds": "/a.creds"}


def test_a_context_never_shows_its_secrets(home: Home) -> None:
    secrets = {name: CANARY for name in ("user", "password", "token", "user_jwt", "user_seed")}
    home.write("x", {**secrets, "url": f"nats://u:{CANARY}@h"})
    context = load_context("x")
    shown = [repr(context), str(context), f"{context}", repr(dataclasses.asdict(context))]
    shown.append(repr(context.connect_options()))
    assert [text for text in shown if CANARY in text] == []
    assert not hasattr(context, "__dict__")
    assert pickle.loads(pickle.dumps(context)) == context
