"""Cost of a message as things grow: consumers, streams, messages, payloads.

    python bench/growth.py            # under 5 minutes; bench/growth.json, docs/growth.png
    python bench/growth.py --quick    # fewer points, under 90 s
    python bench/growth.py --full     # up to 10,000,000 messages as well

Each point is a fresh client process against one server, with everything on file storage. Two costs are
reported: processor time a message of the client and of the server (its figure includes the making of the
consumers). They change little with what else the machine does; the rate, which is the third figure, does. Of
several runs the one with the least processor time of the client counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _harness import HERE, SERVER_CONFIG, module
from _machine import machine, title
from _raw import RawConn, publish_pipelined

CHART = HERE.parent / "docs" / "growth.png"
VOLUME = 128 << 20  # bytes that a point with large payloads moves, about
AXES = {
    "consumers": "consumers of one stream, one connection",
    "streams": "streams, a consumer or a publisher each, one connection",
    "messages": "messages in all",
    "payload": "bytes of a payload",
}


@dataclass(slots=True)
class Plan:
    """The points of a run and how often each is measured."""

    consumers: tuple[int, ...]
    streams: tuple[int, ...]
    messages: tuple[int, ...]
    payload: tuple[int, ...]
    total: int
    repeats: int


SIZES = (16, 128, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)
QUICK = Plan((1, 10, 100), (1, 100), (10_000, 100_000), (16, 128, 4_096, 65_536, 1_048_576), 50_000, 1)
DEFAULT = Plan((1, 10, 100), (1, 10, 100), (10_000, 100_000, 1_000_000), SIZES, 200_000, 2)
FULL = Plan((1, 10, 100), (1, 10, 100), (10_000, 100_000, 1_000_000, 10_000_000), SIZES, 200_000, 3)


@dataclass(slots=True)
class Point:
    axis: str
    at: int
    what: str
    messages: int
    client_us: float
    server_us: float
    rate: float
    batches: int
    """Lists or record batches that the messages came in; 0 when they came one by one."""


class Ground:
    """The server, its streams and the clients that run against it."""

    def __init__(self, server: Any, repeats: int) -> None:
        self.server, self.repeats = server, repeats
        self.conn = RawConn(server.host, server.port, timeout=300.0)
        self.runs = 0

    def server_seconds(self) -> float:
        """Processor time of the server so far."""
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def fill(self, name: str, count: int, size: int) -> None:
        """A stream with so many messages; made by a plain socket."""
        self.conn.create_stream(name, f"growth.{name}")
        window = max(8, min(20_000, (16 << 20) // size))
        publish_pipelined(
            self.conn, f"growth.{name}", count, size, window, step=max(1, min(500, window // 4))
        )

    def empty(self, names: list[str]) -> None:
        for name in names:
            self.conn.create_stream(name, f"growth.{name}")

    def drop(self, names: list[str]) -> None:
        for name in names:
            self.conn.api(f"STREAM.DELETE.{name}")

    def measure(self, axis: str, at: int, what: str, n: int, streams: list[str], **spec: Any) -> Point:
        best: Point | None = None
        warm = max(20 * max(spec.get("consumers", 1), spec.get("publishers", 1)), min(n // 10, 5_000))
        for _ in range(self.repeats):
            self.runs += 1
            if what == "publisher":
                self.empty(streams)
            asked = {
                "what": what,
                "url": f"nats://{self.server.host}:{self.server.port}",
                "streams": streams,
                "subjects": [f"growth.{name}" for name in streams],
                "n": n,
                "warm": warm,
                "size": 128,
                "name": f"run-{self.runs}",
                **spec,
            }
            before = self.server_seconds()
            try:
                answer = self.client(asked)
            finally:
                spent = self.server_seconds() - before
                if what == "publisher":
                    self.drop(streams)
            found = Point(
                axis, at, what, n, answer["us"], spent / (n + warm) * 1e6, answer["rate"], answer["batches"]
            )
            if best is None or found.client_us < best.client_us:
                best = found
        assert best is not None
        print(
            f"  {axis} {at:>9,} {what:<10} client {best.client_us:8.2f} us  server {best.server_us:8.2f} us  "
            f"{best.rate:>11,.0f}/s",
            file=sys.stderr,
            flush=True,
        )
        return best

    def client(self, asked: dict[str, Any]) -> dict[str, Any]:
        path = os.pathsep.join(filter(None, [str(HERE.parent / "src"), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, str(HERE / "_live.py"), json.dumps(asked)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-600:] or f"exit code {done.returncode}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


READS = ("iter", "arrow")


def grow_consumers(ground: Ground, plan: Plan) -> list[Point]:
    ground.fill("CONSUMERS", plan.total, 128)
    points = [
        ground.measure("consumers", k, what, plan.total, ["CONSUMERS"], consumers=k)
        for k in plan.consumers
        for what in READS
    ]
    ground.drop(["CONSUMERS"])
    return points


def grow_streams(ground: Ground, plan: Plan) -> list[Point]:
    points: list[Point] = []
    for k in plan.streams:
        names = [f"STREAMS-{i}" for i in range(k)]
        for name in names:
            ground.fill(name, plan.total // k, 128)
        points += [ground.measure("streams", k, what, plan.total, names, consumers=k) for what in READS]
        ground.drop(names)
        points.append(ground.measure("streams", k, "publisher", plan.total // 2, names, publishers=k))
    return points


def grow_messages(ground: Ground, plan: Plan) -> list[Point]:
    ground.fill("MESSAGES", max(plan.messages), 128)
    points: list[Point] = []
    for n in plan.messages:
        points += [ground.measure("messages", n, what, n, ["MESSAGES"]) for what in READS]
        points.append(ground.measure("messages", n, "publisher", n, ["PUBLISHED"]))
    ground.drop(["MESSAGES"])
    return points


def grow_payload(ground: Ground, plan: Plan) -> list[Point]:
    points: list[Point] = []
    for size in plan.payload:
        n = max(100, min(plan.total, VOLUME // size))
        ground.fill("PAYLOAD", n, size)
        points += [ground.measure("payload", size, what, n, ["PAYLOAD"], size=size) for what in READS]
        ground.drop(["PAYLOAD"])
        points.append(ground.measure("payload", size, "publisher", n, ["PUBLISHED"], size=size))
    return points


GROW = {
    "consumers": grow_consumers,
    "streams": grow_streams,
    "messages": grow_messages,
    "payload": grow_payload,
}


# --- what comes of it -------------------------------------------------------------------------------------


def bends(points: list[Point], tolerance: float = 1.5) -> list[str]:
    """Where the client's cost of a message first exceeds the least one before it by more than half."""
    said: list[str] = []
    for axis in GROW:
        for what in ("iter", "arrow", "publisher"):
            line = [point for point in points if point.axis == axis and point.what == what]
            for i, point in enumerate(line[1:], 1):
                least = min(one.client_us for one in line[:i])
                if point.client_us > tolerance * least:
                    said.append(
                        f"{axis}, {what}: from {point.at:,} on "
                        f"({least:.2f} us before, {point.client_us:.2f} us there)"
                    )
                    break
    return said


def table(points: list[Point]) -> str:
    lines = [["axis", "at", "what", "messages", "client us", "server us", "MB/s", "msgs/s", "a batch"]]
    for point in points:
        size = point.at if point.axis == "payload" else 128
        lines.append(
            [
                point.axis,
                f"{point.at:,}",
                point.what,
                f"{point.messages:,}",
                f"{point.client_us:,.2f}",
                f"{point.server_us:,.2f}",
                f"{point.rate * size / 1e6:,.0f}",
                f"{point.rate:,.0f}",
                f"{point.messages / point.batches:,.0f}" if point.batches else "",
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in (0, 2) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


COLOURS = {"iter": "#4c78a8", "arrow": "#54a24b", "publisher": "#f58518"}


def draw(points: list[Point], heading: str, path: Path) -> bool:
    """False when matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 2, figsize=(13, 9), layout="constrained")
    for axes, (axis, label) in zip(grid.flat, AXES.items(), strict=True):
        for what, colour in COLOURS.items():
            line = [point for point in points if point.axis == axis and point.what == what]
            if line:
                places = [point.at for point in line]
                axes.plot(
                    places, [p.client_us for p in line], color=colour, marker="o", label=f"{what}, client"
                )
                # Zero does not exist on a log scale: a server below a tick of its clock is not drawn.
                server = [p.server_us or float("nan") for p in line]
                axes.plot(places, server, color=colour, marker=".", linestyle=":", label=f"{what}, server")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel("processor time a message, us")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter("")
        # The same scale wherever it suffices: then what is flat looks flat.
        low, high = axes.get_ylim()
        axes.set_ylim(min(0.1, low), max(20.0, high))
        axes.grid(visible=True, which="major", color="#dddddd")
    if axis_lines := grid.flat[-1].get_legend_handles_labels()[0]:
        figure.legend(handles=axis_lines, loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle(f"Cost of a message: flat means that it does not grow\n{heading}", fontsize=9)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Cost of a message as things grow; see bench/README.md.")
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"{', '.join(GROW)} (default: all)")
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--quick", action="store_true", help="fewer points, under 90 s")
    much.add_argument("--full", action="store_true", help="up to 10,000,000 messages")
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="default growth.json in bench/, of whole runs"
    )
    parser.add_argument(
        "--chart", type=Path, metavar="PATH", help="default growth.png in docs/, of whole runs"
    )
    arguments = parser.parse_args(words)
    unknown = [axis for axis in arguments.axes if axis not in GROW]
    if unknown:
        parser.error(f"no axis {unknown[0]!r}; there are {', '.join(GROW)}")
    return arguments


def main() -> int:
    arguments = parse()
    plan = QUICK if arguments.quick else FULL if arguments.full else DEFAULT
    about = machine()
    started = time.monotonic()
    points: list[Point] = []
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="jetspark-growth-") as store:
        server = module("jetspark.server").Server(store_dir=store, config=SERVER_CONFIG.format(store=store))
        with server:
            for axis, grow in GROW.items():
                if arguments.axes and axis not in arguments.axes:
                    continue
                ground = Ground(server, plan.repeats)
                try:
                    points += grow(ground, plan)
                except Exception as error:
                    failed[axis] = f"{type(error).__name__}: {error}"
                    print(f"  {axis}: ERROR {failed[axis]}", file=sys.stderr)
                finally:
                    with contextlib.suppress(OSError):
                        ground.conn.sock.close()
    about["minutes"] = round((time.monotonic() - started) / 60, 1)
    print(f"\ngrowth: {title(about)}; took {about['minutes']} minutes\n")
    print(table(points))
    print("\nnot flat any more (the client's cost of a message is more than half above the least before):")
    print("\n".join(f"  {line}" for line in bends(points)) or "  nowhere")
    for axis, why in failed.items():
        print(f"{axis}: {why}")
    whole = not arguments.axes
    if arguments.json or whole:
        target = arguments.json or HERE / "growth.json"
        target.write_text(
            json.dumps({"machine": about, "points": [asdict(p) for p in points]}, indent=1) + "\n"
        )
        print(f"written to {target}")
    if arguments.chart or whole:
        target = arguments.chart or CHART
        print(
            f"drawn to {target}" if draw(points, title(about), target) else "no chart: matplotlib is missing"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
