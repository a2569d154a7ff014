"""Header blocks and status lines (ADR-4)."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetspark.errors import InvalidArgument, ProtocolError
from jetspark.wire import Headers, decode_headers, decode_status, encode_headers
from jetspark.wire.headers import MAX_HEADERS

TOKEN_CHARS = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def block(*lines: str) -> bytes:
    return "".join(line + "\r\n" for line in ("NATS/1.0", *lines, "")).encode()


# The mapping


def test_values_of_one_name_keep_their_order_and_names_their_case():
    headers = Headers([("Key", "1"), ("other", "x"), ("KEY", "2"), ("Key", "3")])
    assert headers["key"] == headers["KEY"] == "1"
    assert headers.get_all("kEY") == ["1", "2", "3"]
    assert headers.items() == [("Key", "1"), ("other", "x"), ("KEY", "2"), ("Key", "3")]
    assert list(headers) == headers.keys() == ["Key", "other"]
    assert headers.to_dict() == {"Key": ["1", "2", "3"], "other": ["x"]}
    assert len(headers) == 2


def test_look_up_without_regard_to_case():
    headers = Headers({"Nats-Msg-Id": "7"})
    assert "nats-msg-id" in headers
    assert "NATS-MSG-ID" in headers
    assert "nats" not in headers
    assert 5 not in headers
    assert headers.get("nats-MSG-id") == "7"
    assert headers.get("missing") is None
    assert headers.get("missing", "d") == "d"
    assert headers.get_all("missing") == []
    with pytest.raises(KeyError, match="missing"):
        headers["missing"]


def test_setting_replaces_every_value_in_any_case_and_takes_the_new_spelling():
    headers = Headers([("A", "1"), ("B", "2"), ("a", "3")])
    headers["a"] = "new"
    assert headers.items() == [("B", "2"), ("a", "new")]


def test_deleting_removes_every_value_in_any_case():
    headers = Headers([("A", "1"), ("B", "2"), ("a", "3")])
    del headers["a"]
    assert headers.items() == [("B", "2")]
    with pytest.raises(KeyError, match="a"):
        del headers["a"]


def test_adding_keeps_what_is_there():
    headers = Headers({"A": "1"})
    headers.add("a", "2")
    assert headers.items() == [("A", "1"), ("a", "2")]


@pytest.mark.parametrize(
    "initial",
    [
        {"A": ["1", "2"], "B": "3"},
        [("A", "1"), ("A", "2"), ("B", "3")],
        Headers([("A", "1"), ("A", "2"), ("B", "3")]),
        {"A": ("1", "2"), "B": ["3"]},
    ],
)
def test_ways_to_make_them(initial):
    headers = Headers(initial)
    assert headers.items() == [("A", "1"), ("A", "2"), ("B", "3")]
    assert encode_headers(initial) == encode_headers(headers)


def test_a_copy_is_independent():
    first = Headers({"A": "1"})
    for second in (Headers(first), copy.copy(first), copy.deepcopy(first)):
        second["B"] = "2"
        assert first.items() == [("A", "1")]


def test_empty_is_falsy_and_one_with_an_empty_value_is_not():
    assert not Headers()
    assert len(Headers()) == 0
    assert Headers({"A": ""})
    assert "A" in Headers({"A": ""})


def test_equality_and_no_hash():
    assert Headers({"A": "1"}) == Headers([("A", "1")])
    assert Headers({"A": "1"}) == {"A": "1"}
    assert Headers({"A": ["1", "2"]}) != Headers({"A": ["2", "1"]})
    assert Headers({"A": "1"}) != Headers({"A": "2"})
    assert Headers() != 5
    with pytest.raises(TypeError, match="unhashable"):
        hash(Headers())


def test_pickle_round_trip():
    headers = Headers([("A", "1"), ("a", "ü")])
    assert pickle.loads(pickle.dumps(headers)) == headers


def test_repr_shows_the_pairs():
    assert repr(Headers({"A": "1"})) == "Headers([('A', '1')])"


# What may not be sent

BAD_NAMES = [
    "",
    " ",
    "a b",
    "a:",
    ":",
    "a\r",
    "a\n",
    "a\r\nB",
    "a\x00",
    "a\t",
    " a",
    "a ",
    "ü",
    "a(b)",
    "a,b",
    "a/b",
]
BAD_NAMES += ["a=b", "a@b", "[a]", "{a}", 'a"', "a\\b", "a;b", "a<b", "a?b", "a\x7f", "a\u2028"]


def every_way_in(name, value):
    """All the ways a pair can get in; each has to refuse it."""
    return [
        lambda: Headers().add(name, value),
        lambda: Headers().__setitem__(name, value),
        lambda: Headers({name: value}),
        lambda: Headers({name: [value]}),
        lambda: Headers([(name, value)]),
        lambda: encode_headers({name: value}),
        lambda: encode_headers([(name, value)]),
    ]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_are_no_token(name):
    for way in every_way_in(name, "v"):
        with pytest.raises(InvalidArgument) as caught:
            way()
        assert (caught.value.field, caught.value.value) == ("header name", name)
        assert str(caught.value).startswith(f"header name={name!r}: must be a token")


@pytest.mark.parametrize("name", [None, 5, b"a"])
def test_names_that_are_no_text(name):
    with pytest.raises(InvalidArgument, match="header name"):
        Headers().add(name, "v")


def test_every_token_character_is_allowed_in_a_name():
    assert decode_headers(encode_headers({TOKEN_CHARS: "v"})).items() == [(TOKEN_CHARS, "v")]
    for char in map(chr, range(256)):
        if char in TOKEN_CHARS:
            assert Headers({char: "v"})[char] == "v"
        else:
            with pytest.raises(InvalidArgument):
                Headers({char: "v"})


@pytest.mark.parametrize("value", ["a\r\nB: c", "a\rb", "a\nb", "\r", "\n", "a\r", "a\n", "\r\n\r\nbody"])
def test_line_breaks_in_values(value):
    for way in every_way_in("Name", value):
        with pytest.raises(InvalidArgument) as caught:
            way()
        assert (caught.value.field, caught.value.value) == ("header value", value)
        assert "'Name' must not contain CR or LF" in str(caught.value)


@pytest.mark.parametrize("value", [5, None, b"bytes", 1.5, True])
def test_values_that_are_no_text(value):
    for put in (Headers().add, Headers().__setitem__):
        with pytest.raises(InvalidArgument, match=f"'A' must be a str, not {type(value).__name__}"):
            put("A", value)


def test_a_refused_pair_changes_nothing():
    headers = Headers({"A": "1"})
    for put in (headers.add, headers.__setitem__):
        with pytest.raises(InvalidArgument):
            put("A", "x\ny")
    assert headers.items() == [("A", "1")]


@pytest.mark.parametrize("raw", [b"A: x\nB: y", b"A: x\rB: y", b"A: x\n", b"A\nB: y"])
def test_received_headers_with_a_lone_line_break_are_not_passed_on(raw):
    # They can be read, but written again a more lenient reader would see a header that nobody added.
    headers = decode_headers(b"NATS/1.0\r\n" + raw + b"\r\n\r\n")
    with pytest.raises(InvalidArgument):
        encode_headers(headers)


def test_a_value_that_is_not_utf8_is_named_alone():
    with pytest.raises(InvalidArgument) as caught:
        encode_headers({"Authorization": "hidden", "Bad": "x\udcff", "Z": "also hidden"})
    assert str(caught.value) == r"header value='x\udcff': of 'Bad' must be encodable as UTF-8"


# Bytes


def test_exact_bytes():
    assert encode_headers({}) == b"NATS/1.0\r\n\r\n"
    assert encode_headers([("B", "2"), ("a", "1"), ("B", "")]) == b"NATS/1.0\r\nB: 2\r\na: 1\r\nB: \r\n\r\n"
    assert encode_headers({"A": "größe 日本"}) == "NATS/1.0\r\nA: größe 日本\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("lines", "pairs"),
    [
        ([], []),
        (["A: b"], [("A", "b")]),
        (["A:b"], [("A", "b")]),
        (["A:   b  "], [("A", "b")]),
        (["A:\t b \t"], [("A", "b")]),
        (["A:"], [("A", "")]),
        (["A:  "], [("A", "")]),
        (["A: b c"], [("A", "b c")]),
        (["A: b:c: d"], [("A", "b:c: d")]),
        (["A: 1", "a: 2", "A: 3"], [("A", "1"), ("a", "2"), ("A", "3")]),
        (["A: größe 日本"], [("A", "größe 日本")]),
        # Blanks of other kinds are part of the value.
        (["A: \u00a0b\u2003"], [("A", "\u00a0b\u2003")]),
    ],
)
def test_decoding(lines, pairs):
    assert decode_headers(block(*lines)).items() == pairs


def test_a_value_that_is_not_utf8_costs_neither_itself_nor_the_others():
    headers = decode_headers(b"NATS/1.0\r\nA: 1\r\nB: caf\xe9\r\nC: 3\r\n\r\n")
    assert headers.items() == [("A", "1"), ("B", "caf\udce9"), ("C", "3")]
    assert headers["B"].encode("utf-8", "surrogateescape") == b"caf\xe9"


def test_headers_of_a_status():
    raw = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 0\r\n\r\n"
    assert decode_status(raw) == (408, "Request Timeout")
    assert decode_headers(raw).items() == [("Nats-Pending-Messages", "3"), ("Nats-Pending-Bytes", "0")]


def test_blanks_around_a_value_are_not_part_of_it_on_either_side():
    headers = Headers({"A": " \tx y\t "})
    headers.add("B", " ")
    headers["C"] = " z"
    assert headers.items() == [("A", "x y"), ("B", ""), ("C", "z")]
    assert decode_headers(encode_headers(headers)) == headers


@given(
    st.lists(
        st.tuples(
            st.text(TOKEN_CHARS, min_size=1, max_size=8),
            st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20),
        ),
        max_size=8,
    )
)
def test_what_is_accepted_comes_back_as_it_was(pairs):
    headers = Headers(pairs)
    assert decode_headers(encode_headers(headers)) == headers
    assert headers.items() == [(name, value.strip(" \t")) for name, value in pairs]


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (b"", "not with NATS/1.0"),
        (b"HTTP/1.1\r\n\r\n", "not with NATS/1.0"),
        (b"\r\nNATS/1.0\r\n\r\n", "not with NATS/1.0"),
        (b"NATS/1.0\r\nno colon\r\n\r\n", "without a name and colon: 'no colon'"),
        (b"NATS/1.0\r\n: value\r\n\r\n", "without a name and colon: ': value'"),
        (b"NATS/1.0\r\nA: b\r\n folded\r\n\r\n", "without a name and colon: ' folded'"),
    ],
)
def test_malformed_blocks(raw, match):
    with pytest.raises(ProtocolError) as caught:
        decode_headers(raw)
    assert match in str(caught.value)


def test_a_malformed_line_is_shown_only_in_part():
    with pytest.raises(ProtocolError) as caught:
        decode_headers(b"NATS/1.0\r\n" + b"x" * 10_000 + b"\r\n\r\n")
    assert len(str(caught.value)) < 150


def test_the_number_of_headers_is_limited():
    headers = decode_headers(b"NATS/1.0\r\n" + b"a:b\r\n" * MAX_HEADERS + b"\r\n")
    assert len(headers.items()) == MAX_HEADERS
    for line in (b"a:b\r\n", b"\r\n"):
        with pytest.raises(ProtocolError, match=f"more than {MAX_HEADERS} headers"):
            decode_headers(b"NATS/1.0\r\n" + line * (MAX_HEADERS + 1) + b"\r\n")


@given(st.binary(max_size=60), st.booleans())
def test_garbage_in_a_block_is_read_or_refused(raw, status):
    raw = (b"NATS/1.0 " if status else b"NATS/1.0\r\n") + raw
    for decode in (decode_headers, decode_status):
        try:
            result = decode(raw)
        except ProtocolError:
            continue
        assert isinstance(result, Headers | tuple | None)


# Status lines


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("NATS/1.0", None),
        ("NATS/1.0 100 Idle Heartbeat", (100, "Idle Heartbeat")),
        ("NATS/1.0 100 FlowControl Request", (100, "FlowControl Request")),
        ("NATS/1.0 204 EOB", (204, "EOB")),
        ("NATS/1.0 404 No Messages", (404, "No Messages")),
        ("NATS/1.0 408 Request Timeout", (408, "Request Timeout")),
        ("NATS/1.0 409 Message Size Exceeds MaxBytes", (409, "Message Size Exceeds MaxBytes")),
        ("NATS/1.0 409 Exceeded MaxRequestBatch of 10", (409, "Exceeded MaxRequestBatch of 10")),
        ("NATS/1.0 409 Consumer Deleted", (409, "Consumer Deleted")),
        ("NATS/1.0 423 Nats-Pin-Id mismatch", (423, "Nats-Pin-Id mismatch")),
        ("NATS/1.0 503", (503, "")),
        ("NATS/1.0 503 ", (503, "")),
        ("NATS/1.0  503   No Responders  ", (503, "No Responders")),
        ("NATS/1.0 ", None),
        ("NATS/1.0   ", None),
    ],
)
def test_status_lines(line, status):
    assert decode_status(line.encode() + b"\r\n\r\n") == status
    assert decode_status(line.encode() + b"\r\nA: b\r\n\r\n") == status
    # Cut off behind the line, as a careless sender might: the last digit stays.
    assert decode_status(line.encode()) == status


@pytest.mark.parametrize("code", ["abc", "-1", "+5", "5_0", "4.0", "50300", "\u0665\u0660\u0663", "503:"])
def test_status_codes_that_are_no_number(code):
    with pytest.raises(ProtocolError, match="status line with a code that is no number"):
        decode_status(f"NATS/1.0 {code} Text\r\n\r\n".encode())


def test_a_status_description_that_is_not_utf8_is_still_a_status():
    assert decode_status(b"NATS/1.0 409 caf\xe9\r\n\r\n") == (409, "caf\ufffd")
