"""How a durable follows a query where CONSUMER.RESET is unknown (servers before 2.14).

Such a consumer can only be moved by consuming: it is read, headers only, up to the query's position, and
messages before the position are acked. Our consumers have the ack policy ``all``, so one ack covers hundreds
of messages. Messages delivered beyond the position are kept unacked, and are acked first when the position
moves on. A consumer can't be moved back.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from jetspark.jetstream.models.consumer_config import AckPolicy

if TYPE_CHECKING:
    from jetspark.blocking.consumer import Consumer
    from jetspark.blocking.message import Message

logger = logging.getLogger("jetspark.spark")

#: Version from which on CONSUMER.RESET exists.
RESET_SINCE = (2, 14)
#: Messages of one step; a consumer's max_ack_pending is 1,000 unless told otherwise.
STEP = 500
#: Seconds until messages that an earlier run left unacked come again.
ACK_WAIT = 5.0
_VERSION = re.compile(r"(\d+)\.(\d+)")


def can_reset(consumer: Consumer, connected_version: str) -> bool:
    """Whether the server that has the consumer knows CONSUMER.RESET; it ignores requests it does not know.

    Since 2.11 a consumer shows which version created or last updated it. That may differ from the version of
    the server that we are connected to, such as a leaf node.
    """
    told = (consumer.config.metadata or {}).get("_nats.ver") or connected_version
    found = _VERSION.match(told)
    return found is not None and (int(found[1]), int(found[2])) >= RESET_SINCE


class Walk:
    """Walks one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        # Delivered and not acked, by stream sequence.
        self._held: dict[int, Message] = {}
        self._told = False

    def to(self, following: int) -> bool:
        """Ack everything before the stream sequence ``following``; False when that is to be tried again."""
        info = self._consumer.info()
        # Some servers report 0 for a consumer that begins later and has delivered nothing yet.
        before = (info.config.opt_start_seq or 1) - 1
        floor, delivered = (max(one.stream_seq, before) for one in (info.ack_floor, info.delivered))
        if floor >= following and not self._told:
            self._told = True
            logger.warning(
                "durable %r of stream %r is already at sequence %d, beyond %d: servers before 2.14 can't "
                "move it back, so it shows no progress until the query gets there",
                *(info.name, info.stream_name, floor, following - 1),
            )
        if floor >= following - 1:
            return True
        # Delivered to an earlier run and not acked: they come again after their ack wait.
        strays = info.num_ack_pending - len(self._held)
        self._ack_before(following)
        wanted = max(strays, following - 1 - delivered)
        while wanted > 0:
            batch = self._consumer.fetch_no_wait(min(STEP, wanted))
            batch.raise_for_error()
            if not batch:
                break
            for message in batch:
                sequence = message.metadata.sequence.stream
                self._held[sequence] = message
                delivered = max(delivered, sequence)
            self._ack_before(following)
            wanted = following - 1 - delivered
        return strays <= 0 or self._consumer.info().num_ack_pending <= len(self._held)

    def _ack_before(self, following: int) -> None:
        done = sorted(sequence for sequence in self._held if sequence < following)
        if not done:
            return
        messages = [self._held.pop(sequence) for sequence in done]
        if self._consumer.config.ack_policy != AckPolicy.ALL:
            for message in messages[:-1]:
                message.ack()
        messages[-1].ack_sync()


class Standing(Walk):
    """One that must not be walked."""

    def to(self, following: int) -> bool:
        """Nothing, and nothing is missing."""
        return True
