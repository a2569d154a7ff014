"""``jetspark top``: the picture as a function, once, as lines, and live in a terminal."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from jetspark import ConsumerInfo, StreamConfig, StreamInfo
from jetspark.cli.top.view import KEYS, ConsumerRow, Sample, StreamRow, View, lines, ordered, rows
from jetspark.models import SequenceInfo, StreamState, Timestamp
from support.cli_runner import ESCAPES, SCRIPT

if TYPE_CHECKING:
    from conftest import Open, Run


def stream_info(name: str, last: int, created: int = 1) -> StreamInfo:
    return StreamInfo(
        config=StreamConfig(name=name),
        created=Timestamp.from_ns(created),
        state=StreamState(messages=last, last_seq=last),
    )


def consumer_info(name: str, delivered: int, **more: int) -> ConsumerInfo:
    return ConsumerInfo(
        stream_name="S", name=name, delivered=SequenceInfo(consumer_seq=delivered), **more  # type: ignore[arg-type]
    )  # fmt: skip


def test_rates_are_differences_over_time() -> None:
    before = Sample(10.0, [stream_info("S", 100)], [consumer_info("c", 40)])
    after = Sample(12.0, [stream_info("S", 300)], [consumer_info("c", 50)])
    (stream,), (consumer,) = rows(after, before)
    assert (stream.in_per_second, consumer.out_per_second) == (100.0, 5.0)


def test_no_rate_without_a_sample_before_or_of_another_stream_of_that_name() -> None:
    after = Sample(12.0, [stream_info("S", 300)], [consumer_info("c", 50)])
    (stream,), (consumer,) = rows(after, None)
    assert (stream.in_per_second, consumer.out_per_second) == (None, None)
    (stream,), _ = rows(after, Sample(10.0, [stream_info("S", 100, created=2)], []))
    assert stream.in_per_second is None
    (stream,), _ = rows(Sample(12.0, [stream_info("S", 0)], []), Sample(10.0, [stream_info("S", 9)], []))
    assert stream.in_per_second == 0.0


STREAMS = [
    StreamRow(stream=name, messages=m, bytes=0, last_seq=0, consumers=0, in_per_second=r)
    for name, m, r in (("A", 5, 1.0), ("B", 9, None), ("C", 7, 8.0))
]
CONSUMERS = [
    ConsumerRow(
        stream="S",
        consumer=name,
        lag=lag,
        out_per_second=r,
        ack_pending=a,
        redelivered=d,
        waiting=w,
        paused=False,
    )
    for name, lag, r, a, d, w in (("x", 1, 9.0, 5, 0, 3), ("y", 2, 1.0, 6, 7, 2), ("z", 3, 2.0, 4, 1, 4))
]


@pytest.mark.parametrize(
    ("key", "streams", "consumers"),
    [
        ("n", "ABC", "xyz"),
        ("l", "BCA", "zyx"),
        ("m", "BCA", "zyx"),
        ("i", "CAB", "xzy"),
        ("a", "BCA", "yxz"),
        ("d", "BCA", "yzx"),
        ("w", "BCA", "zxy"),
    ],
)
def test_keys_sort_and_a_second_press_reverses(key: str, streams: str, consumers: str) -> None:
    view = View(sort="none")
    assert view.press(key)
    assert view.sort == KEYS[key]
    first, second = ordered(STREAMS, CONSUMERS, view)
    assert "".join(row.stream for row in first) == streams
    assert "".join(row.consumer for row in second) == consumers
    view.press(key)
    first, second = ordered(STREAMS, CONSUMERS, view)
    assert "".join(row.stream for row in first) == streams[::-1]


@pytest.mark.parametrize("key", ["q", "Q", "\x03", "\x1b"])
def test_keys_that_end_it(key: str) -> None:
    assert not View().press(key)
    assert View().press("?")


@pytest.mark.parametrize("width", [40, 80, 132])
@pytest.mark.parametrize("height", [10, 24, 60])
@pytest.mark.parametrize("many", [0, 1, 40])
def test_the_picture_fits_any_terminal(width: int, height: int, many: int) -> None:
    streams = [
        StreamRow(
            stream=f"STREAM_{n}" * 6,
            messages=10**9,
            bytes=10**12,
            last_seq=0,
            consumers=3,
            in_per_second=1e6,
        )
        for n in range(many)
    ]
    shown = lines(streams, CONSUMERS * many, View(), width=width, height=height, title="t" * 200)
    assert all(len(line) <= width for line in shown)
    assert len(shown) <= height
    if many == 1:
        assert any("S > z" in line for line in shown) or height < 24


def test_once_as_text_and_json(cli: Run, stream: str) -> None:
    cli("consumer", "add", stream, "w")
    cli("consumer", "next", stream, "w", "--no-ack")
    args = ("top", "--once", "--interval", "60ms", "--stream", stream)
    found = cli(*args, "--json").json
    assert set(found) == {"time", "server", "streams", "consumers"}
    (row,) = found["streams"]
    assert row == {
        "stream": stream,
        "messages": 3,
        "bytes": row["bytes"],
        "last_seq": 3,
        "consumers": 1,
        "in_per_second": 0.0,
    }
    (consumer,) = found["consumers"]
    assert consumer == {
        "stream": stream,
        "consumer": "w",
        "lag": 2,
        "out_per_second": 0.0,
        "ack_pending": 1,
        "redelivered": 0,
        "waiting": 0,
        "paused": False,
    }
    text = cli(*args).out
    assert "STREAM" in text
    assert f"{stream} > w" in text
    assert "q quit" not in text


def test_json_without_once_is_a_line_each_interval(env: dict[str, str], stream: str) -> None:
    with subprocess.Popen(
        [SCRIPT, "top", "--json", "--interval", "50ms", "--stream", stream], env=env, stdout=subprocess.PIPE
    ) as watching:
        assert watching.stdout is not None
        seen = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.terminate()
        assert watching.wait(30) == 0
    assert [one["streams"][0]["stream"] for one in seen] == [stream, stream]


def test_live_in_80_columns_with_keys(cli: Run, terminal: Open, stream: str) -> None:
    cli("consumer", "add", stream, "worker")
    with terminal("top", "--interval", "100ms", "--stream", stream) as shown:
        shown.expect(f"{stream} > worker")
        shown.expect("by lag")
        shown.press("a")
        shown.expect("by acks")
        shown.press("a")
        shown.expect("by acks, reversed")
        before = shown.raw
        shown.forget()
        cli("pub", f"{stream}.eu", "more", "--js")
        shown.expect("WAIT")
        shown.press("q")
        assert shown.end().code == 0
    # However many there were: the first line of a picture comes right behind the last one of that before.
    pictures = [ESCAPES.sub("", one).replace("\r", "") for one in (before + shown.raw).split("\x1b[H")]
    assert len(pictures) > 3
    assert all(len(line) <= 80 for picture in pictures for line in picture.splitlines())


def test_live_ends_with_ctrl_c_and_leaves_the_terminal_as_it_was(terminal: Open, stream: str) -> None:
    with terminal("top", "--interval", "100ms", "--stream", stream) as shown:
        shown.expect("by lag")
        shown.press("\x03")
        assert shown.end().code == 0
    # The cursor is back, and so is what was on the screen before.
    assert shown.raw.rstrip().endswith("\x1b[?25h\x1b[?1049l")
