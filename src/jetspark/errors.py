"""Every error that jetspark raises, grouped by whose fault it is: the one module to import them from.

All derive from :class:`JetsparkError` and survive a round trip through pickle, because Spark ships
exceptions from executors to the driver. Where a builtin class says the same thing (``ValueError``,
``TimeoutError``), ours derives from it too, so ``except TimeoutError`` works.

The errors of the connection are defined here. Those of the JetStream API (:class:`ApiError`), of reading
(:class:`ConsumeError`), of publishing and of :mod:`jetspark.server` are defined beside the code that raises
them and are loaded on first use.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from jetspark._lazy import exports

if TYPE_CHECKING:
    # isort: off
    from jetspark.jetstream.consume.consume import HandlerFailed as HandlerFailed
    from jetspark.jetstream.consume.errors import (
        ConsumeError as ConsumeError,
        ConsumerDeleted as ConsumerDeleted,
        ConsumerGap as ConsumerGap,
        ConsumerLost as ConsumerLost,
        LeadershipChanged as LeadershipChanged,
        MaxAckPendingExceeded as MaxAckPendingExceeded,
        MaxRequestBatchExceeded as MaxRequestBatchExceeded,
        MaxRequestExpiresExceeded as MaxRequestExpiresExceeded,
        MaxRequestMaxBytesExceeded as MaxRequestMaxBytesExceeded,
        MaxWaitingExceeded as MaxWaitingExceeded,
        MissedHeartbeat as MissedHeartbeat,
        NextMessageTooLarge as NextMessageTooLarge,
        NoConsumerResponders as NoConsumerResponders,
        OrderedReset as OrderedReset,
        OrderedResetFailed as OrderedResetFailed,
        PinIdMismatch as PinIdMismatch,
        PullRefused as PullRefused,
        PullUnanswered as PullUnanswered,
        PullWarning as PullWarning,
        PushConsumerError as PushConsumerError,
        ServerShutdown as ServerShutdown,
        StatusError as StatusError,
        StatusWarning as StatusWarning,
        UnexpectedStatus as UnexpectedStatus,
    )
    from jetspark.jetstream.consume.ordered_chain import (
        OrderedConsumerBusy as OrderedConsumerBusy,
        OrderedConsumerClosed as OrderedConsumerClosed,
    )
    from jetspark.jetstream.errors import (
        AccountLimitExceeded as AccountLimitExceeded,
        ApiError as ApiError,
        AtomicBatchDuplicate as AtomicBatchDuplicate,
        AtomicBatchFailed as AtomicBatchFailed,
        AtomicBatchIncomplete as AtomicBatchIncomplete,
        AtomicPublishDisabled as AtomicPublishDisabled,
        BadRequest as BadRequest,
        ClusterMembership as ClusterMembership,
        ClusterRequired as ClusterRequired,
        ClusterUnavailable as ClusterUnavailable,
        ClusterUnsupported as ClusterUnsupported,
        ConsumerConfigRequired as ConsumerConfigRequired,
        ConsumerDoesNotExist as ConsumerDoesNotExist,
        ConsumerExists as ConsumerExists,
        ConsumerLimitExceeded as ConsumerLimitExceeded,
        ConsumerNotFound as ConsumerNotFound,
        ConsumerOffline as ConsumerOffline,
        ConsumerStoreFailed as ConsumerStoreFailed,
        CountersDisabled as CountersDisabled,
        ExpectationUnavailable as ExpectationUnavailable,
        FastIngestDisabled as FastIngestDisabled,
        FastIngestFailed as FastIngestFailed,
        HeaderNotAllowed as HeaderNotAllowed,
        InsufficientResources as InsufficientResources,
        InvalidAckSettings as InvalidAckSettings,
        InvalidConsumerConfig as InvalidConsumerConfig,
        InvalidConsumerName as InvalidConsumerName,
        InvalidConsumerReplicas as InvalidConsumerReplicas,
        InvalidConsumerValue as InvalidConsumerValue,
        InvalidCounter as InvalidCounter,
        InvalidDeliverPolicy as InvalidDeliverPolicy,
        InvalidDeliverSubject as InvalidDeliverSubject,
        InvalidExpectation as InvalidExpectation,
        InvalidExternal as InvalidExternal,
        InvalidFilter as InvalidFilter,
        InvalidJSON as InvalidJSON,
        InvalidMessageTTL as InvalidMessageTTL,
        InvalidMirror as InvalidMirror,
        InvalidPriorityGroup as InvalidPriorityGroup,
        InvalidReset as InvalidReset,
        InvalidSchedule as InvalidSchedule,
        InvalidSource as InvalidSource,
        InvalidStreamConfig as InvalidStreamConfig,
        InvalidStreamName as InvalidStreamName,
        InvalidSubjectTransform as InvalidSubjectTransform,
        JetStreamNotEnabled as JetStreamNotEnabled,
        LimitExceeded as LimitExceeded,
        MaximumConsumersReached as MaximumConsumersReached,
        MessageNotFound as MessageNotFound,
        MessageTTLDisabled as MessageTTLDisabled,
        MessageTooLarge as MessageTooLarge,
        MirrorNotUpdatable as MirrorNotUpdatable,
        NoStreamResponse as NoStreamResponse,
        NoSuitablePeers as NoSuitablePeers,
        NotFound as NotFound,
        PedanticError as PedanticError,
        PublishRefused as PublishRefused,
        PullOnly as PullOnly,
        PushOnly as PushOnly,
        RaftError as RaftError,
        ReplicasNotSupported as ReplicasNotSupported,
        RequiredApiLevel as RequiredApiLevel,
        SchedulesDisabled as SchedulesDisabled,
        SnapshotFailed as SnapshotFailed,
        SourceSetupFailed as SourceSetupFailed,
        StoreFailed as StoreFailed,
        StreamIdentityMismatch as StreamIdentityMismatch,
        StreamMoveConflict as StreamMoveConflict,
        StreamNameInUse as StreamNameInUse,
        StreamNameMismatch as StreamNameMismatch,
        StreamNotFound as StreamNotFound,
        StreamOffline as StreamOffline,
        StreamOperationFailed as StreamOperationFailed,
        StreamSealed as StreamSealed,
        StreamSubjectsOverlap as StreamSubjectsOverlap,
        TemplateError as TemplateError,
        TooManyRequests as TooManyRequests,
        Unavailable as Unavailable,
        WorkQueueConflict as WorkQueueConflict,
        WrongLastMessageId as WrongLastMessageId,
        WrongLastSequence as WrongLastSequence,
        WrongStream as WrongStream,
    )
    from jetspark.jetstream.flow.ack_reply import NotJetStreamMessage as NotJetStreamMessage
    from jetspark.jetstream.flow.fast import FastIngestBroken as FastIngestBroken
    from jetspark.jetstream.publish.stats import (
        PublishFailed as PublishFailed,
        PublisherFull as PublisherFull,
    )
    from jetspark.jetstream.subscribe.checks import (
        ConsumerConfigMismatch as ConsumerConfigMismatch,
        ConsumerInUse as ConsumerInUse,
        IncompatibleConsumer as IncompatibleConsumer,
        NoDeliverGroup as NoDeliverGroup,
        PullRequired as PullRequired,
        QueueFlowControl as QueueFlowControl,
        QueueHeartbeat as QueueHeartbeat,
        QueueMismatch as QueueMismatch,
        QueueRequired as QueueRequired,
        SubjectMismatch as SubjectMismatch,
    )
    from jetspark.jetstream.subscribe.pull_subscribe import PullSubscriptionClosed as PullSubscriptionClosed
    from jetspark.jetstream.subscribe.subscribe import PushSubscriptionClosed as PushSubscriptionClosed
    from jetspark.server.errors import (
        ServerProcessError as ServerProcessError,
        ServerNotFound as ServerNotFound,
        ServerReloadError as ServerReloadError,
        ServerStartError as ServerStartError,
    )
    # isort: on


# Packages whose errors are exported here.
_EXPORTED_FROM = ("jetspark.jetstream.", "jetspark.server.")


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


_SHOWN = 200


def _short(value: object) -> str:
    """The repr of the value, shortened if it is long: errors are for people to read."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


class JetsparkError(Exception):
    """Root of all errors of this library."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Tracebacks and pickles name this module, whatever file defines the class: it may move.
        if cls.__module__.startswith(_EXPORTED_FROM):
            cls.__module__ = __name__

    def __reduce__(self) -> tuple[Any, ...]:
        # The default replays __init__ with .args, which breaks for every subclass with its own signature.
        return (_rebuild, (type(self), self.args, self.__dict__))


class InvalidArgument(JetsparkError, ValueError):
    """You passed a value that can't work; nothing was sent. The text names the field, value and rule."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        super().__init__(f"{field}={_short(value)}: {rule}")
        self.field = field
        self.value = value
        self.rule = rule

    def __reduce__(self) -> tuple[Any, ...]:
        # The value is whatever the caller passed, often just what can't be pickled: a lambda, a lock,
        # a file.
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
    """No server is connected, so nothing could answer. The connection keeps trying to reconnect.

    The text names the servers, how long ago the connection broke and the last error.
    """


class NoServersAvailable(ConnectionLost):
    """None of the servers could be reached. The text lists each server with its own reason."""


class AuthorizationError(JetsparkError):
    """The server refused the credentials, or they can't be read. Retrying will not help; fix them."""


class TLSError(JetsparkError):
    """TLS could not be established: bad certificate, wrong host name, or a server that offers no TLS."""


class RequestTimeout(JetsparkError, TimeoutError):
    """No answer came in time. A responder exists (else :class:`NoRespondersError`) but is slow or gone."""


class NoRespondersError(JetsparkError):
    """Nothing listens on the subject of a request (status 503)."""

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
    """Disconnected, and the buffer for publishes is full; nothing of this publish was kept."""

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
    """Draining did not finish within ``drain_timeout``; what was left has been dropped."""


# The same exports as the imports above, for run time.
_EXPORTS = {
    "jetspark.jetstream.consume.consume": "HandlerFailed",
    "jetspark.jetstream.consume.errors": (
        "ConsumeError ConsumerDeleted ConsumerGap ConsumerLost LeadershipChanged "
        "MaxAckPendingExceeded MaxRequestBatchExceeded MaxRequestExpiresExceeded "
        "MaxRequestMaxBytesExceeded MaxWaitingExceeded MissedHeartbeat NextMessageTooLarge "
        "NoConsumerResponders OrderedReset OrderedResetFailed PinIdMismatch PullRefused "
        "PullUnanswered PullWarning PushConsumerError ServerShutdown StatusError StatusWarning "
        "UnexpectedStatus"
    ),
    "jetspark.jetstream.consume.ordered_chain": "OrderedConsumerBusy OrderedConsumerClosed",
    "jetspark.jetstream.errors": (
        "AccountLimitExceeded ApiError AtomicBatchDuplicate AtomicBatchFailed AtomicBatchIncomplete "
        "AtomicPublishDisabled BadRequest ClusterMembership ClusterRequired ClusterUnavailable "
        "ClusterUnsupported ConsumerConfigRequired ConsumerDoesNotExist ConsumerExists "
        "ConsumerLimitExceeded ConsumerNotFound ConsumerOffline ConsumerStoreFailed CountersDisabled "
        "ExpectationUnavailable FastIngestDisabled FastIngestFailed HeaderNotAllowed "
        "InsufficientResources InvalidAckSettings InvalidConsumerConfig InvalidConsumerName "
        "InvalidConsumerReplicas InvalidConsumerValue InvalidCounter InvalidDeliverPolicy "
        "InvalidDeliverSubject InvalidExpectation InvalidExternal InvalidFilter InvalidJSON "
        "InvalidMessageTTL InvalidMirror InvalidPriorityGroup InvalidReset InvalidSchedule "
        "InvalidSource InvalidStreamConfig InvalidStreamName InvalidSubjectTransform "
        "JetStreamNotEnabled LimitExceeded MaximumConsumersReached MessageNotFound MessageTTLDisabled "
        "MessageTooLarge MirrorNotUpdatable NoStreamResponse NoSuitablePeers NotFound PedanticError "
        "PublishRefused PullOnly PushOnly RaftError ReplicasNotSupported RequiredApiLevel "
        "SchedulesDisabled SnapshotFailed SourceSetupFailed StoreFailed StreamIdentityMismatch "
        "StreamMoveConflict StreamNameInUse StreamNameMismatch StreamNotFound StreamOffline "
        "StreamOperationFailed StreamSealed StreamSubjectsOverlap TemplateError TooManyRequests "
        "Unavailable WorkQueueConflict WrongLastMessageId WrongLastSequence WrongStream"
    ),
    "jetspark.jetstream.flow.ack_reply": "NotJetStreamMessage",
    "jetspark.jetstream.flow.fast": "FastIngestBroken",
    "jetspark.jetstream.publish.stats": "PublishFailed PublisherFull",
    "jetspark.jetstream.subscribe.checks": (
        "ConsumerConfigMismatch ConsumerInUse IncompatibleConsumer NoDeliverGroup PullRequired "
        "QueueFlowControl QueueHeartbeat QueueMismatch QueueRequired SubjectMismatch"
    ),
    "jetspark.jetstream.subscribe.pull_subscribe": "PullSubscriptionClosed",
    "jetspark.jetstream.subscribe.subscribe": "PushSubscriptionClosed",
    "jetspark.server.errors": "ServerNotFound ServerProcessError ServerReloadError ServerStartError",
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = exports(__name__, _EXPORTS)
