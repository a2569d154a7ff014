"""Rules for subjects and queue names, and matching of subjects against wildcard patterns.

The server's own check is thin: outside pedantic mode it accepts almost any token, and a space or a line
break in a subject silently becomes another protocol argument or another command. So the rules are here and
are applied before a byte is written.
"""

from __future__ import annotations

import re

from jetspark.errors import InvalidArgument

# Characters that end or split a protocol argument, and NUL, which ends a string for C-based tools.
_FORBIDDEN = re.compile(r"[\x00 \t\r\n]")


def _check_text(text: str, field: str) -> None:
    if not isinstance(text, str):
        raise InvalidArgument(field, text, f"must be a str, not {type(text).__name__}")
    if not text:
        raise InvalidArgument(field, text, "must not be empty")
    if _FORBIDDEN.search(text):
        raise InvalidArgument(field, text, "must not contain space, tab, CR, LF or NUL")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # Lone surrogates: they come from decoding foreign bytes and can't be written as UTF-8.
        raise InvalidArgument(field, text, "must be encodable as UTF-8") from error


def validate_subject(subject: str, *, field: str = "subject") -> None:
    """Refuse what can't be published to: empty tokens, white space, wildcards."""
    validate_filter(subject, field=field)
    if "*" in subject or ">" in subject:
        for token in subject.split("."):
            if token in ("*", ">"):
                raise InvalidArgument(
                    field,
                    subject,
                    f"the wildcard token {token!r} is only for subscribing; name one subject",
                )


def validate_filter(subject: str, *, field: str = "subject") -> None:
    """Refuse what can't be subscribed to: empty tokens, white space, ``>`` before the end."""
    _check_text(subject, field)
    if subject[0] == "." or subject[-1] == "." or ".." in subject:
        raise InvalidArgument(
            field,
            subject,
            "must not have empty tokens (leading, trailing or double '.')",
        )
    if ">" in subject and ">" in subject.split(".")[:-1]:
        raise InvalidArgument(field, subject, "the wildcard '>' must be the last token")


def validate_queue(queue: str, *, field: str = "queue") -> None:
    """Refuse queue group names that would break the SUB line."""
    _check_text(queue, field)


def has_wildcard(subject: str) -> bool:
    """Whether any token of the subject is a wildcard."""
    return any(token in ("*", ">") for token in subject.split("."))


def subject_matches(pattern: str, subject: str) -> bool:
    """Whether the pattern (``*`` one token, a final ``>`` one or more) matches the literal subject."""
    want, have = pattern.split("."), subject.split(".")
    for index, token in enumerate(want):
        if token == ">":
            return len(have) > index
        if index >= len(have) or (token != "*" and token != have[index]):
            return False
    return len(want) == len(have)


def is_subset(subject: str, pattern: str) -> bool:
    """Whether everything that matches the first pattern matches the second."""
    left, right = subject.split("."), pattern.split(".")
    for index, want in enumerate(right):
        if index >= len(left):
            return False
        if want == ">":
            return True
        have = left[index]
        if have == ">" or (want != "*" and have != want):
            return False
    return len(left) == len(right)


def subjects_overlap(a: str, b: str) -> bool:
    """Whether some literal subject matches both patterns."""
    left, right = a.split("."), b.split(".")
    for index in range(min(len(left), len(right))):
        x, y = left[index], right[index]
        if x == ">" or y == ">":
            return True
        if x != y and x != "*" and y != "*":
            return False
    return len(left) == len(right)
