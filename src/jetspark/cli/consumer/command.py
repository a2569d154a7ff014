"""``jetspark consumer``: consumers, and reading through them."""

import asyncio
import contextlib
from typing import Annotated, Any

import typer

from jetspark import Consumer, ConsumerInfo, Message
from jetspark.cli import output
from jetspark.cli.asking import confirm
from jetspark.cli.consumer import options as consumer_options
from jetspark.cli.declare import ConsumerName, Force, Json, StreamName, command, group
from jetspark.cli.errors import CommandFailed, UsageError
from jetspark.cli.output import limit_text, number, seconds_text, time_text
from jetspark.cli.settings import find_consumer, jetstream, run
from jetspark.cli.stopping import stopped_by_signal
from jetspark.cli.stream.command import show_changes
from jetspark.cli.values import choice, duration, moment
from jetspark.errors import JetsparkError
from jetspark.models import ConsumerPause

app = group("Consumers: list, create, change, read through them, pause.")


def register(root: typer.Typer) -> None:
    """Add the commands to the root."""
    root.add_typer(app, name="consumer")
    root.add_typer(app, name="con", hidden=True)


_MODES = {"ack": "ack", "sync": "sync", "none": "none", "nak": "nak", "term": "term"}
Mode = Annotated[
    str, typer.Option("--ack-mode", metavar="MODE", help="ack, sync (wait for it), none, nak or term.")
]
Raw = Annotated[bool, typer.Option("--raw", "-r", help="Only bodies.")]


@command(app, "ls", "list", example="jetspark consumer ls ORDERS")
def ls(
    stream: StreamName,
    names: Annotated[bool, typer.Option("--names", "-n", help="Only names.")] = False,
    json: Json = False,
) -> None:
    """List the consumers of a stream."""

    async def work() -> list[ConsumerInfo]:
        async with jetstream() as js:
            return [info async for info in js.list_consumers(stream)]

    infos = sorted(run(work()), key=lambda info: info.name)
    if json:
        output.print_json([info.name if names else info.to_wire() for info in infos])
    elif names:
        for info in infos:
            output.line(info.name)
    elif not infos:
        output.notice(f"no consumers; 'jetspark consumer add {stream} NAME' makes one")
    else:
        rows = [
            (
                info.name,
                str(info.config.ack_policy),
                number(info.num_pending),
                number(info.num_ack_pending),
                number(info.num_redelivered),
                number(info.num_waiting),
            )
            for info in infos
        ]
        output.table(
            f"Consumers of {stream}",
            ("Name", "Ack", "Unprocessed", "Ack pending", "Redelivered", "Waiting"),
            rows,
            left=2,
        )


@command(app, "info", "i", example="jetspark consumer info ORDERS worker")
def info(stream: StreamName, consumer: ConsumerName, json: Json = False) -> None:
    """Show a consumer's configuration and state."""

    async def work() -> ConsumerInfo:
        async with jetstream() as js:
            return (await find_consumer(js, stream, consumer)).cached_info

    _show(run(work()), json)


@command(
    app,
    "add",
    "create",
    "new",
    example="jetspark consumer add ORDERS worker --filter orders.eu --max-deliver 5\n"
    "jetspark consumer add ORDERS --ephemeral --deliver 1h",
    options=consumer_options.ADD,
)
def add(
    stream: StreamName,
    consumer: Annotated[
        str | None, typer.Argument(metavar="CONSUMER", help="Name of the new consumer.", show_default=False)
    ] = None,
    json: Json = False,
    **given: Any,
) -> None:
    """Create a consumer: a durable pull consumer with explicit acks, unless the options say otherwise."""
    config = consumer_options.new_config(consumer, given)

    async def work() -> ConsumerInfo:
        async with jetstream() as js:
            return (await js.create_consumer(stream, config)).cached_info

    _show(run(work()), json)


@command(
    app,
    "edit",
    "update",
    example="jetspark consumer edit ORDERS worker --wait 2m --force",
    options=consumer_options.EDIT,
)
def edit(
    stream: StreamName,
    consumer: ConsumerName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change.")] = False,
    force: Force = False,
    json: Json = False,
    **given: Any,
) -> None:
    """Change a consumer. Only the given options change."""
    fields = consumer_options.changes(given)
    if not fields:
        raise UsageError("nothing to change: give an option such as --wait 2m")

    async def work() -> ConsumerInfo | None:
        async with jetstream() as js:
            handle = await find_consumer(js, stream, consumer)
            wanted = handle.config.replace(**fields)
            if not show_changes(handle.config.to_wire(), wanted.to_wire()):
                output.notice("the consumer is like that already")
                return None if dry_run else handle.cached_info
            if dry_run:
                if json:
                    output.print_json(wanted.to_wire())
                return None
            await confirm(f"Change consumer {consumer} of {stream}?", force=force)
            return (await js.update_consumer(stream, wanted)).cached_info

    changed = run(work())
    if changed is not None:
        _show(changed, json)


@command(app, "rm", "delete", example="jetspark consumer rm ORDERS worker --force")
def rm(stream: StreamName, consumer: ConsumerName, force: Force = False, json: Json = False) -> None:
    """Delete a consumer. The messages of the stream stay."""

    async def work() -> None:
        async with jetstream() as js:
            handle = await find_consumer(js, stream, consumer)
            await confirm(f"Delete consumer {consumer} of {stream}?", force=force)
            await handle.delete()

    run(work())
    if json:
        output.print_json({"stream": stream, "consumer": consumer, "deleted": True})
    else:
        output.line(f"deleted consumer {consumer} of {stream}")


@command(
    app,
    "next",
    example="jetspark consumer next ORDERS worker --count 10\njetspark consumer next ORDERS worker -r",
)
def next_(
    stream: StreamName,
    consumer: ConsumerName,
    count: Annotated[int, typer.Option("--count", metavar="N", help="How many.", min=1)] = 1,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge them.")] = True,
    ack_mode: Mode = "ack",
    wait: Annotated[str, typer.Option("--wait", metavar="DURATION", help="How long to wait.")] = "5s",
    raw: Raw = False,
    json: Json = False,
) -> None:
    """Get the next messages of a pull consumer. Exit code 1 when none came in time."""
    mode = choice("--ack-mode", ack_mode, _MODES) if ack else "none"
    seconds = duration("--wait", wait)

    async def work() -> int:
        async with jetstream() as js:
            handle = await find_consumer(js, stream, consumer)
            got = 0
            async for message in handle.fetch(count, expires=seconds):
                await _handle(message, mode, raw, json)
                got += 1
            return got

    if run(work()) == 0:
        raise CommandFailed(f"no message within {seconds_text(seconds)}; raise --wait to wait longer")


@command(
    app,
    "sub",
    "consume",
    example="jetspark consumer sub ORDERS worker\njetspark consumer sub ORDERS worker --json --count 100",
)
def sub(
    stream: StreamName,
    consumer: ConsumerName,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", help="End after N messages.", min=1)
    ] = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge them.")] = True,
    ack_mode: Mode = "ack",
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Messages to buffer.", min=1)] = 500,
    raw: Raw = False,
    json: Json = False,
) -> None:
    """Receive the messages of a pull consumer until Ctrl-C. Also called 'consume'."""
    mode = choice("--ack-mode", ack_mode, _MODES) if ack else "none"

    async def work() -> None:
        async with jetstream(listen=True) as js:
            handle = await find_consumer(js, stream, consumer)
            async with stopped_by_signal() as stopped:
                await _consume(handle, stopped)

    async def _consume(handle: Consumer, stopped: asyncio.Event) -> None:
        def tell(error: JetsparkError) -> None:
            output.notice(str(error))

        async with handle.consume(max_messages=batch, stop_after=count, on_error=tell) as messages:

            async def end() -> None:
                await stopped.wait()
                await messages.stop()

            ending = asyncio.create_task(end())
            try:
                async for message in messages:
                    await _handle(message, mode, raw, json)
            finally:
                ending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await ending

    run(work())


@command(app, "pause", example="jetspark consumer pause ORDERS worker 1h --force")
def pause(
    stream: StreamName,
    consumer: ConsumerName,
    until: Annotated[
        str,
        typer.Argument(
            metavar="TIME", help="For how long, or until when (UTC without a zone).", show_default=False
        ),
    ],
    force: Force = False,
    json: Json = False,
) -> None:
    """Stop the delivery of a consumer for a while (server 2.11)."""
    when = moment("TIME", until, past=False)

    async def work() -> ConsumerPause:
        async with jetstream() as js:
            handle = await find_consumer(js, stream, consumer)
            await confirm(f"Pause consumer {consumer} of {stream}?", force=force)
            return await handle.pause(when)

    state = run(work())
    if json:
        output.print_json({"stream": stream, "consumer": consumer, **state.to_wire()})
    elif state.paused:
        output.line(f"paused {consumer} until {time_text(state.pause_until)}")
    else:
        raise CommandFailed(
            f"{consumer} is not paused: {time_text(when)} is in the past, or the server is too old"
        )


@command(app, "resume", example="jetspark consumer resume ORDERS worker")
def resume(stream: StreamName, consumer: ConsumerName, json: Json = False) -> None:
    """End the pause of a consumer (server 2.11)."""

    async def work() -> ConsumerPause:
        async with jetstream() as js:
            return await (await find_consumer(js, stream, consumer)).resume()

    state = run(work())
    if json:
        output.print_json({"stream": stream, "consumer": consumer, **state.to_wire()})
    else:
        output.line(f"resumed {consumer}")


@command(app, "reset", example="jetspark consumer reset ORDERS worker --seq 1000 --force")
def reset(
    stream: StreamName,
    consumer: ConsumerName,
    seq: Annotated[
        int | None,
        typer.Option("--seq", metavar="N", help="Continue at this sequence; default: the ack floor.", min=1),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Move a consumer to a sequence, forward or back (server 2.14)."""

    async def work() -> ConsumerInfo:
        async with jetstream() as js:
            handle = await find_consumer(js, stream, consumer)
            await confirm(f"Reset consumer {consumer} of {stream}?", force=force)
            return await handle.reset(seq)

    _show(run(work()), json)


async def _handle(message: Message, mode: str, raw: bool, json: bool) -> None:
    """Print, then ack: a message whose output failed is delivered again."""
    if raw:
        output.raw(message.data)
    elif json:
        output.print_json_line(message_fields(message))
    else:
        metadata = message.metadata
        again = f", delivery {metadata.num_delivered}" if metadata.num_delivered > 1 else ""
        output.line(
            f"[{metadata.sequence.stream}] {message.subject} @ {time_text(metadata.timestamp)}"
            f", {number(metadata.num_pending)} pending{again}"
        )
        for name, value in message.headers.items():
            output.line(output.safe(f"  {name}: {value}"))
        output.line(output.data_text(message.data))
        output.line()
        # A pipe buffers its output, and what is buffered is not printed yet.
        output.flush()
    if mode == "ack":
        await message.ack()
    elif mode == "sync":
        await message.ack_sync()
    elif mode == "nak":
        await message.nak()
    elif mode == "term":
        await message.term()


def message_fields(message: Message) -> dict[str, Any]:
    """A delivered message as JSON."""
    metadata = message.metadata
    fields: dict[str, Any] = {
        "stream": metadata.stream,
        "seq": metadata.sequence.stream,
        "time": metadata.timestamp.to_rfc3339(),
        "subject": output.clean(message.subject),
        "consumer": metadata.consumer,
        "consumer_seq": metadata.sequence.consumer,
        "num_delivered": metadata.num_delivered,
        "num_pending": metadata.num_pending,
    }
    if message.headers:
        fields["headers"] = output.header_fields(message.headers)
    return fields | output.data_fields(message.data)


def _show(info: ConsumerInfo, json: bool) -> None:
    if json:
        output.print_json(info.to_wire())
        return
    config = info.config
    filters = config.filter_subjects or ([config.filter_subject] if config.filter_subject else [])
    options = [
        ("Kind", f"push to {config.deliver_subject}" if config.is_push else "pull"),
        ("Durable", "yes" if config.durable_name else "no"),
        ("Filter", ", ".join(filters) or "everything"),
        ("Deliver", str(config.deliver_policy)),
        ("Ack", str(config.ack_policy)),
        ("Ack wait", seconds_text(config.ack_wait)),
        ("Max deliver", limit_text(config.max_deliver)),
        ("Max ack pending", limit_text(config.max_ack_pending)),
        ("Replay", str(config.replay_policy)),
    ]
    if config.inactive_threshold:
        options.append(("Inactive threshold", seconds_text(config.inactive_threshold)))
    if config.description:
        options.insert(0, ("Description", config.description))
    state = [
        ("Last delivered", f"{number(info.delivered.stream_seq)} @ {time_text(info.delivered.last_active)}"),
        ("Ack floor", f"{number(info.ack_floor.stream_seq)} @ {time_text(info.ack_floor.last_active)}"),
        ("Unprocessed", number(info.num_pending)),
        ("Ack pending", number(info.num_ack_pending)),
        ("Redelivered", number(info.num_redelivered)),
        ("Waiting pulls", number(info.num_waiting)),
    ]
    if info.paused:
        state.append(("Paused for", seconds_text(info.pause_remaining)))
    output.facts(
        f"Consumer {info.name} of {info.stream_name}, created {time_text(info.created)}",
        [("Options", options), ("State", state)],
    )
