"""Reading the server's ``-ERR`` texts that name a subject."""

from __future__ import annotations

import re

# The server quotes as Go does: a quote or backslash inside is escaped.
_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_VIOLATION = re.compile(
    rf"permissions violation for (publish|subscription) (?:to|with reply of) {_QUOTED}"
    rf"(?: using queue {_QUOTED})?",
    re.IGNORECASE,
)
_ESCAPED = re.compile(r'\\(["\\])')


def parse_violation(message: str) -> tuple[str, str, str] | None:
    """(``publish`` or ``subscribe``, subject, queue or "") of a permissions violation, else None."""
    match = _VIOLATION.search(message)
    if match is None:
        return None
    kind, subject, queue = match.groups(default="")
    operation = "publish" if kind.lower() == "publish" else "subscribe"
    return operation, _ESCAPED.sub(r"\1", subject), _ESCAPED.sub(r"\1", queue)
