"""Every error that jetspark raises outside the JetStream API, named by whose fault it is.

All derive from :class:`JetsparkError` and survive a round trip through pickle, because Spark ships
exceptions from executors to the driver. Where a builtin class says the same thing (``ValueError``,
``TimeoutError``), ours derives from it too, so ``except TimeoutError`` works.
"""

from __future__ import annotations

import pickle
from typing import Any


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


_SHOWN = 200


def _short(value: object) -> str:
    """The value as it is written, its beginning when that is long: an error is for people to read."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


class JetsparkError(Exception):
    """Root of all errors of this library."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default replays __init__ with .args, which breaks for every subclass with its own signature.
        return (_rebuild, (type(self), self.args, self.__dict__))


class InvalidArgument(JetsparkError, ValueError):
    """You passed a value that can't work; nothing was sent. The text names field, value and rule."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        super().__init__(f"{field}={_short(value)}: {rule}")
        self.field = field
        self.value = value
        self.rule = rule

    def __reduce__(self) -> tuple[Any, ...]:
        # The value is whatever the caller passed, often just what can't be pickled: a lambda, a lock, a file.
        try:
            pickle.dumps(self.value)
        except Exception:
            return (_rebuild, (type(self), self.args, {**self.__dict__, "value": repr(self.value)}))
        return super().__reduce__()


class ProtocolError(JetsparkError):
    """The other side sent bytes outside the NATS protocol or its limits. The connection is dropped."""


class ConnectionClosed(JetsparkError):
    """The connection was closed by you (``close``, ``drain``) or for good; open a new one."""


class ConnectionLost(JetsparkError):
    """The connection broke while the operation was in flight.

    Whether the server acted on it is unknown: retry what is idempotent. The connection itself reconnects.
    """


class NotConnected(ConnectionLost):
    """No server is connected, so nobody could answer. The connection goes on trying to reconnect.

    The text names the servers, how long ago the connection broke and the last error.
    """


class NoServersAvailable(ConnectionLost):
    """None of the servers could be reached. The text lists each server with its own reason."""


class AuthorizationError(JetsparkError):
    """The server refused the credentials, or they can't be read. Retrying will not help; fix them."""


class TLSError(JetsparkError):
    """TLS could not be established: bad certificate, wrong host name, or a server that offers no TLS."""


class RequestTimeout(JetsparkError, TimeoutError):
    """No answer came in time. Somebody listens (else :class:`NoRespondersError`) but is slow or gone."""


class NoRespondersError(JetsparkError):
    """Nobody listens on the subject of a request (status 503)."""

    def __init__(self, subject: str) -> None:
        super().__init__(
            f"no responders on {subject!r}: nothing is subscribed to it; "
            "check the subject, the account and that the service runs"
        )
        self.subject = subject


class MaxPayloadExceeded(JetsparkError, ValueError):
    """Headers and body together exceed what the connected server accepts; nothing was sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"message of {size} bytes (headers + body) exceeds the server's max_payload of {limit}: "
            "split it, or raise max_payload in the server's configuration"
        )
        self.size = size
        self.limit = limit


class OutboundBufferFull(JetsparkError):
    """Disconnected, and the buffer for publishes made meanwhile is full; nothing of this one was kept."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"disconnected and {size} bytes would exceed reconnect_buffer_size={limit}: "
            "slow down, wait for the Reconnected event, or raise reconnect_buffer_size"
        )
        self.size = size
        self.limit = limit


class PermissionViolationError(JetsparkError):
    """The server's permissions forbid the operation on the subject. The connection stays up."""

    def __init__(self, operation: str, subject: str, message: str) -> None:
        super().__init__(f"not permitted to {operation} {subject!r} (server: {message})")
        self.operation = operation
        self.subject = subject
        self.message = message


class ControlLineExceeded(JetsparkError, ValueError):
    """A subscription was ended because its SUB line is longer than the server's ``max_control_line``.

    Servers do not announce this limit (4096 bytes unless configured), and hang up on longer lines.
    """

    def __init__(self, subject: str, size: int) -> None:
        super().__init__(
            f"the SUB line of {_short(subject)} has {size} bytes of subject, queue and sid, more than the "
            "server's max_control_line: shorten them, or raise max_control_line in its configuration"
        )
        self.subject = subject
        self.size = size


class DrainTimeout(JetsparkError, TimeoutError):
    """Draining did not finish in ``drain_timeout``; what was left has been dropped."""
