"""Malformed wire cases, each whole, byte by byte and with trailing bytes: ProtocolError, nothing else."""

from __future__ import annotations

import pytest
from wire_cases import got, new_parser, refused_three_ways, run

from jetspark.errors import ProtocolError
from jetspark.wire import Messages, Ping
from jetspark.wire.parser import MAX_INFO, MAX_LINE, MAX_MESSAGE

BAD_SIZES = {
    "negative": b"-5",
    "plus": b"+5",
    "underscore": b"1_0",
    "arabic-indic digits": "\u0665".encode(),
    "superscript": "²".encode(),
    "full-width digits": "\uff15".encode(),
    "not UTF-8": b"\xff",
    "hex": b"0x5",
    "float": b"5.0",
    "exponent": b"1e3",
    "letters": b"five",
    "empty": b"",
    "tab": b"\t5",
    "carriage return": b"5\r",
    "NUL": b"5\x00",
    "11 digits": b"12345678901",
    "11 digits of a small number": b"00000000005",
    "many digits": b"9" * 5000,
}


@pytest.mark.parametrize("digits", BAD_SIZES.values(), ids=BAD_SIZES.keys())
@pytest.mark.parametrize(
    "line",
    [
        b"MSG a 1 %s\r\n",
        b"MSG a 1 r %s\r\n",
        b"HMSG a 1 %s 20\r\n",
        b"HMSG a 1 0 %s\r\n",
        b"HMSG a 1 r 0 %s\r\n",
    ],
)
def test_bad_sizes(line, digits):
    refused_three_ways(line % digits + b"hello\r\n", "is not a decimal number")


@pytest.mark.parametrize("size", [MAX_MESSAGE + 1, 9_999_999_999])
@pytest.mark.parametrize("line", [b"MSG a 1 %d\r\n", b"HMSG a 1 12 %d\r\n", b"HMSG a 1 %d 9\r\n"])
def test_sizes_over_the_limit_are_refused_before_their_payload(line, size):
    refused_three_ways(line % size, f"declared size {size} exceeds the limit of {MAX_MESSAGE} bytes")


def test_a_bad_size_is_not_remembered_as_good():
    for _ in range(2):
        assert run([b"MSG a 1 99\r\n"], new_parser(max_message=98)).error is not None


@pytest.mark.parametrize(
    ("wire", "match"),
    [
        (b"HMSG a 1 13 12\r\nNATS/1.0\r\n\r\n\r\n", "header of 13 bytes in a message of 12"),
        (b"HMSG a 1 1 0\r\n\r\n", "header of 1 bytes in a message of 0"),
        (b"HMSG a 1 12 12\r\nNATS/2.0\r\n\r\n\r\n", "not with NATS/1.0"),
        (b"HMSG a 1 12 12\r\nnats/1.0\r\n\r\n\r\n", "not with NATS/1.0"),
        (b"HMSG a 1 5 10\r\nhelloworld\r\n", "not with NATS/1.0"),
        (b"HMSG a 1 4 4\r\nNATS\r\n", "not with NATS/1.0"),
        (b"MSG a 1 5\r\nhello\n\n", "payload of 5 bytes is not followed by CRLF"),
        (b"MSG a 1 5\r\nhello!\r\n", "payload of 5 bytes is not followed by CRLF"),
        (b"MSG a 1 5\r\nhell\r\n\r\n", "payload of 5 bytes is not followed by CRLF"),
        (b"MSG a 1 0\r\nPING\r\n", "payload of 0 bytes is not followed by CRLF"),
        (b"MSG a 404 5\r\nhelloXX", "payload of 5 bytes is not followed by CRLF"),
        (b"HMSG a 1 12 13\r\nNATS/1.0\r\n\r\nx\rx", "payload of 13 bytes is not followed by CRLF"),
        (b"PING\n", "LF instead of CRLF"),
        (b"MSG a 1 5\nhello\r\n", "LF instead of CRLF"),
        (b"INFO {}\n", "LF instead of CRLF"),
        (b"\n", "LF instead of CRLF"),
        (b"\nPING\r", "LF instead of CRLF"),
        (b"\r\n", "unknown or malformed line b''"),
        (b" \r\n", "unknown or malformed line b' '"),
        (b" PING\r\n", "unknown or malformed line b' PING'"),
        (b"PINGPONG\r\n", "unknown or malformed line b'PINGPONG'"),
        (b"PI\r\n", "unknown or malformed line b'PI'"),
        (b"OK\r\n", "unknown or malformed line b'OK'"),
        (b"ERR 'x'\r\n", "unknown or malformed line"),
        (b"SUB a 1\r\n", "unknown or malformed line b'SUB a 1'"),
        (b"PUB a 0\r\n\r\n", "unknown or malformed line b'PUB a 0'"),
        (b"RMSG $G a 0\r\n\r\n", "unknown or malformed line"),
        (b"HTTP/1.1 400 Bad Request\r\n", "unknown or malformed line b'HTTP/1.1 400 Bad Request'"),
        (b"\x16\x03\x01\x02\x00\r\n", "unknown or malformed line"),
        (b"\xff\xfe\r\n", "unknown or malformed line"),
        # A dotless i has an upper case I.
        ("p\u0131ng\r\n".encode(), "unknown or malformed line"),
        ("\u0131nfo {}\r\n".encode(), "unknown or malformed line"),
        (b"MSG\r\n", "unknown or malformed line b'MSG'"),
        (b"MSG a\r\n", "unknown or malformed line b'MSG a'"),
        (b"MSG a 1\r\n", "unknown or malformed line b'MSG a 1'"),
        (b"MSG a 1 r x 5\r\nhello\r\n", "unknown or malformed line b'MSG a 1 r x 5'"),
        (b"MSG\ta\t1\t5\r\nhello\r\n", "unknown or malformed line"),
        (b"HMSG\r\n", "unknown or malformed line b'HMSG'"),
        (b"HMSG a 1 12\r\n", "unknown or malformed line b'HMSG a 1 12'"),
        (b"HMSG a 1 r x 12 12\r\n", "unknown or malformed line b'HMSG a 1 r x 12 12'"),
        (b"MSG a  1 5\r\nhello\r\n", "unknown or malformed line b'MSG a  1 5'"),
        (b"HMSG a  1 0 5\r\nhello\r\n", "unknown or malformed line b'HMSG a  1 0 5'"),
        (b"INFO\r\n", "INFO that can't be read"),
        (b"INFO \r\n", "INFO that can't be read"),
        (b"INFO {\r\n", "INFO that can't be read"),
        (b"INFO []\r\n", "INFO that can't be read"),
        (b"INFO null\r\n", "INFO that can't be read"),
        (b'INFO {"port":"4222"}\r\n', "INFO that can't be read"),
        (b'INFO {"port":' + b"1" * 5000 + b"}\r\n", "INFO that can't be read"),
        (b'INFO {"port":1e999}\r\n', "INFO that can't be read"),
        (b"INFO {} {}\r\n", "INFO that can't be read"),
        (b'INFO {"host":"\xff"}\r\n', "INFO that can't be read"),
        (b'INFO {"host":"\\ud800"}\r\n', "INFO that can't be read"),
        (b"INFO \xff\r\n", "INFO that can't be read"),
    ],
)
def test_malformed(wire, match):
    refused_three_ways(wire, match)


def test_info_nested_without_end():
    refused_three_ways(b'INFO {"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}\r\n", "INFO that can't be read")


@pytest.mark.parametrize("op", [b"MSG ", b"HMSG ", b"PING ", b"-ERR ", b"INFOX ", b"info ", b""])
def test_control_line_one_byte_too_long(op):
    refused_three_ways(op + b"s" * (MAX_LINE + 1 - len(op)) + b"\r\n", f"longer than {MAX_LINE} bytes")


def test_info_one_byte_too_long():
    wire = b"INFO {" + b" " * (MAX_INFO + 1 - len(b"INFO {}")) + b"}\r\n"
    for chunks in ([wire], [wire[:2], wire[2:-1], wire[-1:]], [wire + b"PING\r\n"]):
        outcome = run(chunks)
        assert outcome.events == []
        assert f"longer than {MAX_INFO} bytes" in str(outcome.error)


MESSAGE = b"MSG a 1 2\r\nhi\r\n"
DELIVERED = Messages("1", [got("a", "", b"hi")], len(MESSAGE))


@pytest.mark.parametrize("bad", [b"BAD\r\n", b"MSG a 1 -1\r\n", b"MSG a 1 1\r\nxyz", b"\n", b"INFO {\r\n"])
@pytest.mark.parametrize(
    ("good", "events"),
    [
        (MESSAGE, [DELIVERED]),
        (b"PING\r\n", [Ping()]),
        (MESSAGE + MESSAGE, [DELIVERED, DELIVERED]),
        (MESSAGE + b"PING\r\n", [DELIVERED, Ping()]),
        (b"PING\r\n" + MESSAGE, [Ping(), DELIVERED]),
        (MESSAGE + b"MSG a 404 2\r\nhi\r\n", [DELIVERED]),
        (b"MSG a 404 2\r\nhi\r\n", []),
    ],
)
def test_events_in_front_of_the_bad_bytes_are_delivered(good, events, bad):
    refused_three_ways(good + bad, "", before=events)


def test_the_error_follows_on_the_next_feed_and_stays():
    parser = new_parser()
    assert parser.feed(MESSAGE + b"BAD\r\n" + MESSAGE) == [DELIVERED]
    assert isinstance(parser.error, ProtocolError)
    for chunk in (MESSAGE, b"", b"PING\r\n"):
        with pytest.raises(ProtocolError, match="BAD"):
            parser.feed(chunk)


def test_without_events_the_error_is_raised_at_once():
    parser = new_parser()
    with pytest.raises(ProtocolError, match="BAD"):
        parser.feed(b"BAD\r\n")


def test_a_line_too_long_behind_a_message_does_not_cost_the_message():
    parser = new_parser()
    assert parser.feed(MESSAGE + b"X" * (MAX_LINE + 2)) == [DELIVERED]
    assert parser.held == 0
    with pytest.raises(ProtocolError, match="longer than"):
        parser.feed(b"X")


def test_a_double_blank_behind_a_control_line_does_not_reach_the_last_subscription():
    # Regression: the empty sid looked like 'no run yet', and the message joined the run before the PING.
    refused_three_ways(MESSAGE + b"PING\r\nMSG b  x 2\r\nno\r\n", "b'MSG b  x 2'", before=[DELIVERED, Ping()])


def test_the_error_shows_the_start_of_a_line_only():
    error = run([b"BAD " + b"x" * 1000 + b"\r\n"]).error
    assert len(str(error)) < 120
    error = run([b"MSG a 1 " + b"9" * 5000 + b"\r\n"]).error
    assert len(str(error)) < 120
