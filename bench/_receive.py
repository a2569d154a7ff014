"""How bytes get from a socket to the parser: `python _receive.py VARIANT MEGABYTES`.

A child process feeds a TCP connection on the loopback with runs of messages. Prints JSON: microseconds of
processor time a message, user and system.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
import time
from typing import Any

from _variants import RUN, chunk

from jetspark import Msg
from jetspark.wire.parser import Parser


def feed(port: int, blocks: int, block: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for _ in range(blocks):
            sock.sendall(block)


class Receiver(asyncio.Protocol):
    """data_received: asyncio makes a bytes of each read, at most 256 KiB."""

    def __init__(self, total: int, done: asyncio.Future[None], parser: Parser | None) -> None:
        self.left, self.done, self.parser = total, done, parser

    def take(self, count: int) -> None:
        self.left -= count
        if self.left <= 0 and not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self.parser is not None:
            self.parser.feed(data)
        self.take(len(data))


class Buffered(asyncio.BufferedProtocol):
    """A large buffer that is used again and again; the parser's bytes are copied out of it."""

    def __init__(self, total: int, done: asyncio.Future[None], parser: Parser | None, size: int) -> None:
        self.left, self.done, self.parser = total, done, parser
        self.view = memoryview(bytearray(size))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.view

    def buffer_updated(self, count: int) -> None:
        if self.parser is not None:
            self.parser.feed(bytes(self.view[:count]))
        self.left -= count
        if self.left <= 0 and not self.done.done():
            self.done.set_result(None)


async def receive(server: socket.socket, variant: str, total: int) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    kind, _, parse = variant.partition("+")
    parser = Parser(compiled=parse == "c") if parse else None
    if parser is not None:
        parser.routes["7"] = (Msg, None)
    protocol: Any
    if kind == "data_received":
        protocol = Receiver(total, done, parser)
    else:
        protocol = Buffered(total, done, parser, int(kind.removeprefix("buffered_")) << 10)
    server.setblocking(False)
    sock, _ = await loop.sock_accept(server)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock)
    await done
    transport.close()


def plain(server: socket.socket, total: int) -> None:
    sock, _ = server.accept()
    buffer = bytearray(1 << 20)
    with sock:
        while total > 0:
            total -= sock.recv_into(buffer)


def main() -> None:
    variant, megabytes = sys.argv[1], int(sys.argv[2])
    block = chunk()
    blocks = (megabytes << 20) // len(block)
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if not child:
            feed(server.getsockname()[1], blocks, block)
            os._exit(0)
        before = time.process_time()
        times = resource.getrusage(resource.RUSAGE_SELF)
        if variant == "plain":
            plain(server, blocks * len(block))
        else:
            asyncio.run(receive(server, variant, blocks * len(block)))
        took, after = time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF)
        os.waitpid(child, 0)
    n = blocks * RUN
    system = after.ru_stime - times.ru_stime
    print(json.dumps({"us": took / n * 1e6, "system_us": system / n * 1e6}))


if __name__ == "__main__":
    main()
