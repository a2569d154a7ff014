"""What was tried to make jetspark quicker, with figures that repeat on a busy machine.

    python bench/experiments.py                     # everything
    python bench/experiments.py parse gc --quick    # some of it
    python bench/experiments.py python --python PATH --python PATH   # other interpreters that have jetspark

Where code runs without a server its instructions are counted by valgrind: two runs of n and 2n messages, the
difference divided by n, so that the start of the interpreter cancels out. Everything else is processor time
of the client, the least of several runs; the time that the machine gave to others is not in it. Rates are
what bench/run.py is for; only `refill`, which is about the server, gives them. The findings are in
docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _harness import HERE, nats_server
from _raw import RawConn, publish_pipelined

from jetspark.arrow import DEFAULT_BUFFER

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 128
Line = tuple[str, ...]


def environment(**more: str) -> dict[str, str]:
    found = [str(HERE), os.environ.get("PYTHONPATH", "")]
    # A fixed hash seed: the same dict collisions, so the same instructions each time.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, found)), "PYTHONHASHSEED": "0", **more}


def call(command: list[str], env: dict[str, str], timeout: float = 300.0) -> str:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[-3:])} failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout + done.stderr


# --- code alone: instructions and nanoseconds ----------------------------------------------------------


def worker(python: str, group: str, name: str, n: int, repeats: int) -> list[str]:
    return [python, str(HERE / "_variants.py"), group, name, str(n), str(repeats)]


def instructions(python: str, group: str, name: str, n: int) -> float | None:
    """Instructions a message; None without valgrind."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None

    def count(messages: int) -> int:
        tool = [valgrind, "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
        said = call([*tool, *worker(python, group, name, messages, 0)], environment(), timeout=600.0)
        found = re.search(r"I\s+refs:\s+([\d,]+)", said)
        if found is None:
            raise RuntimeError(f"valgrind said nothing of instructions: {said[-300:]}")
        return int(found[1].replace(",", ""))

    return (count(2 * n) - count(n)) / n


def nanoseconds(python: str, group: str, name: str, n: int, repeats: int) -> float:
    answer: float = json.loads(call(worker(python, group, name, n, repeats), environment()))
    return answer


def compare(group: str, quick: bool) -> list[Line]:
    from _variants import GROUPS

    lines: list[Line] = [("variant", "instructions a message", "ns a message")]
    for name, (label, _, n) in GROUPS[group].items():
        counted = instructions(sys.executable, group, name, n)
        took = nanoseconds(sys.executable, group, name, n * 5, 3 if quick else 15)
        lines.append((label, "-" if counted is None else f"{counted:,.0f}", f"{took:,.0f}"))
        note(f"{group}: {' | '.join(lines[-1])}")
    return lines


# --- a client at work: processor time --------------------------------------------------------------------


# Messages of larger streams by their size.
LARGE = {4_096: 60_000, 65_536: 6_000}
QUICK_LARGE = {4_096: 20_000, 65_536: 2_000}


class Live:
    """A server with a stream to read and a stream to write, and clients that run against it."""

    def __init__(self, host: str, port: int, count: int) -> None:
        self.url, self.host, self.port, self.count = f"nats://{host}:{port}", host, port, count
        self.runs = 0
        self.streams: set[str] = set()
        with RawConn(host, port) as conn:
            conn.create_stream("READ", "bench.read")
            publish_pipelined(conn, "bench.read", count, SIZE, 20_000)

    def large(self, size: int, count: int) -> dict[str, Any]:
        """What a client is told to read a stream of larger messages, which is made on first use."""
        name = f"READ-{size}"
        if name not in self.streams:
            self.streams.add(name)
            with RawConn(self.host, self.port) as conn:
                conn.create_stream(name, f"bench.{name}")
                publish_pipelined(conn, f"bench.{name}", count, size, 200, step=50)
        return {"size": size, "n": count, "warm": count // 4, "streams": [name]}

    def once(self, python: str, env: dict[str, str], **spec: Any) -> dict[str, Any]:
        self.runs += 1
        with RawConn(self.host, self.port) as conn:
            if spec["what"] == "publisher":
                conn.create_stream("WRITE", "bench.write")
            asked = {
                "url": self.url,
                "streams": ["READ"],
                "subjects": ["bench.write"],
                "size": SIZE,
                "name": f"run-{self.runs}",
                "n": self.count // 4 if spec["what"] == "publisher" else self.count,
                "warm": self.count // 10,
                **spec,
            }
            try:
                answer: dict[str, Any] = json.loads(
                    call([python, str(HERE / "_live.py"), json.dumps(asked)], environment(**env))
                )
            finally:
                if spec["what"] == "publisher":
                    conn.api("STREAM.DELETE.WRITE")
        return answer

    def best(
        self, variants: dict[str, dict[str, Any]], repeats: int, fixed: dict[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """The run with the least processor time of each variant; the variants take turns."""
        found: dict[str, dict[str, Any]] = {}
        for _ in range(repeats):
            for label, variant in variants.items():
                spec = {**fixed, **variant}
                python, env = spec.pop("python", sys.executable), spec.pop("env", {})
                answer = self.once(python, env, **spec)
                if label not in found or answer["us"] < found[label]["us"]:
                    found[label] = answer
        return found


def micro(answer: dict[str, Any]) -> str:
    return f"{answer['us']:.2f} ({answer['user_us']:.2f} + {answer['system_us']:.2f})"


def table_of(
    live: Live, variants: dict[str, dict[str, Any]], whats: tuple[str, ...], repeats: int
) -> list[Line]:
    columns = {what: live.best(variants, repeats, {"what": what}) for what in whats}
    lines: list[Line] = [("variant", *(f"{what}: us a message (user + system)" for what in whats))]
    for label in variants:
        lines.append((label, *(micro(columns[what][label]) for what in whats)))
        note(" | ".join(lines[-1]))
    return lines


def collector(live: Live, quick: bool) -> list[Line]:
    variants: dict[str, dict[str, Any]] = {}
    for held, ballast in (("small heap", 0), ("1,000,000 objects held", 1_000_000)):
        for label, mode in (
            ("default", "default"),
            ("gc.freeze()", "freeze"),
            ("threshold 100,000", "high"),
            ("disabled", "off"),
        ):
            variants[f"{held}, {label}"] = {"gc": mode, "ballast": ballast}
    return table_of(live, variants, ("iter", "publisher"), 2 if quick else 5)


def in_flight(live: Live, quick: bool) -> list[Line]:
    """How much the server may send ahead, and whether the limit is in messages or in bytes."""
    sizes = QUICK_LARGE if quick else LARGE
    variants: dict[str, dict[str, Any]] = {"max_messages": {}}
    variants |= {f"max_bytes, {mib} MiB": {"max_bytes": mib << 20} for mib in (2, 8, 16, 32, 64)}
    repeats = 2 if quick else 5
    found: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for what in ("iter", "batches"):
        found[what, SIZE] = live.best(variants, repeats, {"what": what, "n": live.count // 2})
    for size, count in sizes.items():
        for what in ("iter", "arrow"):
            found[what, size] = live.best(variants, repeats, {"what": what, **live.large(size, count)})
    lines: list[Line] = [("limit", *(f"{what}, {size:,} B: us (system)" for what, size in found))]
    for label in variants:
        cells = [f"{one[label]['us']:.2f} ({one[label]['system_us']:.2f})" for one in found.values()]
        lines.append((label, *cells))
        note(" | ".join(lines[-1]))
    return lines


def refills(live: Live, quick: bool) -> list[Line]:
    """How much of the buffer may be left when the server is asked for more. It is the server that gains by
    it, so these are rates, with their ratios to the first variant.
    """
    whole = DEFAULT_BUFFER
    variants = {
        f"{share} %": {"max_bytes": whole, "threshold_bytes": whole * share // 100}
        for share in (50, 75, 90, 95)
    }
    found: dict[int, dict[str, list[float]]] = {}
    for size, count in (QUICK_LARGE if quick else LARGE).items():
        rates: dict[str, list[float]] = {label: [] for label in variants}
        for turn in range(2 if quick else 12):
            names = list(variants)
            for label in names[turn % len(names) :] + names[: turn % len(names)]:
                spec = {**live.large(size, count), "what": "arrow", "warm": count, **variants[label]}
                rates[label].append(live.once(sys.executable, {}, **spec)["rate"])
        found[size] = rates
    first = next(iter(variants))
    lines: list[Line] = [("left", *(f"{size:,} B: messages a second (ratio)" for size in found))]
    for label in variants:
        cells = []
        for rates in found.values():
            ratio = statistics.median(map(operator.truediv, rates[label], rates[first]))
            cells.append(f"{statistics.median(rates[label]):,.0f} ({ratio:.2f})")
        lines.append((label, *cells))
        note(" | ".join(lines[-1]))
    return lines


def bulk_reads(live: Live, quick: bool) -> list[Line]:
    """Fewer and larger reads of columns. More than a read brings at once can't be waited for."""
    variants: dict[str, dict[str, Any]] = {
        "reads as they come": {"bulk": 1 << 30},
        "waits for 64 KiB": {"bulk": 65_536},
        "waits for 128 KiB": {"bulk": 131_072},
        "waits for 256 KiB": {"bulk": 262_144},
    }
    repeats = 2 if quick else 5
    found = {f"arrow, {SIZE} B": live.best(variants, repeats, {"what": "arrow"})}
    for size, count in (QUICK_LARGE if quick else LARGE).items():
        fixed = {"what": "arrow", "max_bytes": 32 << 20, **live.large(size, count)}
        found[f"arrow, {size:,} B"] = live.best(variants, repeats, fixed)
    lines: list[Line] = [("variant", *found)]
    for label in variants:
        lines.append((label, *(micro(one[label]) for one in found.values())))
        note(" | ".join(lines[-1]))
    return lines


def loops(live: Live, quick: bool) -> list[Line]:
    variants = {"asyncio": {"loop": "asyncio"}, "uvloop": {"loop": "uvloop"}}
    return table_of(live, variants, ("iter", "arrow", "publisher"), 2 if quick else 7)


def cores(live: Live, quick: bool) -> list[Line]:
    variants: dict[str, dict[str, Any]] = {
        "compiled core": {},
        "pure Python": {"env": {"JETSPARK_WIRE": "python"}},
    }
    return table_of(live, variants, ("iter", "batches", "arrow", "publisher"), 2 if quick else 5)


ABOUT = (
    "import platform, sysconfig; "
    "print(platform.python_version(), 'free-threaded' if sysconfig.get_config_var('Py_GIL_DISABLED') else '')"
)


def pythons(live: Live, quick: bool, paths: list[str]) -> list[Line]:
    """Interpreters with jetspark installed. Their parsers alone, then a client at work."""
    repeats = 2 if quick else 5
    whats = ("iter", "publisher")
    head = [f"{what}: us a message (user + system)" for what in whats]
    lines: list[Line] = [("interpreter", "core", "parse, pure: ns", "parse, compiled: ns", *head)]
    for path in [sys.executable, *paths]:
        about = call([path, "-c", ABOUT], environment()).strip()
        pure = nanoseconds(path, "parse", "pure", 20_000, repeats * 3)
        compiled = nanoseconds(path, "parse", "c", 20_000, repeats * 3)
        found = [live.best({"": {}}, repeats, {"what": what, "python": path})[""] for what in whats]
        lines.append(
            (about, found[0]["backend"], f"{pure:,.0f}", f"{compiled:,.0f}", *(micro(one) for one in found))
        )
        note(" | ".join(lines[-1]))
    return lines


RECEIVERS = {
    "plain": "blocking recv_into, nothing parsed",
    "data_received": "data_received, nothing parsed",
    "buffered_256": "BufferedProtocol 256 KiB, nothing parsed",
    "buffered_1024": "BufferedProtocol 1 MiB, nothing parsed",
    "data_received+c": "data_received, compiled parser",
    "buffered_256+c": "BufferedProtocol 256 KiB, copied, compiled parser",
    "buffered_1024+c": "BufferedProtocol 1 MiB, copied, compiled parser",
}


def receivers(quick: bool) -> list[Line]:
    found: dict[str, dict[str, float]] = {}
    for _ in range(3 if quick else 9):
        for name in RECEIVERS:
            command = [sys.executable, str(HERE / "_receive.py"), name, "60" if quick else "200"]
            answer = json.loads(call(command, environment()))
            if name not in found or answer["us"] < found[name]["us"]:
                found[name] = answer
    lines: list[Line] = [("variant", "us a message", "of it system")]
    for name, label in RECEIVERS.items():
        lines.append((label, f"{found[name]['us']:.3f}", f"{found[name]['system_us']:.3f}"))
        note(" | ".join(lines[-1]))
    return lines


def record_batches(quick: bool) -> list[Line]:
    """Parsed chunks to record batches, by the number of rows in one: what a batch costs whatever is in it."""
    from _variants import REPLY

    from jetspark import Msg
    from jetspark.arrow import SCHEMA, to_record_batch
    from jetspark.wire.columns import COLUMNAR, AnyColumns, join_columns
    from jetspark.wire.parser import Parser

    def columns_of(count: int, compiled: bool) -> AnyColumns:
        parser = Parser(compiled=compiled)
        parser.routes["7"] = (COLUMNAR, (Msg, None))
        lines = [b"MSG orders.new 7 %b 128\r\n%b\r\n" % (REPLY % (i, i, 9), b"x" * 128) for i in range(count)]
        (columns,) = parser.feed(b"".join(lines))
        return columns  # type: ignore[return-value]

    lines: list[Line] = [
        ("rows of a record batch", "compiled: us a batch", "ns a row", "pure: us a batch", "ns a row")
    ]
    for rows in (1, 10, 100, 300, 1_000, 5_000, 20_000):
        cells: list[str] = []
        for compiled in (True, False):
            took = float("inf")
            for _ in range(5 if quick else 20):
                parts = [columns_of(min(rows, 500), compiled) for _ in range(max(1, rows // 500))]
                begun = time.process_time_ns()
                to_record_batch(join_columns(parts), SCHEMA.names, "ORDERS")
                took = min(took, time.process_time_ns() - begun)
            cells += [f"{took / 1e3:,.0f}", f"{took / rows:,.0f}"]
        lines.append((f"{rows:,}", *cells))
        note(" | ".join(lines[-1]))
    return lines


# --- where the time goes -----------------------------------------------------------------------------------

# The first that is found in folder/file:function of a sample names the part.
PARTS = (
    ("_live.py", "the user's loop"),
    ("_read_ready", "asyncio: recv, mostly the kernel"),
    ("selector_events.py:", "asyncio: send, mostly the kernel"),
    ("selectors.py", "asyncio: waiting for the socket"),
    ("asyncio/", "asyncio: the rest of the loop"),
    ("pyarrow/", "Arrow arrays"),
    ("arrow.py", "Arrow arrays"),
    ("wire/", "parser and commands (jetspark.wire)"),
    ("connection/", "connection: dispatch, write buffer"),
    ("publisher.py", "publisher: window, acks"),
    ("puback.py", "publisher: window, acks"),
    ("publish.py", "publisher: window, acks"),
    ("jetstream/", "consumer: flow, buffer, __anext__"),
)


def part_of(place: str) -> str:
    return next((label for text, label in PARTS if text in place), "other")


def profile(live: Live, quick: bool) -> list[Line]:
    """Share of the samples by part, of several runs; and the share of the kernel by its own clock."""
    whats = ("iter", "batches", "arrow", "publisher")
    shares: dict[str, dict[str, float]] = {}
    totals: dict[str, tuple[float, float]] = {}
    for what in whats:
        seen: dict[str, int] = {}
        user = system = 0.0
        for _ in range(2 if quick else 6):
            answer = live.once(sys.executable, {}, what=what, sample=True)
            user, system = user + answer["user_us"], system + answer["system_us"]
            for place, count in answer["samples"].items():
                seen[part_of(place)] = seen.get(part_of(place), 0) + count
                if os.environ.get("BENCH_PLACES"):
                    note(f"{what} {count:5d} {place}")
        whole = sum(seen.values()) or 1
        shares[what] = {part: count / whole for part, count in seen.items()}
        totals[what] = (user, system)
    parts = sorted(
        {part for one in shares.values() for part in one}, key=lambda part: -shares["iter"].get(part, 0)
    )
    lines: list[Line] = [("part", *whats)]
    for part in parts:
        lines.append((part, *(f"{shares[what].get(part, 0):.0%}" for what in whats)))
    system_line = [f"{system / (user + system):.0%}" for user, system in totals.values()]
    lines.append(("of all: in the kernel, by its own clock", *system_line))
    return lines


# --- the command ------------------------------------------------------------------------------------

ALONE = ("parse", "message", "intern", "buffer", "wake")
TITLES = {
    "parse": "MSG lines to message objects",
    "message": "A message: made, two attributes read, dropped",
    "intern": "Interning",
    "buffer": "Buffer: in by runs of 500, out one by one",
    "wake": "Wake-ups of a waiting task, runs of 500",
    "receive": "From the socket to the parser, TCP on the loopback, 128-byte messages",
    "batch": "Columns to record batches, all columns",
    "core": "The compiled core",
    "gc": "Garbage collector",
    "inflight": "Bytes in flight of a consumer of large messages",
    "refill": "When a buffer is filled up",
    "bulk": "Bulk reads of columns",
    "loop": "Event loop",
    "python": "Interpreters",
    "profile": "Where a client's processor time goes",
}


def note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def markdown(lines: list[Line]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]

    def row(cells: tuple[str, ...]) -> str:
        padded = [
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = (
        "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    )
    return "\n".join([row(lines[0]), rule, *map(row, lines[1:])])


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What was tried, with figures; see docs/performance.md.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(TITLES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the tables to PATH")
    parser.add_argument(
        "--python", action="append", default=[], metavar="PATH", help="another interpreter that has jetspark"
    )
    arguments = parser.parse_args(words)
    unknown = [name for name in arguments.names if name not in TITLES]
    if unknown:
        parser.error(f"no experiment {unknown[0]!r}; there are {', '.join(TITLES)}")
    return arguments


def main() -> int:
    arguments = parse()
    quick, names = arguments.quick, arguments.names or list(TITLES)
    tables: dict[str, list[Line]] = {}
    failed: dict[str, str] = {}

    def attempt(name: str, work: Callable[[], list[Line]]) -> None:
        if name not in names:
            return
        note(f"== {name}")
        try:
            tables[name] = work()
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
            note(f"ERROR {failed[name]}")

    for group in ALONE:
        attempt(group, lambda group=group: compare(group, quick))  # type: ignore[misc]
    attempt("receive", lambda: receivers(quick))
    attempt("batch", lambda: record_batches(quick))
    if any(name not in (*ALONE, "receive", "batch") for name in names):
        with nats_server() as (host, port, _):
            live = Live(host, port, 200_000 if quick else 600_000)
            attempt("core", lambda: cores(live, quick))
            attempt("gc", lambda: collector(live, quick))
            attempt("inflight", lambda: in_flight(live, quick))
            attempt("refill", lambda: refills(live, quick))
            attempt("bulk", lambda: bulk_reads(live, quick))
            attempt("loop", lambda: loops(live, quick))
            attempt("python", lambda: pythons(live, quick, arguments.python))
            attempt("profile", lambda: profile(live, quick))
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores")
    for name, lines in tables.items():
        print(f"\n### {TITLES[name]} (`python bench/experiments.py {name}`)\n\n{markdown(lines)}")
    for name, error in failed.items():
        print(f"\n{name}: {error}")
    if arguments.json:
        arguments.json.write_text(json.dumps(tables, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
