"""The classes that a connection is built from. The blocking facade has its own; these are for asyncio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetspark.connection.message import Msg
from jetspark.connection.outbox import Outbox
from jetspark.connection.subscription_sink import SubscriptionSink

if TYPE_CHECKING:
    from jetspark.wire.parser import Factory


@dataclass(frozen=True, slots=True)
class Kinds:
    """``message``: the class of received messages. ``subscription``, ``outbox``: the classes to use."""

    message: Factory = Msg
    subscription: type[SubscriptionSink] = SubscriptionSink
    outbox: type[Outbox] = Outbox
