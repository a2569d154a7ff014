"""Errors returned by the JetStream API, one class for each case that a caller can react to.

The server sends three values: ``code`` (an HTTP-like class), ``err_code`` (a stable number) and
``description`` (text that may change between versions). Classes register themselves by ``err_code``.
Several numbers that call for the same reaction share a class. An unregistered number becomes a plain
:class:`ApiError` that keeps all three values.

Each docstring says when you get the error and what to do. Bases group them: :class:`NotFound`,
:class:`InvalidStreamConfig`, :class:`InvalidConsumerConfig`, :class:`LimitExceeded`, :class:`PublishRefused`,
:class:`Unavailable` (worth a retry).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from jetspark.errors import JetsparkError, NoRespondersError

if TYPE_CHECKING:
    from collections.abc import Mapping


class ApiError(JetsparkError):
    """The server understood the request and refused it. Unregistered ``err_code`` values come as this
    class."""

    registry: ClassVar[dict[int, type[ApiError]]] = {}
    """The class of each known ``err_code``."""
    err_codes: ClassVar[tuple[int, ...]] = ()
    """The ``err_code`` values of this class."""
    retryable: ClassVar[bool] = False
    """Whether the same request may succeed a moment later."""
    remedy: ClassVar[str] = ""
    """What to do about it; appended to the error's text."""

    def __init_subclass__(cls, *, err_code: int | tuple[int, ...] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.err_codes = (err_code,) if isinstance(err_code, int) else err_code
        for number in cls.err_codes:
            taken = ApiError.registry.get(number)
            if taken is not None:
                raise TypeError(f"err_code {number} belongs to {taken.__name__} already")
            ApiError.registry[number] = cls

    def __init__(self, code: int, err_code: int, description: str) -> None:
        remedy = f": {self.remedy}" if self.remedy else ""
        super().__init__(f"{description} (code {code}, err_code {err_code}){remedy}")
        self.code = code
        self.err_code = err_code
        self.description = description


def error_from_response(response: Mapping[str, Any]) -> ApiError:
    """The error of an API response; takes the whole response or only its ``error`` object."""
    inner = response.get("error")
    error = inner if isinstance(inner, dict) else response
    code = error.get("code")
    err_code = error.get("err_code")
    description = error.get("description")
    number = err_code if isinstance(err_code, int) and 0 <= err_code < 1 << 31 else 0
    cls = ApiError.registry.get(number, ApiError)
    return cls(
        code if isinstance(code, int) and 0 <= code < 1 << 31 else 0,
        number,
        description if isinstance(description, str) and description else "no description",
    )


class NoStreamResponse(NoRespondersError):
    """A publish reached no stream (status 503): none captures the subject, or its leader is briefly
    unavailable.

    Publishing retries by itself first. Check the subject against the stream's subjects, and check the
    account.
    """

    def __init__(self, subject: str) -> None:
        JetsparkError.__init__(
            self,
            f"no stream answered the publish to {subject!r}: no stream captures it, or its leader is not "
            "available; create a stream with this subject, check the account, or retry",
        )
        self.subject = subject


# --- bases -------------------------------------------------------------------------------------------------


class NotFound(ApiError):
    """What the request names does not exist."""


class InvalidStreamConfig(ApiError, err_code=10052):
    """The server refuses the stream's config. The description names the rule.

    10052 is the general case; the server uses it for some rules about consumers as well.
    """


class InvalidConsumerConfig(ApiError, err_code=10012):
    """The server refuses the consumer's config. The description names the rule; 10012 is the general case."""


class LimitExceeded(ApiError):
    """A limit of the server, account or stream is reached. Free resources or have the limit raised."""


class PublishRefused(ApiError):
    """The stream did not store the message. Nothing was written."""


class Unavailable(ApiError):
    """JetStream can't answer right now: no leader, overload, shutdown. Retry with a pause."""

    retryable = True


# --- the system --------------------------------------------------------------------------------------------


class JetStreamNotEnabled(ApiError, err_code=(10035, 10039, 10076)):
    """JetStream is off on the server, or for the account. Start the server with JetStream, or enable the
    account.

    Also raised, with err_code 0, when nothing responds to the API at all; then a wrong domain or API prefix
    is also likely.
    """

    @classmethod
    def no_responders(cls, subject: str) -> JetStreamNotEnabled:
        """For an API request without responders."""
        return cls(
            503,
            0,
            f"nobody answers JetStream API requests on {subject!r}: JetStream is not enabled, "
            "or the domain or API prefix is wrong",
        )


class BadRequest(ApiError, err_code=(10003, 10038)):
    """The server does not understand the request, usually because it is older than the feature."""


class InvalidJSON(ApiError, err_code=10025):
    """The server could not decode the request: a value of the wrong type, or one it does not know."""


class PedanticError(ApiError, err_code=10157):
    """In pedantic mode: the server would have adjusted a value. Set the value it names, or drop
    ``pedantic``."""


class RequiredApiLevel(ApiError, err_code=10185):
    """The server is older than the API level the request demands. Upgrade it, or drop the feature."""


class ClusterUnavailable(Unavailable, err_code=(10004, 10008, 10009)):
    """No leader, or an incomplete answer, while the cluster elects one. Retry."""


class ClusterRequired(ApiError, err_code=(10006, 10007, 10010)):
    """The request needs clustered JetStream, and this is a single server."""


class ClusterUnsupported(ApiError, err_code=(10011, 10036)):
    """The feature does not exist in clustered mode."""


class NoSuitablePeers(LimitExceeded, err_code=10005):
    """No set of servers fits the replicas, placement, tags and free space. The description says why each
    was refused."""


class ClusterMembership(ApiError, err_code=(10040, 10044, 10075, 10202, 10224)):
    """A request about servers of the cluster failed: not a member, or another change is under way."""


class RaftError(Unavailable, err_code=10041):
    """The Raft layer failed. Retry; look at the server's log if it persists."""


class TooManyRequests(Unavailable, err_code=(10167, 10210, 10211)):
    """The server's queue of requests or open batches is full. Slow down and retry."""


class InsufficientResources(LimitExceeded, err_code=(10023, 10028, 10047)):
    """The server lacks the memory or disk space that the streams reserve. Lower ``max_bytes`` or add
    space."""


class AccountLimitExceeded(LimitExceeded, err_code=(10002, 10027, 10113, 10120, 10122)):
    """The account's limits on bytes or streams are reached, or they require ``max_bytes`` to be set."""


class MaximumConsumersReached(LimitExceeded, err_code=10026):
    """The stream's ``max_consumers`` or the account's limit is reached. Delete consumers or raise it."""


# --- streams -----------------------------------------------------------------------------------------------


class StreamNotFound(NotFound, err_code=10059):
    """This account and domain has no stream with that name. Check the name, or create the stream."""


class StreamNameInUse(ApiError, err_code=(10058, 10130)):
    """A stream with that name exists with another config. Update it instead, or choose another name."""


class StreamNameMismatch(ApiError, err_code=10056):
    """The name in the request and in its subject differ."""


class StreamSubjectsOverlap(InvalidStreamConfig, err_code=10065):
    """Another stream of the account captures a subject of this one. Narrow one of them."""


class InvalidStreamName(InvalidStreamConfig, err_code=10128):
    """The stream's name contains path separators."""


class InvalidMirror(
    InvalidStreamConfig,
    err_code=(
        *(10030, 10031, 10032, 10033, 10034, 10142, 10143, 10150, 10151, 10152, 10154),
        *(10173, 10186, 10198, 10209, 10213, 10214),
    ),
):
    """The server refuses the mirror's config, or its combination with other fields. The description says
    which."""


class MirrorNotUpdatable(InvalidStreamConfig, err_code=10055):
    """An update may remove a mirror, not change it. Delete and create the stream instead."""


class InvalidSource(
    InvalidStreamConfig,
    err_code=(10046, 10140, 10141, 10144, 10145, 10146, 10147, 10187, 10215, 10216, 10217),
):
    """The server refuses one of the sources: a bad name, overlapping filters, or the same source twice."""


class InvalidExternal(InvalidStreamConfig, err_code=(10021, 10022, 10024)):
    """The prefixes of ``external`` overlap with this account's API or subjects, or contain wildcards."""


class SourceSetupFailed(ApiError, err_code=(10029, 10045)):
    """The consumer that feeds a mirror or source could not be created. Check the origin and
    permissions."""


class InvalidSubjectTransform(InvalidStreamConfig, err_code=(10155, 10156)):
    """``src`` or ``dest`` of the subject transform is not valid."""


class ReplicasNotSupported(InvalidStreamConfig, err_code=(10061, 10074, 10133)):
    """More than one replica on a single server, a negative number, or a change the server can't make."""


class StreamMoveConflict(ApiError, err_code=(10123, 10124, 10129, 10226)):
    """The stream is being moved or scaled, or the request would do both at once. Wait, then retry."""


class StreamSealed(PublishRefused, err_code=10109):
    """The stream is sealed: messages can no longer be added or removed."""


class StreamOffline(Unavailable, err_code=(10118, 10194)):
    """The stream exists but is offline, for example because the server is too old for it."""


class StreamOperationFailed(
    ApiError,
    err_code=(10048, 10049, 10050, 10051, 10053, 10057, 10069, 10096, 10110, 10111, 10117),
):
    """Creating, updating, deleting, purging or reading a stream failed. The description holds the cause."""


class SnapshotFailed(ApiError, err_code=(10015, 10042, 10062, 10064, 10072)):
    """A snapshot or restore failed. The description holds the cause."""


class TemplateError(ApiError, err_code=(10066, 10067, 10068, 10073)):
    """Stream templates, which servers since 2.11 no longer have."""


# --- messages and publishing -------------------------------------------------------------------------------


class MessageNotFound(NotFound, err_code=(10037, 10043)):
    """No message has that sequence or subject: never stored, deleted, or expired."""


class WrongLastSequence(PublishRefused, err_code=(10071, 10164)):
    """The expected last sequence, of the stream or the subject, is not the actual one: another client wrote.

    ``last_sequence`` is the actual one if the server sends it (10071). Read again and retry with it.
    """

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(code, err_code, description)
        # At most as many digits as a uint64 has: the text comes from the server and may have any length.
        found = re.search(r"(?<![0-9])([0-9]{1,20})\s*$", description)
        self.last_sequence: int | None = int(found[1]) if found else None


class WrongLastMessageId(PublishRefused, err_code=10070):
    """The expected last ``Nats-Msg-Id`` is not the actual one: another client wrote."""


class WrongStream(PublishRefused, err_code=10060):
    """A stream other than the expected one captures the subject."""


class ExpectationUnavailable(Unavailable, PublishRefused, err_code=(10063, 10158, 10163)):
    """The server can't check the expectation or message id yet: another publish is in flight. Retry."""


class InvalidExpectation(PublishRefused, err_code=(10180, 10193)):
    """An expectation header is incomplete, or the replica that was asked has not reached the required
    sequence."""


class MessageTooLarge(PublishRefused, err_code=(10054, 10097)):
    """The message exceeds the stream's ``max_msg_size``, or its headers exceed 64 KiB."""


class StoreFailed(PublishRefused, err_code=10077):
    """The stream could not store the message: often a limit with ``discard="new"``, else the disk."""


class InvalidMessageTTL(PublishRefused, err_code=10165):
    """``Nats-TTL`` is not valid, or the stream lacks ``allow_msg_ttl`` (:class:`MessageTTLDisabled`)."""


class MessageTTLDisabled(InvalidMessageTTL, err_code=10166):
    """The stream lacks ``allow_msg_ttl`` (2.11)."""

    remedy = "update the stream with allow_msg_ttl=True"


class InvalidCounter(PublishRefused, err_code=(10169, 10170, 10171, 10172)):
    """A counter increment is missing or malformed, has a body, or comes with a header that excludes it."""


class CountersDisabled(InvalidCounter, err_code=10168):
    """The stream lacks ``allow_msg_counter`` (2.12), which can't be switched on later."""

    remedy = "create a stream with allow_msg_counter=True; an existing stream can't be switched to counters"


class InvalidSchedule(PublishRefused, err_code=(10189, 10190, 10191, 10192, 10203, 10212, 10223)):
    """A message schedule is malformed, or its target or source is not a subject of the stream."""


class SchedulesDisabled(InvalidSchedule, err_code=10188):
    """The stream lacks ``allow_msg_schedules`` (2.12)."""

    remedy = "update the stream with allow_msg_schedules=True"


class HeaderNotAllowed(PublishRefused, err_code=10227):
    """The message carries a header that only servers may set."""


class AtomicPublishDisabled(PublishRefused, err_code=10174):
    """The stream lacks ``allow_atomic`` (2.12)."""

    remedy = "update the stream with allow_atomic=True"


class AtomicBatchFailed(PublishRefused, err_code=(10175, 10177, 10179, 10199, 10200)):
    """The atomic batch is incomplete, too large or malformed. Nothing was stored."""


class AtomicBatchIncomplete(AtomicBatchFailed, err_code=10176):
    """Messages of the atomic batch did not reach the stream, or the batch was idle for too long (10 s).
    Nothing was stored. Send the whole batch again."""


class AtomicBatchDuplicate(AtomicBatchFailed, err_code=10201):
    """A ``msg_id`` of the atomic batch is already in the stream, or twice in the batch. Nothing was
    stored. After a retry it means that the first attempt succeeded."""


class FastIngestDisabled(PublishRefused, err_code=10205):
    """The stream lacks ``allow_batched`` (2.14)."""

    remedy = "update the stream with allow_batched=True"


class FastIngestFailed(PublishRefused, err_code=(10206, 10207, 10208)):
    """The fast-ingest batch is unknown to the server or its reply subject is malformed. Begin a new batch."""


# --- consumers ---------------------------------------------------------------------------------------------


class ConsumerNotFound(NotFound, err_code=10014):
    """The stream has no consumer with that name. An ephemeral one may have been removed for inactivity."""


class ConsumerExists(ApiError, err_code=(10013, 10105, 10106, 10148)):
    """A consumer with that name exists. Update it, use create-or-update, or choose another name."""


class ConsumerDoesNotExist(NotFound, err_code=10149):
    """An update names a consumer that does not exist. Create it, or use create-or-update."""


class InvalidConsumerName(
    InvalidConsumerConfig,
    err_code=(10016, 10017, 10018, 10019, 10020, 10102, 10103, 10127, 10132),
):
    """The consumer's name or durable name is malformed or too long, or the two differ from each other or from
    the subject."""


class ConsumerConfigRequired(InvalidConsumerConfig, err_code=10078):
    """The request carries no config."""


class InvalidFilter(InvalidConsumerConfig, err_code=(10093, 10131, 10136, 10137, 10138, 10139)):
    """The filters overlap, are empty, are given twice, or match none of the stream's subjects."""


class InvalidDeliverSubject(InvalidConsumerConfig, err_code=(10079, 10081, 10112)):
    """The deliver subject has wildcards, is malformed, or the stream itself captures it."""


class InvalidDeliverPolicy(InvalidConsumerConfig, err_code=10094):
    """Deliver policy and start position are not compatible."""


class PushOnly(InvalidConsumerConfig, err_code=(10086, 10088, 10089, 10090, 10218)):
    """A field for push consumers is set on a pull consumer. Set ``deliver_subject``, or remove the field."""


class PullOnly(InvalidConsumerConfig, err_code=(10080, 10178)):
    """A field for pull consumers is set on a push consumer. Remove the field or ``deliver_subject``."""


class InvalidAckSettings(
    InvalidConsumerConfig,
    err_code=(10082, 10116, 10181, 10183, 10184, 10219, 10220, 10221, 10222),
):
    """Ack policy, ack wait, backoff, max deliver and max ack pending are not compatible."""


class InvalidConsumerValue(
    InvalidConsumerConfig,
    err_code=(10083, 10085, 10087, 10091, 10092, 10095, 10107, 10108, 10114, 10115, 10135, 10182),
):
    """A value of the config is out of range, or requires another field that is missing. The description says
    which."""


class ConsumerLimitExceeded(InvalidConsumerConfig, LimitExceeded, err_code=(10121, 10125, 10153)):
    """A value exceeds the limit that the server, account or stream sets for consumers."""


class InvalidConsumerReplicas(InvalidConsumerConfig, err_code=(10126, 10134)):
    """More replicas than the stream has, or, on interest and work-queue streams, a different number."""


class WorkQueueConflict(InvalidConsumerConfig, err_code=(10084, 10098, 10099, 10100, 10101)):
    """A work-queue stream requires explicit acks, deliver policy ``all`` and consumers whose filters do not
    overlap.

    To only look at such a stream, use direct get.
    """


class InvalidPriorityGroup(InvalidConsumerConfig, err_code=(10159, 10160, 10161, 10162, 10196, 10197)):
    """Priority policy and groups are not compatible, or a group's name is malformed or does not exist."""


class ConsumerOffline(Unavailable, err_code=(10119, 10195)):
    """The consumer exists but is offline, for example because the server is too old for it."""


class ConsumerStoreFailed(ApiError, err_code=10104):
    """The server could not create the consumer's storage."""


class InvalidReset(ApiError, err_code=10204):
    """The consumer can't be reset to that sequence with its deliver policy. The description says why."""


class StreamIdentityMismatch(ApiError, err_code=10225):
    """The stream was deleted and recreated since the consumer was looked up. Start over."""
