"""With a part of the library broken on purpose, the rows about leaks and slow readers fail."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from jetspark.connection.subscription_sink import SubscriptionSink
from jetspark.jetstream.consume.pull import PullTarget
from support.fault_table import FOLDER, Row, Scale, perform

if TYPE_CHECKING:
    from collections.abc import Callable


def row(name: str) -> Row:
    (path,) = FOLDER.glob(f"test_{name}_*.py")
    spec = importlib.util.spec_from_file_location(f"bitten_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Row = module.ROW
    return found


def keep_connections(patch: pytest.MonkeyPatch) -> None:
    """A circle through messages, which the garbage collector can't see."""
    patch.setattr(PullTarget, "stash", None)


def drop_in_silence(patch: pytest.MonkeyPatch) -> None:
    fit: Any = SubscriptionSink._fit

    def silent(self: SubscriptionSink, items: list[Any], nbytes: int) -> tuple[list[Any], int]:
        before, self._dropping = self._dropped, True  # no episode begins, so nothing is told
        kept: tuple[list[Any], int] = fit(self, items, nbytes)
        self._dropped = before
        return kept

    patch.setattr(SubscriptionSink, "_fit", silent)


def ignore_limits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SubscriptionSink, "_fit", lambda self, items, nbytes: (items, nbytes))


@pytest.mark.parametrize(
    ("name", "breakage", "found"),
    [
        ("f11", keep_connections, "connections are still there"),
        ("f10", drop_in_silence, "missing, 0 dropped"),
        ("f10", ignore_limits, "the limit is"),
    ],
)
def test_a_broken_library_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, breakage: Callable[[pytest.MonkeyPatch], None], found: str
) -> None:
    breakage(monkeypatch)
    outcome = perform(row(name), Scale(full=False, seed=1))
    assert any(found in problem for problem in outcome.problems), outcome
