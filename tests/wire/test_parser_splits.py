"""However a stream is cut, the outcome is the same; whatever is in it, only ProtocolError comes out."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wire_cases import Outcome, got, merge, new_parser, run, single_bytes

from jetspark.wire import Err, Info, Messages, Ok, Ping, Pong, ServerInfo

SIDS = st.sampled_from(["1", "2", "77", "404", "9"])
TOKENS = st.text(st.characters(exclude_characters=" \r\n", exclude_categories=["Cs"]), min_size=1, max_size=6)
PAYLOADS = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"", b"\r\n", b"\n", b"PING\r\n", b"MSG a 1 5\r\n", b"\r"])
)
HEADERS = st.sampled_from([b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\nA: b\r\nA: c\r\n\r\n"])


@st.composite
def messages(draw):
    subject, sid, data = draw(TOKENS), draw(SIDS), draw(PAYLOADS)
    reply, header = draw(st.just("") | TOKENS), draw(st.none() | HEADERS)
    words = [subject, sid, *([reply] if reply else [])]
    if header is None:
        line = f"MSG {' '.join(words)} {len(data)}\r\n"
    else:
        line = f"HMSG {' '.join(words)} {len(header)} {len(header) + len(data)}\r\n"
    wire = line.encode() + (header or b"") + data + b"\r\n"
    known = sid in ("1", "2", "77")
    event = Messages(sid, [got(subject, reply, data, header, sid)], len(wire)) if known else None
    return wire, event


CONTROL = st.sampled_from(
    [
        (b"PING\r\n", Ping()),
        (b"PONG\r\n", Pong()),
        (b"+OK\r\n", Ok()),
        (b"-ERR 'Stale Connection'\r\n", Err("Stale Connection")),
        (b'INFO {"server_id":"X","port":1} \r\n', Info(ServerInfo(server_id="X", port=1))),
    ]
)
STREAMS = st.lists(st.one_of(messages(), CONTROL), max_size=8)


@st.composite
def cuts_of(draw, wire: bytes) -> list[bytes]:
    """The wire bytes in chunks, now and then an empty one."""
    ends = sorted(draw(st.lists(st.integers(0, len(wire)), max_size=12)))
    return [wire[start:end] for start, end in zip([0, *ends], [*ends, len(wire)], strict=True)]


def same_outcome(wire: bytes, chunks: list[bytes]) -> Outcome:
    whole = run([wire])
    for pieces in (chunks, single_bytes(wire)):
        cut = run(pieces)
        assert cut.events == whole.events
        assert str(cut.error) == str(whole.error)
    return whole


@given(st.data(), STREAMS)
def test_valid_streams_give_their_events_however_cut(data, stream):
    wire = b"".join(wire for wire, _ in stream)
    outcome = same_outcome(wire, data.draw(cuts_of(wire)))
    assert outcome.error is None
    assert outcome.events == merge([event for _, event in stream if event is not None])


@given(st.data(), STREAMS, st.binary(min_size=1, max_size=30))
def test_garbage_behind_a_valid_stream_costs_none_of_its_events(data, stream, garbage):
    good = b"".join(wire for wire, _ in stream)
    outcome = same_outcome(good + garbage, data.draw(cuts_of(good + garbage)))
    before = run([good]).events
    flat = [item for event in before for item in (event.items if isinstance(event, Messages) else [event])]
    after = [
        item for event in outcome.events for item in (event.items if isinstance(event, Messages) else [event])
    ]
    assert after[: len(flat)] == flat


@st.composite
def mutated(draw):
    wire = bytearray(b"".join(wire for wire, _ in draw(STREAMS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(wire)))
        action = draw(st.sampled_from(["insert", "delete", "replace", "double"]))
        if action == "insert":
            wire[at:at] = draw(
                st.sampled_from([b" ", b"\r", b"\n", b"\r\n", b"\x00", b"\xff", b"9", b"-", b"MSG "])
            )
        elif action == "delete":
            del wire[at : at + draw(st.integers(1, 5))]
        elif action == "replace":
            wire[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        else:
            wire[at:at] = wire[max(0, at - 6) : at]
    return bytes(wire)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data(), mutated())
@example(data=None, wire=b"\nPING\r")
@example(data=None, wire=b"MSG a 1 0\r\n\r\nPING\r\nMSG b  x 2\r\nno\r\n")
def test_mutated_streams_have_one_outcome_however_cut(data, wire):
    same_outcome(wire, data.draw(cuts_of(wire)) if data else [wire[:1], wire[1:]])


@given(st.data(), st.binary(max_size=200))
def test_garbage_has_one_outcome_however_cut(data, wire):
    same_outcome(wire, data.draw(cuts_of(wire)))


WORDS = st.sampled_from(
    b"MSG HMSG INFO PING -ERR 1 12 0 -1 a.b {} NATS/1.0 99999999999 \xff".split(b" ")
    + [b" "] * 4
    + [b"\r\n"] * 2
    + [b"\n", b"\r", b"\t"]
)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data(), st.lists(WORDS, max_size=30).map(b"".join))
def test_protocol_words_in_any_order_have_one_outcome_however_cut(data, wire):
    same_outcome(wire, data.draw(cuts_of(wire)))


@given(STREAMS, st.integers(0, 400))
def test_held_is_what_was_fed_and_not_yet_parsed(stream, size):
    wire = b"".join(wire for wire, _ in stream)[:size]
    parser = new_parser()
    parser.feed(wire)
    complete = 0
    for one, _ in stream:
        if complete + len(one) > len(wire):
            break
        complete += len(one)
    assert parser.held == len(wire) - complete
