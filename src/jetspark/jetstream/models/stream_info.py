"""What the server reports about a stream: its config, its state and its location."""

from typing import Any

import msgspec

from jetspark.jetstream.models.cluster import ClusterInfo
from jetspark.jetstream.models.model import Model
from jetspark.jetstream.models.stream_config import External, StreamConfig, SubjectTransform
from jetspark.jetstream.models.values import UNSET, Duration, TimeField


class LostStreamData(Model, kw_only=True, frozen=True):
    """Messages that the server found missing or corrupt in its storage."""

    msgs: list[int] = msgspec.field(default_factory=list)
    """Their sequences."""
    bytes: int = 0
    """Their size."""


class StreamState(Model, kw_only=True, frozen=True):
    """What a stream holds at one moment."""

    messages: int = 0
    """Number of messages."""
    bytes: int = 0
    """Size of all messages."""
    first_seq: int = 0
    """Sequence of the oldest message. In an empty stream that once had messages: ``last_seq + 1``."""
    first_ts: TimeField = UNSET
    """When the oldest message was stored; ``None`` if there is none."""
    last_seq: int = 0
    """Sequence of the newest message ever stored."""
    last_ts: TimeField = UNSET
    """When the newest message was stored; ``None`` before the first."""
    num_subjects: int = 0
    """Number of distinct subjects."""
    subjects: dict[str, int] | None = None
    """Messages per subject; only if the request had a subjects filter, and one page of it."""
    num_deleted: int = 0
    """Number of gaps between first and last sequence."""
    deleted: list[int] | None = None
    """The sequences of the gaps; only if the request asked for details."""
    lost: LostStreamData | None = None
    """Messages lost by the storage."""
    consumer_count: int = 0
    """Number of consumers."""


class StreamSourceInfo(Model, kw_only=True, frozen=True):
    """The state of a mirror or source."""

    name: str
    """Name of the origin stream."""
    external: External | None = None
    """Set when the origin lives in another account or domain."""
    lag: int = 0
    """Messages behind the origin."""
    active: Duration = Duration.from_ns(-1)
    """How long ago the origin was last heard from; -1 ns if never."""
    error: dict[str, Any] | None = None
    """Why copying does not work, as the server reports it: ``code``, ``err_code``, ``description``."""
    filter_subject: str | None = None
    """The filter of the config."""
    subject_transforms: list[SubjectTransform] | None = None
    """The transforms of the config."""

    @property
    def never_active(self) -> bool:
        """Whether the origin was never heard from."""
        return self.active.ns < 0


class StreamAlternate(Model, kw_only=True, frozen=True):
    """A mirror of the stream, ordered by distance from the client; the stream itself is listed too."""

    name: str
    domain: str | None = None
    cluster: str = ""


class StreamInfo(Model, kw_only=True, frozen=True):
    """A stream as the server sees it."""

    config: StreamConfig
    """The config in effect, including defaults."""
    created: TimeField = UNSET
    """When it was created. A stream that was deleted and recreated has another time; sequences before and
    after can't be compared."""
    state: StreamState = StreamState()
    """What it holds."""
    domain: str | None = None
    """JetStream domain of the server."""
    cluster: ClusterInfo | None = None
    """Where its replicas are."""
    mirror: StreamSourceInfo | None = None
    """The state of the mirror."""
    sources: list[StreamSourceInfo] | None = None
    """The state of the sources."""
    alternates: list[StreamAlternate] | None = None
    """The stream and its mirrors, nearest first."""
    ts: TimeField = UNSET
    """When the information was gathered (2.10)."""
