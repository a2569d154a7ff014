"""Connection events, for ``connect(listener=...)``."""

from jetspark.connection.events import (
    AuthExpired,
    CallbackFailed,
    Closed,
    Connected,
    ConsumerDeleteFailed,
    ConsumerDisturbed,
    Disconnected,
    Event,
    LameDuck,
    PermissionViolation,
    PublishDropped,
    Reconnected,
    ReconnectFailed,
    ServerError,
    ServersDiscovered,
    SlowConsumer,
)

__all__ = [
    "AuthExpired",
    "CallbackFailed",
    "Closed",
    "Connected",
    "ConsumerDeleteFailed",
    "ConsumerDisturbed",
    "Disconnected",
    "Event",
    "LameDuck",
    "PermissionViolation",
    "PublishDropped",
    "ReconnectFailed",
    "Reconnected",
    "ServerError",
    "ServersDiscovered",
    "SlowConsumer",
]
