"""A received message, for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetspark.blocking._mirror import documented_by, mirrors
from jetspark.connection.message import Msg as AsyncMsg
from jetspark.connection.message import MsgBase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jetspark.blocking.connection import Connection
    from jetspark.wire.headers import Headers


@mirrors(AsyncMsg)
class Msg(MsgBase, eq=False, gc=False):
    @property
    def _client(self) -> Connection:
        client: Connection = self._owner
        return client

    @documented_by(AsyncMsg.respond)
    def respond(
        self,
        data: bytes = b"",
        *,
        headers: Headers | Mapping[str, str | Sequence[str]] | None = None,
    ) -> None:
        self._client.publish(self._reply_subject(), data, headers=headers)
