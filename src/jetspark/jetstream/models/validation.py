"""Refuses what the server would refuse, before it is sent, and names the field and the rule.

Only the server's own rules are here (checked against nats-server 2.15): nothing that it accepts is
refused, and what depends on things the client can't see (other streams, account limits) is left to it.
The one exception is unprintable characters in names: the server accepts them, but such names can't be typed
(ADR-6).

The server silently adjusts some values, such as a limit of -7. They pass here too unless ``pedantic``
is set, which mirrors the server's own pedantic mode.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jetspark.errors import InvalidArgument
from jetspark.jetstream.models.consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy, PriorityPolicy
from jetspark.jetstream.models.stream_config import (
    DiscardPolicy,
    PersistMode,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from jetspark.wire.subjects import (
    has_wildcard,
    is_subset,
    subjects_overlap,
    validate_filter,
    validate_subject,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jetspark.jetstream.models.stream_config import StreamSource, SubjectTransform
    from jetspark.jetstream.models.values import Duration

MAX_NAME = 255
MAX_DESCRIPTION = 4 * 1024
MAX_METADATA = 128 * 1024
MAX_REPLICAS = 5
_MAX_INT32 = (1 << 31) - 1
_MAX_INT64 = (1 << 63) - 1
_MAX_UINT64 = (1 << 64) - 1
_100_MS = 100_000_000
_1_MS = 1_000_000
_1_S = 1_000_000_000

_BAD_IN_NAME = re.compile(r"[ \t\r\n\f.*>\\/]")
_GROUP = re.compile(r"[a-zA-Z0-9/_=-]{1,16}", re.ASCII)
_SAMPLE = re.compile(r"[+-]?[0-9]+%?", re.ASCII)
_API_SPACES = ("$JS.>", "$JSC.>", "$NRG.>")


def check_name(field: str, value: object) -> None:
    """Refuse names that the server refuses for streams and consumers."""
    if not isinstance(value, str):
        raise InvalidArgument(field, value, f"must be a str, not {type(value).__name__}")
    if not value:
        raise InvalidArgument(field, value, "must not be empty")
    if _BAD_IN_NAME.search(value) or not value.isprintable():
        raise InvalidArgument(
            field, value, "must not contain white space, '.', '*', '>', '/', '\\' or unprintable characters"
        )
    if len(value.encode()) > MAX_NAME:
        raise InvalidArgument(field, value, f"must not be longer than {MAX_NAME} bytes")


def check_names(stream: str, consumer: str) -> None:
    """Check the names of a stream and one of its consumers."""
    check_name("stream", stream)
    check_name("consumer", consumer)


def check_subject(field: str, value: object, *, wildcards: bool = True) -> None:
    """Refuse what is not a subject; with ``wildcards=False`` also what has wildcards."""
    if not isinstance(value, str):
        raise InvalidArgument(field, value, f"must be a str, not {type(value).__name__}")
    if wildcards:
        validate_filter(value, field=field)
    else:
        validate_subject(value, field=field)


# --- shared ------------------------------------------------------------------------------------------------


def _check_description(value: str | None) -> None:
    if value is not None and len(value.encode()) > MAX_DESCRIPTION:
        raise InvalidArgument("description", value, f"must not be longer than {MAX_DESCRIPTION} bytes")


def _check_metadata(value: Mapping[str, str] | None) -> None:
    if value and sum(len(key.encode()) + len(text.encode()) for key, text in value.items()) > MAX_METADATA:
        raise InvalidArgument(
            "metadata", value, f"keys and values together must not exceed {MAX_METADATA} bytes"
        )


def check_flag(field: str, value: bool) -> None:
    """Refuse anything but True or False: "no" would count as true."""
    if not isinstance(value, bool):
        raise InvalidArgument(field, value, "must be True or False")


def _check_int(
    field: str, value: int | None, *, low: int | None = None, high: int = _MAX_INT64, rule: str = ""
) -> None:
    if value is None:
        return
    least = -_MAX_INT64 - 1 if low is None else low
    if not least <= value <= high:
        raise InvalidArgument(field, value, rule or f"must be between {least} and {high}")


def _check_unlimited(field: str, value: int | None, pedantic: bool, high: int = _MAX_INT64) -> None:
    """-1 means no limit. The server turns anything below into -1 unless it is pedantic."""
    if pedantic:
        _check_int(field, value, low=-1, high=high, rule=f"must be -1 (no limit) up to {high}")
    else:
        _check_int(field, value, high=high)


def _not_negative(field: str, value: Duration | None) -> None:
    if value is not None and value.ns < 0:
        raise InvalidArgument(field, value, "must not be negative")


def _at_least(field: str, value: Duration | None, ns: int, text: str) -> None:
    if value is not None and 0 < value.ns < ns:
        raise InvalidArgument(field, value, f"must be 0 or at least {text}")


# --- consumers ---------------------------------------------------------------------------------------------


def validate_consumer_config(config: ConsumerConfig, *, pedantic: bool = False) -> None:
    """Refuse a config that the server would refuse on any stream."""
    if not isinstance(config, ConsumerConfig):
        raise InvalidArgument(
            "config", config, "must be a ConsumerConfig, e.g. ConsumerConfig(name='worker')"
        )
    check_flag("pedantic", pedantic)
    if config.name is not None:
        check_name("name", config.name)
    if config.durable_name is not None:
        check_name("durable_name", config.durable_name)
        if config.name is not None and config.name != config.durable_name:
            raise InvalidArgument("name", config.name, f"must equal durable_name={config.durable_name!r}")
    _check_description(config.description)
    _check_metadata(config.metadata)
    _check_int("num_replicas", config.num_replicas, low=0, high=MAX_REPLICAS)
    _check_start(config)
    _check_filters(config)
    _check_acks(config, pedantic)
    if config.is_push:
        _check_push(config)
    else:
        _check_pull(config)
    if config.sample_freq and (
        _SAMPLE.fullmatch(config.sample_freq) is None or int(config.sample_freq.rstrip("%")) < 0
    ):
        raise InvalidArgument("sample_freq", config.sample_freq, "must be a percentage such as '30' or '30%'")
    _check_priority(config)
    _check_int("rate_limit_bps", config.rate_limit_bps, low=0, high=_MAX_UINT64)
    for field in ("max_waiting", "max_batch", "max_bytes"):
        _check_int(field, getattr(config, field))
    if pedantic:
        for field in ("max_waiting", "max_batch", "max_bytes"):
            _check_int(field, getattr(config, field), low=0, rule="must not be negative")
        for field in ("max_expires", "idle_heartbeat", "inactive_threshold", "priority_timeout"):
            _not_negative(field, getattr(config, field))


def _check_start(config: ConsumerConfig) -> None:
    policy, seq, time = config.deliver_policy, config.opt_start_seq, config.opt_start_time
    if not policy.is_known:
        return
    _check_int("opt_start_seq", seq, low=0, high=_MAX_UINT64)
    if policy is DeliverPolicy.BY_START_SEQUENCE:
        if not seq:
            raise InvalidArgument(
                "opt_start_seq", seq, "must be 1 or more with deliver_policy='by_start_sequence'"
            )
    elif seq:
        raise InvalidArgument("opt_start_seq", seq, "needs deliver_policy='by_start_sequence'")
    if policy is DeliverPolicy.BY_START_TIME:
        if time is None:
            raise InvalidArgument("opt_start_time", time, "must be set with deliver_policy='by_start_time'")
    elif time is not None:
        raise InvalidArgument("opt_start_time", time, "needs deliver_policy='by_start_time'")
    if policy is DeliverPolicy.LAST_PER_SUBJECT and not config.filter_subject and not config.filter_subjects:
        raise InvalidArgument(
            "deliver_policy",
            policy,
            "'last_per_subject' needs a filter; filter_subject='>' selects everything",
        )


def _check_filters(config: ConsumerConfig) -> None:
    if config.filter_subject:
        check_subject("filter_subject", config.filter_subject)
        if config.filter_subjects:
            raise InvalidArgument(
                "filter_subject", config.filter_subject, "can't be combined with filter_subjects"
            )
    filters = config.filter_subjects or []
    for subject in filters:
        check_subject("filter_subjects", subject)
    for index, subject in enumerate(filters):
        for other in filters[index + 1 :]:
            # The server refuses containment only; "a.*" beside "*.b" passes although both match a.b.
            if is_subset(subject, other) or is_subset(other, subject):
                raise InvalidArgument(
                    "filter_subjects", filters, f"{subject!r} and {other!r} must not overlap"
                )


def _check_acks(config: ConsumerConfig, pedantic: bool) -> None:
    _not_negative("ack_wait", config.ack_wait)
    for wait in config.backoff or []:
        _not_negative("backoff", wait)
    _check_unlimited("max_deliver", config.max_deliver, pedantic)
    _check_unlimited("max_ack_pending", config.max_ack_pending, pedantic)
    if config.backoff and config.max_deliver is not None and 0 < config.max_deliver < len(config.backoff):
        raise InvalidArgument(
            "backoff", config.backoff, f"must not have more entries than max_deliver={config.max_deliver}"
        )
    if pedantic and config.backoff and (config.ack_wait is None or config.ack_wait != config.backoff[0]):
        raise InvalidArgument(
            "ack_wait", config.ack_wait, f"must equal the first backoff, {config.backoff[0]}"
        )
    if config.ack_policy is not AckPolicy.FLOW_CONTROL:
        return
    rule = "ack_policy='flow_control' "
    if not config.is_push:
        raise InvalidArgument("ack_policy", config.ack_policy, "'flow_control' needs a deliver_subject")
    if config.max_ack_pending is not None and config.max_ack_pending < 0:
        raise InvalidArgument("max_ack_pending", config.max_ack_pending, rule + "needs a limit above 0")
    for field, value in (("ack_wait", config.ack_wait), ("backoff", config.backoff)):
        if value:
            raise InvalidArgument(field, value, rule + f"needs {field} unset")
    if config.max_deliver is not None and config.max_deliver > 0:
        raise InvalidArgument("max_deliver", config.max_deliver, rule + "needs max_deliver unset")


def _check_push(config: ConsumerConfig) -> None:
    check_subject("deliver_subject", config.deliver_subject, wildcards=False)
    if config.max_waiting is not None and config.max_waiting > 0:
        raise InvalidArgument(
            "max_waiting", config.max_waiting, "is for pull consumers; remove it or deliver_subject"
        )
    if (
        config.ack_policy is AckPolicy.NONE
        and config.max_ack_pending is not None
        and config.max_ack_pending > 0
    ):
        raise InvalidArgument(
            "max_ack_pending",
            config.max_ack_pending,
            "needs an ack_policy other than 'none' on a push consumer",
        )
    _at_least("idle_heartbeat", config.idle_heartbeat, _100_MS, "0.1 s")
    heartbeat = config.idle_heartbeat is not None and config.idle_heartbeat.ns > 0
    # With ack policy flow_control the server fills in the heartbeat.
    if config.flow_control and not heartbeat and config.ack_policy is not AckPolicy.FLOW_CONTROL:
        raise InvalidArgument("flow_control", True, "needs idle_heartbeat")
    if config.priority_policy is not None and config.priority_policy is not PriorityPolicy.NONE:
        raise InvalidArgument(
            "priority_policy", config.priority_policy, "is for pull consumers; remove it or deliver_subject"
        )


def _check_pull(config: ConsumerConfig) -> None:
    rule = "is for push consumers; remove it or set deliver_subject"
    if config.rate_limit_bps:
        raise InvalidArgument("rate_limit_bps", config.rate_limit_bps, rule)
    if config.idle_heartbeat is not None and config.idle_heartbeat.ns > 0:
        raise InvalidArgument("idle_heartbeat", config.idle_heartbeat, rule)
    if config.flow_control:
        raise InvalidArgument("flow_control", config.flow_control, rule)
    if config.direct:
        raise InvalidArgument("direct", config.direct, rule)
    _at_least("max_expires", config.max_expires, _1_MS, "1 ms")


def _check_priority(config: ConsumerConfig) -> None:
    policy = config.priority_policy
    if policy is None or policy is PriorityPolicy.NONE:
        if config.priority_groups:
            raise InvalidArgument("priority_groups", config.priority_groups, "needs a priority_policy")
        if config.priority_timeout is not None and config.priority_timeout.ns > 0:
            raise InvalidArgument("priority_timeout", config.priority_timeout, "needs a priority_policy")
        return
    if not config.priority_groups:
        raise InvalidArgument("priority_policy", policy, "needs at least one entry in priority_groups")
    for group in config.priority_groups:
        if _GROUP.fullmatch(group) is None:
            raise InvalidArgument(
                "priority_groups", group, "a group's name has 1 to 16 characters out of A-Z a-z 0-9 - _ / ="
            )


# --- streams -----------------------------------------------------------------------------------------------


def validate_stream_config(config: StreamConfig, *, update: bool = False, pedantic: bool = False) -> None:
    """Refuse a config that the server would refuse whatever else exists in the account.

    ``update`` drops the two rules that apply only at creation.
    """
    if not isinstance(config, StreamConfig):
        raise InvalidArgument(
            "config", config, "must be a StreamConfig, e.g. StreamConfig(name='A', subjects=['a.>'])"
        )
    check_flag("pedantic", pedantic)
    check_name("name", config.name)
    _check_description(config.description)
    _check_metadata(config.metadata)
    _check_stream_limits(config, pedantic)
    _check_stream_times(config, pedantic)
    _check_stream_features(config, pedantic)
    if config.mirror is not None:
        _check_mirror(config, config.mirror)
    _check_sources(config.sources or [])
    _check_stream_subjects(config)
    if config.subject_transform is not None and config.subject_transform.src:
        check_subject("subject_transform.src", config.subject_transform.src)
    _check_republish(config)
    if config.placement is not None and config.placement.preferred:
        raise InvalidArgument(
            "placement.preferred",
            config.placement.preferred,
            "is only for step-down requests, not for streams",
        )
    if not update:
        if config.sealed:
            raise InvalidArgument("sealed", True, "can't be set at creation; seal the stream by an update")
        if config.mirror_direct and config.mirror is None:
            raise InvalidArgument("mirror_direct", True, "needs mirror")


def _check_stream_limits(config: StreamConfig, pedantic: bool) -> None:
    for field in ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject"):
        _check_unlimited(field, getattr(config, field), pedantic)
    _check_unlimited("max_msg_size", config.max_msg_size, pedantic, high=_MAX_INT32)
    _check_int("num_replicas", config.num_replicas, low=0, high=MAX_REPLICAS)
    _check_int("first_seq", config.first_seq, low=0, high=_MAX_UINT64)


def _check_stream_times(config: StreamConfig, pedantic: bool) -> None:
    age, window = config.max_age, config.duplicate_window
    _not_negative("max_age", age)
    _at_least("max_age", age, _100_MS, "0.1 s")
    _not_negative("duplicate_window", window)
    if age is not None and age.ns and window is not None and window.ns > age.ns:
        raise InvalidArgument("duplicate_window", window, f"must not exceed max_age={age}")
    _at_least("duplicate_window", window, _100_MS, "0.1 s")
    marker = config.subject_delete_marker_ttl
    _not_negative("subject_delete_marker_ttl", marker)
    _at_least("subject_delete_marker_ttl", marker, _1_S, "1 s")
    if pedantic and marker is not None and marker.ns:
        for field in ("allow_msg_ttl", "allow_rollup_hdrs"):
            if not getattr(config, field):
                raise InvalidArgument("subject_delete_marker_ttl", marker, f"needs {field}=True")


def _check_stream_features(config: StreamConfig, pedantic: bool) -> None:
    discard_new = config.discard is DiscardPolicy.NEW
    if config.deny_purge and config.allow_rollup_hdrs:
        raise InvalidArgument(
            "allow_rollup_hdrs", True, "can't be combined with deny_purge: a roll-up purges"
        )
    if config.discard_new_per_subject:
        if not discard_new:
            raise InvalidArgument("discard_new_per_subject", True, "needs discard='new'")
        if config.max_msgs_per_subject is None or config.max_msgs_per_subject <= 0:
            raise InvalidArgument("discard_new_per_subject", True, "needs max_msgs_per_subject above 0")
    if config.allow_msg_counter:
        for bad, rule in (
            (discard_new, "can't be combined with discard='new'"),
            (config.allow_msg_ttl, "can't be combined with allow_msg_ttl"),
            (config.allow_msg_schedules, "can't be combined with allow_msg_schedules"),
            (config.retention is not RetentionPolicy.LIMITS, "needs retention='limits'"),
        ):
            if bad:
                raise InvalidArgument("allow_msg_counter", True, rule)
    if config.allow_msg_schedules:
        if discard_new:
            raise InvalidArgument("allow_msg_schedules", True, "can't be combined with discard='new'")
        if config.sources:
            raise InvalidArgument("allow_msg_schedules", True, "can't be combined with sources")
        if pedantic and not config.allow_rollup_hdrs:
            raise InvalidArgument("allow_msg_schedules", True, "needs allow_rollup_hdrs=True")
    if config.persist_mode is PersistMode.ASYNC:
        for bad, rule in (
            (config.storage is not StorageType.FILE, "'async' needs storage='file'"),
            ((config.num_replicas or 0) > 1, "'async' needs num_replicas=1"),
            (config.allow_atomic, "'async' can't be combined with allow_atomic"),
        ):
            if bad:
                raise InvalidArgument("persist_mode", config.persist_mode, rule)


def _check_mirror(config: StreamConfig, mirror: StreamSource) -> None:
    for field in (
        *("subjects", "sources", "first_seq"),
        *("allow_msg_counter", "allow_atomic", "allow_batched", "allow_msg_schedules"),
    ):
        if getattr(config, field):
            raise InvalidArgument(field, getattr(config, field), "can't be combined with mirror")
    marker = config.subject_delete_marker_ttl
    if marker is not None and marker.ns:
        raise InvalidArgument("subject_delete_marker_ttl", marker, "can't be combined with mirror")
    if mirror.external is None:
        check_name("mirror.name", mirror.name)
        if mirror.name == config.name:
            raise InvalidArgument("mirror.name", mirror.name, "a stream can't mirror itself")
    _check_source("mirror", mirror)
    _check_transforms("mirror", mirror.subject_transforms or [], overlap=subjects_overlap)


def _check_sources(sources: Sequence[StreamSource]) -> None:
    seen: list[StreamSource] = []
    for index, source in enumerate(sources):
        where = f"sources[{index}]"
        check_name(f"{where}.name", source.name)
        if source in seen:
            raise InvalidArgument(where, source.name, "is the same source as one before it")
        seen.append(source)
        _check_source(where, source)
        _check_transforms(where, source.subject_transforms or [], overlap=_contain)


def _contain(a: str, b: str) -> bool:
    return is_subset(a, b) or is_subset(b, a)


def _check_source(where: str, source: StreamSource) -> None:
    _check_int(f"{where}.opt_start_seq", source.opt_start_seq, low=0, high=_MAX_UINT64)
    if source.filter_subject and source.subject_transforms:
        raise InvalidArgument(
            f"{where}.filter_subject", source.filter_subject, "can't be combined with subject_transforms"
        )
    if source.external is not None:
        for field, prefix in (("api", source.external.api), ("deliver", source.external.deliver)):
            if prefix:
                check_subject(f"{where}.external.{field}", prefix, wildcards=False)
        if source.external.api == "$JS.API":
            raise InvalidArgument(
                f"{where}.external.api", "$JS.API", "must not be this account's own API prefix"
            )
    feeder = source.consumer
    if feeder is None:
        return
    check_name(f"{where}.consumer.name", feeder.name or "")
    check_subject(f"{where}.consumer.deliver_subject", feeder.deliver_subject or "", wildcards=False)
    for field in ("opt_start_seq", "opt_start_time", "filter_subject"):
        if getattr(source, field):
            raise InvalidArgument(
                f"{where}.{field}", getattr(source, field), "can't be combined with consumer"
            )


def _check_transforms(
    where: str, transforms: Sequence[SubjectTransform], *, overlap: Callable[[str, str], bool]
) -> None:
    field = f"{where}.subject_transforms"
    for index, transform in enumerate(transforms):
        if transform.src:
            check_subject(field, transform.src)
        for other in transforms[:index]:
            if overlap(transform.src, other.src):
                raise InvalidArgument(field, transform.src, f"must not overlap with {other.src!r}")


def _check_stream_subjects(config: StreamConfig) -> None:
    subjects = config.subjects or []
    for index, subject in enumerate(subjects):
        check_subject("subjects", subject)
        if subject in subjects[:index]:
            raise InvalidArgument("subjects", subject, "is listed twice")
        if subject == ">":
            if not config.no_ack:
                raise InvalidArgument("subjects", subject, "capturing everything needs no_ack=True")
            if (config.num_replicas or 1) != 1:
                raise InvalidArgument("subjects", subject, "capturing everything needs num_replicas=1")
        if not config.no_ack:
            _check_api_space(subject)
        for other in subjects[:index]:
            if subjects_overlap(subject, other):
                raise InvalidArgument("subjects", subject, f"must not overlap with {other!r}")


def _check_api_space(subject: str) -> None:
    for space in _API_SPACES:
        if subjects_overlap(subject, space) and not is_subset(subject, "$JS.EVENT.>"):
            raise InvalidArgument(
                "subjects", subject, "overlaps with the JetStream API; that needs no_ack=True"
            )
    if subjects_overlap(subject, "$SYS.>") and not is_subset(subject, "$SYS.ACCOUNT.>"):
        raise InvalidArgument("subjects", subject, "overlaps with the system API; that needs no_ack=True")


def _check_republish(config: StreamConfig) -> None:
    republish = config.republish
    # With mapping functions only the server can judge the destination; and with a subject transform, ">" to
    # ">" has its own meaning.
    if republish is None or "{{" in republish.dest or config.subject_transform is not None:
        return
    subjects = config.subjects
    if not subjects:
        subjects = [] if config.mirror is not None or config.sources else [config.name]
    for subject in subjects:
        if subjects_overlap(republish.dest, subject):
            raise InvalidArgument(
                "republish.dest",
                republish.dest,
                f"overlaps with the stream's own subject {subject!r}: a cycle",
            )
    if republish.src and not has_wildcard(republish.src) and has_wildcard(republish.dest):
        raise InvalidArgument("republish.dest", republish.dest, "has wildcards that republish.src lacks")
