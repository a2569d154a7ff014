"""``jetspark consumer``: text, JSON, and what it does to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.helpers import eventually_sync

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Open, Run


def test_add_ls_info_edit_rm(cli: Run, stream: str) -> None:
    made = cli("consumer", "add", stream, "worker", "--filter", f"{stream}.eu", "--wait", "1m", "--json")
    assert made.code == 0, made.err
    assert made.json["config"]["durable_name"] == "worker"
    assert made.json["config"]["filter_subject"] == f"{stream}.eu"
    assert cli("con", "ls", stream, "-n").out == "worker\n"
    assert cli("consumer", "ls", stream, "--json").json[0]["num_pending"] == 3
    assert cli("consumer", "ls", stream).out.splitlines()[1].split() == [
        "worker", "explicit", "3", "0", "0", "0",
    ]  # fmt: skip
    text = cli("consumer", "info", stream, "worker").out
    for part in (f"Consumer worker of {stream}", "Kind: pull", "Ack wait: 1m0s", "Unprocessed: 3"):
        assert part in text
    dry = cli("consumer", "edit", stream, "worker", "--wait", "2m", "--dry-run", "--json")
    assert dry.json["ack_wait"] == 120 * 10**9
    edited = cli("consumer", "edit", stream, "worker", "--max-deliver", "4", "--force", "--json")
    assert (edited.json["config"]["max_deliver"], edited.json["config"]["ack_wait"]) == (4, 60 * 10**9)
    assert cli("consumer", "rm", stream, "worker", "--force").out == f"deleted consumer worker of {stream}\n"
    assert "no consumers" in cli("consumer", "ls", stream).err


def test_add_takes_every_option(cli: Run, stream: str, tmp_path: Path) -> None:
    flags = (
        f"--filter {stream}.a --filter {stream}.b --description words --max-deliver 6 --max-pending 9 "
        "--backoff 1s,5s --sample 30 --headers-only --inactive-threshold 1h --max-pull-batch 50 "
        "--max-pull-expire 30s --max-pull-bytes 1MB --replicas 1 --metadata a=b --ack explicit --deliver 2 "
        "--replay original --max-waiting 7 --memory --pause 1h --pinned-groups g"
    )
    ran = cli("consumer", "add", stream, "full", "--json", *flags.split())
    assert ran.code == 0, ran.err
    config = ran.json["config"]
    expected = {
        "filter_subjects": [f"{stream}.a", f"{stream}.b"],
        "description": "words",
        "max_deliver": 6,
        "max_ack_pending": 9,
        "backoff": [10**9, 5 * 10**9],
        "sample_freq": "30",
        "headers_only": True,
        "inactive_threshold": 3600 * 10**9,
        "max_batch": 50,
        "max_expires": 30 * 10**9,
        "max_bytes": 1 << 20,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": 2,
        "replay_policy": "original",
        "max_waiting": 7,
        "mem_storage": True,
        "priority_groups": ["g"],
        "priority_policy": "pinned_client",
    }
    assert {key: config[key] for key in expected} == expected
    assert ran.json["paused"] is True
    file = tmp_path / "consumer.json"
    file.write_text(ran.out)
    copied = cli("consumer", "add", stream, "copied", "--config", str(file), "--json").json
    assert copied["name"] == "copied"
    assert copied["config"]["max_waiting"] == 7


@pytest.mark.parametrize(
    ("where", "field", "value"),
    [
        ("all", "deliver_policy", "all"),
        ("new", "deliver_policy", "new"),
        ("last", "deliver_policy", "last"),
        ("subject", "deliver_policy", "last_per_subject"),
        ("3", "opt_start_seq", 3),
        ("1h", "deliver_policy", "by_start_time"),
        ("2026-01-31T12:00:00Z", "opt_start_time", "2026-01-31T12:00:00Z"),
    ],
)
def test_where_a_consumer_starts(cli: Run, stream: str, where: str, field: str, value: object) -> None:
    args = ("--filter", f"{stream}.>", "--deliver", where, "--json")
    assert cli("consumer", "add", stream, "--ephemeral", *args).json["config"][field] == value


def test_a_push_consumer_is_made_and_refuses_pulls(cli: Run, stream: str) -> None:
    made = cli(
        "consumer", "add", stream, "push", "--target", f"to.{stream}", "--heartbeat", "5s", "--flow-control"
    )
    assert f"Kind: push to to.{stream}" in made.out
    ran = cli("consumer", "next", stream, "push")
    assert ran.code == 1
    assert "push" in ran.err


def test_next_and_its_acks(cli: Run, stream: str) -> None:
    cli("consumer", "add", stream, "w")

    def pending(*expected: int) -> None:
        # The server takes acks in its own time.
        def found() -> bool:
            info = cli("consumer", "info", stream, "w", "--json").json
            return (info["num_pending"], info["num_ack_pending"]) == expected

        eventually_sync(found, 20)

    assert "order 1" in cli("consumer", "next", stream, "w").out
    pending(2, 0)
    (one,) = cli("consumer", "next", stream, "w", "--no-ack", "--json").lines
    assert (one["seq"], one["data"], one["num_delivered"]) == (2, "order 2", 1)
    pending(1, 1)
    assert cli("consumer", "next", stream, "w", "--raw", "--ack-mode", "sync").out == "order 3\n"
    pending(0, 1)
    ran = cli("consumer", "next", stream, "w", "--wait", "100ms")
    assert ran.code == 1
    assert "no message within 100ms" in ran.err
    assert cli("consumer", "reset", stream, "w", "--seq", "1", "--force", "--json").json["num_pending"] == 3
    assert "order 1" in cli("consumer", "next", stream, "w", "--ack-mode", "nak").out
    again = cli("consumer", "next", stream, "w", "--ack-mode", "term", "--count", "3", "--json").lines
    assert sorted(one["num_delivered"] for one in again) == [1, 1, 2]
    pending(0, 0)


def test_consume_ends_after_the_count(cli: Run, stream: str) -> None:
    cli("consumer", "add", stream, "w")
    ran = cli("consumer", "consume", stream, "w", "--count", "3", "--json")
    assert [one["data"] for one in ran.lines] == ["order 1", "order 2", "order 3"]
    info = ("consumer", "info", stream, "w", "--json")
    eventually_sync(lambda: cli(*info).json["ack_floor"]["stream_seq"] == 3, 20)


def test_pause_and_resume(cli: Run, stream: str) -> None:
    cli("consumer", "add", stream, "w")
    assert cli("consumer", "pause", stream, "w", "1h", "--force").out.startswith("paused w until 20")
    assert "Paused for: 59m" in cli("consumer", "info", stream, "w").out
    assert cli("consumer", "resume", stream, "w").out == "resumed w\n"
    paused = cli("consumer", "pause", stream, "w", "1h", "--force", "--json").json
    assert (paused["consumer"], paused["paused"]) == ("w", True)
    assert cli("consumer", "resume", stream, "w", "--json").json["paused"] is False
    past = cli("consumer", "pause", stream, "w", "2020-01-01", "--force")
    assert past.code == 1
    assert "is not paused" in past.err


def test_ctrl_c_ends_consume_in_order(cli: Run, terminal: Open, stream: str) -> None:
    cli("consumer", "add", stream, "w")
    with terminal("consumer", "sub", stream, "w") as shown:
        shown.expect("order 3")
        shown.press("\x03")
        ran = shown.end()
    assert ran.code == 0
    assert "Traceback" not in ran.out

    # What was printed was acked, which the server may take in a moment later, as it does the end of the pull.
    def settled() -> bool:
        info = cli("consumer", "info", stream, "w", "--json").json
        return (info["ack_floor"]["stream_seq"], info["num_waiting"]) == (3, 0)

    eventually_sync(settled, 20)
