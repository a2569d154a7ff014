"""``jetspark stream``: streams and their messages."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from jetspark import StoredMsg, StreamInfo
from jetspark.cli import output
from jetspark.cli.asking import ask, can_ask, confirm
from jetspark.cli.declare import Force, Json, StreamName, command, group
from jetspark.cli.errors import CommandFailed, UsageError
from jetspark.cli.output import ago_text, bytes_text, limit_text, number, seconds_text, time_text
from jetspark.cli.settings import find_stream, jetstream, run
from jetspark.cli.stream import options as stream_options
from jetspark.cli.stream import transfer
from jetspark.cli.values import moment

app = group("Streams: list, create, change, look into, export and restore.")


def register(root: typer.Typer) -> None:
    """Add the commands to the root."""
    root.add_typer(app, name="stream")
    root.add_typer(app, name="s", hidden=True)


@command(app, "ls", "list", example="jetspark stream ls\njetspark stream ls --subject 'orders.>' --json")
def ls(
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="SUBJECT", help="Only streams that capture it.")
    ] = None,
    names: Annotated[bool, typer.Option("--names", "-n", help="Only names.")] = False,
    json: Json = False,
) -> None:
    """List the streams of the account."""

    async def work() -> list[StreamInfo]:
        async with jetstream() as js:
            return [info async for info in js.list_streams(subject)]

    infos = sorted(run(work()), key=lambda info: info.config.name)
    if json:
        output.print_json([info.config.name if names else info.to_wire() for info in infos])
    elif names:
        for info in infos:
            output.line(info.config.name)
    elif not infos:
        output.notice("no streams; 'jetspark stream add NAME --subjects SUBJECT' makes one")
    else:
        rows = [
            (
                info.config.name,
                ", ".join(info.config.subjects or ()) or "-",
                number(info.state.messages),
                bytes_text(info.state.bytes),
                number(info.state.consumer_count),
                ago_text(info.state.last_ts),
            )
            for info in infos
        ]
        output.table(
            "Streams", ("Name", "Subjects", "Messages", "Size", "Consumers", "Last message"), rows, left=2
        )


@command(app, "info", "i", example="jetspark stream info ORDERS\njetspark stream info ORDERS --json")
def info(stream: StreamName, json: Json = False) -> None:
    """Show a stream's configuration and state."""

    async def work() -> StreamInfo:
        async with jetstream() as js:
            return (await find_stream(js, stream)).cached_info

    _show(run(work()), json)


@command(
    app, "subjects", example="jetspark stream subjects ORDERS\njetspark stream subjects ORDERS 'orders.eu.*'"
)
def subjects(
    stream: StreamName,
    filter: Annotated[str, typer.Argument(metavar="FILTER", help="Only matching subjects.")] = ">",
    json: Json = False,
) -> None:
    """Count the messages of each subject of a stream."""

    async def work() -> dict[str, int]:
        async with jetstream() as js:
            found = await (await find_stream(js, stream)).info(subjects_filter=filter)
            return found.state.subjects or {}

    counts = run(work())
    if json:
        output.print_json(counts)
        return
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    output.table(f"Subjects of {stream}", ("Subject", "Messages"), [(name, number(n)) for name, n in ordered])


@command(
    app,
    "add",
    "create",
    "new",
    example="jetspark stream add ORDERS --subjects 'orders.>' --max-age 7d --max-bytes 10GB\n"
    "jetspark stream add COPY --mirror ORDERS",
    options=stream_options.ADD,
)
def add(
    stream: Annotated[
        str | None, typer.Argument(metavar="STREAM", help="Name of the new stream.", show_default=False)
    ] = None,
    json: Json = False,
    **given: Any,
) -> None:
    """Create a stream. Options not given have the server's defaults; direct gets are on."""
    config = stream_options.new_config(stream, given)

    async def work() -> StreamInfo:
        async with jetstream() as js:
            return (await js.create_stream(config)).cached_info

    _show(run(work()), json)


@command(
    app,
    "edit",
    "update",
    example="jetspark stream edit ORDERS --max-age 30d --force",
    options=stream_options.EDIT,
)
def edit(
    stream: StreamName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change.")] = False,
    force: Force = False,
    json: Json = False,
    **given: Any,
) -> None:
    """Change a stream. Only the given options change."""
    fields = stream_options.changes(given)
    if not fields:
        raise UsageError("nothing to change: give an option such as --max-age 30d")

    async def work() -> StreamInfo | None:
        async with jetstream() as js:
            handle = await find_stream(js, stream)
            wanted = handle.config.replace(**fields)
            differences = show_changes(handle.config.to_wire(), wanted.to_wire())
            if not differences:
                output.notice("the stream is like that already")
                return None if dry_run else handle.cached_info
            if dry_run:
                if json:
                    output.print_json(wanted.to_wire())
                return None
            await confirm(f"Change stream {stream}?", force=force)
            return (await js.update_stream(wanted)).cached_info

    changed = run(work())
    if changed is not None:
        _show(changed, json)


def show_changes(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print which fields change; returns how many."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    for name in names:
        output.notice(f"{name}: {before.get(name, 'unset')} -> {after.get(name, 'unset')}")
    return len(names)


@command(app, "rm", "delete", example="jetspark stream rm ORDERS --force")
def rm(stream: StreamName, force: Force = False, json: Json = False) -> None:
    """Delete a stream with all its messages and consumers."""

    async def work() -> None:
        async with jetstream() as js:
            handle = await find_stream(js, stream)
            messages = number(handle.cached_info.state.messages)
            await confirm(f"Delete stream {stream} with {messages} messages?", force=force)
            await handle.delete()

    run(work())
    if json:
        output.print_json({"stream": stream, "deleted": True})
    else:
        output.line(f"deleted stream {stream}")


@command(app, "purge", example="jetspark stream purge ORDERS --subject orders.test --force")
def purge(
    stream: StreamName,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="SUBJECT", help="Only messages of this subject.")
    ] = None,
    seq: Annotated[int | None, typer.Option("--seq", metavar="N", help="Only messages before this.")] = None,
    keep: Annotated[int | None, typer.Option("--keep", metavar="N", help="Keep the last N messages.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Remove messages from a stream: all, or those the options name."""

    async def work() -> int:
        async with jetstream() as js:
            handle = await find_stream(js, stream)
            await confirm(f"Remove messages from stream {stream}?", force=force)
            return await handle.purge(subject=subject, seq=seq, keep=keep)

    purged = run(work())
    if json:
        output.print_json({"stream": stream, "purged": purged})
    else:
        output.line(f"removed {number(purged)} messages from {stream}")


@command(app, "rmm", example="jetspark stream rmm ORDERS 17 --force")
def rmm(
    stream: StreamName,
    seq: Annotated[int, typer.Argument(metavar="SEQ", help="Its sequence.", show_default=False)],
    secure: Annotated[bool, typer.Option("--secure", help="Overwrite it in the store, too.")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Delete one message of a stream."""

    async def work() -> None:
        async with jetstream() as js:
            handle = await find_stream(js, stream)
            await confirm(f"Delete message {seq} of stream {stream}?", force=force)
            await handle.delete_msg(seq, secure=secure)

    run(work())
    if json:
        output.print_json({"stream": stream, "seq": seq, "deleted": True})
    else:
        output.line(f"deleted message {seq} of {stream}")


@command(app, "get", example="jetspark stream get ORDERS 17\njetspark stream get ORDERS --last-for orders.eu")
def get(
    stream: StreamName,
    seq: Annotated[
        int | None, typer.Argument(metavar="SEQ", help="Its sequence.", show_default=False)
    ] = None,
    last_for: Annotated[
        str | None,
        typer.Option("--last-for", "-S", metavar="SUBJECT", help="The last message of this subject."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", "-r", help="Only the body, as it is.")] = False,
    json: Json = False,
) -> None:
    """Show one message of a stream."""
    if (seq is None) == (last_for is None):
        raise UsageError("give either a sequence or --last-for SUBJECT")

    async def work() -> StoredMsg:
        async with jetstream() as js:
            return await (await find_stream(js, stream)).get_msg(seq, last_by_subject=last_for)

    message = run(work())
    if raw:
        output.raw(message.data)
    elif json:
        output.print_json(transfer.message_fields(message))
    else:
        _show_message(message)


@command(app, "view", example="jetspark stream view ORDERS 10 --since 1h\njetspark stream view ORDERS --json")
def view(
    stream: StreamName,
    page: Annotated[int, typer.Argument(metavar="SIZE", help="Messages on a page.", min=1)] = 25,
    id: Annotated[
        int | None, typer.Option("--id", metavar="SEQ", help="Start at this sequence.", min=1)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Start at an age (1h) or time (UTC without zone)."),
    ] = None,
    subject: Annotated[
        list[str] | None, typer.Option("--subject", metavar="SUBJECT", help="Only these; may be repeated.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Do not stop after a page.")] = False,
    raw: Annotated[bool, typer.Option("--raw", "-r", help="Only bodies.")] = False,
    json: Json = False,
) -> None:
    """Page through the messages of a stream. On a terminal Enter shows the next page and q ends.

    In a pipe one page is printed, or with --all everything.
    """
    start = None if since is None else moment("--since", since, past=True)
    asks = not all and not json and can_ask() and output.is_terminal()

    async def work() -> None:
        async with jetstream() as js:
            handle = await find_stream(js, stream)
            limit = None if all or asks else page
            shown = 0
            batch = min(page, 1000) if asks else 1000
            async for message in handle.get_msgs(
                subject, seq=id, start_time=start, max_messages=limit, batch=batch
            ):
                if asks and shown and shown % page == 0:
                    sys.stdout.flush()
                    if await ask(f"-- {shown} shown; Enter: more, q: end ") in ("q", "quit"):
                        return
                shown += 1
                if raw:
                    output.raw(message.data)
                elif json:
                    output.print_json_line(transfer.message_fields(message))
                else:
                    _show_message(message)
            if not shown:
                output.notice("no messages there")

    run(work())


@command(
    app,
    "copy",
    "export",
    example="jetspark stream copy ORDERS orders.jsonl\njetspark stream copy ORDERS orders.parquet --since 1d",
)
def copy(
    stream: StreamName,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="NAME.jsonl, NAME.parquet, or - for stdout.", show_default=False),
    ],
    format: Annotated[
        str | None, typer.Option("--format", metavar="KIND", help="jsonl or parquet; default: by name.")
    ] = None,
    subject: Annotated[
        list[str] | None, typer.Option("--subject", metavar="SUBJECT", help="Only these; may be repeated.")
    ] = None,
    id: Annotated[
        int | None, typer.Option("--id", metavar="SEQ", help="Start at this sequence.", min=1)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Start at an age (1h) or time (UTC without zone)."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the file.")] = False,
    json: Json = False,
) -> None:
    """Export a stream to a file: its config and every message, up to the last one of this moment.

    The stream does not change, even if it is a work queue. 'stream restore' reads the file back.
    """
    kind = transfer.file_kind(file, format)
    start = None if since is None else moment("--since", since, past=True)
    if file == "-" and json:
        raise UsageError("--json and the messages can't both go to stdout; give a file")
    if file != "-" and Path(file).exists() and not force:
        raise UsageError(f"{file} exists; give another name, or --force to overwrite it")
    report = run(transfer.copy(stream, file, kind, subjects=subject, seq=id, start_time=start, quiet=quiet))
    if json:
        output.print_json(report)
    else:
        output.notice(
            f"copied {number(report['messages'])} messages of {stream} to {file} "
            f"in {seconds_text(report['seconds'])}"
        )


@command(
    app,
    "restore",
    "import",
    example="jetspark stream restore orders.jsonl\njetspark stream restore orders.parquet --stream ORDERS2 "
    "--subjects 'orders.>'",
)
def restore(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What 'stream copy' wrote, or -.", show_default=False)
    ],
    format: Annotated[
        str | None, typer.Option("--format", metavar="KIND", help="jsonl or parquet; default: by name.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="NAME", help="Into this stream; default: its own name.")
    ] = None,
    subjects: Annotated[
        list[str] | None, typer.Option("--subjects", metavar="SUBJECT", help="Subjects of the new stream.")
    ] = None,
    new_ids: Annotated[
        bool, typer.Option("--new-ids", help="Store every message, also those that the stream had before.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    json: Json = False,
) -> None:
    """Publish an export back into a stream, which is created with the saved config when it is missing.

    Messages get new sequences and times; a new stream begins at the first sequence of the old one. A message
    keeps its message id, or gets its old sequence as one, so a failed restore may be repeated within the
    duplicate window. A stream that was purged within that time does not store them again: the command then
    fails and names --new-ids.
    """
    kind = transfer.file_kind(file, format)
    report = run(transfer.restore(file, kind, stream=stream, subjects=subjects, quiet=quiet, new_ids=new_ids))
    if json:
        output.print_json(report)
    else:
        there = report["duplicates"] - report["missing"]
        doubled = f", {number(there)} were already there" if there else ""
        output.notice(
            f"restored {number(report['stored'])} of {number(report['messages'])} messages to "
            f"{report['stream']} in {seconds_text(report['seconds'])}{doubled}"
        )
    if report["missing"]:
        raise CommandFailed(
            f"{number(report['missing'])} messages are not in stream {report['stream']}: it was purged and "
            "still knows their ids (duplicate_window), so it did not store them; give --new-ids, or wait"
        )


def _show(info: StreamInfo, json: bool) -> None:
    if json:
        output.print_json(info.to_wire())
        return
    config, state = info.config, info.state
    options = [
        ("Retention", str(config.retention)),
        ("Storage", str(config.storage)),
        ("Replicas", str(config.num_replicas or 1)),
        ("Discard", str(config.discard)),
        ("Duplicate window", seconds_text(config.duplicate_window)),
        ("Compression", str(config.compression or "none")),
    ]
    allowed = [
        text
        for text, on in (
            ("direct get", config.allow_direct),
            ("rollup", config.allow_rollup_hdrs),
            ("message TTL", config.allow_msg_ttl),
            ("counter", config.allow_msg_counter),
            ("atomic batch", config.allow_atomic),
            ("schedules", config.allow_msg_schedules),
            ("fast ingest", config.allow_batched),
        )
        if on
    ]
    refused = [
        text
        for text, on in (
            ("delete", config.deny_delete),
            ("purge", config.deny_purge),
            ("everything (sealed)", config.sealed),
            ("acks", config.no_ack),
        )
        if on
    ]
    options += [("Allows", ", ".join(allowed))] if allowed else []
    options += [("Refuses", ", ".join(refused))] if refused else []
    limits = [
        ("Messages", limit_text(config.max_msgs)),
        ("Per subject", limit_text(config.max_msgs_per_subject)),
        ("Bytes", limit_text(config.max_bytes, bytes_text)),
        ("Age", seconds_text(config.max_age) if config.max_age else "unlimited"),
        ("Message size", limit_text(config.max_msg_size, bytes_text)),
        ("Consumers", limit_text(config.max_consumers)),
    ]
    now = [
        ("Messages", number(state.messages)),
        ("Bytes", bytes_text(state.bytes)),
        ("First sequence", f"{number(state.first_seq)} @ {time_text(state.first_ts)}"),
        ("Last sequence", f"{number(state.last_seq)} @ {time_text(state.last_ts)}"),
        ("Subjects", number(state.num_subjects)),
        ("Deleted", number(state.num_deleted)),
        ("Consumers", number(state.consumer_count)),
    ]
    origin = [("Subjects", ", ".join(config.subjects or ()) or "-")]
    origin += [("Description", config.description)] if config.description else []
    if info.mirror is not None:
        origin.append(("Mirror of", f"{info.mirror.name}, {number(info.mirror.lag)} behind"))
    origin += [("Source", f"{source.name}, {number(source.lag)} behind") for source in info.sources or ()]
    cluster = []
    if info.cluster is not None and info.cluster.name:
        cluster = [("Name", info.cluster.name), ("Leader", info.cluster.leader or "none")]
        cluster += [
            ("Replica", f"{peer.name}, {'current' if peer.current else f'{peer.lag} behind'}")
            for peer in info.cluster.replicas
        ]
    output.facts(
        f"Stream {config.name}, created {time_text(info.created)}",
        [("", origin), ("Options", options), ("Limits", limits), ("Cluster", cluster), ("State", now)],
    )


def _show_message(message: StoredMsg) -> None:
    output.line(f"[{message.sequence}] {message.subject} @ {time_text(message.timestamp)}")
    for name, value in message.headers.items():
        output.line(output.safe(f"  {name}: {value}"))
    output.line(output.data_text(message.data))
    output.line()
