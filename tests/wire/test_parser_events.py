"""Well-formed wire cases, each whole, byte by byte and with trailing bytes."""

from __future__ import annotations

import pytest
from wire_cases import Got, got, merge, new_parser, run, single_bytes, three_ways

from jetspark.errors import ProtocolError
from jetspark.wire import Err, Info, Messages, Ok, Parser, Ping, Pong, ServerInfo
from jetspark.wire.parser import MAX_INFO, MAX_LINE, MAX_MESSAGE

HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"


def one(wire: bytes, message: Got, sid: str = "1") -> list[Messages]:
    return [Messages(sid, [message], len(wire))]


@pytest.mark.parametrize(
    ("wire", "event"),
    [
        (b"PING\r\n", Ping()),
        (b"ping\r\n", Ping()),
        (b"PONG\r\n", Pong()),
        (b"Pong\r\n", Pong()),
        (b"+OK\r\n", Ok()),
        (b"+ok\r\n", Ok()),
        (b"-ERR 'Unknown Protocol Operation'\r\n", Err("Unknown Protocol Operation")),
        (b"-err 'lower case'\r\n", Err("lower case")),
        (b"-ERR without quotes\r\n", Err("without quotes")),
        (b"-ERR 'a 'quoted' word'\r\n", Err("a 'quoted' word")),
        (b"-ERR '\r\n", Err("'")),
        (b"-ERR ''\r\n", Err("")),
        (b"-ERR\r\n", Err("")),
        (b"-ERR 'caf\xc3\xa9'\r\n", Err("café")),
        (b"-ERR 'caf\xff'\r\n", Err("caf�")),
        (b"INFO {}\r\n", Info(ServerInfo())),
        # The server itself leaves a blank behind the JSON.
        (b'INFO {"server_id":"N1","max_payload":7} \r\n', Info(ServerInfo(server_id="N1", max_payload=7))),
        (b'info {"port":1}\r\n', Info(ServerInfo(port=1))),
        (b'INFO {"unknown":{"a":[1,{"b":null}]},"ldm":true}\r\n', Info(ServerInfo(ldm=True))),
        (b'INFO {"connect_urls":["a:1","b:2"]}\r\n', Info(ServerInfo(connect_urls=["a:1", "b:2"]))),
        (b'INFO {"server_name":"caf\xc3\xa9"}\r\n', Info(ServerInfo(server_name="café"))),
    ],
)
def test_control_lines(wire, event):
    three_ways(wire, [event])


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (b"MSG foo 1 5\r\nhello\r\n", got("foo", "", b"hello")),
        (b"MSG foo.bar 1 _INBOX.x 5\r\nhello\r\n", got("foo.bar", "_INBOX.x", b"hello")),
        (b"MSG foo 1 0\r\n\r\n", got("foo", "", b"")),
        (b"MSG foo 1 r 0\r\n\r\n", got("foo", "r", b"")),
        (b"MSG foo 1 005\r\nhello\r\n", got("foo", "", b"hello")),
        # Payloads are opaque: line breaks and whole commands in them mean nothing.
        (b"MSG foo 1 2\r\n\r\n\r\n", got("foo", "", b"\r\n")),
        (b"MSG foo 1 1\r\n\n\r\n", got("foo", "", b"\n")),
        (b"MSG foo 1 1\r\n\r\r\n", got("foo", "", b"\r")),
        (b"MSG foo 1 12\r\nPING\r\nPONG\r\n\r\n", got("foo", "", b"PING\r\nPONG\r\n")),
        (b"MSG foo 1 4\r\n\x00\xff\x80\n\r\n", got("foo", "", b"\x00\xff\x80\n")),
        (b"MSG MSG 1 HMSG 3\r\nMSG\r\n", got("MSG", "HMSG", b"MSG")),
        (b"HMSG foo 1 18 23\r\n" + HEADER + b"hello\r\n", got("foo", "", b"hello", HEADER)),
        (b"HMSG foo 1 r.x 18 23\r\n" + HEADER + b"hello\r\n", got("foo", "r.x", b"hello", HEADER)),
        (b"HMSG foo 1 18 18\r\n" + HEADER + b"\r\n", got("foo", "", b"", HEADER)),
        (b"HMSG foo 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", got("foo", "", b"", b"NATS/1.0 503\r\n\r\n")),
        # A header block of no bytes is no header block.
        (b"HMSG foo 1 0 2\r\nhi\r\n", got("foo", "", b"hi")),
        (b"HMSG foo 1 0 0\r\n\r\n", got("foo", "", b"")),
        ("MSG größe.日本 1 2\r\nhi\r\n".encode(), got("größe.日本", "", b"hi")),
        ("MSG foo 1 antwort.ü 2\r\nhi\r\n".encode(), got("foo", "antwort.ü", b"hi")),
        # Not UTF-8: kept so that the bytes can be had back, not dropped and not an error.
        (b"MSG a\xff\xfe.b 1 2\r\nhi\r\n", got("a\udcff\udcfe.b", "", b"hi")),
        (b"MSG \xe2\x82 1 \xc3 2\r\nhi\r\n", got("\udce2\udc82", "\udcc3", b"hi")),
    ],
)
def test_messages(wire, message):
    three_ways(wire, one(wire, message))


def test_a_subject_that_is_not_utf8_gives_its_bytes_back():
    (event,) = new_parser().feed(b"MSG a\xff.b 1 0\r\n\r\n")
    assert event.items[0].subject.encode("utf-8", "surrogateescape") == b"a\xff.b"


def test_all_commands_in_one_stream():
    message, with_header = b"MSG a 1 1\r\nx\r\n", b"HMSG b 2 18 19\r\n" + HEADER + b"y\r\n"
    three_ways(
        b"INFO {}\r\n+OK\r\nPING\r\n" + message + with_header + b"-ERR 'e'\r\nPONG\r\n",
        [
            Info(ServerInfo()),
            Ok(),
            Ping(),
            *one(message, got("a", "", b"x")),
            *one(with_header, got("b", "", b"y", HEADER, "2"), "2"),
            Err("e"),
            Pong(),
        ],
    )


# Runs


def msg(sid: str, data: str) -> bytes:
    return f"MSG s {sid} {len(data)}\r\n{data}\r\n".encode()


def expect(layout: str) -> list[object]:
    """'1a 1b P 2c' -> the events of messages a and b on sid 1, a PING and message c on sid 2."""
    events: list[object] = []
    for word in layout.split():
        if word == "P":
            events.append(Ping())
        else:
            sid, data = word[0], word[1:]
            events.append(Messages(sid, [got("s", "", data.encode(), None, sid)], len(msg(sid, data))))
    return events


def wire_of(layout: str) -> bytes:
    return b"".join(b"PING\r\n" if word == "P" else msg(word[0], word[1:]) for word in layout.split())


@pytest.mark.parametrize(
    ("layout", "delivered", "runs"),
    [
        ("1a 1bb 1ccc", "1a 1bb 1ccc", 1),
        ("1a 2b 1c 2d", "1a 2b 1c 2d", 4),
        ("1a 1b 2c 2d 2e 1f", "1a 1b 2c 2d 2e 1f", 3),
        ("1a P 1b", "1a P 1b", 3),
        ("P 1a 1b P P 2c", "P 1a 1b P P 2c", 5),
        # 9 is a sid nobody knows.
        ("9x", "", 0),
        ("9x 9y 9z", "", 0),
        ("9x 1a 1b", "1a 1b", 1),
        ("1a 1b 9x", "1a 1b", 1),
        ("1a 9x 1b", "1a 1b", 2),
        ("1a 9x 8y 9z 2b", "1a 2b", 2),
        ("9x P 9y", "P", 1),
        ("P 9x 1a P 9y P", "P 1a P P", 4),
        ("1a P 9x 1b 9y", "1a P 1b", 3),
        ("9x 1a 9y 2b 9z 1c", "1a 2b 1c", 3),
    ],
)
def test_runs(layout, delivered, runs):
    wire, expected = wire_of(layout), expect(delivered)
    three_ways(wire, expected)
    events = new_parser().feed(wire)
    assert len(events) == runs
    assert merge(events) == merge(expected)


def test_nbytes_of_a_run_is_what_its_messages_took_on_the_wire():
    first, second = b"MSG a 1 r 3\r\nabc\r\n", b"HMSG b.c 1 18 20\r\n" + HEADER + b"xy\r\n"
    dropped = b"MSG d 404 9\r\n123456789\r\n"
    (run_of_two, after) = new_parser().feed(first + second + dropped + first)
    assert (len(run_of_two.items), run_of_two.nbytes) == (2, len(first) + len(second))
    assert (len(after.items), after.nbytes) == (1, len(first))


def test_nbytes_of_a_message_in_pieces_counts_it_whole_and_once():
    wire = b"MSG a 1 3\r\nabc\r\n"
    parser = new_parser()
    assert parser.feed(wire + wire[:5]) == one(wire, got("a", "", b"abc"))
    assert parser.feed(wire[5:-1]) == []
    assert parser.feed(wire[-1:] + b"PING\r\n") == [*one(wire, got("a", "", b"abc")), Ping()]


def test_messages_go_through_the_factory_of_their_sid_with_its_owner():
    parser, owner = Parser(), object()
    parser.routes["5"] = (lambda *args: args, owner)
    parser.routes["6"] = (lambda subject, *_: subject.upper(), None)
    events = parser.feed(b"HMSG a 5 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\nMSG b 6 0\r\n\r\n")
    assert [event.items for event in events] == [[("a", "r", b"hi", b"NATS/1.0\r\n\r\n", owner)], ["B"]]
    assert events[0].items[0][4] is owner


def test_a_factory_is_not_called_for_a_message_that_is_incomplete():
    calls = []
    parser = Parser()
    parser.routes["1"] = (lambda *args: calls.append(args), None)
    wire = b"MSG a 1 3\r\nabc\r\n"
    for piece in single_bytes(wire)[:-1]:
        parser.feed(piece)
    assert calls == []
    parser.feed(wire[-1:])
    assert calls == [("a", "", b"abc", None, None)]


def test_routes_may_change_between_chunks():
    parser = new_parser()
    wire = b"MSG a 1 1\r\nx\r\n"
    parser.feed(wire[:6])
    del parser.routes["1"]
    assert parser.feed(wire[6:]) == []
    parser.routes["1"] = (Got, "owner-1")
    assert parser.feed(wire) == one(wire, got("a", "", b"x"))


def test_message_data_is_bytes_of_its_own():
    (event,) = new_parser().feed(b"MSG a 1 3\r\nabc\r\n")
    assert type(event.items[0].data) is bytes


def test_the_list_of_events_belongs_to_the_caller():
    parser = new_parser()
    parser.feed(b"PI").append("mine")
    assert parser.feed(b"N") == []
    assert parser.feed(b"") == []
    assert new_parser().feed(b"") == []


# Limits, and how little is kept


def test_longest_control_line_is_taken():
    subject = b"s" * (MAX_LINE - len(b"MSG  1 2"))
    wire = b"MSG " + subject + b" 1 2\r\nhi\r\n"
    message = got(subject.decode(), "", b"hi")
    for chunks in ([wire], single_bytes(wire)):
        assert run(chunks) == (one(wire, message), None)


def test_longest_info_is_taken():
    wire = b"INFO {" + b" " * (MAX_INFO - len(b"INFO {}")) + b"}\r\n"
    for chunks in ([wire], [wire[:3], wire[3:MAX_LINE], wire[MAX_LINE:-1], wire[-1:]]):
        assert run(chunks) == ([Info(ServerInfo())], None)


def test_largest_message_is_taken_and_the_limit_can_be_set():
    wire = b"MSG a 1 10\r\n0123456789\r\n"
    assert run([wire], new_parser(max_message=10)) == (one(wire, got("a", "", b"0123456789")), None)
    assert run([wire], new_parser(max_message=9)).error is not None
    # The default takes a declared size at the limit and waits for the payload.
    parser = new_parser()
    assert parser.feed(b"MSG a 1 %d\r\n" % MAX_MESSAGE) == []
    assert parser.error is None


@pytest.mark.parametrize(
    ("wire", "limit"),
    [
        (b"MSG " + b"s" * (3 * MAX_LINE), MAX_LINE),
        (b"X" * (3 * MAX_LINE), MAX_LINE),
        # Starts like INFO, and is not.
        (b"INF" + b"X" * (3 * MAX_LINE), MAX_LINE),
        (b"I" * (3 * MAX_LINE), MAX_LINE),
        (b"INFO " + b" " * (2 * MAX_INFO), MAX_INFO),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 4096, 10_000_000])
def test_a_line_without_end_is_given_up_at_its_limit(wire, limit, step):
    step = max(step, 64) if limit == MAX_INFO else step
    # The first four bytes one by one: what the line is must not be judged by its first chunk.
    chunks = [*single_bytes(wire[:4]), *(wire[at : at + step] for at in range(4, len(wire), step))]
    parser, fed, most = new_parser(), 0, 0
    for chunk in chunks:
        fed += len(chunk)
        try:
            assert parser.feed(chunk) == []
        except ProtocolError:
            break
        most = max(most, parser.held)
    assert parser.error is not None
    assert f"longer than {limit} bytes" in str(parser.error)
    assert fed <= limit + 1 + step
    assert most <= limit + 1
    assert parser.held == 0


class CountingParser(Parser):
    """Counts the bytes that were looked at: each pass over a buffer, from the start of what it holds."""

    __slots__ = ("passes", "seen")

    def __init__(self) -> None:
        super().__init__()
        self.passes = self.seen = 0

    def _parse(self, buf, pos, scan, events):
        self.passes += 1
        self.seen += len(buf) - max(pos, scan)
        super()._parse(buf, pos, scan, events)


def test_a_large_payload_in_many_chunks_is_joined_once():
    parser = CountingParser()
    parser.routes["1"] = (Got, None)
    payload = bytes(range(256)) * 4096
    wire = b"MSG a 1 %d\r\n" % len(payload) + payload + b"\r\n"
    events = []
    for at in range(0, len(wire), 100):
        events += parser.feed(wire[at : at + 100])
        assert parser.held <= len(wire)
    (event,) = events
    assert event.items[0].data == payload
    assert event.nbytes == len(wire)
    # Once to learn the size, once when all of it was there; over 10,000 chunks in between cost nothing.
    assert parser.passes == 2
    assert parser.seen <= len(wire) + 100


def test_a_line_in_single_bytes_is_searched_once():
    parser = CountingParser()
    wire = b"-ERR '" + b"e" * 20_000 + b"'\r\n"
    events = []
    for piece in single_bytes(wire):
        events += parser.feed(piece)
    assert events == [Err("e" * 20_000)]
    assert parser.passes == 2
    assert parser.seen == 2


def test_sizes_are_remembered_only_so_far():
    # Distinct spellings of sizes must not make the cache grow without end.
    parser = new_parser()
    for size in range(10_000):
        parser.feed(b"MSG a 404 %d\r\n" % size + b"x" * size + b"\r\n")
    assert len(parser._sizes) <= 8192
    wire = b"MSG a 1 %d\r\n" % 9_999 + b"y" * 9_999 + b"\r\n"
    assert parser.feed(wire) == one(wire, got("a", "", b"y" * 9_999))
