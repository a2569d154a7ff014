"""The placeholders of ``pub``: ``{{Count}}`` and its like, in subjects, bodies and headers."""

from __future__ import annotations

import random
import re
import string
import time
from datetime import datetime
from typing import TYPE_CHECKING

from jetspark.cli.errors import UsageError
from jetspark.connection.nuid import next_nuid

if TYPE_CHECKING:
    from collections.abc import Callable

_PLACE = re.compile(r"\{\{\s*(\w+)((?:\s+\d+)*)\s*\}\}")
_LETTERS = string.ascii_letters + string.digits


def _random(least: int, most: int) -> str:
    return "".join(random.choices(_LETTERS, k=random.randint(least, most)))


_MAKERS: dict[str, Callable[[int], str]] = {
    "Count": str,
    "ID": lambda count: next_nuid(),
    "Unix": lambda count: str(int(time.time())),
    "UnixNano": lambda count: str(time.time_ns()),
    "Time": lambda count: f"{datetime.now():%H:%M:%S}",
    "TimeStamp": lambda count: datetime.now().astimezone().isoformat(timespec="seconds"),
}


def has_places(text: str) -> bool:
    """Whether there is anything to fill in."""
    return "{{" in text


def fill(text: str, count: int) -> str:
    """The text with its placeholders replaced; ``count`` is the number of the message, from 1."""
    if not has_places(text):
        return text

    def value(found: re.Match[str]) -> str:
        name, numbers = found[1], [int(word) for word in found[2].split()]
        if name == "Random":
            least, most = (numbers * 2 if len(numbers) == 1 else numbers) if numbers else (10, 10)
            if len(numbers) > 2 or least > most:
                raise UsageError(f"invalid {found[0]}; use {{{{Random LENGTH}}}} or {{{{Random MIN MAX}}}}")
            return _random(least, most)
        maker = _MAKERS.get(name)
        if maker is None or numbers:
            known = ", ".join([*_MAKERS, "Random"])
            raise UsageError(
                f"unknown placeholder {found[0]}; use {known}, or --no-templates to send the text as it is"
            )
        return maker(count)

    return _PLACE.sub(value, text)
