"""Options of an ordered consumer, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetspark._checks import is_whole
from jetspark.errors import InvalidArgument
from jetspark.jetstream.models.consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy, ReplayPolicy
from jetspark.jetstream.models.field_docs import show_field_docs
from jetspark.jetstream.models.validation import check_flag, check_name
from jetspark.jetstream.models.values import Timestamp
from jetspark.wire.subjects import validate_filter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from jetspark.jetstream.flow.actions import CreateConsumer

INACTIVE_THRESHOLD = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedConsumerConfig:
    """Configuration of an ordered consumer. The rest is fixed: ack none, memory storage, one replica.

    Validated on creation, before anything is sent.
    """

    filter_subjects: str | Sequence[str] | None = None
    """Deliver only matching subjects: one filter or several (2.10). No filter may contain another.
    Default: all."""
    deliver_policy: DeliverPolicy | str | None = None
    """Where to start. Default ``all``, or what the start options below imply. Applies until the first
    message; after that, a reset continues after the last one."""
    opt_start_seq: int | None = None
    """First sequence, at least 1; implies ``by_start_sequence``."""
    opt_start_time: datetime | None = None
    """First time, an aware datetime; implies ``by_start_time``."""
    replay_policy: ReplayPolicy | str = ReplayPolicy.INSTANT
    """How fast stored messages are sent. Default ``instant``."""
    inactive_threshold: float | timedelta = INACTIVE_THRESHOLD
    """Seconds after which the server removes an unused consumer; must be above 0. Default 300."""
    headers_only: bool = False
    """Leave bodies out and add the header ``Nats-Msg-Size``. Default false."""
    max_reset_attempts: int | None = None
    """Attempts in a row to create a new consumer before giving up, at least 1. Default: unlimited."""
    name_prefix: str | None = None
    """Consumers are named ``<name_prefix>_<number>``. Default: a unique prefix."""
    metadata: Mapping[str, str] | None = None
    """Free key-value pairs (2.10). Default: none."""

    def __post_init__(self) -> None:
        if self.filter_subjects is not None and not isinstance(self.filter_subjects, Iterable):
            raise InvalidArgument(
                "filter_subjects", self.filter_subjects, "must be a filter or a sequence of them"
            )
        for one in self.filters:
            validate_filter(one, field="filter_subjects")
        if not isinstance(self.replay_policy, str):
            raise InvalidArgument("replay_policy", self.replay_policy, "must be a ReplayPolicy or its name")
        if self.metadata is not None and not isinstance(self.metadata, Mapping):
            raise InvalidArgument("metadata", self.metadata, "must be a mapping of texts to texts")
        check_flag("headers_only", self.headers_only)
        if self.opt_start_seq is not None and not is_whole(self.opt_start_seq, 1, (1 << 64) - 1):
            raise InvalidArgument("opt_start_seq", self.opt_start_seq, "must be a stream sequence, 1 or more")
        if self.opt_start_seq is not None and self.opt_start_time is not None:
            raise InvalidArgument(
                "opt_start_time", self.opt_start_time, f"excludes opt_start_seq={self.opt_start_seq}"
            )
        if self.opt_start_time is not None:
            Timestamp.from_datetime(self.opt_start_time, field="opt_start_time")
        if self.name_prefix is not None:
            check_name("name_prefix", self.name_prefix)
        if isinstance(self.inactive_threshold, int | float) and not self.inactive_threshold > 0:
            raise InvalidArgument(
                "inactive_threshold",
                self.inactive_threshold,
                "must be above 0, so that unused ones are removed",
            )

    @property
    def filters(self) -> list[str]:
        """The filters as a list; empty for all subjects."""
        if self.filter_subjects is None:
            return []
        return [self.filter_subjects] if isinstance(self.filter_subjects, str) else list(self.filter_subjects)

    @property
    def policy(self) -> str:
        """The deliver policy in effect before the first message."""
        if self.deliver_policy is not None:
            return str(getattr(self.deliver_policy, "value", self.deliver_policy))
        if self.opt_start_seq is not None:
            return "by_start_sequence"
        return "all" if self.opt_start_time is None else "by_start_time"


show_field_docs(OrderedConsumerConfig)


def either(config: OrderedConsumerConfig | None, given: OrderedConsumerConfig) -> OrderedConsumerConfig:
    """The config, or the one built from keywords. Giving both is refused."""
    if config is None:
        return given
    if not isinstance(config, OrderedConsumerConfig):
        raise InvalidArgument("config", config, "must be an OrderedConsumerConfig")
    if given != OrderedConsumerConfig():
        raise InvalidArgument("config", config, "excludes keywords; set the fields in the config")
    return config


def consumer_config(
    config: OrderedConsumerConfig, create: CreateConsumer, description: str | None = None
) -> ConsumerConfig:
    """The config of one consumer of the chain."""
    filters = config.filters
    if not filters and create.deliver_policy == "last_per_subject":
        filters = [">"]  # the server requires a filter with this policy
    return ConsumerConfig(
        name=create.name,
        description=description,
        deliver_policy=DeliverPolicy(create.deliver_policy),
        opt_start_seq=create.opt_start_seq,
        opt_start_time=None if create.opt_start_time is None else Timestamp.parse(create.opt_start_time),
        ack_policy=AckPolicy.NONE,
        replay_policy=ReplayPolicy(config.replay_policy),
        inactive_threshold=config.inactive_threshold,
        headers_only=config.headers_only or None,
        num_replicas=1,
        mem_storage=True,
        filter_subject=filters[0] if len(filters) == 1 else None,
        filter_subjects=filters if len(filters) > 1 else None,
        metadata=None if config.metadata is None else dict(config.metadata),
    )
