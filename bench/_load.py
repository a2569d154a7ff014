"""Load generators, each in its own process on a plain socket, so that they are never what is measured.

`python _load.py HOST PORT respond`  answers every request on `bench.echo` with its payload.
`python _load.py HOST PORT drive`    reads one JSON command a line from stdin and carries it out:
    {"op": "blast", "subject": s, "count": n, "size": b}            as fast as the socket takes it
    {"op": "pace", "subject": s, "count": n, "size": b, "interval": seconds}
                                     one message an interval; the payload starts with CLOCK_MONOTONIC in ns
"""

from __future__ import annotations

import json
import struct
import sys
import time
from typing import Any

from _raw import RawConn, payload


def respond(conn: RawConn) -> None:
    conn.sock.settimeout(None)
    conn.send(b"SUB bench.echo 1\r\n")
    conn.ping()
    print("READY", flush=True)
    while True:
        _, reply, data = conn.read_msg()
        conn.send(b"PUB %s %d\r\n%s\r\n" % (reply.encode(), len(data), data))


def blast(conn: RawConn, command: dict[str, Any]) -> None:
    size, count = command["size"], command["count"]
    one = b"PUB %s %d\r\n%s\r\n" % (command["subject"].encode(), size, payload(size))
    step = 400  # ~60 KB a write: large enough to be cheap, small enough to keep the receiver fed evenly
    block = one * step
    for _ in range(count // step):
        conn.send(block)
    conn.send(one * (count % step))
    conn.ping()


def pace(conn: RawConn, command: dict[str, Any]) -> None:
    size, interval = command["size"], command["interval"]
    head = b"PUB %s %d\r\n" % (command["subject"].encode(), size)
    rest = payload(size - 8) + b"\r\n"
    due = time.monotonic()
    for _ in range(command["count"]):
        due += interval
        if (wait := due - time.monotonic()) > 0:
            time.sleep(wait)
        conn.send(head + struct.pack("<q", time.monotonic_ns()) + rest)
    conn.ping()


def drive(conn: RawConn) -> None:
    print("READY", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        {"blast": blast, "pace": pace}[command["op"]](conn, command)
        print("DONE", flush=True)


def main() -> None:
    host, port, role = sys.argv[1:4]
    with RawConn(host, int(port), timeout=120.0) as conn:
        {"respond": respond, "drive": drive}[role](conn)


if __name__ == "__main__":
    main()
