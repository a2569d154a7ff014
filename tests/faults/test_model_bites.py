"""The model finds what it is there for: with a part of the library broken on purpose, F7 fails."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import Message
from jetspark.connection.sink import Router
from jetspark.jetstream.consume.pull import Stash
from jetspark.jetstream.flow.actions import NOTHING
from jetspark.jetstream.flow.pull import PullFlow
from jetspark.server import Server
from support.work_sequences import Host, Sequence

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable


def drop_acks(patch: pytest.MonkeyPatch) -> None:
    async def pretend(self: Message, timeout: float | None = None) -> None:
        self._acked = True

    patch.setattr(Message, "ack_sync", pretend)


def skip_pulls_after_a_reconnect(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PullFlow, "on_reconnect", lambda self, now: NOTHING)


def forget_to_resubscribe(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Router, "renewal", staticmethod(lambda sink: b""))


def hand_out_twice(patch: pytest.MonkeyPatch) -> None:
    keep = Stash.keep

    def twice(self: Stash, messages: deque[Any]) -> None:
        messages.extend(list(messages))
        keep(self, messages)

    patch.setattr(Stash, "keep", twice)


def ack_unasked(patch: pytest.MonkeyPatch) -> None:
    async def nak(self: Message, delay: Any = None) -> None:
        await self.ack()

    patch.setattr(Message, "nak", nak)


@pytest.mark.parametrize(
    ("breakage", "found"),
    [
        (drop_acks, "sent after its ack was confirmed"),
        (skip_pulls_after_a_reconnect, "of consume"),
        (forget_to_resubscribe, "stuck"),
        (hand_out_twice, "handed out twice"),
        (ack_unasked, "though nobody acked it"),
    ],
)
async def test_a_broken_library_is_found(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    breakage: Callable[[pytest.MonkeyPatch], None],
    found: str,
) -> None:
    caplog.set_level(logging.CRITICAL, logger="jetspark")
    monkeypatch.setattr("support.work_sequences.PATIENCE", 2.0)
    breakage(monkeypatch)
    mismatches: list[str] = []
    seeds = iter(range(100))

    def bitten() -> bool:
        return any(found in mismatch for mismatch in mismatches)

    with Server(name="bites") as server:
        host = Host(server, at_rest=True)

        async def lane() -> None:
            for seed in seeds:
                sequence = Sequence(host, seed)
                await sequence.play()
                mismatches.extend(sequence.mismatches)
                if bitten():
                    return

        lanes = [asyncio.create_task(lane()) for _ in range(10)]
        await asyncio.wait(lanes, return_when=asyncio.FIRST_COMPLETED)
        for task in lanes:
            task.cancel()
        await asyncio.wait(lanes)
    assert bitten(), mismatches
