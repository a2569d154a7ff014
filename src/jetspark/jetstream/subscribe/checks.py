"""The checks of the subscribe workflow (ADR-15 "Configuration", "Push Consumer active information and queue
group binding", "Other checks"). Pure functions of what the user requested and what the server has.

Mistakes that can be found before anything is sent raise :class:`~jetspark.errors.InvalidArgument`. An
existing consumer that does not match raises an :class:`IncompatibleConsumer`, with one subclass per kind of
mismatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jetspark.errors import InvalidArgument
from jetspark.jetstream.consume.errors import ConsumeError
from jetspark.jetstream.models.consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy
from jetspark.jetstream.models.validation import check_flag, check_name
from jetspark.wire.subjects import validate_filter, validate_queue

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from jetspark.jetstream.models.consumer_info import ConsumerInfo


class IncompatibleConsumer(ConsumeError):
    """The consumer exists but does not match the subscription. Nothing was changed."""

    def __init__(self, info: ConsumerInfo, reason: str) -> None:
        super().__init__(f"consumer {info.name!r} of stream {info.stream_name!r} {reason}")
        self.stream = info.stream_name
        self.consumer = info.name


class ConsumerInUse(IncompatibleConsumer):
    """A push consumer without a queue group already has a subscription; it allows only one."""

    def __init__(self, info: ConsumerInfo) -> None:
        super().__init__(
            info,
            "has a subscription already (push_bound): end that one, share the work with queue=..., "
            "or use another durable name",
        )


class QueueRequired(IncompatibleConsumer):
    """A plain subscription to a consumer that was created for a queue group."""

    def __init__(self, info: ConsumerInfo) -> None:
        self.deliver_group = info.config.deliver_group or ""
        super().__init__(info, f"is for a queue group: subscribe with queue={self.deliver_group!r}")


class QueueMismatch(IncompatibleConsumer):
    """A queue subscription to a consumer that was created for another queue group."""

    def __init__(self, info: ConsumerInfo, queue: str) -> None:
        self.deliver_group = info.config.deliver_group or ""
        self.queue = queue
        super().__init__(
            info,
            f"is for queue group {self.deliver_group!r}, not {queue!r}: use that, or another durable name",
        )


class NoDeliverGroup(IncompatibleConsumer):
    """A queue subscription to a consumer that was created without a deliver group."""

    def __init__(self, info: ConsumerInfo, queue: str) -> None:
        self.queue = queue
        super().__init__(
            info,
            f"has no deliver_group, so queue={queue!r} can't share it: set one with update_consumer(), "
            "or use another durable name",
        )


class SubjectMismatch(IncompatibleConsumer):
    """The consumer delivers other subjects than the subscription requests."""

    def __init__(self, info: ConsumerInfo, wanted: list[str], found: list[str]) -> None:
        self.wanted = wanted
        self.found = found
        super().__init__(
            info,
            f"delivers {found}, not {wanted}: subscribe to what it delivers, or use another durable name",
        )


class PullRequired(IncompatibleConsumer):
    """The consumer has no deliver subject: messages must be pulled from it."""

    def __init__(self, info: ConsumerInfo) -> None:
        super().__init__(info, "is pull-based: use pull_subscribe(), or get_consumer() and consume()")


class QueueFlowControl(IncompatibleConsumer):
    """The consumer has flow control, which can't work with a queue group."""

    def __init__(self, info: ConsumerInfo) -> None:
        super().__init__(
            info,
            "has flow_control, which the server would send to random members of a queue group: "
            "create one without it",
        )


class QueueHeartbeat(IncompatibleConsumer):
    """The consumer has idle heartbeats, which can't work with a queue group."""

    def __init__(self, info: ConsumerInfo) -> None:
        super().__init__(
            info,
            "has idle_heartbeat, which the server would send to random members of a queue group: "
            "create one without it",
        )


class ConsumerConfigMismatch(IncompatibleConsumer):
    """The consumer's config differs from the one given; a subscription does not change existing consumers.

    ``differences``: field -> (requested value, the consumer's value).
    """

    def __init__(self, info: ConsumerInfo, differences: dict[str, tuple[Any, Any]]) -> None:
        self.differences = {
            field: (_plain(asked), _plain(has)) for field, (asked, has) in differences.items()
        }
        words = ", ".join(
            f"{field}={has!r}, not {asked!r}" for field, (asked, has) in self.differences.items()
        )
        super().__init__(
            info, f"has {words}: change it with update_consumer(), delete it, or leave the options out"
        )


@dataclass(frozen=True, slots=True)
class Wish:
    """The request of a subscription, after the checks that need no server."""

    subject: str
    queue: str
    #: Name of the consumer to look up; None: create one with a generated name.
    name: str | None
    #: Whether the consumer must exist.
    bind: bool
    #: Config for creating it if it does not exist; without a deliver subject unless the user chose one.
    config: ConsumerConfig
    #: Fields of the config that the user has set, to be compared with an existing consumer.
    chosen: frozenset[str]
    #: Whether the end of the subscription deletes the consumer, if it was created for the subscription.
    delete: bool


def check_options(
    subject: str | None,
    *,
    queue: str,
    stream: str | None,
    durable: str | None,
    consumer: str | None,
    config: ConsumerConfig | None,
    idle_heartbeat: float | timedelta | None,
    flow_control: bool | None,
    deliver_policy: DeliverPolicy | str | None,
    opt_start_seq: int | None,
    opt_start_time: datetime | None,
    delete_on_close: bool | None = None,
) -> Wish:
    """Refuse requests that can't work (ADR-15 "Configuration"); returns what the user wants."""
    if subject:
        validate_filter(subject)
    elif not stream:
        raise InvalidArgument("subject", subject, "is needed to find the stream; or name the stream")
    if stream is not None:
        check_name("stream", stream)
    options: dict[str, Any] = {
        "idle_heartbeat": idle_heartbeat,
        "flow_control": flow_control,
        "deliver_policy": _policy(deliver_policy, opt_start_seq, opt_start_time),
        "opt_start_seq": opt_start_seq,
        "opt_start_time": opt_start_time,
    }
    options = {field: value for field, value in options.items() if value is not None}
    if consumer is not None:
        _check_bind(consumer, durable=durable, config=config, **options)
    wanted = config or ConsumerConfig()
    chosen = _chosen(config)
    for field, value in options.items():
        given = getattr(wanted.replace(**{field: value}), field)
        if field in chosen and field != "deliver_policy" and getattr(wanted, field) != given:
            raise InvalidArgument(field, value, f"the config says {getattr(wanted, field)!r}")
    wanted = wanted.replace(**options)
    chosen |= set(options)
    queue = _queue(queue, wanted)
    name = consumer or _name(queue, durable, wanted)
    if durable is not None or (consumer is None and name is not None and wanted.name is None):
        wanted = wanted.replace(durable_name=name)
    if queue:
        wanted = wanted.replace(deliver_group=queue)
    wanted = _with_filter(wanted, subject)
    return Wish(
        subject=subject or "",
        queue=queue,
        name=name,
        bind=consumer is not None,
        config=wanted,
        chosen=frozenset(chosen - _NOT_COMPARED),
        delete=_delete(delete_on_close, queue, wanted),
    )


_ORDERED = frozenset(
    {
        "ack_policy",
        "deliver_policy",
        "opt_start_seq",
        "opt_start_time",
        "replay_policy",
        "idle_heartbeat",
        "flow_control",
        "headers_only",
        "metadata",
    }
)


def check_ordered(wish: Wish) -> None:
    """Check the options of an ordered subscription, which creates its own consumers."""
    if wish.name is not None:
        field = "consumer" if wish.bind else "queue" if wish.queue else "durable"
        raise InvalidArgument(
            field, wish.name, "does not go with ordered=True, which creates its own consumers"
        )
    for field in sorted(wish.chosen - _ORDERED):
        raise InvalidArgument(field, getattr(wish.config, field), "can't be set with ordered=True")
    # Explicit is the default of a config, so it does not mean that the user chose it.
    if wish.config.ack_policy not in (AckPolicy.EXPLICIT, AckPolicy.NONE):
        raise InvalidArgument("ack_policy", wish.config.ack_policy.value, "is 'none' with ordered=True")
    if not wish.delete:
        raise InvalidArgument("delete_on_close", False, "does not go with ordered=True")
    if wish.config.flow_control is False:
        raise InvalidArgument("flow_control", False, "is always on with ordered=True")


def _delete(delete_on_close: bool | None, queue: str, config: ConsumerConfig) -> bool:
    """ADR-15 deletes whatever the library created. We keep a durable unless asked, because its purpose is to
    keep its place in the stream. A consumer of a queue group stays, since other members may still use it."""
    if delete_on_close is None:
        return not queue and not config.durable_name
    check_flag("delete_on_close", delete_on_close)
    if delete_on_close and queue:
        raise InvalidArgument(
            "delete_on_close",
            True,
            f"would end the other members of queue {queue!r}; call delete_consumer() when all have left",
        )
    return delete_on_close


def _policy(
    policy: DeliverPolicy | str | None, seq: int | None, time: datetime | None
) -> DeliverPolicy | None:
    if policy is not None:
        return DeliverPolicy(policy)
    if seq is not None:
        return DeliverPolicy.BY_START_SEQUENCE
    return None if time is None else DeliverPolicy.BY_START_TIME


def _check_bind(consumer: str, **others: Any) -> None:
    check_name("consumer", consumer)
    for field, value in others.items():
        if value is not None:
            raise InvalidArgument(
                field, value, f"excludes consumer={consumer!r}, which binds to an existing one as it is"
            )


def _queue(queue: str, config: ConsumerConfig) -> str:
    group = config.deliver_group or ""
    if queue and group and queue != group:
        raise InvalidArgument("queue", queue, f"the config's deliver_group is {group!r}")
    queue = queue or group
    if not queue:
        return ""
    validate_queue(queue)
    # ADR-15 "Configuration": the server would send both to random members.
    if _is_set(config.idle_heartbeat):
        raise InvalidArgument(
            "idle_heartbeat", config.idle_heartbeat, "does not go with a queue: leave one of them out"
        )
    if config.flow_control:
        raise InvalidArgument("flow_control", True, "does not go with a queue: leave one of them out")
    return queue


def _name(queue: str, durable: str | None, config: ConsumerConfig) -> str | None:
    name = config.effective_name
    if durable is not None:
        check_name("durable", durable)
        if name not in (None, durable):
            raise InvalidArgument("durable", durable, f"the config names it {name!r}")
        return durable
    if name is None and queue:
        # ADR-15 "Queue name": otherwise each member would have its own consumer, and get every message.
        check_name("queue", queue)
        return queue
    return name


def _with_filter(config: ConsumerConfig, subject: str | None) -> ConsumerConfig:
    if not subject:
        return config
    filters = filters_of(config)
    if not filters:
        return config.replace(filter_subject=subject)
    if subject not in filters:
        raise InvalidArgument("subject", subject, f"is not among the config's filters {filters}")
    return config


def filters_of(config: ConsumerConfig) -> list[str]:
    """The filters of a config, given in either form."""
    return [config.filter_subject] if config.filter_subject else list(config.filter_subjects or [])


def check_binding(info: ConsumerInfo, wish: Wish) -> None:
    """Raise the :class:`IncompatibleConsumer` that says why a subscription can't use this consumer, if
    any."""
    found, queue = info.config, wish.queue
    if not found.deliver_subject:
        raise PullRequired(info)
    check_active(info, queue)
    # With filter_subjects as with one: more or fewer messages than requested are worse than an error.
    have, wanted = filters_of(found), filters_of(wish.config)
    if have and wanted and set(have) != set(wanted):
        raise SubjectMismatch(info, wanted, have)
    differences = {}
    for field in sorted(wish.chosen):
        asked, has = getattr(wish.config, field), getattr(found, field)
        if field == "metadata":
            # The server adds its own keys.
            has = {key: value for key, value in (has or {}).items() if key in asked}
        if asked != has and (_is_set(asked) or _is_set(has)):
            differences[field] = (asked, has)
    if differences:
        raise ConsumerConfigMismatch(info, differences)


def check_active(info: ConsumerInfo, queue: str) -> None:
    """ADR-15 "Push Consumer active information and queue group binding", and queues with heartbeats."""
    config, group = info.config, info.config.deliver_group or ""
    if queue and not group:
        raise NoDeliverGroup(info, queue)
    if queue and queue != group:
        raise QueueMismatch(info, queue)
    if group and not queue:
        raise QueueRequired(info)
    if info.push_bound and not group:
        raise ConsumerInUse(info)
    if group and config.flow_control:
        raise QueueFlowControl(info)
    if group and _is_set(config.idle_heartbeat):
        raise QueueHeartbeat(info)


def _chosen(config: ConsumerConfig | None) -> set[str]:
    """The fields that the user's config sets. Policies have no unset value, so they always count as set."""
    if config is None:
        return set()
    default = ConsumerConfig()
    differing = {
        field for field in config.__struct_fields__ if getattr(config, field) != getattr(default, field)
    }
    return differing | {"ack_policy", "deliver_policy", "replay_policy"}


def _is_set(value: Any) -> bool:
    """Whether it is set: None, zero and empty all mean the server's default."""
    return bool(getattr(value, "ns", value))


def _plain(value: Any) -> Any:
    """A value that prints and pickles well."""
    return getattr(value, "value", value)


# The consumer was found by its name; groups and filters have their own errors.
_NOT_COMPARED = frozenset(
    {
        "name",
        "durable_name",
        "deliver_group",
        "filter_subject",
        "filter_subjects",
        "extra",
        "pause_until",
    }
)
