"""How much of JetStream an account uses, and how much it may use."""

import msgspec

from jetspark.jetstream.models.model import Model


class AccountLimits(Model, kw_only=True, frozen=True):
    """What an account may use; -1 means no limit."""

    max_memory: int = 0
    """Bytes in memory storage."""
    max_storage: int = 0
    """Bytes in file storage."""
    max_streams: int = 0
    """Number of streams."""
    max_consumers: int = 0
    """Number of consumers per stream."""
    max_ack_pending: int = 0
    """Upper bound of a consumer's ``max_ack_pending``."""
    memory_max_stream_bytes: int = 0
    """Upper bound of ``max_bytes`` of a stream in memory."""
    storage_max_stream_bytes: int = 0
    """Upper bound of ``max_bytes`` of a stream on disk."""
    max_bytes_required: bool = False
    """Every stream must set ``max_bytes``."""


class AccountTier(Model, kw_only=True, frozen=True):
    """Usage and limits, of the account or of one replication tier such as ``R3``."""

    memory: int = 0
    """Bytes used in memory storage."""
    storage: int = 0
    """Bytes used in file storage."""
    reserved_memory: int = 0
    """Bytes reserved by ``max_bytes`` of streams in memory (2.9)."""
    reserved_storage: int = 0
    """Bytes reserved by ``max_bytes`` of streams on disk (2.9)."""
    streams: int = 0
    """Number of streams."""
    consumers: int = 0
    """Number of consumers."""
    limits: AccountLimits = AccountLimits()
    """What may be used. Not meaningful on the account itself when it has tiers."""


class ApiStats(Model, kw_only=True, frozen=True):
    """API requests of the account since the server started."""

    level: int = 0
    """API level of the server: 0 before 2.11, 1 for 2.11, 2 for 2.12, ... It shows which features exist."""
    total: int = 0
    """Requests."""
    errors: int = 0
    """Requests answered with an error."""
    inflight: int = 0
    """Requests being served now (2.11)."""


class AccountInfo(AccountTier, kw_only=True, frozen=True):
    """Usage and limits of an account. With tiers, the totals are here and the limits in ``tiers``."""

    domain: str | None = None
    """JetStream domain of the server."""
    api: ApiStats = ApiStats()
    """API requests and the server's API level."""
    tiers: dict[str, AccountTier] = msgspec.field(default_factory=dict)
    """By tier name, ``R1``, ``R3``; empty when the account has one set of limits."""
