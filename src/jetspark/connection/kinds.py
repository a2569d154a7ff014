"""The classes that a connection is made of. The blocking facade has its own; these are asyncio's."""

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
    """``message``: what the parser makes of a message. ``subscription``, ``outbox``: the classes to use."""

    message: Factory = Msg
    subscription: type[SubscriptionSink] = SubscriptionSink
    outbox: type[Outbox] = Outbox
