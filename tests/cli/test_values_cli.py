"""How values are written and shown."""

from __future__ import annotations

import pytest

from jetspark.cli import values
from jetspark.cli.errors import UsageError
from jetspark.cli.output import bytes_text, limit_text, seconds_text, short_number


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("64k", 65_536),
        ("1KB", 1024),
        ("1.5MiB", 1_572_864),
        ("2g", 2 << 30),
        ("-1", -1),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert values.size("--x", text) == size


@pytest.mark.parametrize("text", ["", "k", "-2", "1PB", "1 2"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        values.size("--x", text)


def test_headers_may_repeat_and_hold_colons() -> None:
    assert values.headers("-H", ["A: 1", "A:2", "B: http://x"]) == {"A": ["1", "2"], "B": ["http://x"]}
    assert values.pairs("-m", ["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    assert values.words(["a,b", " c ", ""]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (0.5, "0.5"), (999, "999"), (1000, "1k"), (12_345, "12.3k"), (999_999, "1000k"),
     (4_560_000, "4.56M"), (2e9, "2G"), (3e12, "3T")],
)  # fmt: skip
def test_short_numbers(value: float, text: str) -> None:
    assert short_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0s"), (0.00005, "50us"), (0.25, "250ms"), (1.5, "1.5s"), (90, "1m30s"), (3600, "1h0m"),
     (200_000, "2d7h")],
)  # fmt: skip
def test_seconds(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text


def test_bytes_and_limits() -> None:
    assert [bytes_text(value) for value in (0, 1023, 1024, 1 << 20, 1 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.0 TiB",
    ]  # fmt: skip
    assert (limit_text(None), limit_text(-1), limit_text(1500)) == ("unlimited", "unlimited", "1,500")
