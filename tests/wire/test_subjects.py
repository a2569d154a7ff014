"""Rules for subjects, and matching against wildcard patterns."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetspark.errors import InvalidArgument
from jetspark.wire.subjects import (
    has_wildcard,
    subject_matches,
    subjects_overlap,
    validate_filter,
    validate_queue,
    validate_subject,
)


@pytest.mark.parametrize(
    ("pattern", "subject", "matches"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "A", False),
        ("a", "a.b", False),
        ("a.b", "a", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("*.b", "a.c", False),
        ("a.*.c", "a.b.c", True),
        ("*.*", "a.b", True),
        (">", "a", True),
        (">", "a.b.c", True),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        # One token or more: never none.
        ("a.>", "a", False),
        ("a.>", "b.c", False),
        ("*.>", "a", False),
        ("*.>", "a.b", True),
        # Inside a token they are characters.
        ("a*", "a*", True),
        ("a*", "ab", False),
        ("a>", "a>", True),
        ("a>", "a.b", False),
        ("größe.*", "größe.日本", True),
    ],
)
def test_matching(pattern, subject, matches):
    assert subject_matches(pattern, subject) is matches


@pytest.mark.parametrize(
    ("a", "b", "overlap"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a.*", "*.b", True),
        ("a.*", "b.*", False),
        ("a.*", "a", False),
        ("a.>", "a", False),
        ("a.>", "a.*", True),
        ("a.>", "*.b.c", True),
        ("a.>", "b.>", False),
        (">", "*", True),
        ("*.>", "a", False),
        ("*.*.c", "a.>", True),
        ("a.*.c", "a.b.*", True),
        ("a.*.c", "a.b.d", False),
        ("a.b.c", "a.b", False),
    ],
)
def test_overlap(a, b, overlap):
    assert subjects_overlap(a, b) is overlap
    assert subjects_overlap(b, a) is overlap


DEPTH = 3
LITERALS = [".".join(tokens) for size in range(1, DEPTH + 2) for tokens in product("ab", repeat=size)]
PATTERNS = [
    ".".join(tokens)
    for size in range(1, DEPTH + 1)
    for tokens in product("ab*>", repeat=size)
    if ">" not in tokens[:-1]
]


def test_patterns_overlap_exactly_when_a_subject_matches_both():
    # Every pattern of up to three tokens, against every subject of up to four (for what '>' lets in).
    matched = {pattern: {one for one in LITERALS if subject_matches(pattern, one)} for pattern in PATTERNS}
    for a, b in product(PATTERNS, PATTERNS):
        assert subjects_overlap(a, b) is bool(matched[a] & matched[b]), (a, b)


TOKEN = st.text(
    st.characters(exclude_characters=".*> \t\r\n\x00", exclude_categories=["Cs"]), min_size=1, max_size=3
)
SUBJECT = st.lists(TOKEN, min_size=1, max_size=5)


@st.composite
def subject_and_pattern(draw):
    """A literal subject, and a pattern made of it by widening tokens."""
    tokens = draw(SUBJECT)
    pattern = [draw(st.sampled_from([token, "*"])) for token in tokens]
    if draw(st.booleans()):
        pattern[draw(st.integers(0, len(pattern) - 1)) :] = [">"]
    return ".".join(tokens), ".".join(pattern)


@given(subject_and_pattern())
def test_a_widened_subject_matches_itself(pair):
    subject, pattern = pair
    validate_subject(subject)
    validate_filter(pattern)
    assert subject_matches(pattern, subject)
    assert subjects_overlap(pattern, subject)
    assert subject_matches(subject, subject)


@given(subject_and_pattern(), subject_and_pattern())
def test_overlap_is_symmetric_and_agrees_with_matching(first, second):
    (subject, a), (_, b) = first, second
    assert subjects_overlap(a, b) is subjects_overlap(b, a)
    # Against a literal, to overlap is to match.
    assert subjects_overlap(b, subject) is subject_matches(b, subject)
    if subject_matches(b, subject):
        assert subjects_overlap(a, b)


@pytest.mark.parametrize(
    ("subject", "wild"),
    [("a", False), ("a.*", True), (">", True), ("a.>", True), ("a*", False), ("a.b>", False)],
)
def test_has_wildcard(subject, wild):
    assert has_wildcard(subject) is wild


@pytest.mark.parametrize(
    "subject", ["a", "a.b.c", "$SYS.REQ", "_INBOX.x", "a-b_c", "größe", "a*b", "b>", "a/b\\c", "\x7f"]
)
def test_good_subjects(subject):
    validate_subject(subject)
    validate_filter(subject)
    assert not has_wildcard(subject)


@pytest.mark.parametrize("subject", ["*", ">", "a.*", "a.>", "*.*.>"])
def test_good_filters_are_no_subjects(subject):
    validate_filter(subject)
    with pytest.raises(InvalidArgument, match="wildcard token"):
        validate_subject(subject)


@pytest.mark.parametrize("queue", ["q", "work.group", "*", ">", "größe", ".."])
def test_good_queues(queue):
    validate_queue(queue)
    with pytest.raises(InvalidArgument, match="queue="):
        validate_queue(queue + " ")


@pytest.mark.parametrize("validate", [validate_subject, validate_filter, validate_queue])
@pytest.mark.parametrize("char", " \t\r\n\x00")
def test_every_forbidden_character_in_every_place(validate, char):
    for text in (char, char + "a", "a" + char, "a" + char + "b", "a." + char, "a." + char + ".b"):
        with pytest.raises(InvalidArgument) as caught:
            validate(text, field="somewhere")
        assert (caught.value.field, caught.value.value) == ("somewhere", text)
        assert str(caught.value).startswith(f"somewhere={text!r}: ")
