"""How a stream is configured: subjects, limits, retention, where it lives and where it copies from.

Each field states its default, the server's rule, the server version that introduced it and whether an update
may change it. "Unset" is ``None``: the field is not sent, and the server's default applies.
"""

from typing import Any

from jetspark.jetstream.models.model import Model
from jetspark.jetstream.models.values import (
    UNSET,
    DurationField,
    OpenEnum,
    OpenField,
    OptionalOpenField,
    TimeField,
)


class RetentionPolicy(OpenEnum):
    """What makes the server delete a message."""

    LIMITS = "limits"
    """Only the limits of the stream (age, count, bytes)."""
    INTEREST = "interest"
    """The limits, or acks by all consumers whose filter matches. Without a consumer nothing is kept."""
    WORK_QUEUE = "workqueue"
    """The limits, or an ack by the one consumer that matches. Consumers must not overlap."""


class StorageType(OpenEnum):
    """Where messages are kept."""

    FILE = "file"
    MEMORY = "memory"


class DiscardPolicy(OpenEnum):
    """What happens to a message that would exceed a limit."""

    OLD = "old"
    """The oldest messages are deleted to make room."""
    NEW = "new"
    """The new message is refused; the publisher gets the error. With replicas the server may refuse a message
    when there is room for only one more: it briefly counts the message that it is storing twice."""


class Compression(OpenEnum):
    """Compression of the files of a stream."""

    NONE = "none"
    S2 = "s2"


class PersistMode(OpenEnum):
    """When a publish is acked in relation to the write."""

    DEFAULT = "default"
    """The ack follows the write."""
    ASYNC = "async"
    """The ack may come before the write is flushed: faster, and a killed server can lose acked messages."""


class Placement(Model, kw_only=True, frozen=True):
    """Which servers of a cluster should hold a stream."""

    cluster: str | None = None
    """Name of the cluster. Unset: the one the client is connected to."""
    tags: list[str] | None = None
    """Tags that every chosen server must have."""
    preferred: str | None = None
    """Preferred leader. Only for step-down requests; refused in a stream's config (2.11)."""


class External(Model, kw_only=True, frozen=True):
    """How to reach a stream of another account or JetStream domain."""

    api: str
    """API prefix that reaches it, for example ``$JS.hub.API`` for the domain ``hub``. No wildcards; must
    not overlap with this account's own ``$JS.API``."""
    deliver: str | None = None
    """Prefix of the subjects on which the copies arrive. No wildcards. Unset for another domain of the
    same account."""


class SubjectTransform(Model, kw_only=True, frozen=True):
    """Rewrites subjects that match ``src`` to ``dest`` (2.10)."""

    src: str
    """Pattern to match; empty means ``>``."""
    dest: str
    """Subject to store under. May use mapping functions such as ``{{wildcard(1)}}`` or
    ``{{partition(4,1)}}``."""


class ConsumerSource(Model, kw_only=True, frozen=True):
    """The durable consumer on the origin that feeds a mirror or source (2.14).

    If unset, the server creates and removes an ephemeral one by itself. If set, the start position and filter
    are the consumer's, so ``opt_start_seq``, ``opt_start_time`` and ``filter_subject`` of the source must
    be unset. The consumer needs ack policy ``flow_control``.
    """

    name: str | None = None
    """Name of the consumer on the origin stream. Required."""
    deliver_subject: str | None = None
    """Subject on which it delivers. Required, no wildcards."""


class StreamSource(Model, kw_only=True, frozen=True):
    """Another stream that is copied into this one, as the ``mirror`` or one of the ``sources``."""

    name: str
    """Name of the origin stream. It need not exist yet."""
    opt_start_seq: int | None = None
    """First sequence to copy. Unset: from the beginning. Not together with ``opt_start_time``."""
    opt_start_time: TimeField = UNSET
    """Copy from this time on. Not together with ``opt_start_seq``."""
    filter_subject: str | None = None
    """Copy only matching subjects. Excludes ``subject_transforms``. For mirrors since 2.9."""
    subject_transforms: list[SubjectTransform] | None = None
    """Filters that may also rewrite subjects; their ``src`` must not overlap. Excludes ``filter_subject``
    (2.10)."""
    external: External | None = None
    """Set when the origin lives in another account or domain."""
    consumer: ConsumerSource | None = None
    """Copy through this durable consumer instead of one that the server creates (2.14)."""


class RePublish(Model, kw_only=True, frozen=True):
    """Publish each stored message again as a core NATS message, with sequence and time in headers (2.8.3)."""

    src: str | None = None
    """Which stored subjects to republish. Unset: all (``>``)."""
    dest: str
    """Subject to publish to; may use mapping functions. Must not overlap with the stream's own subjects."""
    headers_only: bool | None = None
    """Leave the body out. Default false."""


class ConsumerLimits(Model, kw_only=True, frozen=True):
    """Defaults and upper bounds for the consumers of a stream (2.10)."""

    inactive_threshold: DurationField = UNSET
    """Default and maximum of the consumer's ``inactive_threshold``. Unset: none."""
    max_ack_pending: int | None = None
    """Default and maximum of the consumer's ``max_ack_pending``. Unset: none."""


class StreamConfig(Model, kw_only=True, frozen=True):
    """Configuration of a stream.

    ``StreamConfig(name="ORDERS", subjects=["orders.>"])`` is enough. Durations are given in seconds or as a
    ``timedelta``. To change a stream, start from ``info.config.replace(...)``: this keeps every field,
    including those that only a newer server knows.
    """

    name: str
    """Required. At most 255 bytes; no white space, ``.``, ``*``, ``>``, ``/``, ``\\`` or unprintable
    characters. Since 2.2. Not editable."""

    description: str | None = None
    """Free text, at most 4 KiB. Default: none. Since 2.3.3. Editable."""

    subjects: list[str] | None = None
    """Subjects to capture, wildcards allowed. Must not overlap with each other or with those of another
    stream of the account; ``>`` needs ``no_ack`` and one replica; subjects of the JetStream and system
    APIs need ``no_ack``. Default: the stream's own name, or none with ``mirror`` or ``sources``. Must be
    unset with ``mirror``. Since 2.2. Editable."""

    retention: OpenField[RetentionPolicy] = RetentionPolicy.LIMITS  # type: ignore[assignment]
    """When messages are deleted. Default ``limits``. Since 2.2. Editable only between ``limits`` and
    ``interest``."""

    max_consumers: int | None = None
    """Maximum number of consumers. Default -1: unlimited, or 1,000 since 2.15; set a number for more. Since
    2.2. Editable."""

    max_msgs: int | None = None
    """Maximum number of messages. Default -1, unlimited. Since 2.2. Editable."""

    max_bytes: int | None = None
    """Maximum size of all messages. Default -1, unlimited; some accounts require a value. Since 2.2.
    Editable."""

    max_age: DurationField = UNSET
    """Delete messages older than this. Default 0, never; else at least 100 ms. Since 2.2. Editable."""

    max_msgs_per_subject: int | None = None
    """Maximum number of messages kept for each subject. Default -1, unlimited. Since 2.3. Editable."""

    max_msg_size: int | None = None
    """Largest message (headers and body) accepted. Default -1: only the server's ``max_payload`` applies.
    Since 2.2. Editable."""

    discard: OpenField[DiscardPolicy] = DiscardPolicy.OLD  # type: ignore[assignment]
    """What to do when a limit is reached. Default ``old``. Since 2.2. Editable."""

    storage: OpenField[StorageType] = StorageType.FILE  # type: ignore[assignment]
    """Where messages are kept. Default ``file``. Since 2.2. Not editable."""

    num_replicas: int | None = None
    """How many servers hold the stream, 1 to 5. Default 1; more needs a cluster. Since 2.2. Editable."""

    no_ack: bool | None = None
    """Do not ack publishes. Default false. With true, JetStream publishes time out; use core publishes. Since
    2.2. Editable."""

    duplicate_window: DurationField = UNSET
    """How long a ``Nats-Msg-Id`` is remembered. Default 2 minutes, or ``max_age`` if that is shorter; at
    least 100 ms and not above ``max_age``. Since 2.2. Editable."""

    placement: Placement | None = None
    """Which servers should hold it. Default: any of the cluster. Since 2.2. Editable."""

    mirror: StreamSource | None = None
    """Be an exact copy of another stream, sequences included. Excludes ``subjects``, ``sources``,
    ``first_seq``, ``subject_delete_marker_ttl``, counters, schedules and batch publishing. Default: none.
    An update may only remove it, which turns the mirror into an ordinary stream. Since 2.2."""

    sources: list[StreamSource] | None = None
    """Streams whose messages are appended to this one. Default: none. Excludes ``mirror`` and message
    schedules. Since 2.2. Editable."""

    compression: OptionalOpenField[Compression] = UNSET
    """Compression of file storage. Default ``none``. Since 2.10. Editable."""

    first_seq: int | None = None
    """Sequence of the first message ever stored. Default 1. Not with ``mirror``. Since 2.10. Effective at
    creation; a later edit changes nothing."""

    subject_transform: SubjectTransform | None = None
    """Rewrite subjects of incoming messages before they are stored. Default: none. Since 2.10. Editable."""

    republish: RePublish | None = None
    """Publish what was stored again on core NATS. Default: none. Since 2.8.3. Editable."""

    allow_direct: bool | None = None
    """Any replica may answer direct gets. Default false. Since 2.9. Batch direct get needs it. Editable."""

    mirror_direct: bool | None = None
    """A mirror takes part in the origin's direct gets. Default: same as the origin's ``allow_direct``. Since
    2.9. Only with ``mirror``. Editable."""

    discard_new_per_subject: bool | None = None
    """Apply ``discard="new"`` to ``max_msgs_per_subject`` as well. Default false. Needs both. Since 2.9.2.
    Editable."""

    sealed: bool | None = None
    """Messages can no longer be added or removed. Default false. Can't be set at creation, only by an update,
    and can't be undone. Since 2.6.2."""

    deny_delete: bool | None = None
    """Refuse deletion of single messages by the API. Default false. Editable, but can't be undone. Since
    2.6.2."""

    deny_purge: bool | None = None
    """Refuse purges by the API. Default false. Excludes ``allow_rollup_hdrs``. Editable, but can't be undone.
    Since 2.6.2."""

    allow_rollup_hdrs: bool | None = None
    """Honour the ``Nats-Rollup`` header, which replaces a subject or the stream with one message. Default
    false. Since 2.6.2. Editable."""

    consumer_limits: ConsumerLimits | None = None
    """Defaults and bounds for consumers. Default: none. Since 2.10. Editable."""

    allow_msg_ttl: bool | None = None
    """Honour the ``Nats-TTL`` header. Default false. Editable, but not back to false. Since 2.11."""

    subject_delete_marker_ttl: DurationField = UNSET
    """Leave a marker of this TTL when the last message of a subject is removed by ``max_age`` or a TTL.
    Default: none; else at least 1 s. The server switches ``allow_msg_ttl`` and ``allow_rollup_hdrs`` on
    with it. Not with ``mirror``. Since 2.11. Editable."""

    allow_msg_counter: bool | None = None
    """Every message is an increment of its subject's counter. Default false. Needs ``retention="limits"``;
    excludes ``discard="new"``, ``allow_msg_ttl``, schedules and ``mirror``. Not editable. Since 2.12."""

    allow_atomic: bool | None = None
    """Allow atomic batches. Default false. Not with ``mirror`` or ``persist_mode="async"``. Since 2.12.
    Editable."""

    allow_msg_schedules: bool | None = None
    """Allow delayed and repeated messages. Default false. The server switches ``allow_rollup_hdrs`` on with
    it. Excludes ``discard="new"``, ``mirror`` and ``sources``. Editable, but can't be switched off again.
    Since 2.12."""

    persist_mode: OptionalOpenField[PersistMode] = UNSET
    """Ack before or after the flush. Default ``default``. ``async`` needs file storage, one replica and no
    ``allow_atomic``. Not editable. Since 2.12."""

    allow_batched: bool | None = None
    """Allow fast ingest batches. Default false. Not with ``mirror``. Since 2.14. Editable."""

    metadata: dict[str, str] | None = None
    """Free key-value pairs, at most 128 KiB together. Default: none. Since 2.10. The server adds keys that
    begin with ``_nats.``. Editable."""

    template_owner: str | None = None
    """Name of the template that created the stream. Default: none. Only servers before 2.11 set it; kept so
    that an update does not lose it. Not editable."""


def stream_config_request(config: StreamConfig, *, pedantic: bool = False) -> dict[str, Any]:
    """Body of a create or update request. ``pedantic`` (2.11) makes the server refuse values that it would
    adjust."""
    body = config.to_wire()
    if pedantic:
        body["pedantic"] = True
    return body
