from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from jetspark import Secret
from jetspark.connection.urls import parse_server_url
from jetspark.connection.websocket import WebSocketCodec
from jetspark.errors import AuthorizationError, ConnectionLost, InvalidArgument, JetsparkError, ProtocolError

CANARY = "c4n4ry-S3cret"
URL = parse_server_url("ws://example.test:8080/nats")


class Peer:
    """The server's half, with the framing of the same package, driven by hand."""

    def __init__(self) -> None:
        self.protocol = ServerProtocol()
        self.request: Any = None

    def take(self, data: bytes) -> list[Any]:
        self.protocol.receive_data(data)
        return self.protocol.events_received()

    def accept(self, request: bytes) -> bytes:
        [self.request] = self.take(request)
        self.protocol.send_response(self.protocol.accept(self.request))
        return self.output()

    def output(self) -> bytes:
        return b"".join(self.protocol.data_to_send())

    def binary(self, *fragments: bytes) -> bytes:
        first, *rest = fragments
        self.protocol.send_binary(first, fin=not rest)
        for number, fragment in enumerate(rest, 1):
            self.protocol.send_continuation(fragment, fin=number == len(rest))
        return self.output()


def open_pair(**options: Any) -> tuple[WebSocketCodec, Peer]:
    codec, peer = WebSocketCodec(URL, **options), Peer()
    assert codec.receive(peer.accept(codec.handshake())) == b""
    assert codec.ready
    return codec, peer


def feed(codec: WebSocketCodec, data: bytes, size: int) -> bytes:
    return b"".join(codec.receive(data[at : at + size]) for at in range(0, len(data), size))


# --- handshake ---


def test_upgrade_request() -> None:
    peer = Peer()
    codec = WebSocketCodec(
        parse_server_url("wss://u:p@example.test/a/b?key=1"), {"Cookie": "c=1", "X-Key": Secret("s")}
    )
    assert not codec.ready
    peer.accept(codec.handshake())
    headers = peer.request.headers
    assert peer.request.path == "/a/b?key=1"
    assert (headers["Host"], headers["Cookie"], headers["X-Key"]) == ("example.test", "c=1", "s")
    assert "Authorization" not in headers  # credentials travel in CONNECT
    assert "Sec-WebSocket-Protocol" not in headers
    assert "Sec-WebSocket-Extensions" not in headers


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_first_frames_may_come_with_the_response(size: int) -> None:
    codec, peer = WebSocketCodec(URL), Peer()
    data = peer.accept(codec.handshake()) + peer.binary(b"INFO {}\r\n") + peer.binary(b"PING\r\n")
    assert feed(codec, data, size) == b"INFO {}\r\nPING\r\n"
    assert codec.ready


@pytest.mark.parametrize(
    ("response", "error", "text"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", AuthorizationError, "status 401"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", AuthorizationError, "status 403"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ProtocolError, "status 404"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ProtocolError, "status 200"),
        (b'INFO {"server_id":"N"} \r\n', ProtocolError, "speaks plain NATS"),
        (b"SSH-2.0-OpenSSH\r\n", ProtocolError, "broke the WebSocket handshake"),
        (
            b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: AA==\r\n\r\n",
            ProtocolError,
            "broke the WebSocket handshake",
        ),
        (b"HTTP/1.1 101 X\r\nConnection: close\r\n\r\n", ProtocolError, "broke the WebSocket handshake"),
    ],
)
@pytest.mark.parametrize("size", [1, 4096])
def test_refused_upgrades(response: bytes, error: type[JetsparkError], text: str, size: int) -> None:
    codec = WebSocketCodec(URL)
    codec.handshake()
    with pytest.raises(error, match=text) as caught:
        feed(codec, response, size)
    assert str(URL) in str(caught.value)
    assert not codec.ready


def test_refusal_that_ends_with_the_stream() -> None:
    codec = WebSocketCodec(URL)
    codec.handshake()
    assert codec.receive(b"HTTP/1.1 403 Forbidden\r\n\r\nbody without a length") == b""
    with pytest.raises(AuthorizationError, match="status 403"):
        codec.eof()


@pytest.mark.parametrize("partial", [b"", b"HTTP/1.1 101 Switch"])
def test_stream_that_ends_in_the_handshake(partial: bytes) -> None:
    codec = WebSocketCodec(URL)
    codec.handshake()
    codec.receive(partial)
    with pytest.raises(ProtocolError, match="closed the connection during the WebSocket handshake"):
        codec.eof()
    codec.eof()
    assert codec.closed
    assert codec.receive(b"more") == b""


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("X-Key", f"{CANARY}\r\nEvil: 1", "without line breaks"),
        ("X-Key", f"{CANARY}é", "printable ASCII"),
        ("X Key", CANARY, "header name"),
        ("", CANARY, "header name"),
        ("Upgrade", CANARY, "handshake itself"),
        ("sec-websocket-key", CANARY, "handshake itself"),
    ],
)
def test_bad_headers_are_refused_without_their_value(name: str, value: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text) as caught:
        WebSocketCodec(URL, {name: value})
    assert CANARY not in f"{caught.value} {vars(caught.value)}"


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "websockets.client", None)
    with pytest.raises(InvalidArgument, match=r'pip install "jetspark\[ws\]"'):
        WebSocketCodec(URL)


# --- frames ---


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65535, 65536, 1 << 20])
def test_round_trip_at_every_length_form(length: int) -> None:
    codec, peer = open_pair()
    payload = bytes(range(256)) * (length // 256 + 1)
    payload = payload[:length]
    framed = codec.send(payload)
    assert framed[1] & 0x80  # masked, as a client must
    [frame] = peer.take(framed)
    assert (frame.opcode, frame.data) == (Opcode.BINARY, payload)
    assert codec.receive(peer.binary(payload)) == payload
    assert codec.outgoing() == b""


@given(
    st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=4), max_size=6),
    st.integers(1, 50),
    st.booleans(),
)
def test_the_byte_stream_survives_any_framing_and_splitting(
    messages: list[list[bytes]], size: int, ping: bool
) -> None:
    codec, peer = open_pair()
    wire = b""
    for fragments in messages:
        wire += peer.binary(*fragments)
        if ping:
            peer.protocol.send_ping(b"p")
            wire += peer.output()
    assert feed(codec, wire, size) == b"".join(part for fragments in messages for part in fragments)
    pongs = peer.take(codec.outgoing()) if ping and messages else []
    assert [frame.opcode for frame in pongs] == [Opcode.PONG] * (len(messages) if ping else 0)


def test_ping_between_fragments_is_answered() -> None:
    codec, peer = open_pair()
    frames = [Frame(Opcode.BINARY, b"MSG ", fin=False), Frame(Opcode.PING, b"42"), Frame(Opcode.CONT, b"a 1")]
    assert codec.receive(b"".join(frame.serialize(mask=False) for frame in frames)) == b"MSG a 1"
    [pong] = peer.take(codec.outgoing())
    assert (pong.opcode, pong.data) == (Opcode.PONG, b"42")


def test_text_frames_are_refused() -> None:
    codec, _ = open_pair()
    with pytest.raises(ProtocolError, match="text frame"):
        codec.receive(Frame(Opcode.TEXT, b"INFO").serialize(mask=False))


@pytest.mark.parametrize(
    "data",
    [
        b"\xf2\x00",  # reserved bits
        b"\x83\x00",  # unknown opcode
        b"\x80\x00",  # continuation of nothing
        b"\x82\x81\x00\x00\x00\x00a",  # masked by the server
        b"\x09\x00",  # fragmented ping
        b"\x82\x7f" + (1 << 40).to_bytes(8, "big"),  # longer than anything
    ],
)
@pytest.mark.parametrize("size", [1, 4096])
def test_bad_frames_are_refused_and_answered_with_a_close(data: bytes, size: int) -> None:
    codec, peer = open_pair()
    with pytest.raises(ProtocolError, match="bad WebSocket frame"):
        feed(codec, data, size)
    [close] = peer.take(codec.outgoing())
    assert close.opcode is Opcode.CLOSE
    assert codec.closed


def test_frame_size_limit_counts_all_fragments() -> None:
    codec, peer = open_pair(max_frame_size=10)
    assert codec.receive(peer.binary(b"x" * 10)) == b"x" * 10
    with pytest.raises(ProtocolError, match="bad WebSocket frame"):
        codec.receive(peer.binary(b"x" * 6, b"x" * 6))


# --- closing ---


def test_we_close() -> None:
    codec, peer = open_pair()
    [close] = peer.take(codec.close())
    assert close.opcode is Opcode.CLOSE
    assert codec.closed
    assert codec.close() == b""
    assert codec.receive(peer.output()) == b""
    assert codec.close_reason == "1000"
    codec.eof()
    with pytest.raises(ConnectionLost, match="is closing"):
        codec.send(b"PING\r\n")


def test_server_closes_after_its_last_frames() -> None:
    codec, peer = open_pair()
    last = peer.binary(b"-ERR 'x'\r\n")
    peer.protocol.send_close(1008, "Authentication Failure")
    assert codec.receive(last + peer.output()) == b"-ERR 'x'\r\n"
    assert codec.close_reason == "1008 Authentication Failure"
    [echo] = peer.take(codec.outgoing())
    assert echo.opcode is Opcode.CLOSE
    with pytest.raises(ConnectionLost):
        codec.send(b"PING\r\n")


def test_stream_that_just_ends() -> None:
    codec, _ = open_pair()
    codec.eof()
    assert codec.closed
    assert codec.close_reason is None
    assert codec.close() == b""


def test_sending_before_the_upgrade_is_refused() -> None:
    codec = WebSocketCodec(URL)
    with pytest.raises(ConnectionLost, match="not open yet"):
        codec.send(b"PING\r\n")
    assert codec.close() == b""


# --- secrecy ---


def test_nothing_shows_or_logs_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    url = parse_server_url(f"ws://u:{CANARY}@h/ws?key={CANARY}")
    with caplog.at_level(logging.DEBUG):
        codec, peer = WebSocketCodec(url, {"Authorization": f"Bearer {CANARY}"}), Peer()
        peer.protocol.logger = logging.Logger("peer", logging.CRITICAL)
        peer.protocol.debug = False
        codec.receive(peer.accept(codec.handshake()))
        codec.send(f'CONNECT {{"pass":"{CANARY}"}}\r\n'.encode())
        with pytest.raises(ProtocolError) as caught:
            codec.receive(b"\x83\x00")
    shown = [repr(codec), str(codec), str(caught.value), caplog.text]
    assert [text for text in shown if CANARY in text] == []
    assert not hasattr(codec, "__dict__")
