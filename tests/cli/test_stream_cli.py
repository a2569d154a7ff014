"""``jetspark stream``: text, JSON, and what it does to the server."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest

from support.helpers import eventually_sync, unique

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Open, Run
    from jetspark.server import Server


def test_ls_as_columns_names_and_json(cli: Run, stream: str) -> None:
    subject = f"{stream}.eu"
    ran = cli("stream", "ls", "--subject", subject)
    heading, row = ran.out.splitlines()
    assert heading.split() == ["Name", "Subjects", "Messages", "Size", "Consumers", "Last", "message"]
    assert row.split()[:3] == [stream, f"{stream}.>", "3"]
    assert cli("s", "list", "-n", "--subject", subject).out == f"{stream}\n"
    assert cli("stream", "ls", "-n", "--json", "--subject", subject).json == [stream]
    (info,) = cli("stream", "ls", "--json", "--subject", subject).json
    assert info["config"]["name"] == stream
    assert info["state"]["messages"] == 3


def test_ls_of_nothing_is_no_failure_and_an_empty_list(cli: Run) -> None:
    ran = cli("stream", "ls", "--subject", unique("nobody"))
    assert (ran.code, ran.out) == (0, "")
    assert "jetspark stream add" in ran.err
    assert cli("stream", "ls", "--json", "--subject", unique("nobody")).json == []


def test_info_and_subjects(cli: Run, stream: str) -> None:
    text = cli("stream", "info", stream).out
    assert f"Stream {stream}, created 20" in text
    for part in ("Subjects: ", "Retention: limits", "Storage: memory", "Messages: 3", "Allows: direct get"):
        assert part in text
    info = cli("stream", "info", stream, "--json").json
    assert info["config"]["allow_direct"] is True
    assert info["state"]["last_seq"] == 3
    assert cli("stream", "subjects", stream, "--json").json == {f"{stream}.eu": 3}
    assert cli("stream", "subjects", stream).out.splitlines()[1].split() == [f"{stream}.eu", "3"]


def test_add_takes_every_option(cli: Run) -> None:
    name = unique("ALL")
    flags = (
        f"--subjects {name}.a,{name}.b --subjects {name}.c --description words --retention limits "
        "--discard new --storage file "
        "--discard-per-subject --max-msgs 1000 --max-msgs-per-subject 10 --max-bytes 1MB --max-age 1d12h "
        "--max-msg-size 64KB --max-consumers 5 --dupe-window 90s --replicas 1 --compression s2 "
        "--allow-rollup --allow-msg-ttl --allow-atomic --allow-batched --deny-delete --no-allow-direct "
        f"--republish-source {name}.a --republish-destination copy.{name} --republish-headers "
        f"--transform-source {name}.b --transform-destination {name}.c --first-sequence 7 "
        "--limit-consumer-inactive 1h --limit-consumer-max-pending 50 --metadata team=eu --metadata tier=1"
    )
    ran = cli("stream", "add", name, "--json", *flags.split())
    assert ran.code == 0, ran.err
    config = ran.json["config"]
    expected = {
        "subjects": [f"{name}.a", f"{name}.b", f"{name}.c"],
        "description": "words",
        "discard": "new",
        "discard_new_per_subject": True,
        "max_msgs": 1000,
        "max_msgs_per_subject": 10,
        "max_bytes": 1 << 20,
        "max_age": 129_600 * 10**9,
        "max_msg_size": 64 << 10,
        "max_consumers": 5,
        "duplicate_window": 90 * 10**9,
        "compression": "s2",
        "storage": "file",
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": True,
        "allow_atomic": True,
        "allow_batched": True,
        "deny_delete": True,
        "allow_direct": False,
        "first_seq": 7,
        "republish": {"src": f"{name}.a", "dest": f"copy.{name}", "headers_only": True},
        "subject_transform": {"src": f"{name}.b", "dest": f"{name}.c"},
        "consumer_limits": {"inactive_threshold": 3600 * 10**9, "max_ack_pending": 50},
    }
    assert {key: config[key] for key in expected} == expected
    assert config["metadata"]["team"] == "eu"
    text = cli("stream", "info", name).out
    assert "Allows: rollup, message TTL, atomic batch, fast ingest" in text
    assert "Refuses: delete" in text


def test_a_mirror_a_source_and_a_config_out_of_a_file(cli: Run, stream: str, tmp_path: Path) -> None:
    mirror, joined, again = unique("MIR"), unique("SRC"), unique("CFG")
    assert cli("stream", "add", mirror, "--mirror", stream).code == 0
    assert cli("stream", "add", joined, "--source", stream).code == 0
    assert f"Mirror of: {stream}" in cli("stream", "info", mirror).out
    assert f"Source: {stream}" in cli("stream", "info", joined).out
    file = tmp_path / "config.json"
    file.write_text(cli("stream", "info", joined, "--json").out)
    made = cli("stream", "add", again, "--config", str(file), "--max-msgs", "9", "--json")
    assert made.json["config"]["sources"][0]["name"] == stream
    assert made.json["config"]["max_msgs"] == 9
    file.write_text("nonsense")
    refused = cli("stream", "add", again, "--config", str(file))
    assert refused.code == 2
    assert "is not JSON" in refused.err


def test_edit_changes_only_what_is_said(cli: Run, stream: str) -> None:
    before = cli("stream", "info", stream, "--json").json["config"]
    dry = cli("stream", "edit", stream, "--max-age", "1h", "--dry-run")
    assert dry.code == 0
    assert "max_age: 0 -> 3600000000000" in dry.err or "max_age: unset -> 3600000000000" in dry.err
    assert cli("stream", "info", stream, "--json").json["config"] == before
    assert cli("stream", "edit", stream, "--max-age", "1h", "--force", "--json").code == 0
    after = cli("stream", "info", stream, "--json").json["config"]
    assert {key for key in after if after[key] != before.get(key)} == {"max_age"}
    assert "like that already" in cli("stream", "edit", stream, "--max-age", "1h", "--force").err


def test_get_view_delete_purge_remove(cli: Run, stream: str) -> None:
    found = cli("stream", "get", stream, "2", "--json").json
    assert (found["seq"], found["data"], found["headers"]) == (2, "order 2", {"No": ["2"]})
    assert cli("stream", "get", stream, "--last-for", f"{stream}.eu", "--raw").out == "order 3\n"
    assert f"[1] {stream}.eu @ " in cli("stream", "get", stream, "1").out
    assert [one["seq"] for one in cli("stream", "view", stream, "2", "--json").lines] == [1, 2]
    assert [one["seq"] for one in cli("stream", "view", stream, "1", "--all", "--json").lines] == [1, 2, 3]
    assert [one["seq"] for one in cli("stream", "view", stream, "--id", "3", "--json").lines] == [3]
    assert cli("stream", "view", stream, "--since", "1h", "--raw").out.split("\n")[0] == "order 1"
    assert "no messages there" in cli("stream", "view", stream, "--subject", f"{stream}.us").err
    assert cli("stream", "rmm", stream, "2", "--force").out == f"deleted message 2 of {stream}\n"
    assert [one["seq"] for one in cli("stream", "view", stream, "--json").lines] == [1, 3]
    assert cli("stream", "purge", stream, "--keep", "1", "--force", "--json").json["purged"] == 1
    assert cli("stream", "purge", stream, "--force").out == f"removed 1 messages from {stream}\n"
    assert cli("stream", "rm", stream, "--force", "--json").json == {"stream": stream, "deleted": True}
    assert cli("stream", "info", stream).code == 1


def test_bodies_that_are_no_text(cli: Run, stream: str) -> None:
    sent = cli("pub", f"{stream}.bin", "--js", stdin=b"\x00\xff\xfe")
    assert sent.code == 0, sent.err
    found = cli("stream", "get", stream, "4", "--json").json
    assert found["data_base64"] == "AP/+"
    assert "\\xff" in cli("stream", "get", stream, "4").out


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("direct", ["--allow-direct", "--no-allow-direct"])
def test_copy_and_restore_are_each_other_s_inverse(cli: Run, tmp_path: Path, kind: str, direct: str) -> None:
    name = unique("COPY")
    assert cli("stream", "add", name, "--subjects", f"{name}.>", direct, "--description", "kept").code == 0
    cli("pub", f"{name}.a", "n {{Count}}", "--count", "700", "--js", "-H", "K: 1", "-H", "K: 2", "-H", "k: 3")
    cli("pub", f"{name}.bin", "--js", stdin=b"\xff\x00")
    file = tmp_path / f"out.{kind}"
    report = cli("stream", "copy", name, str(file), "--json").json
    assert (report["messages"], report["format"]) == (701, kind)
    assert not list(tmp_path.glob("*.partial"))
    before = cli("stream", "view", name, "--all", "--json").lines
    assert before[0]["headers"] == {"K": ["1", "2"], "k": ["3"]}
    assert cli("stream", "rm", name, "--force").code == 0
    done = cli("stream", "restore", str(file), "--json")
    assert done.code == 0, done.err
    assert (done.json["messages"], done.json["created"], done.json["duplicates"]) == (701, True, 0)
    after = cli("stream", "view", name, "--all", "--json").lines
    own = {"Nats-Msg-Id", "Nats-Expected-Stream"}
    for old, new in zip(before, after, strict=True):
        for key in ("seq", "subject", "data", "data_base64"):
            assert old.get(key) == new.get(key)
        assert old.get("headers", {}) == {k: v for k, v in new["headers"].items() if k not in own}
    assert cli("stream", "info", name, "--json").json["config"]["description"] == "kept"
    again = cli("stream", "restore", str(file))
    assert "701 were already there" in again.err
    assert cli("stream", "info", name, "--json").json["state"]["messages"] == 701


def test_copy_of_a_work_queue_takes_nothing_from_it(cli: Run, tmp_path: Path) -> None:
    name = unique("WORK")
    cli("stream", "add", name, "--subjects", f"{name}.>", "--retention", "work", "--no-allow-direct")
    cli("pub", f"{name}.a", "x", "--count", "5", "--js")
    assert cli("stream", "copy", name, str(tmp_path / "w.jsonl"), "--json").json["messages"] == 5
    assert cli("stream", "info", name, "--json").json["state"]["messages"] == 5


def test_copy_in_part_to_stdout_and_restore_from_stdin_elsewhere(cli: Run, stream: str) -> None:
    cli("pub", f"{stream}.us", "other", "--js")
    copied = cli("stream", "copy", stream, "-", "--subject", f"{stream}.eu", "--id", "2")
    assert copied.code == 0, copied.err
    head, *messages = copied.lines
    assert head["jetspark_export"] == 1
    assert [one["seq"] for one in messages] == [2, 3]
    # The subjects belong to another stream, which must not get them a second time.
    target = unique("ELSE")
    cli("stream", "add", target, "--subjects", target)
    refused = cli("stream", "restore", "-", "--stream", target, stdin=copied.out.encode())
    assert refused.code == 1
    assert "expected stream" in refused.err
    assert cli("stream", "info", stream, "--json").json["state"]["messages"] == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no stream in line 1"),
        ('{"a": 1}\n', "no stream in line 1"),
        ('{"jetspark_export": 99}\n', "has version 99"),
        (
            '{"jetspark_export": 1, "config": {"name": "HURT_X", "subjects": ["hurt.x"]}}\n{"seq": 1}\n',
            "line 2",
        ),
    ],
)
def test_restore_of_something_else(cli: Run, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(text)
    ran = cli("stream", "restore", str(file))
    assert ran.code == 1
    assert message in ran.err
    parquet = tmp_path / "in.parquet"
    parquet.write_bytes(b"not one")
    ran = cli("stream", "restore", str(parquet))
    assert (ran.code, "is not a parquet file" in ran.err) == (1, True)


def test_copy_does_not_overwrite_unless_told(cli: Run, stream: str, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text("mine")
    refused = cli("stream", "copy", stream, str(file))
    assert (refused.code, file.read_text()) == (2, "mine")
    assert "--force" in refused.err
    assert cli("stream", "copy", stream, str(file), "--force").code == 0
    assert json.loads(file.read_text().splitlines()[0])["config"]["name"] == stream


def test_a_terminal_gets_frames_and_questions(cli: Run, terminal: Open, stream: str) -> None:
    with terminal("stream", "rm", stream) as shown:
        shown.expect(f"Delete stream {stream} with 3 messages? [y/N]")
        shown.press("n\n")
        ran = shown.end()
    assert ran.code == 1
    assert "not confirmed; nothing was changed" in ran.out
    with terminal("stream", "view", stream, "2") as shown:
        shown.expect("-- 2 shown; Enter: more, q: end")
        assert "order 3" not in shown.text
        shown.press("\n")
        shown.expect("order 3")
        assert shown.end().code == 0
    with terminal("stream", "ls", "--subject", f"{stream}.eu") as shown:
        ran = shown.end()
    assert "╭" in ran.out
    assert "\x1b[" in shown.raw
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    with terminal("stream", "rm", stream) as shown:
        shown.expect("[y/N]")
        shown.press("y\n")
        assert shown.end().code == 0
    assert cli("stream", "info", stream).code == 1


def test_ids_that_came_twice_are_restored_twice(cli: Run, tmp_path: Path) -> None:
    name = unique("TWICE")
    # A window so short that the second of the two is stored as well.
    cli("stream", "add", name, "--subjects", name, "--dupe-window", "100ms")

    def stored(body: str) -> bool:
        sent = cli("pub", name, body, "--js", "--msg-id", "same", "--json")
        return not sent.json["acks"][0]["duplicate"]

    assert stored("one")
    eventually_sync(lambda: stored("two"))
    wide = ("--dupe-window", "2m", "--force")
    assert cli("stream", "edit", name, *wide).code == 0
    file = tmp_path / "twice.jsonl"
    cli("stream", "copy", name, str(file))
    cli("stream", "rm", name, "--force")
    assert cli("stream", "restore", str(file), "--json").json["duplicates"] == 0
    assert [one["data"] for one in cli("stream", "view", name, "--json").lines] == ["one", "two"]


def test_a_restore_into_a_purged_stream_stores_nothing_and_says_so(
    cli: Run, stream: str, tmp_path: Path
) -> None:
    """The stream has no message and knows all ids: it "succeeded" with 0 stored."""
    file = tmp_path / "purged.jsonl"
    cli("stream", "copy", stream, str(file))
    first = cli("stream", "restore", str(file), "--stream", stream, "--new-ids", "--json").json
    assert (first["messages"], first["stored"], first["duplicates"], first["missing"]) == (3, 3, 0, 0)
    cli("stream", "purge", stream, "--force")
    cli("stream", "restore", str(file), "--stream", stream)
    there = cli("stream", "restore", str(file), "--stream", stream)
    assert there.code == 0
    assert "restored 0 of 3 messages" in there.err
    assert "3 were already there" in there.err
    cli("stream", "purge", stream, "--force")
    refused = cli("stream", "restore", str(file), "--stream", stream, "--json")
    assert refused.code == 1
    assert (refused.json["stored"], refused.json["duplicates"], refused.json["missing"]) == (0, 3, 3)
    assert "3 messages are not in stream" in refused.err
    assert "--new-ids" in refused.err
    assert cli("stream", "restore", str(file), "--stream", stream, "--new-ids").code == 0
    assert cli("stream", "info", stream, "--json").json["state"]["messages"] == 3


def test_odd_bytes_of_others_break_nothing(
    cli: Run, server: Server, terminal: Open, stream: str, tmp_path: Path
) -> None:
    block = b"NATS/1.0\r\nOdd: \xff\x1b[31m\r\n\r\n"
    body = b"\x1b[31mhi"
    with socket.create_connection((server.host, server.port)) as plain:
        plain.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
        head = b"HPUB %s.odd %d %d\r\n" % (stream.encode(), len(block), len(block) + len(body))
        plain.sendall(head + block + body + b"\r\n")
        eventually_sync(lambda: cli("stream", "info", stream, "--json").json["state"]["messages"] == 4)
    assert cli("stream", "get", stream, "4", "--json").json["headers"]["Odd"] == ["\ufffd\x1b[31m"]
    assert "Odd: \\udcff" in cli("stream", "get", stream, "4").out
    for kind in ("jsonl", "parquet"):
        assert cli("stream", "copy", stream, str(tmp_path / f"o.{kind}"), "--json").json["messages"] == 4
    with terminal("stream", "get", stream, "4") as shown:
        assert shown.end().code == 0
    # Colours of a message stay letters: nobody paints another's terminal.
    assert "\\x1b[31mhi" in shown.raw
    assert "\x1b[31m" not in shown.raw
