"""What tests of ordered consumers share: a reader that remembers, and what it should have read."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from jetspark.errors import ConsumerNotFound, OrderedReset
from support.helpers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetspark import Message, OrderedConsumer, Stream
    from jetspark.errors import JetsparkError


def seqs(messages: Iterable[Message]) -> list[int]:
    return [message.metadata.sequence.stream for message in messages]


def span(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def reasons(warnings: list[JetsparkError]) -> list[str]:
    return [warning.reason for warning in warnings if isinstance(warning, OrderedReset)]


async def pull_waits(consumer: OrderedConsumer) -> None:
    """Until the server holds a pull request of it, so that its deletion is told."""

    async def asked() -> bool:
        with contextlib.suppress(ConsumerNotFound):
            return (await consumer.info()).num_waiting > 0
        return False

    await eventually(asked)


async def names(stream: Stream) -> list[str]:
    return [name async for name in stream.consumer_names()]


class Reader:
    """Consumes in a task and remembers what came."""

    def __init__(self, consumer: OrderedConsumer, **options: Any) -> None:
        self.got: list[int] = []
        self.warnings: list[JetsparkError] = []
        self._messages = consumer.consume(on_error=self.warnings.append, **options)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self._messages:
            async for message in self._messages:
                self.got.append(message.metadata.sequence.stream)

    async def until(self, last: int, timeout: float = 30.0) -> None:
        """Wait until everything up to ``last`` came, once and in order."""
        await eventually(lambda: len(self.got) >= last or self.task.done(), timeout)
        assert self.got == span(1, last)

    async def stop(self) -> None:
        await self._messages.stop()
        await self.task
