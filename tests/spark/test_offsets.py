"""Offsets: the same text for the same place, and a named error for anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetspark.spark.source.claims import Seen
from jetspark.spark.source.offsets import Offset, OffsetError, StreamOffset, parse_offset

CREATED = "2026-01-31T12:00:00.123456789Z"
GOOD: dict[str, Any] = {"version": 1, "streams": {"A": {"next": 9, "begin": 3, "created": CREATED}}}


@pytest.mark.parametrize(
    "offset",
    [
        Offset(),
        Offset({"A": StreamOffset(9, 3, CREATED)}),
        Offset(
            {"B": StreamOffset(1, 1, CREATED, earliest=True), "A": StreamOffset(9, 3, CREATED)},
            ("a.>",),
            True,
        ),
        Offset({"A": StreamOffset(2**62, 1, CREATED, ahead=True)}),
        Offset({"A": StreamOffset(9, 3, CREATED, seen=Seen(1, 20, 3, 4, 5, 6))}),
        Offset({"A": StreamOffset(9, 3, CREATED, skipped=True)}, ("a.>",)),
    ],
)
def test_there_and_back(offset: Offset) -> None:
    text = json.dumps(offset.to_json())
    assert parse_offset(json.loads(text)) == offset
    assert json.dumps(parse_offset(json.loads(text)).to_json()) == text


def test_the_order_of_streams_does_not_change_the_text() -> None:
    one, two = StreamOffset(9, 3, CREATED), StreamOffset(4, 4, CREATED)
    assert json.dumps(Offset({"A": one, "B": two}).to_json()) == json.dumps(
        Offset({"B": two, "A": one}).to_json()
    )


def test_settled_is_the_same_place_without_rows() -> None:
    offset = Offset(
        {"A": StreamOffset(9, 3, CREATED, earliest=True), "B": StreamOffset(5, 5, CREATED, earliest=True)}
    )
    settled = offset.settled()
    # A was read, so its beginning is no longer of interest; B was not.
    assert settled.streams == {
        "A": StreamOffset(9, 9, CREATED),
        "B": StreamOffset(5, 5, CREATED, earliest=True),
    }
    assert not Offset(initial=True).settled().initial


@pytest.mark.parametrize(
    ("place", "subjects", "skips"),
    [
        (StreamOffset(9, 3, CREATED), ("a.>",), False),
        (StreamOffset(9, 3, CREATED), ("b.>",), True),
        (StreamOffset(9, 3, CREATED), (), True),
        (StreamOffset(9, 3, CREATED, skipped=True), ("a.>",), True),
        (StreamOffset(9, 9, CREATED), ("b.>",), True),
        (StreamOffset(1, 1, CREATED, earliest=True), ("b.>",), False),  # nothing was read yet
        (StreamOffset(9, 3, "another stream", skipped=True), ("b.>",), False),
    ],
)
def test_which_places_have_unread_messages_before_them(
    place: StreamOffset, subjects: tuple[str, ...], skips: bool
) -> None:
    assert Offset({"A": place}, ("a.>",)).skips("A", CREATED, subjects) is skips


def test_after_all_subjects_no_other_ones_are_unread() -> None:
    assert not Offset({"A": StreamOffset(9, 3, CREATED)}).skips("A", CREATED, ("b.>",))
    assert not Offset().skips("A", CREATED, ("b.>",))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({**GOOD, "version": 2}, "written by a newer release"),
        ({**GOOD, "version": True}, "unknown version"),
        ({"streams": {}}, "unknown version"),
        ([], "not a JSON object"),
        ("x", "not a JSON object"),
        ({"version": 1}, "no streams"),
        ({**GOOD, "subjects": [1]}, "invalid subjects"),
        ({"version": 1, "streams": {"A": 9}}, "stream 'A' in the checkpoint is damaged"),
        ({"version": 1, "streams": {"A": {"next": 9, "begin": 3}}}, "damaged"),
        ({"version": 1, "streams": {"A": {"next": 9, "begin": 10, "created": CREATED}}}, "damaged"),
        ({"version": 1, "streams": {"A": {"next": "9", "begin": 3, "created": CREATED}}}, "damaged"),
        ({"version": 1, "streams": {"A": {"next": 9, "begin": 0, "created": CREATED}}}, "damaged"),
        ({"version": 1, "streams": {"A": {"next": 9.5, "begin": 1, "created": CREATED}}}, "damaged"),
        ({"version": 1, "streams": {"A": {"next": 9, "begin": 3, "created": CREATED, "seen": 1}}}, "damaged"),
        (
            {"version": 1, "streams": {"A": {"next": 9, "begin": 3, "created": CREATED, "seen": {}}}},
            "damaged",
        ),
    ],
)
def test_anything_else_is_an_error(value: object, words: str) -> None:
    with pytest.raises(OffsetError, match=words):
        parse_offset(value)
