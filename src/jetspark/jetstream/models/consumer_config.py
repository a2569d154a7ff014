"""How a consumer is configured: where it starts, what it filters, how acks and redelivery work.

Each field states its default, the server's rule, the server version that introduced it and whether an update
may change it. "Unset" is ``None``: the field is not sent, and the server's default applies. A
consumer with a ``deliver_subject`` is push-based, one without is pull-based; prefer pull.
"""

from typing import Any

from jetspark.jetstream.models.model import Model
from jetspark.jetstream.models.values import (
    UNSET,
    DurationField,
    DurationListField,
    OpenEnum,
    OpenField,
    OptionalOpenField,
    TimeField,
)


class AckPolicy(OpenEnum):
    """Which messages need an ack."""

    EXPLICIT = "explicit"
    """Every message."""
    NONE = "none"
    """None: a delivered message counts as acked."""
    ALL = "all"
    """An ack covers all messages before it as well."""
    FLOW_CONTROL = "flow_control"
    """Like ``all``, but acked by the replies to flow control; for mirrors and sources that use a durable
    consumer (2.14)."""


class DeliverPolicy(OpenEnum):
    """Where in the stream a consumer starts."""

    ALL = "all"
    """At the first message."""
    LAST = "last"
    """At the last message, or the last that matches the filter."""
    NEW = "new"
    """With messages stored after the consumer was created."""
    BY_START_SEQUENCE = "by_start_sequence"
    """At ``opt_start_seq``."""
    BY_START_TIME = "by_start_time"
    """At the first message stored at or after ``opt_start_time``."""
    LAST_PER_SUBJECT = "last_per_subject"
    """With the last message of each subject that matches the filter."""


class ReplayPolicy(OpenEnum):
    """How fast stored messages are sent."""

    INSTANT = "instant"
    """As fast as possible."""
    ORIGINAL = "original"
    """With the pauses between them that they had when they were stored."""


class PriorityPolicy(OpenEnum):
    """How pull requests of one priority group share the messages."""

    NONE = "none"
    """No groups."""
    OVERFLOW = "overflow"
    """A request may ask to be served only while the backlog is above a threshold (2.11)."""
    PINNED_CLIENT = "pinned_client"
    """One client gets everything, the others stand by (2.11)."""
    PRIORITIZED = "prioritized"
    """Requests with the lowest priority number are served first (2.12)."""


class ConsumerConfig(Model, kw_only=True, frozen=True):
    """Configuration of a consumer.

    ``ConsumerConfig(durable_name="worker")`` is a durable pull consumer with explicit acks that starts at
    the first message. Durations are given in seconds or as a ``timedelta``. To change a consumer, start from
    ``info.config.replace(...)``: this keeps every field, including those that only a newer server knows.
    """

    durable_name: str | None = None
    """Name of a consumer that stays until it is deleted. At most 255 bytes; no white space, ``.``, ``*``,
    ``>``, ``/``, ``\\`` or unprintable characters. Unset: an ephemeral one. Since 2.2. Not editable."""

    name: str | None = None
    """Name of the consumer, durable or not; must equal ``durable_name`` when both are set. Same
    characters. Unset: the durable name, else a generated one. A named consumer with neither ``durable_name``
    nor ``inactive_threshold`` is removed after about 5 s without use. Since 2.9. Not editable."""

    description: str | None = None
    """Free text, at most 4 KiB. Default: none. Since 2.3.3. Editable."""

    deliver_policy: OpenField[DeliverPolicy] = DeliverPolicy.ALL  # type: ignore[assignment]
    """Where to start. Default ``all``. ``last_per_subject`` needs a filter. Work-queue streams take only
    ``all``. Since 2.2. Not editable."""

    opt_start_seq: int | None = None
    """First sequence; required with ``deliver_policy="by_start_sequence"``, at least 1, and refused
    otherwise. Since 2.2. Not editable."""

    opt_start_time: TimeField = UNSET
    """First time; required with ``deliver_policy="by_start_time"`` and refused otherwise. An aware
    datetime. Since 2.2. Not editable."""

    ack_policy: OpenField[AckPolicy] = AckPolicy.EXPLICIT  # type: ignore[assignment]
    """Which messages need an ack. Default ``explicit`` (always sent: if it were left out, the server would
    use ``none``). Pull consumers of work-queue streams need ``explicit``. Since 2.2. Not editable."""

    ack_wait: DurationField = UNSET
    """How long the server waits for an ack before it delivers again. Default 30 s; must not be negative.
    ``backoff`` overrides it. Since 2.2. Editable."""

    max_deliver: int | None = None
    """How often one message is delivered at most. Default -1, unlimited. A message that reached the limit
    stays in the stream. Since 2.2. Editable."""

    backoff: DurationListField = UNSET
    """Waits before redelivery after a missing ack (not after a nak); the last one is repeated, and the first
    replaces ``ack_wait``. At most as many entries as ``max_deliver``, if that is set; none may be negative.
    For a nak with a delay, that delay applies at the first delivery; at later deliveries the server (2.15)
    adds the amount by which their wait exceeds the first wait. Default: none. Since 2.7.1. Editable."""

    filter_subject: str | None = None
    """Deliver only matching subjects. Default: all. Excludes ``filter_subjects``. Since 2.2. Editable."""

    filter_subjects: list[str] | None = None
    """Several filters, none of which may contain another. Default: all. Excludes ``filter_subject``. Since
    2.10. Editable."""

    replay_policy: OpenField[ReplayPolicy] = ReplayPolicy.INSTANT  # type: ignore[assignment]
    """How fast to deliver. Default ``instant``. Since 2.2. Not editable."""

    rate_limit_bps: int | None = None
    """Push only: at most this many bits per second. Default: no limit. On a stream with ``max_msg_size``, a
    message that is larger than that together with its subject and ack subject is never delivered (2.15);
    leave room for them. Since 2.2. Editable."""

    sample_freq: str | None = None
    """Percentage of acks for which the server publishes a metric, as ``"30"`` or ``"30%"``. Default:
    none. Since 2.2. Editable."""

    max_waiting: int | None = None
    """Pull only: how many pull requests may wait. Default 512. Since 2.2. Not editable."""

    max_ack_pending: int | None = None
    """How many messages may be delivered and not yet acked, over all clients, before delivery pauses.
    Default 1000, or what the stream or account sets; -1 means no limit. A push consumer with
    ``ack_policy="none"`` must not set it. Since 2.2. Editable."""

    flow_control: bool | None = None
    """Push only: the server paces itself by the client's replies. Default false. Needs
    ``idle_heartbeat``. Since 2.2. The server refuses an edit."""

    headers_only: bool | None = None
    """Leave bodies out and add the header ``Nats-Msg-Size``. Default false. Since 2.6.2. Editable."""

    max_batch: int | None = None
    """Pull only: largest batch of one pull request; larger ones get a 409. Default 0, no limit. Since
    2.7. Editable."""

    max_expires: DurationField = UNSET
    """Pull only: longest expiry of one pull request. Default 0, no limit; else at least 1 ms. Since 2.7.
    Editable."""

    max_bytes: int | None = None
    """Pull only: largest ``max_bytes`` of one pull request. Default 0, no limit. Since 2.8.3. Editable."""

    deliver_subject: str | None = None
    """Subject to push to; its presence makes the consumer push-based. No wildcards; must not be captured
    by the stream itself. Default: none, which means pull. Since 2.2. An update may change it while it has no
    subscriber, but can't turn push into pull or back."""

    deliver_group: str | None = None
    """Push only: queue group that shares the messages. Default: none. Since 2.2. Editable."""

    idle_heartbeat: DurationField = UNSET
    """Push only: send a status when idle for this long. Default: none; else at least 100 ms. Since 2.2. The
    server refuses an edit."""

    inactive_threshold: DurationField = UNSET
    """Remove the consumer when unused for this long. Default: never for durables, 5 s for others, or what
    the stream's ``consumer_limits`` specify. For durables since 2.9. Since 2.2. Editable."""

    num_replicas: int | None = None
    """Replicas of the consumer's state, not above the stream's; interest and work-queue streams need the
    stream's own number. Default 0: as the stream for durables, 1 for others. Since 2.8.3. Editable."""

    mem_storage: bool | None = None
    """Keep the consumer's state in memory even if the stream is on disk. Default false. Since 2.8.3. Not
    editable."""

    direct: bool | None = None
    """Used by servers internally, for mirrors and sources. Kept so that nothing is lost; leave it unset."""

    sourcing: bool | None = None
    """Used by servers internally, for mirrors and sources (2.14). Kept so that nothing is lost; leave it
    unset."""

    metadata: dict[str, str] | None = None
    """Free key-value pairs, at most 128 KiB together. Default: none. Since 2.10. Editable. The server
    adds keys that begin with ``_nats.``."""

    pause_until: TimeField = UNSET
    """Deliver nothing until this time. Default: not paused. Since 2.11. Changed by the pause request, not by
    an update."""

    priority_groups: list[str] | None = None
    """Names of the priority groups: 1 to 16 characters of ``A-Z a-z 0-9 - _ / =``. Pull only. Needs a
    ``priority_policy`` other than ``none``. Default: none. Since 2.11. Editable."""

    priority_policy: OptionalOpenField[PriorityPolicy] = UNSET
    """How requests of a group share messages. Pull only. Needs ``priority_groups``. Default ``none``.
    Since 2.11. Editable."""

    priority_timeout: DurationField = UNSET
    """With ``pinned_client``: unpin a client that sent no request for this long. Default 2 minutes with
    that policy. Must be unset without a policy. Since 2.11. Editable."""

    @property
    def is_push(self) -> bool:
        """Whether the server pushes messages (there is a ``deliver_subject``)."""
        return bool(self.deliver_subject)

    @property
    def effective_name(self) -> str | None:
        """The name it will have, or ``None`` when the server or client has to generate one."""
        return self.name or self.durable_name or None


def consumer_create_request(
    stream: str, config: ConsumerConfig, *, action: str = "", pedantic: bool = False
) -> dict[str, Any]:
    """Body of a create request.

    ``action`` is ``"create"`` (fails if the consumer exists, err_code 10148), ``"update"`` (fails if it does
    not, 10149) or ``""`` (either). Servers before 2.10 ignore it. ``pedantic`` (2.11) makes the server
    refuse values that it would adjust.
    """
    body: dict[str, Any] = {"stream_name": stream, "config": config.to_wire(), "action": action}
    if pedantic:
        body["pedantic"] = True
    return body
