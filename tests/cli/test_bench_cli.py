"""``jetspark bench`` and its arithmetic."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from jetspark.cli.bench.report import Result, bars, histogram, micros, percentiles
from support.cli_runner import SCRIPT
from support.helpers import unique

if TYPE_CHECKING:
    from conftest import Run

FIELDS = {
    "benchmark", "clients", "messages", "bytes", "seconds", "msgs_per_second", "bytes_per_second", "sampled",
    "latency_us", "histogram",
}  # fmt: skip


def check(report: dict[str, object], name: str, messages: int) -> None:
    assert set(report) == FIELDS
    assert (report["benchmark"], report["messages"]) == (name, messages)
    assert isinstance(report["msgs_per_second"], float)
    assert report["msgs_per_second"] > 0
    assert set(report["latency_us"]) == {"min", "p50", "p90", "p99", "max"}  # type: ignore[call-overload]


def test_core(cli: Run) -> None:
    subject = unique("bench")
    check(cli("bench", "pub", subject, "--msgs", "2000", "--size", "1KB", "--json").json, "pub", 2000)
    two = cli("bench", "pub", subject, "--msgs", "2001", "--clients", "2", "--json").json
    assert (two["clients"], two["bytes"]) == (2, 2001 * 128)
    check(cli("bench", "pubsub", subject, "--msgs", "500", "--json").json, "pubsub", 500)
    text = cli("bench", "pubsub", subject, "--msgs", "500").out
    assert text.splitlines()[0].split() == ["Clients", "Messages", "Seconds", "Msgs/s", "Data/s"]
    assert "time of a message, one way: min" in text
    assert "#" in text


@pytest.mark.slow
def test_sub_counts_from_the_first_message(env: dict[str, str], cli: Run) -> None:
    subject = unique("bench")
    with subprocess.Popen(
        [SCRIPT, "bench", "sub", subject, "--msgs", "1000", "--json"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as listener:
        assert listener.stderr is not None
        listener.stderr.readline()
        while listener.poll() is None:
            # It says that it waits before it has connected, so the messages come until it has had enough.
            cli("pub", subject, "x", "--count", "500")
        out, _ = listener.communicate(timeout=30)
    check(json.loads(out), "sub", 1000)


def test_jetstream(cli: Run) -> None:
    subject, stream = unique("bench"), unique("BENCH")
    made = cli("bench", "js", "pub", subject, "--stream", stream, "--create", "--msgs", "2000", "--json")
    check(made.json, "js pub", 2000)
    check(
        cli("bench", "js", "consume", "--stream", stream, "--msgs", "2000", "--json").json, "js consume", 2000
    )
    acked = cli("bench", "js", "pull", "--stream", stream, "--msgs", "1000", "--ack", "--json").json
    check(acked, "js consume", 1000)
    fetch = ("bench", "js", "fetch", "--stream", stream)
    fetched = cli(*fetch, "--msgs", "1000", "--batch", "100", "--json").json
    check(fetched, "js fetch", 1000)
    assert sum(bucket["count"] for bucket in fetched["histogram"]) == 10
    again = cli("bench", "js", "pub", subject, "--stream", stream, "--purge", "--msgs", "100")
    assert again.code == 0
    assert cli("stream", "info", stream, "--json").json["state"]["messages"] == 100
    assert "fetch" in cli(*fetch, "--msgs", "100").out


def test_the_histogram_counts_every_sample_once() -> None:
    samples = [0.0001 * 1.3**n for n in range(40)]
    rows = histogram(samples)
    assert sum(count for _, _, count in rows) == 40
    for (_, high, _), (low, _, _) in pairwise(rows):
        assert high == pytest.approx(low)
    assert rows[0][0] == pytest.approx(100)
    assert len(bars(samples)) == len(rows)
    assert all(len(line) <= 80 for line in bars(samples))


@pytest.mark.parametrize(
    ("samples", "expected"),
    [([], 0), ([0.0], 1), ([0.001, 0.001], 1), ([0.0, 1.0], 12)],
)
def test_a_histogram_of_little(samples: list[float], expected: int) -> None:
    assert len(histogram(samples)) == expected


def test_percentiles_are_actual_samples() -> None:
    found = percentiles([number / 1e6 for number in range(1, 101)])
    assert found == {"min": 1.0, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert percentiles([]) == {}
    nothing = Result(benchmark="x", clients=1, messages=0, bytes=0, seconds=0.0)
    assert nothing.to_json()["msgs_per_second"] == 0.0


@pytest.mark.parametrize(("value", "text"), [(1.0, "1.0us"), (2500.0, "2.50ms"), (3e6, "3.00s")])
def test_micros(value: float, text: str) -> None:
    assert micros(value) == text
