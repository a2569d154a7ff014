"""Commands are exact bytes, and no argument can smuggle in a second command."""

from __future__ import annotations

import json
from enum import Enum
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetspark.errors import InvalidArgument
from jetspark.wire.commands import (
    MAX_CONTROL_LINE,
    MAX_TARGET,
    PING,
    PONG,
    encode_connect,
    encode_sub,
    encode_unsub,
    pub_prefix,
)
from jetspark.wire.headers import encode_headers
from jetspark.wire.subjects import validate_subject

SMUGGLED = {
    "CRLF and a command": "a\r\nPUB b 0\r\n\r\n",
    "CR": "a\rb",
    "LF": "a\nb",
    "CR at the end": "a\r",
    "LF at the end": "a\n",
    "LF at the start": "\na",
    "NUL": "a\x00b",
    "space": "a b",
    "space at the end": "a ",
    "tab": "a\tb",
    "only a space": " ",
    "lone surrogate": "a\udcff",
}
EMPTY_TOKENS = [".", "..", ".a", "a.", "a..b", "a.b."]

smuggled = pytest.mark.parametrize("text", SMUGGLED.values(), ids=SMUGGLED.keys())
empty_tokens = pytest.mark.parametrize("text", EMPTY_TOKENS)


def refused(field: str, value: object, call, *args) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        call(*args)
    error = caught.value
    assert (error.field, error.value) == (field, value)
    assert str(error).startswith(f"{field}={value!r}"[:200])
    assert str(error).endswith(f": {error.rule}")
    assert isinstance(error, ValueError)
    return error


class Names(str, Enum):  # noqa: UP042  # the way to write it that many programs have
    """An f-string writes its members as ``Names.ORDERS``."""

    ORDERS = "orders"
    WORKERS = "workers"


def test_a_member_of_an_enum_of_strings_is_its_value():
    assert pub_prefix(Names.ORDERS) == b"PUB orders "
    assert pub_prefix(Names.ORDERS, literal=False) == b"PUB orders "
    assert encode_sub(Names.ORDERS, "", "1") == b"SUB orders 1\r\n"
    assert encode_sub(Names.ORDERS, Names.WORKERS, "1") == b"SUB orders workers 1\r\n"
    assert encode_headers({Names.ORDERS: Names.WORKERS}) == b"NATS/1.0\r\norders: workers\r\n\r\n"


def test_ping_and_pong():
    assert (PING, PONG) == (b"PING\r\n", b"PONG\r\n")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (pub_prefix("a"), b"PUB a "),
        (pub_prefix("größe"), "PUB größe ".encode()),
        (pub_prefix("$JS.API.INFO"), b"PUB $JS.API.INFO "),
        # Wildcard characters inside a token are just characters.
        (pub_prefix("a*b.c>"), b"PUB a*b.c> "),
        (pub_prefix("a.*.>", literal=False), b"PUB a.*.> "),
        (encode_sub("a", "", "1"), b"SUB a 1\r\n"),
        (encode_sub("a.*.>", "", "12"), b"SUB a.*.> 12\r\n"),
        (encode_sub(">", "workers", "3"), b"SUB > workers 3\r\n"),
        (encode_sub("ü", "ö", "3"), "SUB ü ö 3\r\n".encode()),
        (encode_unsub("7"), b"UNSUB 7\r\n"),
        (encode_unsub("7", 0), b"UNSUB 7\r\n"),
        (encode_unsub("7", 10), b"UNSUB 7 10\r\n"),
    ],
)
def test_exact_bytes(made, expected):
    assert made == expected


def test_connect_is_one_line_whatever_the_values():
    options = {
        "verbose": False,
        "name": 'line\r\nbreak "quoted" \x00 ü',
        "user": "u",
        "pass": "p\r\nPUB a 0\r\n",
    }
    line = encode_connect(options)
    assert line.startswith(b"CONNECT {")
    assert line.endswith(b"}\r\n")
    assert line.count(b"\r") == line.count(b"\n") == 1
    assert json.loads(line[len(b"CONNECT ") :]) == options


@smuggled
@pytest.mark.parametrize("literal", [True, False])
def test_smuggling_in_a_publish(literal, text):
    refused("subject", text, partial(pub_prefix, literal=literal), text)


@smuggled
def test_smuggling_in_a_reply(text):
    refused("reply", text, partial(validate_subject, field="reply"), text)


@smuggled
def test_smuggling_in_a_subscribe(text):
    refused("subject", text, encode_sub, text, "", "1")
    refused("subject", text, encode_sub, text, "q", "1")
    refused("queue", text, encode_sub, "a", text, "1")


@empty_tokens
def test_empty_tokens(text):
    assert "empty tokens" in refused("subject", text, pub_prefix, text).rule
    assert "empty tokens" in refused("subject", text, partial(pub_prefix, literal=False), text).rule
    assert "empty tokens" in refused("subject", text, encode_sub, text, "", "1").rule


def test_an_empty_subject():
    assert "empty" in refused("subject", "", pub_prefix, "").rule
    assert "empty" in refused("subject", "", partial(pub_prefix, literal=False), "").rule
    assert "empty" in refused("subject", "", encode_sub, "", "", "1").rule


@pytest.mark.parametrize("text", ["*", ">", "a.*", "a.>", "*.a", "a.*.b"])
def test_publishing_to_wildcards(text):
    assert "wildcard" in refused("subject", text, pub_prefix, text).rule
    assert "wildcard" in refused("reply", text, partial(validate_subject, field="reply"), text).rule
    assert pub_prefix(text, literal=False) == f"PUB {text} ".encode()


@pytest.mark.parametrize("text", [">.a", "a.>.b", ">.>"])
def test_a_full_wildcard_that_is_not_last(text):
    assert "last token" in refused("subject", text, encode_sub, text, "", "1").rule
    assert "last token" in refused("subject", text, pub_prefix, text).rule
    assert "last token" in refused("subject", text, partial(pub_prefix, literal=False), text).rule


@pytest.mark.parametrize("value", [None, b"a", 5, ["a"]])
def test_arguments_that_are_no_text(value):
    assert "must be a str" in refused("subject", value, pub_prefix, value).rule
    assert "must be a str" in refused("subject", value, encode_sub, value, "", "1").rule


def test_the_longest_lines_fit_the_server_and_longer_ones_are_refused():
    longest = "s" * (MAX_TARGET - len("PUB  "))
    assert len(b"H" + pub_prefix(longest) + b"9999999999 9999999999\r\n") <= MAX_CONTROL_LINE
    assert "shorten it" in refused("subject", longest + "s", pub_prefix, longest + "s").rule
    # Bytes count, not characters.
    wide = "ü" * (len(longest) // 2 + 1)
    refused("subject", wide, pub_prefix, wide)

    longest = "s" * (MAX_CONTROL_LINE - len("SUB  1\r\n"))
    assert len(encode_sub(longest, "", "1")) == MAX_CONTROL_LINE
    assert str(MAX_CONTROL_LINE) in refused("subject", longest + "s", encode_sub, longest + "s", "", "1").rule
    refused("subject", longest, encode_sub, longest, "q", "1")


@given(st.text(), st.text())
def test_whatever_is_accepted_is_one_line_of_the_right_number_of_words(subject, queue):
    def words(call, *args):
        try:
            line = call(*args)
        except InvalidArgument:
            return None
        assert line.count(b"\n") == line.count(b"\r") == line.endswith(b"\r\n")
        assert b"\t" not in line
        assert b"\x00" not in line
        return line.decode().removesuffix("\r\n").split(" ")

    # A prefix ends with the blank in front of the size.
    assert words(pub_prefix, subject) in (None, ["PUB", subject, ""])
    assert words(partial(pub_prefix, literal=False), subject) in (None, ["PUB", subject, ""])
    assert words(encode_sub, subject, "", "1") in (None, ["SUB", subject, "1"])
    assert words(encode_sub, "s", queue, "1") in (None, ["SUB", "s", *([queue] if queue else []), "1"])
