"""What tests of push consumers share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jetspark
from jetspark import AckPolicy, ConsumerConfig, PushSubscription, StorageType, Stream
from jetspark.errors import JetsparkError
from jetspark.wire.headers import HeaderBlock
from support.consuming import make
from support.helpers import LIMIT, eventually

if TYPE_CHECKING:
    from jetspark import Message
    from support.lossy_proxy import LossyProxy


NONE = ConsumerConfig(ack_policy=AckPolicy.NONE)


async def take(sub: PushSubscription, count: int) -> list[Message]:
    return [await sub.next(timeout=LIMIT) for _ in range(count)]


class Errors(list[JetsparkError]):
    """An error listener; ``of`` waits for an error of a kind."""

    def __call__(self, error: JetsparkError) -> None:
        self.append(error)

    async def of(self, kind: type[JetsparkError], count: int = 1) -> list[Any]:
        await eventually(lambda: sum(isinstance(error, kind) for error in self) >= count)
        return [error for error in self if isinstance(error, kind)]


def send_status(nc: jetspark.Connection, subject: str, line: bytes, reply: str = "") -> None:
    """Publish a status message, as the server does."""
    nc._core.outbox.publish(subject, b"", reply, HeaderBlock(b"NATS/1.0 " + line + b"\r\n\r\n"))


async def lose_one(proxy: LossyProxy, js: jetspark.JetStream, sub: PushSubscription, body: bytes) -> None:
    """Publish a message that the server sends and the subscription never gets."""
    begun = len(proxy.lost)
    proxy.swallow_down = True
    await js.publish(sub.subject, body)
    # Not just anything: a heartbeat or a PING may come before it.
    await eventually(lambda: b"\r\n%b\r\n" % body in proxy.lost[begun:])
    proxy.swallow_down = False


async def fill_large(js: jetspark.JetStream, count: int, size: int) -> Stream:
    stream = await make(js, storage=StorageType.FILE)
    async with js.publisher() as publisher:
        for number in range(count):
            await publisher.publish(f"{stream.name}.a", b"%d" % number + b" " * (size - len(str(number))))
    return stream


async def no_consumers(js: jetspark.JetStream, stream: str) -> bool:
    return [name async for name in js.consumer_names(stream)] == []
