"""What the server reports about a consumer: its config, its progress and its waiting requests."""

from jetspark.jetstream.models.cluster import ClusterInfo
from jetspark.jetstream.models.consumer_config import ConsumerConfig
from jetspark.jetstream.models.model import Model
from jetspark.jetstream.models.values import UNSET, DurationField, TimeField


class SequenceInfo(Model, kw_only=True, frozen=True):
    """A position, counted by the consumer and in the stream."""

    consumer_seq: int = 0
    """How many deliveries, redeliveries included."""
    stream_seq: int = 0
    """Sequence in the stream."""
    last_active: TimeField = UNSET
    """When it last moved; ``None`` if it never did."""


class PriorityGroupState(Model, kw_only=True, frozen=True):
    """State of one priority group (2.11)."""

    group: str
    """Its name."""
    pinned_client_id: str | None = None
    """Pin id of the client that gets the messages; unset when none is pinned."""
    pinned_ts: TimeField = UNSET
    """Since when it is pinned."""


class ConsumerInfo(Model, kw_only=True, frozen=True):
    """A consumer as the server sees it."""

    stream_name: str
    """Stream it reads."""
    name: str
    """Its name."""
    created: TimeField = UNSET
    """When it was created."""
    config: ConsumerConfig = ConsumerConfig()
    """The config in effect, including defaults."""
    delivered: SequenceInfo = SequenceInfo()
    """The last message delivered."""
    ack_floor: SequenceInfo = SequenceInfo()
    """Everything up to here is acked."""
    num_ack_pending: int = 0
    """Delivered and not yet acked."""
    num_redelivered: int = 0
    """Delivered more than once and not yet acked."""
    num_waiting: int = 0
    """Pull requests that wait for messages."""
    num_pending: int = 0
    """Messages that match the filter and were not delivered yet."""
    cluster: ClusterInfo | None = None
    """Where its replicas are."""
    push_bound: bool = False
    """Push only: the deliver subject has a subscriber."""
    paused: bool = False
    """Delivery is paused (2.11)."""
    pause_remaining: DurationField = UNSET
    """For how much longer (2.11)."""
    ts: TimeField = UNSET
    """When the information was gathered (2.10)."""
    priority_groups: list[PriorityGroupState] | None = None
    """State of the priority groups (2.11)."""


class ConsumerPause(Model, kw_only=True, frozen=True):
    """Answer to a pause or resume request (2.11)."""

    paused: bool = False
    """Whether delivery is paused now."""
    pause_until: TimeField = UNSET
    """Until when; ``None`` when it is not paused."""
    pause_remaining: DurationField = UNSET
    """For how much longer."""
