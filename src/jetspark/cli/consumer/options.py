"""The options of ``consumer add`` and ``consumer edit``, and the config they make."""

from pathlib import Path
from typing import Annotated, Any

import typer

from jetspark import ConsumerConfig
from jetspark.cli.declare import flag_option, many_option, number_option, text_option
from jetspark.cli.errors import UsageError
from jetspark.cli.stream.options import read_config
from jetspark.cli.values import choice, duration, moment, pairs, size, words

_ACK = {"explicit": "explicit", "none": "none", "all": "all"}
_DELIVER = {"all": "all", "new": "new", "last": "last", "subject": "last_per_subject", "1": "all"}

EDIT: dict[str, Any] = {
    "description": text_option("--description", "TEXT", "Free text."),
    "filter": many_option("--filter", "SUBJECT", "Deliver only this; may be repeated."),
    "wait": text_option("--wait", "DURATION", "Time for an ack before it is delivered again."),
    "max_deliver": number_option("--max-deliver", "Most deliveries of one message."),
    "max_pending": number_option("--max-pending", "Most messages without an ack."),
    "backoff": many_option("--backoff", "DURATION", "Waits before redelivery; repeat, or use commas."),
    "sample": number_option("--sample", "Percentage of acks to publish a metric for."),
    "headers_only": flag_option("headers-only", "Deliver no bodies."),
    "inactive_threshold": text_option(
        "--inactive-threshold", "DURATION", "Remove it when unused for this long."
    ),
    "max_pull_batch": number_option("--max-pull-batch", "Largest batch of one pull."),
    "max_pull_expire": text_option("--max-pull-expire", "DURATION", "Longest expiry of one pull."),
    "max_pull_bytes": text_option("--max-pull-bytes", "SIZE", "Most bytes of one pull."),
    "replicas": number_option("--replicas", "Replicas of its state."),
    "metadata": many_option("--metadata", "KEY=VALUE", "Free pair; may be repeated."),
}
ADD: dict[str, Any] = {
    **EDIT,
    "ack": text_option("--ack", "POLICY", "explicit, none or all. Default: explicit."),
    "deliver": text_option(
        "--deliver", "WHERE", "Start at all, new, last, subject (last of each), a sequence, a time or 1h."
    ),
    "replay": text_option("--replay", "HOW", "instant or original."),
    "ephemeral": Annotated[
        bool | None, typer.Option("--ephemeral", help="Remove it when unused.", show_default=False)
    ],
    "pull": Annotated[
        bool | None, typer.Option("--pull", hidden=True, help="Accepted: pull is the default.")
    ],
    "target": text_option("--target", "SUBJECT", "Push to this subject."),
    "deliver_group": text_option("--deliver-group", "NAME", "Queue group of a push consumer."),
    "heartbeat": text_option("--heartbeat", "DURATION", "Push: send a heartbeat when idle."),
    "flow_control": flag_option("flow-control", "Push: pace by the client's answers."),
    "max_waiting": number_option("--max-waiting", "Most pulls that may wait."),
    "memory": flag_option("memory", "Keep its state in memory."),
    "pause": text_option(
        "--pause", "TIME", "Deliver nothing for this long, or until this time (UTC without a zone; 2.11)."
    ),
    "pinned_groups": text_option("--pinned-groups", "NAME", "Priority group, pinned client (2.11)."),
    "overflow_groups": text_option("--overflow-groups", "NAME", "Priority group, overflow (2.11)."),
    "prioritized_groups": text_option("--prioritized-groups", "NAME", "Priority group, prioritized (2.12)."),
    "config": Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="JSON config to start from, as info --json shows it."),
    ],
    "defaults": Annotated[
        bool | None, typer.Option("--defaults", hidden=True, help="Accepted for habit: we never ask.")
    ],
}


def changes(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of the config that the options set."""
    fields: dict[str, Any] = {
        "description": given.get("description"),
        "max_deliver": given.get("max_deliver"),
        "max_ack_pending": given.get("max_pending"),
        "headers_only": given.get("headers_only"),
        "max_batch": given.get("max_pull_batch"),
        "num_replicas": given.get("replicas"),
        "max_waiting": given.get("max_waiting"),
        "mem_storage": given.get("memory"),
        "deliver_subject": given.get("target"),
        "deliver_group": given.get("deliver_group"),
        "flow_control": given.get("flow_control"),
    }
    for option, field, flag in (
        ("wait", "ack_wait", "--wait"),
        ("inactive_threshold", "inactive_threshold", "--inactive-threshold"),
        ("max_pull_expire", "max_expires", "--max-pull-expire"),
        ("heartbeat", "idle_heartbeat", "--heartbeat"),
    ):
        if given.get(option) is not None:
            fields[field] = duration(flag, given[option])
    if given.get("max_pull_bytes") is not None:
        fields["max_bytes"] = size("--max-pull-bytes", given["max_pull_bytes"])
    if given.get("sample") is not None:
        fields["sample_freq"] = str(given["sample"])
    if given.get("backoff"):
        fields["backoff"] = [duration("--backoff", word) for word in words(given["backoff"])]
    if given.get("metadata"):
        fields["metadata"] = pairs("--metadata", given["metadata"])
    if given.get("ack") is not None:
        fields["ack_policy"] = choice("--ack", given["ack"], _ACK)
    if given.get("replay") is not None:
        fields["replay_policy"] = choice(
            "--replay", given["replay"], {"instant": "instant", "original": "original"}
        )
    if given.get("deliver") is not None:
        fields.update(_start(given["deliver"]))
    if given.get("pause") is not None:
        fields["pause_until"] = moment("--pause", given["pause"], past=False)
    for option, policy in (
        ("pinned_groups", "pinned_client"),
        ("overflow_groups", "overflow"),
        ("prioritized_groups", "prioritized"),
    ):
        if given.get(option) is not None:
            fields["priority_groups"], fields["priority_policy"] = words([given[option]]), policy
    filters = words(given.get("filter"))
    found = {name: value for name, value in fields.items() if value is not None}
    if filters:
        # A single filter goes into the request's subject, where permissions apply to it.
        found["filter_subject"] = filters[0] if len(filters) == 1 else None
        found["filter_subjects"] = filters if len(filters) > 1 else None
    return found


def _start(text: str) -> dict[str, Any]:
    policy = _DELIVER.get(text.lower())
    if policy is not None:
        return {"deliver_policy": policy}
    if text.isdigit():
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(text)}
    try:
        when = moment("--deliver", text, past=True)
    except UsageError:
        raise UsageError(
            f"invalid --deliver {text!r}; use all, new, last, subject, a sequence, a time or an age (1h)"
        ) from None
    return {"deliver_policy": "by_start_time", "opt_start_time": when}


def new_config(name: str | None, given: dict[str, Any]) -> ConsumerConfig:
    """The config of a new consumer: durable when it has a name, unless asked otherwise."""
    fields = changes(given)
    ephemeral = bool(given.get("ephemeral"))
    if given.get("config") is not None:
        wire = read_config(given["config"])
        wire.pop("pause_until", None)
        if name is not None:
            wire.pop("durable_name", None)
            wire["name"] = name
            if not ephemeral:
                wire["durable_name"] = name
        return ConsumerConfig.from_wire(wire).replace(**fields)
    if name is None and not ephemeral:
        raise UsageError("give the consumer's name, or --ephemeral for one that is removed when unused")
    return ConsumerConfig(name=name, durable_name=None if ephemeral else name, **fields)
