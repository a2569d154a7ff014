"""Reading the server's ``-ERR`` texts that name a subject."""

from __future__ import annotations

import re

_VIOLATION = re.compile(
    r"permissions violation for (?P<operation>publish|subscription) to \"(?P<subject>[^\"]*)\""
    r"(?: using queue \"(?P<queue>[^\"]*)\")?",
    re.IGNORECASE,
)


def parse_violation(message: str) -> tuple[str, str, str | None] | None:
    """(``publish`` or ``subscribe``, subject, queue or None) of a permissions violation, else None."""
    match = _VIOLATION.search(message)
    if match is None:
        return None
    operation = "publish" if match["operation"].lower() == "publish" else "subscribe"
    return operation, match["subject"], match["queue"]
