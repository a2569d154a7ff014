"""Advisories: the server's events about streams and consumers, as typed objects.

The server publishes them as JSON on subjects below ``$JS.EVENT``. They are ordinary NATS messages: without a
subscriber they are lost. To keep them, let a stream capture their subjects and read the
bodies with :func:`decode_advisory`.

Each class knows its ``type`` on the wire and the subjects it is published on. A type without a class, or one
with unexpected fields, becomes a :class:`GenericAdvisory`: nothing is thrown away.
"""

from typing import Any, ClassVar

import msgspec

from jetspark.errors import ProtocolError
from jetspark.jetstream.models.cluster import PeerInfo
from jetspark.jetstream.models.model import Model
from jetspark.jetstream.models.values import UNSET, DurationField, OpenEnum, OpenField, TimeField


class AdvisoryAction(OpenEnum):
    """What happened to a stream or consumer."""

    CREATE = "create"
    MODIFY = "modify"
    DELETE = "delete"


class Advisory(Model, kw_only=True, frozen=True):
    """What all advisories have in common."""

    # Class attributes, not fields: the end of "type", and "<family>.<event>" of each subject it is published
    # on.
    kind: ClassVar[str] = ""
    events: ClassVar[tuple[str, ...]] = ()

    type: str
    """The server's name of the schema, such as ``io.nats.jetstream.advisory.v1.max_deliver``."""
    id: str = ""
    """Unique id of this advisory."""
    timestamp: TimeField = UNSET
    """When it happened."""
    account: str | None = None
    """The account, if the server sends it."""
    domain: str | None = None
    """The JetStream domain, if there is one."""


class GenericAdvisory(Advisory, kw_only=True, frozen=True):
    """An advisory that this version has no class for. Its fields are in ``extra``, as the server sent
    them."""


class _OfStream(Advisory, kw_only=True, frozen=True):
    """About a stream."""

    stream: str
    """The stream."""


class _OfConsumer(_OfStream, kw_only=True, frozen=True):
    """About a consumer."""

    consumer: str
    """The consumer."""


# Messages of a consumer


class _OfMessage(_OfConsumer, kw_only=True, frozen=True):
    """About a message that a consumer has delivered."""

    stream_seq: int
    """Sequence of the message in the stream."""
    deliveries: int = 0
    """How often it was delivered."""


class MaxDeliveriesAdvisory(_OfMessage, kw_only=True, frozen=True):
    """A message was delivered ``max_deliver`` times and not acked; it will not be delivered again."""

    kind: ClassVar[str] = "max_deliver"
    events: ClassVar[tuple[str, ...]] = ("CONSUMER.MAX_DELIVERIES",)


class TerminatedAdvisory(_OfMessage, kw_only=True, frozen=True):
    """A client sent ``term``: the message will not be delivered again."""

    kind: ClassVar[str] = "terminated"
    events: ClassVar[tuple[str, ...]] = ("CONSUMER.MSG_TERMINATED",)

    consumer_seq: int = 0
    """Number of the delivery."""
    reason: str = ""
    """The reason, if the client gave one (2.10.4)."""


class NakAdvisory(_OfMessage, kw_only=True, frozen=True):
    """A client sent ``nak``: the message will be delivered again."""

    kind: ClassVar[str] = "nak"
    events: ClassVar[tuple[str, ...]] = ("CONSUMER.MSG_NAKED",)

    consumer_seq: int = 0
    """Number of the delivery."""


class AckMetric(_OfMessage, kw_only=True, frozen=True):
    """A sample of the consumer's acks; ``sample_freq`` sets how many are sampled."""

    kind: ClassVar[str] = "consumer_ack"
    events: ClassVar[tuple[str, ...]] = ("METRIC.CONSUMER.ACK",)

    consumer_seq: int = 0
    """Number of the delivery."""
    ack_time: DurationField = UNSET
    """Time from delivery to ack."""


# Consumers and streams


class ConsumerActionAdvisory(_OfConsumer, kw_only=True, frozen=True):
    """A consumer was created or deleted."""

    kind: ClassVar[str] = "consumer_action"
    events: ClassVar[tuple[str, ...]] = ("CONSUMER.CREATED", "CONSUMER.DELETED")

    action: OpenField[AdvisoryAction]
    """Created or deleted."""


class ConsumerPauseAdvisory(_OfConsumer, kw_only=True, frozen=True):
    """A consumer was paused or resumed (2.11)."""

    kind: ClassVar[str] = "consumer_pause"
    events: ClassVar[tuple[str, ...]] = ("CONSUMER.PAUSE",)

    paused: bool = False
    """Whether it is paused now."""
    pause_until: TimeField = UNSET
    """Until when; ``None`` when it is not paused."""


class GroupPinnedAdvisory(_OfConsumer, kw_only=True, frozen=True):
    """A client of a priority group was pinned (2.11)."""

    kind: ClassVar[str] = "consumer_group_pinned"
    events: ClassVar[tuple[str, ...]] = ("CONSUMER.PINNED",)

    group: str
    """The group."""
    pinned_id: str = ""
    """The pin's id."""


class GroupUnpinnedAdvisory(_OfConsumer, kw_only=True, frozen=True):
    """The pinned client of a priority group lost its pin (2.11)."""

    kind: ClassVar[str] = "consumer_group_unpinned"
    events: ClassVar[tuple[str, ...]] = ("CONSUMER.UNPINNED",)

    group: str
    """The group."""
    reason: str = ""
    """``admin`` or ``timeout``."""


class ConsumerLeaderAdvisory(_OfConsumer, kw_only=True, frozen=True):
    """A replicated consumer has a new leader."""

    kind: ClassVar[str] = "consumer_leader_elected"
    events: ClassVar[tuple[str, ...]] = ("CONSUMER.LEADER_ELECTED",)

    leader: str = ""
    """Name of the server."""
    replicas: list[PeerInfo] | None = None
    """The other servers."""


class ConsumerQuorumLostAdvisory(_OfConsumer, kw_only=True, frozen=True):
    """A replicated consumer has lost its quorum and has stopped."""

    kind: ClassVar[str] = "consumer_quorum_lost"
    events: ClassVar[tuple[str, ...]] = ("CONSUMER.QUORUM_LOST",)

    replicas: list[PeerInfo] | None = None
    """Its servers."""


class StreamActionAdvisory(_OfStream, kw_only=True, frozen=True):
    """A stream was created, changed or deleted."""

    kind: ClassVar[str] = "stream_action"
    events: ClassVar[tuple[str, ...]] = ("STREAM.CREATED", "STREAM.UPDATED", "STREAM.DELETED")

    action: OpenField[AdvisoryAction]
    """Created, changed or deleted."""


class StreamLeaderAdvisory(_OfStream, kw_only=True, frozen=True):
    """A replicated stream has a new leader."""

    kind: ClassVar[str] = "stream_leader_elected"
    events: ClassVar[tuple[str, ...]] = ("STREAM.LEADER_ELECTED",)

    leader: str = ""
    """Name of the server."""
    replicas: list[PeerInfo] | None = None
    """The other servers."""


class StreamQuorumLostAdvisory(_OfStream, kw_only=True, frozen=True):
    """A replicated stream has lost its quorum and has stopped."""

    kind: ClassVar[str] = "stream_quorum_lost"
    events: ClassVar[tuple[str, ...]] = ("STREAM.QUORUM_LOST",)

    replicas: list[PeerInfo] | None = None
    """Its servers."""


class BatchAbandonedAdvisory(_OfStream, kw_only=True, frozen=True):
    """The server abandoned an atomic batch (2.12); nothing of it is stored."""

    kind: ClassVar[str] = "stream_batch_abandoned"
    events: ClassVar[tuple[str, ...]] = ("STREAM.BATCH_ABANDONED",)

    batch: str = ""
    """Id of the batch."""
    reason: str = ""
    """``timeout``, ``large``, ``incomplete`` or ``unsupported``."""


class ApiAuditAdvisory(Advisory, kw_only=True, frozen=True):
    """A request to the JetStream API, with its reply."""

    kind: ClassVar[str] = "api_audit"
    events: ClassVar[tuple[str, ...]] = ("API",)

    server: str = ""
    """The server that replied."""
    client: dict[str, Any] | None = None
    """The client that sent the request."""
    subject: str = ""
    """Subject of the request."""
    request: str = ""
    """Its body."""
    response: str = ""
    """The body of the reply."""


class ServerOutOfStorageAdvisory(Advisory, kw_only=True, frozen=True):
    """A server has no storage left and has switched JetStream off."""

    kind: ClassVar[str] = "server_out_of_space"
    events: ClassVar[tuple[str, ...]] = ("SERVER.OUT_OF_STORAGE",)

    server: str = ""
    """Its name."""
    server_id: str = ""
    """Its id."""
    stream: str = ""
    """The stream that ran out of space, if known."""
    cluster: str = ""
    """The cluster."""


KINDS: tuple[type[Advisory], ...] = (
    MaxDeliveriesAdvisory,
    TerminatedAdvisory,
    NakAdvisory,
    AckMetric,
    ConsumerActionAdvisory,
    ConsumerPauseAdvisory,
    GroupPinnedAdvisory,
    GroupUnpinnedAdvisory,
    ConsumerLeaderAdvisory,
    ConsumerQuorumLostAdvisory,
    StreamActionAdvisory,
    StreamLeaderAdvisory,
    StreamQuorumLostAdvisory,
    BatchAbandonedAdvisory,
    ApiAuditAdvisory,
    ServerOutOfStorageAdvisory,
)
"""Every class that can be requested individually."""

_BY_KIND = {one.kind: one for one in KINDS}


def decode_advisory(data: bytes) -> Advisory:
    """Decode the advisory in a message's body, for example one that a stream has captured.

    Raises :class:`ProtocolError` when the body is not an advisory: not a JSON object with a ``type``.
    """
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not an advisory: {data[:100]!r}: {error}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise ProtocolError(f"not an advisory, it has no type: {data[:100]!r}")
    known = _BY_KIND.get(fields["type"].rpartition(".")[2], GenericAdvisory)
    try:
        return known.from_wire(fields)
    except ProtocolError:
        # Another server version uses a field differently; the user gets all fields as they are.
        return GenericAdvisory(type=fields.pop("type"), extra=fields)
