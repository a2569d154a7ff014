"""What commands print: tables and texts for people, aligned columns for pipes, JSON for programs.

Data goes to stdout; notices, progress and errors go to stderr, so a pipe gets data alone.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from jetspark.wire.headers import Headers


def console(*, stderr: bool = False) -> Console:
    """A console on the current stdout or stderr. Colours only on a terminal, and never with NO_COLOR."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=not is_terminal(stderr=stderr))


def is_terminal(*, stderr: bool = False) -> bool:
    """Whether it is a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return bool(stream is not None and stream.isatty())


def line(text: str = "") -> None:
    """One line of data."""
    sys.stdout.write(f"{text}\n")


def flush() -> None:
    """Flush what was written so far."""
    sys.stdout.flush()


def notice(text: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def print_json(value: Any) -> None:
    """A JSON document, indented for a reader and complete for a program."""
    encoded = msgspec.json.encode(value, enc_hook=_plain)
    sys.stdout.write(msgspec.json.format(encoded, indent=2).decode() + "\n")


def print_json_line(value: Any) -> None:
    """One JSON object on one line, flushed: for output that has no end."""
    sys.stdout.write(msgspec.json.encode(value, enc_hook=_plain).decode() + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    return value.to_wire() if hasattr(value, "to_wire") else str(value)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Rows under headings; all but the first ``left`` columns are numbers and go to the right."""
    if not is_terminal():
        _plain_table(columns, rows, left)
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=title, title_justify="left", title_style="bold", box=box.ROUNDED)
    for number, name in enumerate(columns):
        shown.add_column(name, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        # Text, not str: a name with [brackets] is not markup.
        shown.add_row(*(Text(cell) for cell in row))
    console().print(shown)


def _plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> None:
    everything = [list(columns), *(list(row) for row in rows)]
    widths = [max(len(row[number]) for row in everything) for number in range(len(columns))]
    for row in everything:
        cells = [
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line("  ".join(cells).rstrip())


def facts(title: str, groups: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
    """Named values in groups, as ``info`` commands show them."""
    from rich.text import Text

    width = max((len(name) for _, pairs in groups for name, _ in pairs), default=0)
    out = console()
    out.print(Text(title, style="bold"))
    for heading, pairs in groups:
        if not pairs:
            continue
        out.print()
        if heading:
            out.print(Text(f"{heading}:", style="cyan"))
        for name, value in pairs:
            out.print(Text(f"  {name:>{width}}: ").append(value))


def number(value: float) -> str:
    """1234567 as 1,234,567."""
    return f"{value:,.0f}"


def short_number(value: float) -> str:
    """Four or five characters: 999, 12.3k, 4.56M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return (
                f"{value / limit:.3g}{unit}" if abs(value) < limit * 999.5 else f"{value / limit:.0f}{unit}"
            )
    return f"{value:.0f}" if value == int(value) or abs(value) >= 10 else f"{value:.1f}"


def bytes_text(value: float) -> str:
    """Bytes in units of 1,024."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def limit_text(value: int | None, show: Callable[[float], str] = number) -> str:
    """A limit, where unset and -1 mean none."""
    return "unlimited" if value is None or value <= 0 else show(value)


def seconds_text(seconds: float | None) -> str:
    """A duration as people say it: 250ms, 1.5s, 2m0s, 3d4h."""
    if seconds is None:
        return "-"
    if seconds < 1:
        if seconds < 1e-3:
            return f"{seconds * 1e6:.3g}us" if seconds else "0s"
        return f"{seconds * 1000:.3g}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    whole = int(seconds)
    for size, unit, part, part_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part}{part_unit}"
    return f"{whole}s"


def time_text(when: datetime | None) -> str:
    """A time in UTC, to the second, in a form that options read back."""
    return "never" if when is None else f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def ago_text(when: datetime | None) -> str:
    """How long ago."""
    if when is None:
        return "never"
    return seconds_text(max(0.0, (datetime.now(UTC) - when).total_seconds()))


def data_text(data: bytes) -> str:
    """A body as text; what is not UTF-8 is shown as escapes."""
    return safe(data.decode("utf-8", "backslashreplace"))


def safe(text: str) -> str:
    """Text from messages or servers. On a terminal its control characters are escaped."""
    if text.isprintable() or not is_terminal():
        return text

    def shown(char: str) -> str:
        return char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()

    return "".join(map(shown, text))


def clean(text: str) -> str:
    """Text that JSON can hold: bytes of a header or subject that are not UTF-8 become U+FFFD."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def header_fields(headers: Headers) -> dict[str, list[str]]:
    """Headers in JSON. Names that differ in case are different names, as on the server."""
    fields: dict[str, list[str]] = {}
    for name, value in headers.items():
        fields.setdefault(clean(name), []).append(clean(value))
    return fields


def data_fields(data: bytes) -> dict[str, str]:
    """A body in JSON: ``data`` when it is UTF-8 text, else ``data_base64``."""
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        import base64

        return {"data_base64": base64.b64encode(data).decode()}


def raw(data: bytes, end: bytes = b"\n") -> None:
    """A body as it is."""
    sys.stdout.flush()
    out = getattr(sys.stdout, "buffer", None)
    if out is None:
        sys.stdout.write((data + end).decode("utf-8", "backslashreplace"))
    else:
        out.write(data + end)
        out.flush()


@contextmanager
def progress(label: str, total: int | None, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; yields a function that takes how many more are done.

    Nothing is drawn when stderr is not a terminal.
    """
    if quiet or not is_terminal(stderr=True):
        yield lambda done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(label, total=total, rate="")

        def advance(done: int) -> None:
            bar.update(task, advance=done)
            speed = bar.tasks[0].speed
            if speed:
                bar.update(task, rate=f"{short_number(speed)}/s")

        yield advance
