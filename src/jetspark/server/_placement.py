"""Asking a cluster whether it can place replicas, over the plain protocol: this package has no client.

A leader refuses to place replicas ("peer offline", err_code 10005) until each server has reported to it once.
No monitoring endpoint shows whether it has these reports, so a small stream is created and deleted.
"""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from io import BufferedRWPair

NO_SUITABLE_PEERS = 10005
_MOST_REPLICAS = 5
_CONNECT = {"verbose": False, "pedantic": False, "lang": "python", "version": "0", "name": "jetspark-ready"}


def refuses_replicas(host: str, port: int, servers: int, timeout: float = 2.0) -> bool:
    """Whether the cluster can't place replicas on this many servers, or does not answer.

    False also when that is unknown: the server wants TLS or credentials, or refuses for another reason.
    """
    name = f"JETSPARK_READY_{os.getpid()}"
    config = {
        "name": name,
        "subjects": [f"_JETSPARK.ready.{os.getpid()}"],
        "storage": "memory",
        "num_replicas": min(servers, _MOST_REPLICAS),
    }
    try:
        with socket.create_connection((host, port), timeout) as link, link.makefile("rwb") as lines:
            if not _connected(lines):
                return False
            made = _request(lines, f"$JS.API.STREAM.CREATE.{name}", config)
            if made is None:
                return False
            if "error" in made:
                return bool(made["error"].get("err_code") == NO_SUITABLE_PEERS)
            _request(lines, f"$JS.API.STREAM.DELETE.{name}", {})
    except (OSError, ValueError, AttributeError):
        # No answer in time, or an unreadable one. If the stream was created all the same, the next attempt
        # finds and deletes it.
        return True
    return False


def _connected(lines: BufferedRWPair) -> bool:
    """Whether the server takes us without TLS and credentials."""
    info = json.loads(lines.readline().removeprefix(b"INFO "))
    if info.get("tls_required") or info.get("auth_required") or not info.get("jetstream"):
        return False
    lines.write(b"CONNECT " + json.dumps(_CONNECT).encode() + b"\r\nSUB _JETSPARK.ready.answer 1\r\nPING\r\n")
    lines.flush()
    while (line := lines.readline()) != b"PONG\r\n":
        if not line or line.startswith(b"-ERR"):
            return False
    return True


def _request(lines: BufferedRWPair, subject: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """The answer of the JetStream API; None when the server closed the connection or refused."""
    data = json.dumps(body).encode()
    lines.write(f"PUB {subject} _JETSPARK.ready.answer {len(data)}\r\n".encode() + data + b"\r\n")
    lines.flush()
    while line := lines.readline():
        if line.startswith(b"-ERR"):
            return None
        if line.startswith(b"PING"):
            lines.write(b"PONG\r\n")
            lines.flush()
        if line.startswith(b"MSG "):
            answer: dict[str, Any] = json.loads(lines.read(int(line.split()[-1]) + 2))
            return answer
    return None
