"""A handle on a consumer (ADR-37 'Consumers')."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetspark.errors import InvalidArgument
from jetspark.jetstream.consumer_info import ConsumerInfo, ConsumerPause
from jetspark.jetstream.validation import check_name

if TYPE_CHECKING:
    from datetime import datetime

    from jetspark.jetstream.consumer_config import ConsumerConfig
    from jetspark.jetstream.context import JetStream


class Consumer:
    """A consumer of a stream. Made by ``stream.get_consumer`` and its like; holds no subscription."""

    def __init__(self, js: JetStream, info: ConsumerInfo) -> None:
        self._js = js
        self._info = info

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._info.name

    @property
    def stream_name(self) -> str:
        """The stream it belongs to."""
        return self._info.stream_name

    @property
    def cached_info(self) -> ConsumerInfo:
        """The info of the last answer, without asking the server."""
        return self._info

    @property
    def config(self) -> ConsumerConfig:
        """The config of the cached info."""
        return self._info.config

    def __repr__(self) -> str:
        return f"Consumer({self.stream_name!r}, {self.name!r})"

    async def info(self) -> ConsumerInfo:
        """Ask the server for the current info. Raises :class:`ConsumerNotFound` when it is gone."""
        self._info = await self._js._consumer_info(self.stream_name, self.name)
        return self._info

    async def delete(self) -> None:
        """Delete the consumer on the server."""
        await self._js.delete_consumer(self.stream_name, self.name)

    async def pause(self, until: datetime) -> ConsumerPause:
        """Stop delivery until a point in time (2.11). Messages in flight can still be acked."""
        return await self._js.pause_consumer(self.stream_name, self.name, until)

    async def resume(self) -> ConsumerPause:
        """End a pause at once (2.11)."""
        return await self._js.resume_consumer(self.stream_name, self.name)

    async def unpin(self, group: str) -> None:
        """Take the pin from the pinned client of a priority group (2.11); the server pins the next one."""
        check_name("group", group)
        await self._js._api.request(f"CONSUMER.UNPIN.{self.stream_name}.{self.name}", {"group": group})

    async def reset(self, seq: int | None = None) -> ConsumerInfo:
        """Move the consumer to a stream sequence, forward or back (2.14).

        Deliveries and acks outstanding are forgotten; the next message is the first at or after ``seq``.
        None goes back to the ack floor: everything not acked is delivered again.
        """
        body: dict[str, Any] = {}
        if seq is not None:
            if isinstance(seq, bool) or not isinstance(seq, int) or seq < 1:
                raise InvalidArgument("seq", seq, "must be a stream sequence, 1 or more, or None")
            body["seq"] = seq
        response = await self._js._api.request(f"CONSUMER.RESET.{self.stream_name}.{self.name}", body)
        self._info = ConsumerInfo.from_wire(response)
        return self._info
