"""One connection of a script in `tests/support/wire_scripts.py`, and what it wrote.

The client goes through a proxy in the same event loop: its frames tell what arrived, and the link tells which
of them it wrote together. The proxy also keeps what the server sends until all that a step waits for is
there, so that the client reads it at once: what a step writes does not depend on the server's pace.
"""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jetspark
from jetspark import ConsumerConfig, StorageType, StreamConfig
from support.frame_proxy import FrameProxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetspark import Consumer, Stream


class Scene(FrameProxy):
    """One script's connection, and what was seen of it."""

    nc: jetspark.Connection
    js: jetspark.JetStream

    def __init__(self, host: str, port: int, name: str) -> None:
        super().__init__(SimpleNamespace(host=host, port=port))  # type: ignore[arg-type]
        self.name = name
        self.frames: list[bytes] = []
        self.writes: list[bytes] = []
        self.steps: list[tuple[str, list[list[str]]]] = []
        self.said: list[str] = []
        self.lose_up = self._seen
        # The server measures the way to a client when it likes; the answer would stand anywhere.
        self.lose_down = lambda frame: frame.startswith(b"PING")

    def _seen(self, frame: bytes) -> bool:
        self.frames.append(frame)
        return False

    def together(self, count: int, *, more: bool = False) -> None:
        """The next ``count`` messages reach the client in one piece, and not before the script waits.

        ``more``: those behind them stay here until the next call.
        """
        loop = asyncio.get_running_loop()

        def hold(frame: bytes) -> bool:
            if _is_message(frame) and len(self.held) + 1 == count:
                loop.call_soon(self._let_go, count, more)
            return _is_message(frame)

        self.hold_down = hold
        if len(self.held) >= count:
            loop.call_soon(self._let_go, count, more)

    def hold_messages(self) -> None:
        """Messages stay here until ``together`` is called."""
        self.hold_down = _is_message

    def _let_go(self, count: int, more: bool) -> None:
        self.hold_down = _is_message if more else lambda frame: False
        group, self.held = (self.held[:count], self.held[count:]) if more else (self.held, [])
        group[0][0].write(b"".join([frame for _, frame in group]))

    async def step(self, name: str) -> None:
        """What was written since the last step is this one's; all of it has reached the server."""
        await self.nc.flush()
        frames, writes = iter(self.frames), []
        for data in self.writes:
            commands = []
            while data:
                frame = next(frames)
                assert data.startswith(frame), (data, frame)
                commands.append(frame.decode("latin-1"))
                data = data[len(frame) :]
            writes.append(commands)
        assert not list(frames)
        self.steps.append((name, writes))
        self.frames.clear()
        self.writes.clear()

    def say(self, *values: object) -> None:
        self.said += [f"{type(one).__name__}: {one}" for one in values]

    async def refused(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """What the call raises; it writes nothing, or the next step would show it."""
        try:
            result = call(*arguments, **options)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            self.say(error)
        else:
            self.say(None)

    async def stream(self, **options: Any) -> Stream:
        config = StreamConfig(
            name=self.name, subjects=[f"{self.name}.>"], storage=StorageType.MEMORY, **options
        )
        return await self.js.create_stream(config)

    async def filled(self, count: int, **options: Any) -> Consumer:
        """Messages of many lengths, some with headers, and a durable that gets them."""
        stream = await self.stream(allow_direct=True)
        async with self.js.publisher() as publisher:
            self.together(count)
            for number in range(count):
                headers = {"N": str(number)} if number % 7 == 3 else None
                publisher.publish_nowait(f"{self.name}.{number % 3}", b"x" * number, headers=headers)
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker", **options))
        await self.step("filled")
        return consumer


def _is_message(frame: bytes) -> bool:
    return frame.startswith((b"MSG", b"HMSG"))
