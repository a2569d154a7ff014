"""``jetspark pub``, ``sub``, ``req`` and ``reply``: messages by subject."""

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from jetspark import PubAck
from jetspark.cli import output
from jetspark.cli.consumer.command import message_fields
from jetspark.cli.declare import HeaderOption, Json, command
from jetspark.cli.errors import CommandFailed, UsageError
from jetspark.cli.output import number, seconds_text, time_text
from jetspark.cli.settings import connection, current, jetstream, run
from jetspark.cli.stopping import stopped_by_signal, until
from jetspark.cli.templates import fill, has_places
from jetspark.cli.values import choice, duration, headers, moment
from jetspark.connecting import Connection
from jetspark.connection import Msg, Subscription
from jetspark.errors import PermissionViolationError

Raw = Annotated[bool, typer.Option("--raw", "-r", help="Only bodies.")]
Body = Annotated[
    str | None,
    typer.Argument(metavar="BODY", help="The body; without it, stdin or --file.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    command(
        app,
        "pub",
        "publish",
        example="jetspark pub orders.eu '{\"amount\": 12.5}' --js\n"
        "jetspark pub orders.test 'order {{Count}}' --count 1000 --rate 100\n"
        "jetspark pub orders.eu --file orders.jsonl --send-on newline --js",
    )(pub)
    command(
        app,
        "sub",
        "subscribe",
        example="jetspark sub 'orders.>'\njetspark sub 'orders.>' --stream ORDERS --since 1h --json",
    )(sub)
    command(app, "req", "request", example="jetspark req service.time ''\njetspark req svc hi --replies 0")(
        req
    )
    command(app, "reply", example="jetspark reply service.time '{{TimeStamp}}'\njetspark reply echo --echo")(
        reply
    )


def pub(
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="Subject to publish to.", show_default=False)
    ],
    body: Body = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", metavar="FILE", help="Body from a file; may be repeated, one message each."),
    ] = None,
    send_on: Annotated[
        str,
        typer.Option("--send-on", metavar="WHEN", help="A message for each newline, or one at eof."),
    ] = "eof",
    header: HeaderOption = None,
    reply: Annotated[str | None, typer.Option("--reply", metavar="SUBJECT", help="Reply subject.")] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", help="How many times to send it.", min=1)] = 1,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", help="Most messages per second.", min=0.001)
    ] = None,
    sleep: Annotated[
        str | None, typer.Option("--sleep", metavar="DURATION", help="Pause between messages.")
    ] = None,
    js: Annotated[
        bool, typer.Option("--js", "--jetstream", "-J", help="Wait until a stream has stored it.")
    ] = False,
    msg_id: Annotated[
        str | None, typer.Option("--msg-id", metavar="ID", help="Nats-Msg-Id; {{Count}} makes it unique.")
    ] = None,
    templates: Annotated[
        bool, typer.Option("--templates/--no-templates", help="Fill in placeholders.")
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no summary.")] = False,
    json: Json = False,
) -> None:
    """Publish messages.

    Placeholders in subject, body, headers and message id: {{Count}}, {{ID}}, {{Unix}}, {{UnixNano}},
    {{Time}}, {{TimeStamp}}, {{Random 10 100}}. With --js each message is acknowledged by its stream.
    """
    split = choice("--send-on", send_on, {"newline": "newline", "eof": "eof"}) == "newline"
    if sleep is not None and rate is not None:
        raise UsageError("give --rate or --sleep, not both")
    if js and reply is not None:
        raise UsageError("--js and --reply can't be combined: JetStream's ack goes to the reply subject")
    interval = duration("--sleep", sleep) if sleep is not None else 1 / rate if rate else 0.0
    bodies = _Bodies(body, file, split, count)
    plan = _Plan(subject, headers("--header", header or ()), msg_id, templates)
    plan.check(bodies)
    began = time.monotonic()
    if js:
        sent, size, acks = run(_publish_js(plan, bodies, interval, quiet, keep=json))
    else:
        sent, size, acks = run(_publish(plan, bodies, interval, reply, quiet))
    took = time.monotonic() - began
    if json:
        report: dict[str, Any] = {"published": sent, "bytes": size, "seconds": round(took, 3)}
        if js:
            report["acks"] = [ack.to_wire() | {"duplicate": ack.duplicate} for ack in acks]
        output.print_json(report)
    elif quiet:
        return
    elif js and sent == 1:
        ack = acks[0]
        doubled = ", a duplicate: nothing was stored" if ack.duplicate else ""
        output.line(f"stored in stream {ack.stream}, sequence {number(ack.seq)}{doubled}")
    else:
        stored = f", last in stream {acks[-1].stream}, sequence {number(acks[-1].seq)}" if acks else ""
        what = "message" if sent == 1 else "messages"
        output.line(f"published {number(sent)} {what}, {number(size)} bytes in {seconds_text(took)}{stored}")


class _Bodies:
    """Where the bodies come from: the argument, files, or stdin."""

    def __init__(self, body: str | None, files: list[Path] | None, split: bool, count: int) -> None:
        if body is not None and files:
            raise UsageError("give a body or --file, not both")
        if body is None and not files and sys.stdin.isatty():
            raise UsageError("no body: give one, use --file FILE or pipe it to stdin; '' is an empty body")
        self.text = body
        self._files = files or []
        self._split = split
        self._count = count
        self.total = count if body is not None else None
        if files and not split:
            self.total = count * len(files)
        for path in self._files:
            if not path.is_file():
                raise UsageError(f"--file: {path} is not a file")

    def __iter__(self) -> Iterator[bytes | str]:
        """Bytes as they are, or a text that may have placeholders."""
        if self.text is not None:
            for _ in range(self._count):
                yield self.text
            return
        if not self._files:
            stdin = sys.stdin.buffer
            if self._split:
                for line in stdin:
                    yield from [line.rstrip(b"\r\n")] * self._count
            else:
                yield from [stdin.read()] * self._count
            return
        for path in self._files:
            if self._split:
                with open(path, "rb") as opened:
                    for line in opened:
                        yield from [line.rstrip(b"\r\n")] * self._count
            else:
                yield from [path.read_bytes()] * self._count


class _Plan:
    """What is sent with each body."""

    def __init__(
        self, subject: str, fixed: dict[str, list[str]], msg_id: str | None, templates: bool
    ) -> None:
        self._subject = subject
        self._headers = fixed
        self._msg_id = msg_id
        self._templates = templates
        self._plain = not templates or not any(
            has_places(text)
            for text in (subject, msg_id or "", *(value for texts in fixed.values() for value in texts))
        )

    def check(self, bodies: _Bodies) -> None:
        """Refuse unknown placeholders before anything is sent."""
        self.message(bodies.text or b"", 1)
        if bodies.total is not None and bodies.total > 1 and self._msg_id and not has_places(self._msg_id):
            raise UsageError(
                "--msg-id: with one id, all messages but the first are duplicates; add {{Count}}"
            )

    def message(self, body: bytes | str, count: int) -> tuple[str, bytes, Any, str | None]:
        """Subject, body, headers and message id of message number ``count``."""
        if isinstance(body, str):
            body = (fill(body, count) if self._templates else body).encode("utf-8", "surrogateescape")
        if self._plain:
            return self._subject, body, self._headers or None, self._msg_id
        filled = {name: [fill(text, count) for text in texts] for name, texts in self._headers.items()}
        msg_id = None if self._msg_id is None else fill(self._msg_id, count)
        return fill(self._subject, count), body, filled or None, msg_id


async def _paced(bodies: _Bodies, interval: float) -> AsyncIterator[bytes | str]:
    """The bodies, no faster than one in ``interval`` seconds. A late one does not delay those after it."""
    if not interval:
        for body in bodies:
            yield body
        return
    loop = asyncio.get_running_loop()
    due = loop.time()
    for body in bodies:
        delay = due - loop.time()
        if delay > 0:
            await asyncio.sleep(delay)
        due += interval
        yield body


Sent = tuple[int, int, list[PubAck]]


async def _publish(plan: _Plan, bodies: _Bodies, interval: float, reply: str | None, quiet: bool) -> Sent:
    sent = size = 0
    async with connection() as nc:
        with _bar(bodies, quiet) as advance:
            async for body in _paced(bodies, interval):
                subject, data, fields, msg_id = plan.message(body, sent + 1)
                if msg_id is not None:
                    fields = {**(fields or {}), "Nats-Msg-Id": [msg_id]}
                await nc.publish(subject, data, reply=reply or "", headers=fields)
                sent += 1
                size += len(data)
                advance(1)
            await nc.flush(current().timeout)
            # The server does not answer a refused publish, but reports it before it answers the flush.
            if isinstance(nc.last_error, PermissionViolationError):
                raise nc.last_error
    return sent, size, []


async def _publish_js(plan: _Plan, bodies: _Bodies, interval: float, quiet: bool, *, keep: bool) -> Sent:
    """``keep``: return every ack, not just the last one."""
    sent = size = 0
    async with jetstream() as js:
        if bodies.total == 1:
            subject, data, fields, msg_id = plan.message(next(iter(bodies)), 1)
            return 1, len(data), [await js.publish(subject, data, headers=fields, msg_id=msg_id)]
        futures: deque[asyncio.Future[PubAck]] = deque(maxlen=None if keep else 1)
        with _bar(bodies, quiet) as advance:
            async with js.publisher(ack_timeout=max(current().timeout, 5.0)) as publisher:
                async for body in _paced(bodies, interval):
                    subject, data, fields, msg_id = plan.message(body, sent + 1)
                    futures.append(await publisher.publish(subject, data, headers=fields, msg_id=msg_id))
                    sent += 1
                    size += len(data)
                    advance(1)
        return sent, size, [future.result() for future in futures]


def _bar(bodies: _Bodies, quiet: bool) -> Any:
    # A bar for a single message would only flicker.
    return output.progress("publishing", bodies.total, quiet=quiet or bodies.total == 1)


def sub(
    subject: Annotated[
        list[str] | None, typer.Argument(metavar="SUBJECT...", help="Subjects.", show_default=False)
    ] = None,
    queue: Annotated[str, typer.Option("--queue", metavar="NAME", help="Share them in this group.")] = "",
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="STREAM", help="Read them from a stream, in order.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="With --stream: from the first. The default.")] = False,
    new: Annotated[bool, typer.Option("--new", help="With --stream: only new ones.")] = False,
    last: Annotated[bool, typer.Option("--last", help="With --stream: from the last one.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="With --stream: from an age (1h) or a time (UTC without a zone)."
        ),
    ] = None,
    start_sequence: Annotated[
        int | None,
        typer.Option("--start-sequence", metavar="N", help="With --stream: from this sequence.", min=1),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", help="End after N messages.", min=1)
    ] = None,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="DURATION", help="End after this long without a message.")
    ] = None,
    headers_only: Annotated[bool, typer.Option("--headers-only", help="No bodies.")] = False,
    raw: Raw = False,
    json: Json = False,
) -> None:
    """Print messages of subjects until Ctrl-C; of core NATS, or with --stream of a stream, without acks.

    With --count and --wait together, too few messages in time means exit code 1.
    """
    if not subject and stream is None:
        raise UsageError("give a subject, or --stream")
    given = [new, last, since is not None, start_sequence is not None, all]
    if stream is None and any(given):
        raise UsageError("--all, --new, --last, --since and --start-sequence need --stream")
    if stream is not None and queue:
        raise UsageError("--queue is for core subscriptions; use a durable consumer to share a stream")
    if sum(given) > 1:
        raise UsageError("give one of --all, --new, --last, --since, --start-sequence")
    start = None if since is None else moment("--since", since, past=True)
    patience = None if wait is None else duration("--wait", wait)
    show = _Show(raw, json, headers_only)
    policy = "new" if new else "last" if last else None

    async def from_core() -> None:
        async with connection(listen=True) as nc:
            subs = [await nc.subscribe(one, queue=queue) for one in subject or ()]
            await nc.flush(current().timeout)
            async with stopped_by_signal() as stopped:
                # Only now: a user who reads it may press Ctrl-C at once.
                output.notice(f"listening on {', '.join(subject or ())}")
                await until(stopped, _print_all(subs, show, count, patience))

    async def from_stream() -> None:
        async with jetstream(listen=True) as js:
            reader = await js.create_ordered_consumer(
                str(stream),
                filter_subjects=subject or None,
                deliver_policy=policy,
                opt_start_time=start,
                opt_start_seq=start_sequence,
                headers_only=headers_only,
            )

            async def work() -> None:
                async with reader, reader.consume(stop_after=count) as messages:
                    iterator = aiter(messages)
                    while True:
                        try:
                            async with asyncio.timeout(patience):
                                message = await anext(iterator)
                        except StopAsyncIteration:
                            return
                        except TimeoutError:
                            return show.end(count)
                        show.stored(message)

            async with stopped_by_signal() as stopped:
                await until(stopped, work())

    run(from_core() if stream is None else from_stream())


class _Show:
    """How received messages are printed."""

    def __init__(self, raw: bool, json: bool, headers_only: bool = False) -> None:
        self._raw = raw
        self._json = json
        self._bodies = not headers_only
        self.count = 0

    def message(self, message: Msg, **more: Any) -> None:
        self.count += 1
        if self._raw:
            output.raw(message.data)
            return
        if self._json:
            fields: dict[str, Any] = {"subject": output.clean(message.subject)}
            if message.reply:
                fields["reply"] = message.reply
            if message.headers:
                fields["headers"] = output.header_fields(message.headers)
            output.print_json_line(fields | (output.data_fields(message.data) if self._bodies else {}) | more)
            return
        reply = f", reply {message.reply}" if message.reply else ""
        note = "".join(f", {name} {value}" for name, value in more.items())
        self._text(f"[#{self.count}] {message.subject}{reply}{note}", message)

    def stored(self, message: Any) -> None:
        self.count += 1
        if self._raw:
            output.raw(message.data)
        elif self._json:
            output.print_json_line(message_fields(message))
        else:
            metadata = message.metadata
            self._text(
                f"[{metadata.sequence.stream}] {message.subject} @ {time_text(metadata.timestamp)}", message
            )

    def end(self, wanted: int | None) -> None:
        """Time is up. Fewer messages than asked for is a failure."""
        if wanted is not None:
            raise CommandFailed(f"only {self.count} of {wanted} messages arrived in time; raise --wait")

    def _text(self, head: str, message: Any) -> None:
        output.line(head)
        for name, value in message.headers.items():
            output.line(output.safe(f"  {name}: {value}"))
        if self._bodies:
            output.line(output.data_text(message.data))
        output.line()
        sys.stdout.flush()


async def _print_all(
    subs: list[Subscription], show: _Show, count: int | None, patience: float | None
) -> None:
    """Messages of all subscriptions in one order, until the count is reached or time is up."""
    # Bounded: messages that wait for a slow reader stay in the subscription, which reports its limits.
    arrived: asyncio.Queue[Msg] = asyncio.Queue(1000)

    async def pump(source: Subscription) -> None:
        async for message in source:
            await arrived.put(message)

    pumps = [asyncio.create_task(pump(source)) for source in subs]
    try:
        while count is None or show.count < count:
            try:
                async with asyncio.timeout(patience):
                    message = await arrived.get()
            except TimeoutError:
                return show.end(count)
            show.message(message)
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def req(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Subject to ask.", show_default=False)],
    body: Body = None,
    header: HeaderOption = None,
    replies: Annotated[
        int,
        typer.Option("--replies", metavar="N", help="Answers to wait for; 0: all until time is up.", min=0),
    ] = 1,
    stall: Annotated[
        str | None, typer.Option("--stall", metavar="DURATION", help="End after this long without an answer.")
    ] = None,
    raw: Raw = False,
    json: Json = False,
) -> None:
    """Send a request and print the answers. --timeout says how long to wait."""
    bodies = _Bodies(body, None, False, 1)
    plan = _Plan(subject, headers("--header", header or ()), None, True)
    plan.check(bodies)
    pause = None if stall is None else duration("--stall", stall)
    show = _Show(raw, json)

    async def work() -> None:
        async with connection() as nc:
            target, data, fields, _ = plan.message(next(iter(bodies)), 1)
            began = time.perf_counter()
            if replies == 1:
                answer = await nc.request(target, data, headers=fields)
                show.message(answer, rtt=_took(began))
                return
            async for answer in nc.request_many(
                target, data, max_messages=replies or None, stall=pause, headers=fields
            ):
                show.message(answer, rtt=_took(began))
            if show.count == 0 or show.count < replies:
                show.end(replies or 1)

    run(work())


def _took(began: float) -> str:
    return f"{(time.perf_counter() - began) * 1000:.2f}ms"


def reply(
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="Subject to answer on.", show_default=False)
    ],
    body: Annotated[
        str | None, typer.Argument(metavar="BODY", help="The answer.", show_default=False)
    ] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Answer with the body of the request.")] = False,
    queue: Annotated[str, typer.Option("--queue", metavar="NAME", help="Share them.")] = "jetspark-reply",
    header: HeaderOption = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", help="End after N messages.", min=1)
    ] = None,
    json: Json = False,
) -> None:
    """Answer requests until Ctrl-C, with a fixed text or with the request itself."""
    if (body is None) != echo:
        raise UsageError("give the answer's body, or --echo")
    fixed = headers("--header", header or ())
    fill(body or "", 1)
    show = _Show(False, json)

    async def answer(nc: Connection) -> None:
        async with await nc.subscribe(subject, queue=queue) as requests:
            await nc.flush(current().timeout)
            output.notice(f"answering on {subject}")
            async for message in requests:
                show.message(message)
                if message.reply:
                    data = message.data if body is None else fill(body, show.count).encode()
                    await message.respond(data, headers=fixed or None)
                if show.count == count:
                    await nc.flush(current().timeout)
                    return

    async def work() -> None:
        async with connection(listen=True) as nc, stopped_by_signal() as stopped:
            await until(stopped, answer(nc))

    run(work())
