"""Every number that comes from the wire is bounded before it is used, or refused by a typed error.

A number in JSON may have any size and any sign, or be no integer at all; one in a header or a subject is a
text. The tables below put the bad ones into every place that the client reads, and ask for one of two
outcomes: an error of ours, or a result all of whose integers fit 64 bits.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jetspark import ConsumerInfo, PubAck, StoredMsg, StreamInfo
from jetspark.advisories import decode_advisory
from jetspark.errors import JetsparkError, ProtocolError, WrongLastSequence
from jetspark.jetstream import stored
from jetspark.jetstream.api import decode_response
from jetspark.jetstream.errors import error_from_response
from jetspark.jetstream.flow.ack_reply import num_pending, parse_ack_reply, sequences
from jetspark.jetstream.flow.fast import PING, FastFlow, State
from jetspark.jetstream.flow.statuses import Status
from jetspark.jetstream.stored import stored_from_direct
from jetspark.models import AccountInfo, ConsumerPause, CounterValue, Duration, Timestamp
from jetspark.wire import Headers, Info, Parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESPONSES = Path(__file__).parent / "server_responses"

LEAST, MOST = -(1 << 63), (1 << 64) - 1

LONG = b"9" * 5000
"""More digits than int() takes."""

NUMBERS = [
    b"-1",
    b"%d" % LEAST,
    b"%d" % (LEAST - 1),
    b"%d" % (1 << 63),
    b"%d" % MOST,
    b"%d" % (MOST + 1),
    b"-" + b"9" * 30,
    b"9" * 30,
    b"9" * 400,
    b"9" * 4200,
    LONG,
    b"-" + LONG,
    b"1.5",
    b"1e3",
    b"1e308",
    b"1e400",
    b"-1e-400",
    b"true",
    b'"5"',
    b"null",
    b"[]",
    b"{}",
]
"""What may stand in JSON in the place of a number."""

TEXTS = [
    *("", "-1", "+1", "1_0", " 1", "1.0", "1e3", "0x10", "\u0661\u0662", "\u00b2", "NaN", "inf"),
    *(str(LEAST - 1), str(MOST + 1), "9" * 20, "9" * 21, "9" * 4200, LONG.decode(), "-" + LONG.decode()),
]
"""What may stand in a header or a subject in the place of a number."""

TIMES = [
    *("", "now", "0000-00-00T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"),
    *("10000-01-01T00:00:00Z", "2024-02-30T00:00:00Z", "2024-01-01T24:00:00Z", "2024-01-01T00:00:00+99:99"),
    *("9999-12-31T23:59:59.999999999Z", "2024-01-01T00:00:00." + "9" * 5000 + "Z", "9" * 5000),
]


def bounded(value: Any) -> Iterator[Any]:
    """The integers in a result that do not fit 64 bits."""
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        if not LEAST <= value <= MOST:
            yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from bounded(one)
    elif isinstance(value, list | tuple | set):
        for one in value:
            yield from bounded(one)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            # What this version has no name for is handed through as it came, and never looked at.
            if name != "extra":
                yield from bounded(getattr(value, name))
    elif isinstance(value, Duration):
        yield from bounded(value.ns)


def outcome(read: Callable[..., Any], *arguments: Any) -> Any:
    """A fine result, or None for an error of ours; nothing else comes out."""
    caught: JetsparkError
    try:
        result = read(*arguments)
    except JetsparkError as error:
        caught = error
    else:
        assert not list(bounded(result)), f"{result!r:.200}"
        assert repr(result)
        return result
    assert len(str(caught)) < 2000, "an error as long as what it complains of"
    assert not list(bounded([getattr(caught, "code", 0), getattr(caught, "err_code", 0)]))
    return None


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers and times are in a JSON document."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from places(one, (*path, key))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from places(one, (*path, index))
    elif (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, str) and value[:4].isdigit() and "T" in value
    ):
        yield path


def replaced(document: Any, path: tuple[Any, ...], raw: bytes) -> bytes:
    """The document with other JSON in one place."""
    copy = json.loads(json.dumps(document))
    at = copy
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = "@@"
    return json.dumps(copy).encode().replace(b'"@@"', raw)


def read_list(data: bytes) -> Any:
    return [ConsumerInfo.from_wire(one) for one in decode_response(data)["consumers"]]


READERS: dict[str, Callable[[bytes], Any]] = {
    "stream_": lambda data: StreamInfo.from_wire(decode_response(data)),
    "consumer_list": read_list,
    "consumer_pause": lambda data: ConsumerPause.from_wire(decode_response(data)),
    "consumer_resume": lambda data: ConsumerPause.from_wire(decode_response(data)),
    "consumer_": lambda data: ConsumerInfo.from_wire(decode_response(data)),
    "puback": PubAck.from_response,
    "error_": decode_response,
    "account_info": lambda data: AccountInfo.from_wire(decode_response(data)),
}


@pytest.mark.parametrize("file", sorted(RESPONSES.glob("*.json")), ids=lambda path: path.stem)
def test_answers_of_the_api(file: Path) -> None:
    document = json.loads(file.read_bytes())
    prefix = next(one for one in READERS if file.stem.startswith(one))
    read = READERS[prefix]
    found = list(places(document))
    assert found
    for path in found:
        for raw in [*NUMBERS, *(json.dumps(text).encode() for text in TIMES)]:
            outcome(read, replaced(document, path, raw))


ADVISORY = {
    "type": "io.nats.jetstream.advisory.v1.terminated",
    "id": "x",
    "timestamp": "2024-01-01T00:00:00Z",
    "stream": "S",
    "consumer": "C",
    "stream_seq": 5,
    "consumer_seq": 5,
    "deliveries": 1,
}
ACK_METRIC = {**ADVISORY, "type": "io.nats.jetstream.metric.v1.consumer_ack", "ack_time": 5}


@pytest.mark.parametrize("advisory", [ADVISORY, ACK_METRIC], ids=["terminated", "ack"])
def test_advisories(advisory: dict[str, Any]) -> None:
    for path in places(advisory):
        for raw in [*NUMBERS, *(json.dumps(text).encode() for text in TIMES)]:
            outcome(decode_advisory, replaced(advisory, path, raw))


@pytest.mark.parametrize("raw", NUMBERS, ids=lambda raw: raw[:25].decode())
@pytest.mark.parametrize("field", ["max_payload", "proto", "client_id", "port"])
@pytest.mark.parametrize("compiled", [True, False], ids=["c", "python"])
def test_info(field: str, raw: bytes, compiled: bool) -> None:
    parser = Parser(compiled=compiled)

    def read() -> Any:
        (event,) = parser.feed(b'INFO {"%b":%b}\r\n' % (field.encode(), raw))
        assert isinstance(event, Info)
        value = getattr(event.info, field)
        # C counts with these, in signed 64 bits.
        assert LEAST <= value < 1 << 63
        return value

    outcome(read)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:25])
def test_ack_replies(place: int, text: str) -> None:
    numbers = ["1", "5", "7", "1700000000000000000", "0"]
    numbers[place] = text
    for front in ("$JS.ACK.S.C.", "$JS.ACK.hub.acc.S.C."):
        reply = front + ".".join(numbers)
        metadata = outcome(parse_ack_reply, reply)
        if metadata is not None:
            assert max(metadata.sequence.stream, metadata.timestamp.ns) < 1 << 63
            assert sequences(reply) == (metadata.sequence.consumer, metadata.sequence.stream)
        found = outcome(sequences, reply)
        if found is not None:
            assert 0 <= found[0] <= MOST
            assert 0 <= found[1] < 1 << 63
        assert 0 <= num_pending(reply.encode()) <= MOST


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:25])
def test_statuses(text: str) -> None:
    names = ["Nats-Pending-Messages", "Nats-Pending-Bytes", "Nats-Last-Consumer", "Nats-Last-Stream"]
    status = Status(408, "Request Timeout", {name: text for name in names})
    for value in (*(status.pending or ()), status.last_consumer_seq, status.last_stream_seq):
        assert value is None or 0 <= value < 10**20
    for end in ("", "s", "h", "ms", "ns"):
        limit = Status(409, f"Exceeded MaxRequestExpires of {text}{end}")
        assert limit.limit_count is None or 0 <= limit.limit_count < 10**20
        seconds = limit.limit_seconds
        assert seconds is None or 0 <= seconds < 1e25


class Answer:
    """A direct get answer, as far as it is read."""

    data = b"x"

    def __init__(self, **added: str) -> None:
        self.headers = Headers()
        good = {
            "Nats-Stream": "S",
            "Nats-Subject": "s",
            "Nats-Sequence": "5",
            "Nats-Time-Stamp": "2024-01-01T00:00:00Z",
        }
        self.headers._pairs = list({**good, **added}.items())


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:25])
def test_direct_get(text: str) -> None:
    outcome(lambda: stored_from_direct(Answer(**{"Nats-Sequence": text})))  # type: ignore[arg-type]
    outcome(lambda: stored._number(Headers([("Nats-Num-Pending", text)]), "Nats-Num-Pending"))


@pytest.mark.parametrize("time", TIMES, ids=lambda text: text[:25])
def test_times(time: str) -> None:
    outcome(lambda: stored_from_direct(Answer(**{"Nats-Time-Stamp": time})))  # type: ignore[arg-type]
    outcome(lambda: Timestamp.parse(time))


class Api:
    """The API of a server that answers with the same thing always."""

    def __init__(self, response: dict[str, Any]) -> None:
        self.response = response

    async def request(self, operation: str, body: Any = None) -> dict[str, Any]:
        return self.response


MESSAGE = {"subject": "s", "seq": 5, "time": "2024-01-01T00:00:00Z", "data": "eA==", "hdrs": ""}


@pytest.mark.parametrize(
    "message",
    [
        *(None, 5, "x", [], {}, {**MESSAGE, "subject": 5}, {**MESSAGE, "subject": None}),
        *({**MESSAGE, "seq": seq} for seq in (None, "5", 1.5, True, -1, 0, 10**30, [5])),
        *({**MESSAGE, "time": time} for time in (None, 5, "now", "9" * 5000, "0001-01-01T00:00:00Z")),
        *(
            {**MESSAGE, field: value}
            for field in ("data", "hdrs")
            for value in (5, "%%%", "x", "\u00e4", [1])
        ),
        {**MESSAGE, "hdrs": "eA=="},
    ],
    ids=lambda message: repr(message)[:60],
)
async def test_a_stored_message_of_the_api(message: Any) -> None:
    with pytest.raises(ProtocolError):
        await stored.get_by_api(Api({"message": message}), "S", {"seq": 5})  # type: ignore[arg-type]


async def test_an_answer_without_a_message() -> None:
    with pytest.raises(ProtocolError):
        await stored.get_by_api(Api({}), "S", {"seq": 5})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:25])
def test_counters(text: str) -> None:
    ack = PubAck(stream="S", seq=1, val=text)
    shown(lambda: ack.value)
    for delta, body in ((text, '{"val":"5"}'), ("5", json.dumps({"val": text}))):
        message = StoredMsg(
            stream="S",
            subject="s",
            sequence=1,
            timestamp=Timestamp.from_ns(0),
            data=body.encode(),
            headers=Headers([("Nats-Incr", delta)]),
        )
        shown(lambda message=message: CounterValue.from_message(message))  # type: ignore[misc]


def shown(read: Callable[[], Any]) -> None:
    """Counters have any size, so a result or an error of ours is all there is to ask for."""
    with contextlib.suppress(JetsparkError):
        assert read() is not None


@pytest.mark.parametrize("value", [-1, 10**30, -(10**30), "5", 1.5, True, None, []])
def test_codes_of_errors(value: Any) -> None:
    error = error_from_response({"error": {"code": value, "err_code": value, "description": "no"}})
    assert not list(bounded([error.code, error.err_code]))


def test_the_last_sequence_of_a_refusal() -> None:
    for text in TEXTS:
        error = error_from_response(
            {"code": 400, "err_code": 10071, "description": f"wrong last sequence: {text}"}
        )
        assert isinstance(error, WrongLastSequence)
        assert error.last_sequence is None or 0 <= error.last_sequence < 10**20


def fast_flow(*, gap_ok: bool) -> FastFlow:
    flow = FastFlow(gap_ok=gap_ok, outstanding=2, ping_interval=1.0, ack_timeout=5.0, now=0.0)
    flow.on_start(0.0)
    flow.on_reply(b'{"type":"ack","seq":0,"msgs":10}', 1, 0, 0.0)
    assert flow.state is State.OPEN
    flow.sent = 20
    return flow


@pytest.mark.parametrize("gap_ok", [True, False])
@pytest.mark.parametrize("raw", NUMBERS, ids=lambda raw: raw[:25].decode())
@pytest.mark.parametrize("kind", ["ack", "gap", "err", ""])
@pytest.mark.parametrize("field", ["seq", "msgs", "last_seq", "count"])
def test_answers_of_fast_ingest(field: str, kind: str, raw: bytes, gap_ok: bool) -> None:
    flow = fast_flow(gap_ok=gap_ok)
    fields = {"type": b'"%b"' % kind.encode(), "seq": b"5", "msgs": b"10", "last_seq": b"3", field: raw}
    if not kind:
        fields |= {"stream": b'"S"', "batch": b'"b"'}
    if kind == "err":
        fields["error"] = b'{"code":400,"err_code":10071,"description":"no"}'
    data = b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), value) for name, value in fields.items())
    flow.on_reply(data, 5, PING, 1.0)
    assert 0 <= flow.acked <= 20
    assert 0 <= flow.lost <= 20
    assert 0 <= flow.limit <= 20 + 3 * 65_535
