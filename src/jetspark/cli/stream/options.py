"""The options of ``stream add`` and ``stream edit``, and the config they make."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from jetspark import Placement, StreamConfig, StreamSource, SubjectTransform
from jetspark.cli.declare import flag_option, many_option, number_option, text_option
from jetspark.cli.errors import UsageError
from jetspark.cli.values import choice, duration, pairs, size, words
from jetspark.models import ConsumerLimits, RePublish

_RETENTION = {"limits": "limits", "interest": "interest", "work": "workqueue", "workqueue": "workqueue"}
_STORAGE = {"file": "file", "f": "file", "memory": "memory", "m": "memory"}


EDIT: dict[str, Any] = {
    "subjects": many_option("--subjects", "SUBJECT", "Subjects to capture; repeat, or use commas."),
    "description": text_option("--description", "TEXT", "Free text."),
    "retention": text_option("--retention", "POLICY", "limits, interest or work."),
    "discard": text_option("--discard", "POLICY", "What goes when a limit is reached: old or new."),
    "discard_per_subject": flag_option("discard-per-subject", "Apply discard new to each subject."),
    "max_msgs": number_option("--max-msgs", "Most messages; -1: no limit."),
    "max_msgs_per_subject": number_option("--max-msgs-per-subject", "Most messages of one subject."),
    "max_bytes": text_option("--max-bytes", "SIZE", "Most bytes, as 10GB; -1: no limit."),
    "max_age": text_option("--max-age", "DURATION", "Delete older messages, as 7d."),
    "max_msg_size": text_option("--max-msg-size", "SIZE", "Largest message."),
    "max_consumers": number_option("--max-consumers", "Most consumers."),
    "dupe_window": text_option("--dupe-window", "DURATION", "How long message ids are remembered."),
    "replicas": number_option("--replicas", "Servers that hold it, 1 to 5."),
    "compression": text_option("--compression", "KIND", "none or s2."),
    "source": many_option("--source", "STREAM", "Append the messages of this stream; may be repeated."),
    "allow_direct": flag_option("allow-direct", "Let any replica answer direct gets."),
    "allow_rollup": flag_option("allow-rollup", "Honour the Nats-Rollup header."),
    "allow_msg_ttl": flag_option("allow-msg-ttl", "Honour the Nats-TTL header (2.11)."),
    "allow_atomic": flag_option("allow-atomic", "Allow atomic batches (2.12)."),
    "allow_schedules": flag_option("allow-schedules", "Allow message schedules (2.12)."),
    "allow_batched": flag_option("allow-batched", "Allow fast ingest (2.14)."),
    "deny_delete": flag_option("deny-delete", "Refuse deletion of single messages; can't be undone."),
    "deny_purge": flag_option("deny-purge", "Refuse purges; can't be undone."),
    "ack": flag_option("ack", "Acknowledge publishes."),
    "marker_ttl": text_option(
        "--subject-del-markers-ttl", "DURATION", "Leave markers for expired subjects (2.11)."
    ),
    "transform_source": text_option("--transform-source", "SUBJECT", "Rewrite subjects that match this."),
    "transform_destination": text_option("--transform-destination", "SUBJECT", "What to rewrite them to."),
    "republish_source": text_option("--republish-source", "SUBJECT", "Publish what is stored of this again."),
    "republish_destination": text_option("--republish-destination", "SUBJECT", "Subject to publish it to."),
    "republish_headers": flag_option("republish-headers", "Republish without bodies."),
    "limit_inactive": text_option("--limit-consumer-inactive", "DURATION", "Bound of consumers' inactivity."),
    "limit_pending": number_option("--limit-consumer-max-pending", "Bound of consumers' ack pending."),
    "cluster": text_option("--cluster", "NAME", "Cluster to place it in."),
    "tag": many_option("--tag", "TAG", "Tag that its servers must have; may be repeated."),
    "metadata": many_option("--metadata", "KEY=VALUE", "Free pair; may be repeated."),
}
ADD: dict[str, Any] = {
    **EDIT,
    "storage": text_option("--storage", "KIND", "file or memory. Default: file."),
    "mirror": text_option("--mirror", "STREAM", "Be a copy of this stream; excludes subjects."),
    "first_sequence": number_option("--first-sequence", "Sequence of the first message."),
    "allow_counter": flag_option("allow-counter", "Every message is an increment (2.12)."),
    "persist_mode": text_option("--persist-mode", "MODE", "default or async (2.12)."),
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
        "max_msgs": given.get("max_msgs"),
        "max_msgs_per_subject": given.get("max_msgs_per_subject"),
        "max_consumers": given.get("max_consumers"),
        "num_replicas": given.get("replicas"),
        "first_seq": given.get("first_sequence"),
        "discard_new_per_subject": given.get("discard_per_subject"),
        "allow_direct": given.get("allow_direct"),
        "allow_rollup_hdrs": given.get("allow_rollup"),
        "allow_msg_ttl": given.get("allow_msg_ttl"),
        "allow_msg_counter": given.get("allow_counter"),
        "allow_atomic": given.get("allow_atomic"),
        "allow_msg_schedules": given.get("allow_schedules"),
        "allow_batched": given.get("allow_batched"),
        "deny_delete": given.get("deny_delete"),
        "deny_purge": given.get("deny_purge"),
        "subjects": words(given.get("subjects")) or None,
    }
    if given.get("ack") is not None:
        fields["no_ack"] = not given["ack"]
    for name, flag, known in (
        ("retention", "--retention", _RETENTION),
        ("storage", "--storage", _STORAGE),
        ("discard", "--discard", {"old": "old", "new": "new"}),
        ("compression", "--compression", {"none": "none", "s2": "s2"}),
        ("persist_mode", "--persist-mode", {"default": "default", "async": "async"}),
    ):
        if given.get(name) is not None:
            fields[name] = choice(flag, given[name], known)
    for option, field, flag in (
        ("max_age", "max_age", "--max-age"),
        ("dupe_window", "duplicate_window", "--dupe-window"),
        ("marker_ttl", "subject_delete_marker_ttl", "--subject-del-markers-ttl"),
    ):
        if given.get(option) is not None:
            fields[field] = duration(flag, given[option])
    for option, flag in (("max_bytes", "--max-bytes"), ("max_msg_size", "--max-msg-size")):
        if given.get(option) is not None:
            fields[option] = size(flag, given[option])
    if given.get("metadata"):
        fields["metadata"] = pairs("--metadata", given["metadata"])
    fields.update(_nested(given))
    return {name: value for name, value in fields.items() if value is not None}


def _nested(given: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if given.get("mirror"):
        fields["mirror"] = StreamSource(name=given["mirror"])
    if given.get("source"):
        fields["sources"] = [StreamSource(name=name) for name in words(given["source"])]
    if given.get("cluster") or given.get("tag"):
        fields["placement"] = Placement(cluster=given.get("cluster"), tags=words(given.get("tag")) or None)
    source, destination = given.get("transform_source"), given.get("transform_destination")
    if source or destination:
        if not destination:
            raise UsageError("--transform-source needs --transform-destination")
        fields["subject_transform"] = SubjectTransform(src=source or ">", dest=destination)
    source, destination = given.get("republish_source"), given.get("republish_destination")
    if source or destination:
        if not destination:
            raise UsageError("--republish-source needs --republish-destination")
        fields["republish"] = RePublish(
            src=source, dest=destination, headers_only=given.get("republish_headers")
        )
    if given.get("limit_inactive") or given.get("limit_pending") is not None:
        inactive = given.get("limit_inactive")
        fields["consumer_limits"] = ConsumerLimits(
            inactive_threshold=duration("--limit-consumer-inactive", inactive) if inactive else None,
            max_ack_pending=given.get("limit_pending"),
        )
    return fields


def new_config(name: str | None, given: dict[str, Any]) -> StreamConfig:
    """The config of a new stream. Direct gets are on unless asked otherwise: reading is faster with them."""
    fields = changes(given)
    if given.get("config") is not None:
        wire = read_config(given["config"])
        if name is not None:
            wire["name"] = name
        if not wire.get("name"):
            raise UsageError("give the stream's name: jetspark stream add NAME --config FILE")
        return StreamConfig.from_wire(wire).replace(**fields)
    if name is None:
        raise UsageError("give the stream's name: jetspark stream add NAME --subjects SUBJECT")
    if not fields.get("subjects") and "mirror" not in fields and "sources" not in fields:
        raise UsageError("give --subjects, --mirror or --source: what should the stream store?")
    fields.setdefault("allow_direct", True)
    return StreamConfig(name=name, **fields)


def read_config(path: Path) -> dict[str, Any]:
    """A config out of a JSON file: the config alone, or a whole ``info --json``."""
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"--config: {path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"--config: {path} must hold a JSON object")
    inner = document.get("config")
    return dict(inner) if isinstance(inner, dict) else document
