"""Where the replicas of a stream or consumer are, and how up to date they are."""

import msgspec

from jetspark.jetstream.models.model import Model
from jetspark.jetstream.models.stream_config import Placement, RetentionPolicy
from jetspark.jetstream.models.values import UNSET, Duration, OptionalOpenField, TimeField


class PeerInfo(Model, kw_only=True, frozen=True):
    """One follower of a replicated stream or consumer."""

    name: str
    """Server name."""
    current: bool = False
    """Seen recently and caught up."""
    offline: bool = False
    """Not seen recently."""
    active: Duration = Duration.from_ns(0)
    """How long ago it was last seen."""
    lag: int = 0
    """Operations behind the leader."""
    peer: str = ""
    """The server's id in the Raft group."""
    pending: bool = False
    """Assigned, but not yet a member of the Raft group."""


class DesiredOrigin(Model, kw_only=True, frozen=True):
    """The state before a change of replicas, placement or retention that is still in progress."""

    replicas: int = 0
    placement: Placement | None = None
    retention: OptionalOpenField[RetentionPolicy] = UNSET


class DesiredStatus(Model, kw_only=True, frozen=True):
    """What such a change is doing or waiting for."""

    description: str = ""
    """A short phrase."""
    type: str = ""
    """Class of the phrase: meta, membership, snapshot, catchup, quorum, blocked or unavailable."""
    err: str | None = None
    """The failure behind it, if any."""


class DesiredCluster(Model, kw_only=True, frozen=True):
    """The set of servers a stream or consumer is moving to (2.15)."""

    name: str | None = None
    replicas: list[PeerInfo] = msgspec.field(default_factory=list)
    origin: DesiredOrigin | None = None
    status: DesiredStatus | None = None


class ClusterInfo(Model, kw_only=True, frozen=True):
    """The servers that hold a stream or consumer."""

    name: str | None = None
    """Name of the cluster."""
    raft_group: str | None = None
    """Name of the Raft group (2.12)."""
    leader: str | None = None
    """Server name of the leader; unset while there is none."""
    leader_since: TimeField = UNSET
    """When it became leader (2.12)."""
    system_account: bool = False
    """Replication traffic runs in the system account (2.12)."""
    traffic_account: str | None = None
    """Account in which replication traffic runs (2.12)."""
    replicas: list[PeerInfo] = msgspec.field(default_factory=list)
    """The followers; the leader is not among them."""
    desired: DesiredCluster | None = None
    """The servers it is moving to, while it moves (2.15)."""
