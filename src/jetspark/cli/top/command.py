"""``jetspark top``: streams and consumers as they move."""

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from jetspark import JetStream
from jetspark.cli import output
from jetspark.cli.declare import Json, command
from jetspark.cli.errors import UsageError
from jetspark.cli.settings import connection, current, find_stream, run
from jetspark.cli.stopping import stopped_by_signal
from jetspark.cli.top.view import SORTS, Sample, View, lines, ordered, rows
from jetspark.cli.values import choice, duration
from jetspark.connecting import Connection
from jetspark.errors import JetsparkError, StreamNotFound


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(
        app, "top", example="jetspark top\njetspark top --sort acks --interval 5s\njetspark top --once --json"
    )(top)


def top(
    interval: Annotated[
        str, typer.Option("--interval", metavar="DURATION", help="Time between samples.")
    ] = "1s",
    sort: Annotated[
        str,
        typer.Option("--sort", metavar="BY", help="name, lag, messages, rate, acks, redelivered, waiting."),
    ] = "lag",
    stream: Annotated[
        list[str] | None, typer.Option("--stream", metavar="NAME", help="Only this; may be repeated.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one sample with its rates, then end.")] = False,
    json: Json = False,
) -> None:
    """Watch streams and consumers: rates, lag, ack pending, redelivered, waiting pulls.

    Keys: q ends, n l m i a d w choose the order, r reverses it, space pauses the display. With --once two
    samples are taken an interval apart, so that rates are known; --json alone prints a line for each.
    """
    seconds = duration("--interval", interval)
    if seconds < 0.05:
        raise UsageError(f"--interval: {interval!r} is too short; use 50ms or more")
    view = View(sort=choice("--sort", sort, {name: name for name in SORTS}))
    if not once and not json and not (output.is_terminal() and sys.stdin.isatty()):
        raise UsageError("top needs a terminal; in a pipe use --once, or --json for one line per interval")
    run(_top(view, seconds, stream or [], once, json))


async def _top(view: View, interval: float, names: list[str], once: bool, json: bool) -> None:
    async with connection(listen=json) as nc:
        js = nc.jetstream(
            domain=current().js_domain, api_prefix=current().js_api_prefix, timeout=current().timeout
        )
        before = await _sample(js, names)
        if once:
            await asyncio.sleep(interval)
            now = await _sample(js, names)
            if json:
                output.print_json(_document(now, before, view, nc))
            else:
                _print(now, before, view, nc)
            return
        async with stopped_by_signal() as stopped:
            if json:
                while not await _waited(stopped, interval):
                    now = await _sample(js, names)
                    output.print_json_line(_document(now, before, view, nc))
                    before = now
            else:
                await _live(js, nc, view, interval, names, before, stopped)


async def _sample(js: JetStream, names: list[str]) -> Sample:
    if names:
        infos = [(await find_stream(js, name)).cached_info for name in names]
    else:
        infos = [info async for info in js.list_streams()]
    consumers = []
    for info in infos:
        if info.state.consumer_count:
            # It may be deleted between the two requests.
            with contextlib.suppress(StreamNotFound):
                consumers += [one async for one in js.list_consumers(info.config.name)]
    return Sample(time.monotonic(), infos, consumers)


def _document(now: Sample, before: Sample | None, view: View, nc: Connection) -> dict[str, Any]:
    streams, consumers = ordered(*rows(now, before), view)
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "server": nc.connected_url,
        "streams": [asdict(row) for row in streams],
        "consumers": [asdict(row) for row in consumers],
    }


def _print(now: Sample, before: Sample | None, view: View, nc: Connection) -> None:
    streams, consumers = ordered(*rows(now, before), view)
    width = shutil.get_terminal_size().columns if output.is_terminal() else 120
    everything = len(streams) + len(consumers) + 10
    shown = lines(streams, consumers, view, width=width, height=everything, title=_title(nc, ""))
    for text in shown[:-1]:  # keys have no effect here
        output.line(text.rstrip())


def _title(nc: Connection, trouble: str) -> str:
    name = nc.server_info.server_name
    state = trouble or f"{nc.connected_url or 'reconnecting'} ({name})"
    return f"jetspark top  {datetime.now():%H:%M:%S}  {state}"


async def _waited(stopped: asyncio.Event, seconds: float) -> bool:
    """Whether a stop was requested within the time."""
    try:
        async with asyncio.timeout(seconds):
            await stopped.wait()
    except TimeoutError:
        return False
    return True


async def _live(
    js: JetStream,
    nc: Connection,
    view: View,
    interval: float,
    names: list[str],
    first: Sample,
    stopped: asyncio.Event,
) -> None:
    from rich.live import Live

    now, before, trouble = first, None, ""
    loop = asyncio.get_running_loop()
    due = loop.time() + interval
    with _keyboard():
        async with _keys() as keys:
            with Live(console=output.console(), screen=True, auto_refresh=False) as live:
                while True:
                    live.update(_picture(now, before, view, _title(nc, trouble)), refresh=True)
                    key = await _next_key(keys, stopped, max(0.0, due - loop.time()))
                    if stopped.is_set() or (key and not view.press(key)):
                        return
                    if loop.time() < due or view.paused:
                        due = max(due, loop.time() + 0.05) if view.paused else due
                        continue
                    due = loop.time() + interval
                    try:
                        taken = await _sample(js, names)
                    except JetsparkError as error:
                        # The picture stays; the connection comes back by itself.
                        trouble = " ".join(str(error).split())
                        continue
                    now, before, trouble = taken, now, ""


def _picture(now: Sample, before: Sample | None, view: View, title: str) -> Any:
    from rich.text import Text

    size = shutil.get_terminal_size()
    streams, consumers = ordered(*rows(now, before), view)
    picture = Text(no_wrap=True, overflow="crop")
    shown = lines(streams, consumers, view, width=size.columns, height=size.lines - 1, title=title)
    for number, text in enumerate(shown):
        heading = text.startswith(("STREAM ", "CONSUMER "))
        style = "bold" if number == 0 else "reverse" if heading else "dim" if number == len(shown) - 1 else ""
        picture.append(text, style=style)
        picture.append("\n")
    return picture


@contextlib.contextmanager
def _keyboard() -> Iterator[None]:
    """Single keys without Enter and without echo; Ctrl-C stays a signal."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.asynccontextmanager
async def _keys() -> AsyncIterator[asyncio.Queue[str]]:
    keys: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def read() -> None:
        pressed = os.read(descriptor, 64).decode(errors="replace")
        if not pressed:
            # The terminal has gone: end, instead of looping without sleep.
            loop.remove_reader(descriptor)
            pressed = "q"
        if pressed.startswith("\x1b") and len(pressed) > 1:
            return  # an arrow or function key
        for key in pressed:
            keys.put_nowait(key)

    loop.add_reader(descriptor, read)
    try:
        yield keys
    finally:
        loop.remove_reader(descriptor)


async def _next_key(keys: asyncio.Queue[str], stopped: asyncio.Event, seconds: float) -> str | None:
    pressed = asyncio.ensure_future(keys.get())
    stopping = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait({pressed, stopping}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return pressed.result() if pressed.done() else None
    finally:
        for one in (pressed, stopping):
            one.cancel()
        await asyncio.gather(pressed, stopping, return_exceptions=True)
