"""What an untrusted server does to its client: scripts for :class:`~support.fake_server.FakeServer`.

Floods have ``size`` bytes. A script of the established connection ends with :func:`farewell`, so that a
client that survived it says so; one that hung up comes back to the next script, which is honest.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.fake_server import INFO, Peer, chunked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    Script = Callable[[Peer], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Case:
    """One hostile behaviour.

    ``tasks``: what the client is doing (see ``hostile_client``). ``expect``: error classes of which the user
    must see at least one; empty: it must be borne without a disconnect, unless ``hangs_up`` leaves that open.
    """

    name: str
    script: Callable[[Peer, int], Awaitable[None]]
    tasks: tuple[str, ...] = ("subscribe",)
    expect: tuple[str, ...] = ()
    hangs_up: bool = False
    ping_interval: float = 60.0
    """Of the client; only where that is how it finds out, for a flood may keep a PONG waiting."""
    handshake: float = 30.0
    """Seconds that the client gives a handshake; short only where that is how it finds out."""
    holds: bool = False
    """The client has to hold what was sent, for it may be the start of something good."""


async def farewell(peer: Peer) -> None:
    """Tell the client that this was all."""
    peer.deafen(False)
    sid = await peer.sid("end")
    await peer.send(f"MSG end {sid} 0\r\n\r\n".encode())
    await peer.stay()


async def honest(peer: Peer) -> None:
    """A server that does nothing bad; answers what the tasks ask."""
    await peer.welcome()
    answering = asyncio.ensure_future(_answer(peer))
    try:
        await farewell(peer)
    finally:
        answering.cancel()


CONSUMER = json.dumps(
    {"stream_name": "S", "name": "C", "config": {"durable_name": "C", "ack_policy": "explicit"}}
).encode()
CONSUMER_INFO = "$JS.API.CONSUMER.INFO.S.C"
NEXT = "$JS.API.CONSUMER.MSG.NEXT.S.C"


async def _answer(peer: Peer, body: bytes = CONSUMER) -> None:
    while True:
        await peer.answer(CONSUMER_INFO, body)


async def silence(peer: Peer) -> None:
    await asyncio.sleep(3600)


# During the handshake


def says(first: bytes, again: bytes = b"") -> Callable[[Peer, int], Awaitable[None]]:
    """Send something instead of INFO, then something without end."""

    async def script(peer: Peer, size: int) -> None:
        await peer.send(first)
        if again:
            # More than an INFO may have, or it would be the time that ends it.
            await peer.flood(again, max(size, 2 << 20))
        await silence(peer)

    return script


async def million_urls(peer: Peer, size: int) -> None:
    head = json.dumps(INFO)[:-1].encode()
    await peer.send(b"INFO " + head + b', "connect_urls": ["10.0.0.1:1"')
    urls = (b', "10.%d.%d.%d:4222"' % (n >> 16, n >> 8 & 255, n & 255) for n in range(1_000_000))
    for chunk in chunked(urls):
        await peer.send(chunk)
    await peer.send(b"]}\r\n")
    await silence(peer)


def welcomes_with(**info: object) -> Callable[[Peer, int], Awaitable[None]]:
    async def script(peer: Peer, size: int) -> None:
        await peer.welcome(info)
        await farewell(peer)

    return script


async def many_urls(peer: Peer, size: int) -> None:
    """As many as fit into an INFO that is still taken."""
    await peer.welcome({"connect_urls": [f"10.0.{n >> 8}.{n & 255}:4222" for n in range(45_000)]})
    await farewell(peer)


async def bad_urls(peer: Peer, size: int) -> None:
    """Addresses that can't be read, and one that would send credentials elsewhere."""
    bad = [
        "",
        ":",
        "a:b",
        "a:99999",
        "[::1",
        "a b:1",
        "nats://u:p@evil:1",
        "x" * 300 + ":1",
        "\r\nPUB x 0",
        "\u202e:1",
    ]
    await peer.welcome({"connect_urls": bad * 100})
    await farewell(peer)


def before_pong(flood: bytes) -> Callable[[Peer, int], Awaitable[None]]:
    async def script(peer: Peer, size: int) -> None:
        await peer.send(b"INFO " + json.dumps(INFO).encode() + b"\r\n")
        await peer.flood(flood, size)
        await silence(peer)

    return script


async def drips(peer: Peer, size: int) -> None:
    """INFO a byte at a time: never silent, never done."""
    for byte in b"INFO " + json.dumps(INFO).encode():
        await peer.send(bytes([byte]))
        await asyncio.sleep(0.05)
    await silence(peer)


# On an established connection


def floods(flood: bytes, *, deaf: bool = False) -> Callable[[Peer, int], Awaitable[None]]:
    """The same again and again; ``%s`` in it is the sid of the client's subscription."""

    async def script(peer: Peer, size: int) -> None:
        await peer.welcome()
        sid = await peer.sid("s")
        peer.deafen(deaf)
        await peer.flood(flood.replace(b"%s", sid.encode()), size)
        await farewell(peer)

    return script


def sends(*pieces: bytes, then_silence: bool = False) -> Callable[[Peer, int], Awaitable[None]]:
    async def script(peer: Peer, size: int) -> None:
        await peer.welcome()
        sid = (await peer.sid("s")).encode()
        for piece in pieces:
            await peer.send(piece.replace(b"%s", sid))
        if then_silence:
            peer.deafen()
            await silence(peer)
        await farewell(peer)

    return script


def streams(make: Callable[[bytes], Iterable[bytes]]) -> Callable[[Peer, int], Awaitable[None]]:
    """Pieces that differ, ``size`` bytes in all."""

    async def script(peer: Peer, size: int) -> None:
        await peer.welcome()
        sid = (await peer.sid("s")).encode()
        for chunk in chunked(make(sid)):
            await peer.send(chunk)
            if peer.sent > size:
                break
        await farewell(peer)

    return script


def bomb(lines: bytes, count: int, status: bytes = b"") -> bytes:
    """A message whose header block has ``count`` such lines."""
    block = b"NATS/1.0" + status + b"\r\n" + lines * count + b"\r\n"
    return b"HMSG s %%s %d %d\r\n%b\r\n" % (len(block), len(block), block)


async def lies_and_streams(peer: Peer, size: int) -> None:
    """Announces a message of 100 MB and never finishes it."""
    await peer.welcome()
    sid = await peer.sid("s")
    await peer.send(f"HMSG s {sid} 100000000 100000000\r\nNATS/1.0\r\n".encode())
    await peer.flood(b"A: b\r\n", size)
    raise ConnectionResetError


# Requests and JetStream


def answers(make: Callable[[str, str], bytes], times: int = 3) -> Callable[[Peer, int], Awaitable[None]]:
    """``make(reply, sid)`` again and again to each request."""

    async def script(peer: Peer, size: int) -> None:
        await peer.welcome()
        for _ in range(times):
            reply = await peer.reply_of("ask")
            await peer.flood(make(reply, await peer.inbox(reply)), size // times)
        await farewell(peer)

    return script


def api_says(body: bytes) -> Callable[[Peer, int], Awaitable[None]]:
    """The same answer to whatever the API is asked."""

    async def script(peer: Peer, size: int) -> None:
        await peer.welcome()
        for subject in (
            *("$JS.API.INFO", "$JS.API.STREAM.INFO.S", CONSUMER_INFO),
            *("P", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST"),
        ):
            await peer.answer(subject, body)
        await farewell(peer)

    return script


def publishes_get(make: Callable[[str, str], bytes]) -> Callable[[Peer, int], Awaitable[None]]:
    """``make(base, reply)`` again and again: what is sent to an inbox ``base``; ``%s`` is its sid.

    Then the publish is acked as it should be.
    """

    async def script(peer: Peer, size: int) -> None:
        await peer.welcome()
        for number in range(1, 4):
            reply = await peer.reply_of("P")
            sid = (await peer.inbox(reply)).encode()
            base = reply.rpartition(".")[0] + "."
            await peer.flood(make(base, reply).replace(b"%s", sid), size // 3)
            ack = b'{"stream":"S","seq":%d}' % number
            await peer.send(b"MSG %b %b %d\r\n%b\r\n" % (reply.encode(), sid, len(ack), ack))
        await farewell(peer)

    return script


def to_inbox(*tokens: str, data: bytes = b'{"stream":"S","seq":1}') -> Callable[[str, str], bytes]:
    """Answers to messages that nobody published."""
    return lambda base, reply: b"".join(
        b"MSG %b %%s %d\r\n%b\r\n" % ((base + token).encode(), len(data), data) for token in tokens
    )


def to_message(data: bytes) -> Callable[[str, str], bytes]:
    """Answers to the message itself."""
    return lambda base, reply: b"MSG %b %%s %d\r\n%b\r\n" % (reply.encode(), len(data), data)


def pulls_get(
    header: bytes, *, reply: bytes = b"", deaf: bool = False
) -> Callable[[Peer, int], Awaitable[None]]:
    """Each pull request is answered by a flood of one status."""
    block = b"NATS/1.0 " + header + b"\r\n\r\n"

    async def script(peer: Peer, size: int) -> None:
        await peer.welcome()
        await peer.answer(CONSUMER_INFO, CONSUMER)
        # A fetch bears some of them until its time is up, so that more than one is for the large form.
        pulls = 2 if size > 1 << 20 else 1
        for _ in range(pulls):
            to = await peer.reply_of(NEXT)
            sid = await peer.inbox(to)
            peer.deafen(deaf)
            status = b"HMSG %b %b %b%d %d\r\n%b\r\n" % (
                to.encode(),
                sid.encode(),
                reply,
                len(block),
                len(block),
                block,
            )
            await peer.flood(status, size // pulls)
            peer.deafen(False)
        await farewell(peer)

    return script


PUSH = json.dumps(
    {
        "stream_name": "S",
        "name": "C",
        "config": {
            "durable_name": "C",
            "deliver_subject": "d",
            "flow_control": True,
            "idle_heartbeat": 10**9,
        },
    }
).encode()


def pushes(
    make: Callable[[bytes], Iterable[bytes]], *, deaf: bool = False
) -> Callable[[Peer, int], Awaitable[None]]:
    """To the reader of a push consumer."""

    async def script(peer: Peer, size: int) -> None:
        await peer.welcome()
        # How often the client asks before it subscribes is its own affair.
        answering = asyncio.ensure_future(_answer(peer, PUSH))
        try:
            sid = (await peer.sid("d")).encode()
        finally:
            answering.cancel()
        peer.deafen(deaf)
        for chunk in chunked(make(sid)):
            await peer.send(chunk)
            if peer.sent > size:
                break
        await farewell(peer)

    return script


def numbered(pattern: bytes) -> Callable[[bytes], Iterable[bytes]]:
    """The pattern with the sid for %s and a running number for %d."""

    def make(sid: bytes) -> Iterable[bytes]:
        fixed = pattern.replace(b"%s", sid)
        return (fixed.replace(b"%d", b"%d" % number) for number in itertools.count())

    return make


BROKEN = ("ProtocolError",)
BOTH = ("subscribe", "blocking")

HANDSHAKE = [
    Case("endless INFO", says(b'INFO {"server_id":"', b"x"), expect=BROKEN),
    Case("endless line", says(b"", b"x"), expect=BROKEN),
    Case("endless line breaks", says(b"", b"\r\n"), expect=BROKEN),
    Case("a million connect_urls", million_urls, expect=BROKEN),
    Case("INFO nested without end", says(b"INFO " + b"[" * 500_000 + b"\r\n"), expect=BROKEN),
    Case("INFO nested in a field", says(b'INFO {"x":' + b"[" * 500_000 + b"\r\n"), expect=BROKEN),
    Case("INFO of wrong types", says(b'INFO {"max_payload":"big","connect_urls":7}\r\n'), expect=BROKEN),
    Case(
        "INFO with numbers too large", says(b'INFO {"max_payload":' + b"9" * 5000 + b"}\r\n"), expect=BROKEN
    ),
    *(
        Case(f"INFO with {field} {name}", says(b'INFO {"%b":%b}\r\n' % (field.encode(), raw)), expect=BROKEN)
        for field in ("max_payload", "client_id")
        for name, raw in {
            "beyond 64 bits": b"9" * 30,
            "far below 0": b"-" + b"9" * 30,
            "that is a float": b"1e3",
            "that is infinite": b"1e400",
        }.items()
    ),
    Case("INFO that is no UTF-8", says(b'INFO {"server_id":"\xff\xfe"}\r\n'), expect=BROKEN),
    Case("an HTTP server", says(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"), expect=BROKEN),
    Case("an SSH server", says(b"SSH-2.0-OpenSSH_9.9\r\n"), expect=BROKEN),
    Case("PONG before INFO", says(b"PONG\r\n" * 1000), expect=BROKEN),
    Case("zeros", says(b"", b"\x00"), expect=BROKEN),
    Case("PING flood for PONG", before_pong(b"PING\r\n"), expect=("ConnectionLost",), handshake=0.5),
    Case("+OK flood for PONG", before_pong(b"+OK\r\n"), expect=("ConnectionLost",), handshake=0.5),
    Case(
        "INFO flood for PONG", before_pong(b'INFO {"port":1}\r\n'), expect=("ConnectionLost",), handshake=0.5
    ),
    Case("MSG flood for PONG", before_pong(b"MSG a 1 1\r\nx\r\n"), expect=("ConnectionLost",), handshake=0.5),
    Case("-ERR flood", before_pong(b"-ERR 'no'\r\n"), expect=("ConnectionLost",), handshake=0.5),
    Case("INFO by drips", drips, expect=("ConnectionLost",), handshake=0.5),
]

ESTABLISHED = [
    Case("an INFO of a megabyte", welcomes_with(server_name="x" * 1_000_000)),
    Case("negative max_payload", welcomes_with(max_payload=-1)),
    Case("thousands of connect_urls", many_urls),
    Case("connect_urls that can't be read", bad_urls),
    Case(
        "size bigger than the message",
        sends(b"MSG s %s 50\r\nshort\r\n", then_silence=True),
        BOTH,
        ("ConnectionLost", "ProtocolError"),
        ping_interval=0.5,
    ),
    Case("size smaller than the message", sends(b"MSG s %s 2\r\nlonger\r\n"), BOTH, BROKEN),
    Case("size negative", sends(b"MSG s %s -1\r\n\r\n"), BOTH, BROKEN),
    Case("size past all limits", sends(b"MSG s %s 9999999999\r\n"), BOTH, BROKEN),
    Case("size of a thousand digits", sends(b"MSG s %s " + b"9" * 1000 + b"\r\n"), expect=BROKEN),
    Case("size with a sign", sends(b"MSG s %s +5\r\nhello\r\n"), expect=BROKEN),
    Case("size with underscores", sends(b"MSG s %s 1_0\r\n0123456789\r\n"), expect=BROKEN),
    Case("size in Arabic digits", sends("MSG s %s \u0665\r\nhello\r\n".encode()), expect=BROKEN),
    Case("header longer than the message", sends(b"HMSG s %s 20 12\r\nNATS/1.0\r\n\r\n\r\n"), expect=BROKEN),
    Case("header of another version", sends(b"HMSG s %s 12 12\r\nNATS/9.9\r\n\r\n\r\n"), expect=BROKEN),
    Case("a message without end", lies_and_streams, BOTH, ("ConnectionLost",), holds=True),
    Case("endless subject", floods(b"MSG " + b"x" * 70_000), BOTH, BROKEN),
    Case("header bomb", sends(*[bomb(b"a:b\r\n", 200_000)] * 8), BOTH, BROKEN),
    Case("header bomb of line breaks", sends(*[bomb(b"\r\n", 400_000)] * 8), expect=BROKEN),
    Case("header without a colon", sends(bomb(b"nothing\r\n", 1)), BOTH, BROKEN),
    Case("one header of a megabyte", sends(bomb(b"a:" + b"b" * 1_000_000 + b"\r\n", 1))),
    Case(
        "status that is no number",
        sends(bomb(b"", 0, b" \xb2\xb3"), bomb(b"", 0, b" 99999999999")),
        expect=BROKEN,
    ),
    Case("LF for CRLF", sends(b"MSG s %s 1\nx\n"), BOTH, BROKEN),
    Case("CR CR LF", sends(b"PING\r\r\nMSG s %s 1\r\r\nx\r\n"), expect=BROKEN),
    Case("commands inside a payload", sends(b"MSG s %s 22\r\n\r\nMSG s 1 1\r\nx\r\nPING\r\n\r\n")),
    Case("commands inside a header", sends(bomb(b"A: b\nMSG s 1 1\r\n", 1))),
    Case(
        "CR, tab and NUL in a reply",
        sends(
            b"MSG s %s a\rb 0\r\n\r\nMSG s %s a\tb 0\r\n\r\n",
            b"MSG s %s a\x00b 0\r\n\r\nMSG s %s \xff.> 0\r\n\r\n",
        ),
        expect=("InvalidArgument",),
    ),
    Case("PING flood", floods(b"PING\r\n"), BOTH),
    Case("PING flood, deaf", floods(b"PING\r\n", deaf=True), BOTH),
    Case("PONG flood", floods(b"PONG\r\n")),
    Case("+OK flood", floods(b"+OK\r\n")),
    Case("INFO flood", floods(b"INFO " + json.dumps(INFO).encode() + b"\r\n")),
    Case(
        "INFO flood with news",
        streams(numbered(b'INFO {"ldm":true,"connect_urls":["10.0.0.1:%d","h%d:1"]}\r\n')),
    ),
    Case("INFO flood, lame and not", floods(b'INFO {"ldm":true}\r\nINFO {}\r\n')),
    Case("-ERR flood", floods(b"-ERR 'Slow Down'\r\n"), BOTH),
    Case("-ERR flood of different texts", streams(numbered(b"-ERR '%d'\r\n")), BOTH),
    Case("-ERR flood of long texts", floods(b"-ERR '" + b"x" * 60_000 + b"'\r\n")),
    Case(
        "-ERR flood of violations",
        streams(numbered(b"-ERR 'Permissions Violation for Subscription to \"x.%d\"'\r\n")),
    ),
    Case(
        "-ERR that almost is a violation",
        floods(b"-ERR 'Permissions Violation for Publish to \"" + b"\\\\" * 20_000 + b"'\r\n"),
    ),
    Case("message flood", floods(b"MSG s %s 1\r\nx\r\n"), BOTH),
    Case("message flood nobody asked for", streams(numbered(b"MSG s 9%d 1\r\nx\r\n"))),
    Case(
        "sizes of all kinds",
        streams(
            lambda sid: (
                b"MSG s %b %d\r\n%b\r\n" % (sid, n % 9000, b"x" * (n % 9000)) for n in itertools.count()
            )
        ),
    ),
    Case("status flood", floods(b"HMSG s %s 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"), BOTH),
]

ASKING = [
    Case("answer flood", answers(lambda reply, sid: f"MSG {reply} {sid} 1\r\nx\r\n".encode()), ("request",)),
    Case(
        "503 flood",
        answers(lambda reply, sid: f"HMSG {reply} {sid} 16 16\r\nNATS/1.0 503\r\n\r\n\r\n".encode()),
        ("request",),
        ("NoRespondersError",),
    ),
    Case(
        "answers to nobody",
        answers(lambda reply, sid: f"MSG {reply}x {sid} 1\r\nx\r\n".encode()),
        ("request",),
        ("RequestTimeout",),
    ),
    Case(
        "answer with a bad header",
        answers(lambda reply, sid: f"HMSG {reply} {sid} 16 16\r\nNATS/1.0 5x3\r\n\r\n\r\n".encode()),
        ("request",),
        BROKEN,
    ),
    *(
        Case(f"API answer {name}", api_says(body), ("api",), ("ProtocolError", "ApiError"))
        for name, body in {
            "nested without end": b"[" * 900_000,
            "nested in a field": b'{"x":' + b"[" * 500_000,
            "that is no JSON": b"<html>",
            "that is no object": b"[1,2,3]",
            "that is no UTF-8": b'{"type":"\xff"}',
            "with an error of wrong type": b'{"error":"no"}',
            "with an error of wrong fields": b'{"error":{"code":"x","err_code":[],"description":7}}',
            "of wrong types": b'{"config":7,"streams":7,"total":"x","stream":[],"seq":{},'
            b'"name":1,"stream_name":{},"memory":"x"}',
            "with negative and broken numbers": b'{"config":{"max_age":1.5},"seq":-5,"streams":[-1],'
            b'"memory":1e3,"stream_name":"S","name":"C","stream":"S","created":"9999-99-99T99:99:99Z"}',
            "with numbers beyond 64 bits": b'{"config":{"max_age":99999999999999999999},'
            b'"seq":99999999999999999999,"streams":[99999999999999999999],"memory":99999999999999999999,'
            b'"stream_name":"S","name":"C","stream":"S","num_pending":99999999999999999999}',
            "with numbers too large": b'{"config":{"max_msgs":'
            + b"9" * 400
            + b'},"seq":'
            + b"9" * 400
            + b',"streams":['
            + b"9" * 400
            + b'],"memory":'
            + b"9" * 400
            + b"}",
        }.items()
    ),
]

ASKING += [
    Case(
        "acks for serials that are none",
        publishes_get(
            to_inbox("9" * 4900, "99999999999999999999", "-1", "+1", "1_0", "\u0661", "x", "0", "1.1")
        ),
        ("publisher",),
    ),
    Case(
        "acks for serials to come with sequences that are none",
        publishes_get(to_inbox("99999", "17", data=b'{"stream":"S","seq":-1' + b"0" * 30 + b"}")),
        ("publisher",),
    ),
    *(
        Case(f"publish answer {name}", publishes_get(to_message(body)), ("publisher",), ("ProtocolError",))
        for name, body in {
            "nested without end": b'{"x":' + b"[" * 500_000,
            "with a sequence of hundreds of digits": b'{"stream":"S","seq":' + b"9" * 400 + b"}",
            "with a sequence of thousands of digits": b'{"stream":"S","seq":' + b"9" * 5000 + b"}",
            "with a negative sequence": b'{"stream":"S","seq":-1' + b"0" * 30 + b"}",
            "with sequence 0": b'{"stream":"S","seq":0}',
            "with a fraction": b'{"stream":"S","seq":1e400}',
            "that is no object": b"[1]",
            "that is empty": b"",
        }.items()
    ),
    Case(
        "publish answer with an error of huge numbers",
        publishes_get(to_message(b'{"error":{"code":' + b"9" * 400 + b',"err_code":' + b"9" * 5000 + b"}}")),
        ("publisher",),
        ("ProtocolError", "ApiError"),
    ),
]

STATUSES = [
    Case(f"{name} flood", pulls_get(header), ("fetch", "consume"), hangs_up=True)
    for name, header in {
        "100 heartbeat": b"100 Idle Heartbeat",
        "404": b"404 No Messages",
        "408": b"408 Request Timeout",
        "409 leader change": b"409 Leadership Change",
        "409 consumer deleted": b"409 Consumer Deleted",
        "409 of the unknown": b"409 Something Else",
        "503": b"503",
        "423": b"423 Pin",
        "1 to 4 digits": b"7777 x",
        "bad header lines": b"100 Idle Heartbeat\r\nno colon here",
        "heartbeat with numbers beyond 64 bits": b"100 Idle Heartbeat\r\n"
        b"Nats-Last-Consumer: 99999999999999999999\r\nNats-Last-Stream: 99999999999999999999",
        "408 with numbers beyond 64 bits": b"408 Request Timeout\r\n"
        b"Nats-Pending-Messages: 99999999999999999999\r\nNats-Pending-Bytes: 99999999999999999999",
        "409 with a limit that is none": b"409 Exceeded MaxRequestExpires of " + b"9" * 400 + b"h",
        "409 with a limit of thousands of digits": b"409 Exceeded MaxRequestBatch of " + b"9" * 5000,
        "heartbeat with wrong numbers": b"100 Idle Heartbeat\r\nNats-Last-Consumer: x\r\n"
        b"Nats-Pending-Messages: -9\r\nNats-Pending-Bytes: " + b"9" * 5000,
    }.items()
] + [
    Case(
        "flow control flood",
        pulls_get(b"100 FlowControl Request", reply=b"fc.1 "),
        ("consume",),
        hangs_up=True,
    ),
    Case(
        "flow control flood, deaf",
        pulls_get(b"100 FlowControl Request", reply=b"fc.1 ", deaf=True),
        ("consume",),
        hangs_up=True,
    ),
]

WORSE = [b"1", b"-1", b"9" * 20, b"9" * 30, b"9" * 5000, b"\xd9\xa1", b"1_0", b"", b"18446744073709551615"]
FLOW_CONTROL = b"HMSG d %s fc.%d 36 36\r\nNATS/1.0 100 FlowControl Request\r\n\r\n\r\n"
STATUSES += [
    Case("flow control flood", pushes(numbered(FLOW_CONTROL)), ("push",), hangs_up=True),
    Case("flow control flood, deaf", pushes(numbered(FLOW_CONTROL), deaf=True), ("push",), hangs_up=True),
    Case("flood of strangers", pushes(numbered(b"MSG d %s r.%d 1\r\nx\r\n")), ("push",), hangs_up=True),
    Case(
        "flood of sequences that are none",
        pushes(
            lambda sid: (
                b"MSG d %b $JS.ACK.S.C.1.%b.%b.%b.%b 1\r\nx\r\n" % (sid, *numbers)
                for numbers in itertools.cycle(itertools.permutations(WORSE, 4))
            )
        ),
        ("push",),
        hangs_up=True,
    ),
    Case(
        "flood of gaps",
        pushes(numbered(b"MSG d %s $JS.ACK.S.C.1.%d7.%d5.1.1 1\r\nx\r\n")),
        ("push",),
        hangs_up=True,
    ),
]

CASES = [*HANDSHAKE, *ESTABLISHED, *ASKING, *STATUSES]
