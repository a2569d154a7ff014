"""All scenarios, by name. A new one is a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exactly_once.connect import Connect
from exactly_once.foreach import Foreach, Threads
from exactly_once.pipe import EditedPipe, GrowingPipe
from exactly_once.queries import Queries

if TYPE_CHECKING:
    from exactly_once.scenario import Scenario

_ALL: list[type[Scenario]] = [
    Queries,
    Foreach,
    Threads,
    Connect,
    EditedPipe,
    GrowingPipe,
]
SCENARIOS = {one.name: one for one in _ALL}
