"""The table of faults bites: with a part of the client broken on purpose, the matching row fails.

Each row also runs at the same small scale with the client as it is, so that it is the break that fails it.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from faults.test_f01_server_kills import server_kills
from faults.test_f05_dead_peer import dead_peer
from faults.test_f09_storm import storm
from faults.test_f20_until_empty import until_empty
from jetspark import Headers
from jetspark.connection import core, sink
from jetspark.jetstream.consume.pull import PullSink
from jetspark.jetstream.flow.actions import NOTHING
from jetspark.jetstream.flow.pull import PullFlow
from jetspark.jetstream.message import MessageBase
from jetspark.jetstream.publish import publisher

if TYPE_CHECKING:
    from support.fault_table import Outcome

F1 = {"kills": 1, "messages": 2000}
# With 20 clients chance alone has too little a spread once in 170 runs.
F9 = {"clients": 60, "restarts": 1, "timed": False}


def drop_acks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MessageBase, "_wants_ack", lambda message, body, *, terminal: False)


def skip_pulls_after_reconnect(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PullFlow, "on_reconnect", lambda flow, now: NOTHING)


def forget_subscriptions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sink.Router, "renewal", staticmethod(lambda sink: b""))


def send_again_without_id(patch: pytest.MonkeyPatch) -> None:
    def without_id(headers: Any, *, msg_id: str, **_: Any) -> Headers:
        return Headers({"Not-The-Id": msg_id})

    patch.setattr(publisher, "publish_headers", without_id)


def leave_nothing_to_chance(patch: pytest.MonkeyPatch) -> None:
    class Mean(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return (a + b) / 2

    patch.setattr(core, "random", SimpleNamespace(Random=Mean))


def take_silence_for_empty(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PullSink, "_explained", lambda sink, error: None)


def expect(outcome: Outcome, *words: str) -> None:
    """The row fails, and says why in these words."""
    text = "\n".join(outcome.problems)
    for word in words:
        assert word in text, f"the row does not say {word!r}: {text or 'it passed'}"


async def test_unbroken_the_rows_pass() -> None:
    kills, reconnects = await server_kills(1, **F1), await storm(**F9)
    assert kills.problems == []
    assert reconnects.problems == []
    assert kills.figures["kills"] == 1
    assert reconnects.figures["restarts"] == 1


async def test_acks_that_are_dropped_fail_f1(monkeypatch: pytest.MonkeyPatch) -> None:
    drop_acks(monkeypatch)
    expect(await server_kills(1, **F1, patience=2), "not at rest", "waiting for acks")


@pytest.mark.cluster
async def test_pulls_that_are_not_repeated_fail_f5(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_pulls_after_reconnect(monkeypatch)
    outcome = await dead_peer(rounds=1, elections=0, interval=1.0, patience=1)
    expect(outcome, "no message", "'consume'", "'fetch'", "'blocking consume'")


async def test_fetches_that_take_silence_for_empty_fail_f20(monkeypatch: pytest.MonkeyPatch) -> None:
    take_silence_for_empty(monkeypatch)
    outcome = await until_empty(rounds=1, faults=1, chance=random.Random(1), kinds=("suspend",), away=4.0)
    expect(outcome, "empty, but")


async def test_subscriptions_that_are_not_renewed_fail_f9(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_subscriptions(monkeypatch)
    expect(await storm(**F9), "60 subscriptions are dead")


async def test_subscriptions_that_are_not_renewed_fail_f1(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_subscriptions(monkeypatch)
    outcome = await server_kills(1, **F1, patience=1, ack_timeout=3)
    expect(outcome, "no recovery from kill 1", "no ack within ack_timeout")


async def test_publishes_repeated_without_their_id_fail_f1(monkeypatch: pytest.MonkeyPatch) -> None:
    send_again_without_id(monkeypatch)
    expect(await server_kills(1, **F1), "stored twice")


async def test_reconnects_without_jitter_fail_f9(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_nothing_to_chance(monkeypatch)
    expect(await storm(**F9), "no jitter")
