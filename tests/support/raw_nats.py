"""A NATS client of a hundred lines over a plain socket, for tests that must not trust jetspark.

It does one request at a time and waits for the answer. Requests that are lost with a server or a leader are
sent again, so give a publish that must not be stored twice a message id.
"""

from __future__ import annotations

import itertools
import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

_TIMEOUT = 10.0
_RETRY = 0.02
_UNAVAILABLE = frozenset({10008, 10009, 10039, 10049, 10076})
"""err_codes of a server that starts, a cluster that elects, or a folder that just goes: ask again."""


class RawApiError(Exception):
    """The server refused: ``code`` is its err_code."""

    def __init__(self, subject: str, code: int, text: str) -> None:
        super().__init__(f"{subject}: {text} ({code})")
        self.code = code


class RawNats:
    """A connection to the first server that answers."""

    def __init__(self, urls: list[str], *, patience: float = 60.0) -> None:
        self._addresses = [(urlsplit(url).hostname or "", urlsplit(url).port or 4222) for url in urls]
        self._patience = patience
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._numbers = itertools.count(1)
        self._inbox = ""

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def api(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """A request to the JetStream API; ``subject`` without its prefix."""
        deadline = time.monotonic() + self._patience
        while True:
            answer: dict[str, Any] = json.loads(
                self.request(f"$JS.API.{subject}", b"" if body is None else json.dumps(body).encode())
            )
            error = answer.get("error")
            if error is None:
                return answer
            code = int(error.get("err_code", 0))
            if code not in _UNAVAILABLE or time.monotonic() > deadline:
                raise RawApiError(subject, code, str(error.get("description")))
            time.sleep(_RETRY)

    def publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> dict[str, Any]:
        """Publish to a stream and return the ack."""
        deadline = time.monotonic() + self._patience
        while True:
            ack: dict[str, Any] = json.loads(self.request(subject, payload, headers))
            error = ack.get("error")
            if error is None:
                return ack
            code = int(error.get("err_code", 0))
            if code not in _UNAVAILABLE or time.monotonic() > deadline:
                raise RawApiError(subject, code, str(error.get("description")))
            time.sleep(_RETRY)

    def request(self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
        """Send it until there is an answer; TimeoutError when there is none for a minute."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                answer = self._ask(subject, payload, headers)
                if answer is not None:
                    return answer
            except OSError:
                self.close()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer from {subject}")
            time.sleep(_RETRY)

    def pull(self, stream: str, consumer: str, batch: int) -> list[tuple[str, bytes]]:
        """Messages of a pull consumer that are there now: their reply subjects and payloads."""
        try:
            return self._pull(stream, consumer, batch)
        except OSError:
            self.close()
            return self._pull(stream, consumer, batch)

    def _pull(self, stream: str, consumer: str, batch: int) -> list[tuple[str, bytes]]:
        connected = self._connected()
        inbox = f"{self._inbox}.{next(self._numbers)}"
        body = json.dumps({"batch": batch, "no_wait": True}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        connected.sendall(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox.encode(), len(body), body))
        found: list[tuple[str, bytes]] = []
        while len(found) < batch:
            where, reply, status, data = self._message()
            if reply.startswith("$JS.ACK."):
                found.append((reply, data))  # with the subject that it was published to
            elif where == inbox and status:
                break
        return found

    def _ask(self, subject: str, payload: bytes, headers: dict[str, str] | None) -> bytes | None:
        connected = self._connected()
        inbox = f"{self._inbox}.{next(self._numbers)}"
        where = subject.encode() + b" " + inbox.encode()
        if headers:
            block = b"NATS/1.0\r\n" + b"".join(f"{k}: {v}\r\n".encode() for k, v in headers.items()) + b"\r\n"
            size = len(block) + len(payload)
            connected.sendall(b"HPUB %b %d %d\r\n%b%b\r\n" % (where, len(block), size, block, payload))
        else:
            connected.sendall(b"PUB %b %d\r\n%b\r\n" % (where, len(payload), payload))
        while True:
            found, _, status, data = self._message()
            if found == inbox:
                return None if status == 503 else data

    def _connected(self) -> socket.socket:
        if self._socket is None:
            for address in self._addresses:
                try:
                    self._socket = socket.create_connection(address, _TIMEOUT)
                    break
                except OSError:
                    continue
            if self._socket is None:
                raise ConnectionError("no server answers")
            self._buffer = b""
            self._inbox = f"_RAW.{id(self)}.{next(self._numbers)}"
            self._line()  # INFO
            connect = json.dumps({"verbose": False, "headers": True, "no_responders": True, "protocol": 1})
            self._socket.sendall(
                f"CONNECT {connect}\r\nSUB {self._inbox}.* 1\r\nPING\r\n".encode(),
            )
            while not self._line().startswith(b"PONG"):
                pass
        return self._socket

    def _message(self) -> tuple[str, str, int, bytes]:
        """Subject, reply, status (0: none) and payload of the next message."""
        while True:
            line = self._line()
            if line.startswith(b"PING"):
                assert self._socket is not None
                self._socket.sendall(b"PONG\r\n")
                continue
            if line.startswith(b"-ERR"):
                raise ConnectionError(line.decode())
            if not line.startswith((b"MSG", b"HMSG")):
                continue
            words = line.decode().split()
            counted = 2 if words[0] == "HMSG" else 1
            reply = words[3] if len(words) == 4 + counted else ""
            body = self._exactly(int(words[-1]) + 2)[:-2]
            status = 0
            if counted == 2:
                head, body = body[: int(words[-2])], body[int(words[-2]) :]
                first = head.split(b"\r\n", 1)[0].split()
                status = int(first[1]) if len(first) > 1 else 0
            return words[1], reply, status, body

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._more()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def _more(self) -> None:
        assert self._socket is not None
        chunk = self._socket.recv(65536)
        if not chunk:
            raise ConnectionError("the server closed the connection")
        self._buffer += chunk
