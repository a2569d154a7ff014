"""Plain blocking sockets that speak just enough NATS: the raw limit, the load generators, the stream set-up.

Nothing here uses jetspark or a peer, so that neither side's cost hides in the measuring equipment.
"""

from __future__ import annotations

import json
import re
import socket
from typing import Any

CHUNK = 1 << 20
# A pull asks for heartbeats, as every `consume` has to (ADR-37 'Idle heartbeats'). They cost the server a
# look at the clock for each message, so a limit without them would be out of reach for any client.
EXPIRES = 30.0
HEARTBEAT = EXPIRES / 2
PAYLOAD_SEED = b"0123456789abcdef"


def payload(size: int) -> bytes:
    return (PAYLOAD_SEED * (size // len(PAYLOAD_SEED) + 1))[:size]


class RawConn:
    """One connection; `recv` returns what the kernel has, pending bytes of the handshake first."""

    def __init__(self, host: str, port: int, *, timeout: float = 60.0) -> None:
        self.sock = socket.create_connection((host, port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self.info: dict[str, Any] = json.loads(self.read_until(b"\r\n")[len(b"INFO ") :])
        self.send(
            b'CONNECT {"verbose":false,"pedantic":false,"lang":"raw","version":"0","protocol":1,'
            b'"headers":true,"no_responders":true,"echo":true}\r\n'
        )
        self.ping()

    def __enter__(self) -> RawConn:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def recv(self) -> bytes:
        if self._rest:
            data, self._rest = self._rest, b""
            return data
        data = self.sock.recv(CHUNK)
        if not data:
            raise ConnectionError("the server closed the raw connection")
        return data

    def read_until(self, mark: bytes) -> bytes:
        """Everything up to and including `mark`; the rest stays for the next read."""
        data = self.recv()
        while (at := data.find(mark)) < 0:
            data += self.recv()
        at += len(mark)
        self._rest = data[at:] + self._rest
        return data[:at]

    def ping(self) -> None:
        self.send(b"PING\r\n")
        self.read_until(b"PONG\r\n")

    def read_msg(self) -> tuple[str, str, bytes]:
        """One MSG or HMSG as (subject, reply, payload); answers PING, skips the rest."""
        while True:
            line = self.read_until(b"\r\n")[:-2]
            if line.startswith((b"MSG ", b"HMSG ")):
                words = line.decode().split(" ")
                fixed = 4 if words[0] == "MSG" else 5
                reply = words[3] if len(words) > fixed else ""
                total = int(words[-1])
                head = int(words[-2]) if words[0] == "HMSG" else 0
                return words[1], reply, self._read_exactly(total + 2)[head:-2]
            if line == b"PING":
                self.send(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise ConnectionError(line.decode())

    def _read_exactly(self, size: int) -> bytes:
        data = self.recv()
        while len(data) < size:
            data += self.recv()
        self._rest = data[size:] + self._rest
        return data[:size]

    def api(self, subject: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """A JetStream API call on a connection with no other traffic."""
        body = json.dumps(request).encode() if request is not None else b""
        self.send(b"SUB _INBOX.raw.api 9\r\n")
        self.send(b"PUB $JS.API.%s _INBOX.raw.api %d\r\n%s\r\n" % (subject.encode(), len(body), body))
        _, _, answer = self.read_msg()
        self.send(b"UNSUB 9\r\n")
        decoded: dict[str, Any] = json.loads(answer)
        if "error" in decoded:
            raise RuntimeError(f"{subject}: {decoded['error']}")
        return decoded

    def create_stream(self, name: str, subject: str, **config: Any) -> None:
        self.api(
            f"STREAM.CREATE.{name}",
            {"name": name, "subjects": [subject], "storage": "file", "retention": "limits", **config},
        )

    def create_pull_consumer(self, stream: str, name: str, **config: Any) -> None:
        body = {"name": name, "ack_policy": "none", "mem_storage": True, "inactive_threshold": 60_000_000_000}
        self.api(
            f"CONSUMER.CREATE.{stream}.{name}",
            {"stream_name": stream, "config": {**body, **config}, "action": "create"},
        )

    def pull(self, stream: str, consumer: str, inbox: str, batch: int) -> None:
        request = {"batch": batch, "expires": int(EXPIRES * 1e9), "idle_heartbeat": int(HEARTBEAT * 1e9)}
        body = json.dumps(request).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}".encode()
        self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject, inbox.encode(), len(body), body))


def publish_pipelined(conn: RawConn, subject: str, n: int, size: int, window: int, step: int = 500) -> None:
    """`n` JetStream publishes, at most `window` unacknowledged; acks are counted, not read.

    The reply subject is the same for all, so nobody can tell which ack is whose: this fills streams and is no
    limit to be held to. What is counted is `MSG <inbox>` in the received bytes.
    """
    one = b"PUB %s _INBOX.raw.ack %d\r\n%s\r\n" % (subject.encode(), size, payload(size))
    blocks = [one * step] * (n // step)
    if n % step:
        blocks.append(one * (n % step))
    send_pipelined(conn, "_INBOX.raw.ack", blocks, n, window, step)


def encode_publishes(
    subject: str, inbox: str, n: int, size: int, step: int = 500, stream: str = "", ids: str = ""
) -> list[bytes]:
    """The same with a reply subject for each message, as whoever wants to know which ack is whose must have.

    `stream` and `ids`: with the two headers of the Spark sink, ids of its length that begin like this.
    """
    data = payload(size)
    blocks: list[bytes] = []
    for begin in range(0, n, step):
        pieces: list[bytes] = []
        for i in range(begin, min(n, begin + step)):
            line = b"%s %s.%d" % (subject.encode(), inbox.encode(), i)
            if ids:
                head = b"NATS/1.0\r\nNats-Msg-Id: %s-%016d\r\nNats-Expected-Stream: %s\r\n\r\n" % (
                    ids.encode(), i, stream.encode(),
                )  # fmt: skip
                pieces.append(b"HPUB %s %d %d\r\n%s%s\r\n" % (line, len(head), len(head) + size, head, data))
            else:
                pieces.append(b"PUB %s %d\r\n%s\r\n" % (line, size, data))
        blocks.append(b"".join(pieces))
    return blocks


def send_pipelined(conn: RawConn, inbox: str, blocks: list[bytes], n: int, window: int, step: int) -> None:
    """Send blocks of `step` publishes whose replies are `inbox` or below it, and count the acks."""
    mark = b"MSG %s" % inbox.encode()
    conn.send(b"SUB %s 7\r\nSUB %s.* 8\r\n" % (inbox.encode(), inbox.encode()))
    sent = acked = 0
    tail = b""
    for block in blocks:
        while sent + step - acked > window:
            acked, tail = _count_acks(conn, mark, acked, tail)
        conn.send(block)
        sent += step
    while acked < n:
        acked, tail = _count_acks(conn, mark, acked, tail)
    conn.send(b"UNSUB 7\r\nUNSUB 8\r\n")


def _count_acks(conn: RawConn, mark: bytes, acked: int, tail: bytes) -> tuple[int, bytes]:
    data = tail + conn.recv()
    if b'"error"' in data:
        raise RuntimeError(f"refused publish: {data[:300]!r}")
    # A mark cut in two by the chunk border is counted with the next chunk, a whole one never twice.
    return acked + data.count(mark), data[-(len(mark) - 1) :]


def drain_pull(
    conn: RawConn,
    stream: str,
    consumer: str,
    first: int,
    last: int,
    recent: int = 1024,
    blind: int = 0,
) -> None:
    """Receives messages first..last of an ack-none pull consumer, looking at nothing but the newest tail.

    The last message is recognised by the sequences in its reply subject, searched in the last bytes only:
    `recent` of them, which must be more than a message. The first `blind` bytes are not even looked at.
    """
    mark = b".1.%d.%d." % (last, last)
    conn.pull(stream, consumer, "_INBOX.raw.pull", last - first + 1)
    sock = conn.sock
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    carry = b""
    while blind > 0 and (got := sock.recv_into(buffer)):
        blind -= got
    while True:
        got = sock.recv_into(buffer)
        if not got:
            raise ConnectionError("the server closed the raw connection")
        carry = carry + view[:got] if got < recent else bytes(view[got - recent : got])
        carry = carry[-recent:]
        if (at := carry.find(mark)) >= 0:
            break
    # The payload of the last message may still be on its way; take it off the socket.
    end = carry.find(b"\r\n", at)
    while end < 0 or len(carry) < end + 2 + int(carry[carry.rfind(b" ", at, end) + 1 : end]) + 2:
        carry += sock.recv(CHUNK)
        end = carry.find(b"\r\n", at)


def direct_page(conn: RawConn, stream: str, first: int, count: int) -> None:
    """Receives one page of a batch direct get, looking at nothing but its end. Subscribe as sid 7 before."""
    body = json.dumps({"seq": first, "batch": count, "max_bytes": 1 << 26, "next_by_subj": ">"}).encode()
    subject = b"$JS.API.DIRECT.GET.%s" % stream.encode()
    conn.send(b"PUB %s _INBOX.raw.direct %d\r\n%s\r\n" % (subject, len(body), body))
    recent = b""
    # The status that ends the page closes its headers, and has no payload.
    while not (b"NATS/1.0 204" in recent and recent.endswith(b"\r\n\r\n\r\n")):
        recent = (recent + conn.recv())[-1024:]


_REPLY = re.compile(rb"MSG \S+ \d+ (\$JS\.ACK\.\S+) \d+\r\n")


def drain_pull_explicit(conn: RawConn, stream: str, consumer: str, n: int) -> None:
    """Receives and acknowledges `n` messages: one regular expression and one write a chunk."""
    conn.pull(stream, consumer, "_INBOX.raw.pull", n)
    done = 0
    tail = b""
    while done < n:
        data = tail + conn.recv()
        found = list(_REPLY.finditer(data))
        tail = data[found[-1].end() :] if found else data
        replies = [match[1] for match in found]
        conn.send(b"".join([b"PUB %s 4\r\n+ACK\r\n" % reply for reply in replies]))
        done += len(replies)
    conn.ping()
