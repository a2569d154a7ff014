"""``jetspark pub``, ``sub``, ``req``, ``reply``."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from support.cli_runner import SCRIPT
from support.helpers import eventually_sync, unique

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Open, Run


def bodies(cli: Run, stream: str) -> list[str]:
    return [one["data"] for one in cli("stream", "view", stream, "--all", "--json").lines][3:]


def test_one_message_with_an_ack(cli: Run, stream: str) -> None:
    assert cli("pub", f"{stream}.a", "x", "--js").out == f"stored in stream {stream}, sequence 4\n"
    first = cli("pub", f"{stream}.a", "x", "-J", "--msg-id", "one", "--json").json
    assert first["acks"] == [{"stream": stream, "seq": 5, "duplicate": False}]
    again = cli("pub", f"{stream}.a", "x", "--jetstream", "--msg-id", "one")
    assert "a duplicate: nothing was stored" in again.out
    assert cli("pub", f"{stream}.a", "", "--js", "--quiet").out == ""
    assert bodies(cli, stream) == ["x", "x", ""]


def test_placeholders(cli: Run, stream: str) -> None:
    args = ("--count", "3", "--js", "--msg-id", "{{ID}}", "-H", "N: {{Count}}", "--json")
    ran = cli("pub", stream + ".{{Count}}", "{{Count}} {{Random 4}} {{Random 2 3}}", *args)
    assert len(ran.json["acks"]) == 3
    stored = cli("stream", "view", stream, "--id", "4", "--json").lines
    assert [one["subject"] for one in stored] == [f"{stream}.{n}" for n in (1, 2, 3)]
    assert [one["headers"]["N"] for one in stored] == [["1"], ["2"], ["3"]]
    number, four, few = stored[1]["data"].split()
    assert (number, len(four), len(few) in (2, 3)) == ("2", 4, True)
    cli("pub", f"{stream}.plain", "{{Count}}", "--no-templates", "--js")
    assert bodies(cli, stream)[-1] == "{{Count}}"
    times = cli("pub", f"{stream}.t", "{{Unix}} {{UnixNano}} {{Time}} {{TimeStamp}}", "--js")
    assert times.code == 0
    unix, nano, *_ = bodies(cli, stream)[-1].split()
    assert nano.startswith(unix[:8])


def test_stdin_and_files(cli: Run, stream: str, tmp_path: Path) -> None:
    assert cli("pub", f"{stream}.a", "--js", stdin=b"a\nb\n").code == 0
    lines = cli("pub", f"{stream}.a", "--js", "--send-on", "newline", "--json", stdin=b"c\r\nd\n")
    assert lines.json["published"] == 2
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("e\nf\n")
    two.write_text("g")
    assert cli("pub", f"{stream}.a", "--js", "--file", str(one), "--file", str(two)).code == 0
    assert cli("pub", f"{stream}.a", "--js", "--file", str(one), "--send-on", "newline").code == 0
    assert bodies(cli, stream) == ["a\nb\n", "c", "d", "e\nf\n", "g", "e", "f"]
    nothing = cli("pub", f"{stream}.a", "--js", "--send-on", "newline", "--json", stdin=b"")
    assert nothing.json["published"] == 0


def test_rates_and_pauses_take_their_time(cli: Run) -> None:
    subject = unique("rate")
    slow = cli("pub", subject, "x", "--count", "6", "--rate", "50", "--json").json
    assert slow["published"] == 6
    assert slow["seconds"] >= 0.1
    paused = cli("pub", subject, "x", "--count", "3", "--sleep", "40ms", "--json").json
    assert paused["seconds"] >= 0.08


def test_pub_without_a_body_on_a_terminal_asks_for_one(terminal: Open) -> None:
    with terminal("pub", "subject") as shown:
        ran = shown.end()
    assert ran.code == 2
    assert "no body: give one, use --file FILE or pipe it to stdin" in ran.out.replace("\n", " ")


def test_a_terminal_gets_a_progress_bar_and_a_pipe_does_not(terminal: Open, script: Run) -> None:
    subject = unique("bar")
    args = ("pub", subject, "x", "--count", "40", "--rate", "100")
    with terminal(*args) as shown:
        ran = shown.end()
    assert "publishing" in ran.out
    assert "published 40 messages" in ran.out
    piped = script(*args)
    assert piped.out.startswith("published 40 messages")
    assert piped.err == ""


def test_sub_prints_what_comes_until_the_count(env: dict[str, str], cli: Run) -> None:
    subject = unique("sub")
    with subprocess.Popen(
        [SCRIPT, "sub", f"{subject}.>", f"{subject}2", "--count", "2", "--json"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as listener:
        assert listener.stderr is not None
        assert b"listening on" in listener.stderr.readline()
        cli("pub", f"{subject}.a", "one", "-H", "K: v")
        cli("pub", f"{subject}2", "two", "--reply", "back")
        out, _ = listener.communicate(timeout=30)
    assert listener.returncode == 0
    first, second = (json.loads(line) for line in out.splitlines())
    assert first == {"subject": f"{subject}.a", "headers": {"K": ["v"]}, "data": "one"}
    assert second == {"subject": f"{subject}2", "reply": "back", "data": "two"}


def test_sub_in_a_terminal_ends_with_ctrl_c(terminal: Open, cli: Run) -> None:
    subject = unique("sub")
    with terminal("sub", subject, "--queue", "q") as shown:
        shown.expect("listening on")
        cli("pub", subject, "hello there", "-H", "K: v")
        shown.expect("hello there")
        assert f"[#1] {subject}" in shown.text
        assert "K: v" in shown.text
        shown.press("\x03")
        assert shown.end().code == 0


def test_sub_of_a_stream(cli: Run, stream: str) -> None:
    def seqs(*args: str) -> list[int]:
        ran = cli("sub", "--stream", stream, "--json", *args)
        assert ran.code == 0, ran.err
        return [one["seq"] for one in ran.lines]

    assert seqs("--count", "3") == [1, 2, 3]
    assert seqs("--count", "3", "--all") == [1, 2, 3]
    assert seqs("--last", "--count", "1") == [3]
    assert seqs("--start-sequence", "2", "--count", "2") == [2, 3]
    # On a busy machine the first message may be later than that.
    eventually_sync(lambda: seqs("--since", "1h", "--wait", "300ms") == [1, 2, 3], 30)
    assert seqs("--new", "--wait", "100ms") == []
    assert cli("sub", f"{stream}.eu", "--stream", stream, "--count", "1", "--raw").out == "order 1\n"
    text = cli("sub", "--stream", stream, "--count", "1", "--headers-only").out
    assert "No: 1" in text
    assert "order 1" not in text


def test_request_and_reply(env: dict[str, str], cli: Run) -> None:
    subject = unique("svc")
    with subprocess.Popen(
        [SCRIPT, "reply", subject, "answer {{Count}}", "--count", "3", "-H", "K: v"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as service:
        assert service.stderr is not None
        assert b"answering on" in service.stderr.readline()
        assert cli("req", subject, "q", "--raw").out == "answer 1\n"
        found = cli("req", subject, "q", "--json").json
        assert (found["data"], found["headers"]) == ("answer 2", {"K": ["v"]})
        assert found["rtt"].endswith("ms")
        many = cli("req", subject, "--replies", "0", "--timeout", "20s", "--stall", "100ms", stdin=b"q")
        assert "answer 3" in many.out
        service.communicate(timeout=30)
    assert service.returncode == 0


def test_reply_echoes(env: dict[str, str], cli: Run) -> None:
    subject = unique("echo")
    with subprocess.Popen(
        [SCRIPT, "reply", subject, "--echo", "--count", "1"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as service:
        assert service.stderr is not None
        service.stderr.readline()
        assert cli("req", subject, "what was asked", "--raw").out == "what was asked\n"
        service.communicate(timeout=30)
    missing = cli("req", subject, "x", "--replies", "2", "--timeout", "200ms")
    assert missing.code == 1


def test_a_reader_that_leaves_is_no_traceback(env: dict[str, str], cli: Run, stream: str) -> None:
    cli("pub", f"{stream}.many", "x" * 200, "--count", "3000", "--js")
    with subprocess.Popen(
        [SCRIPT, "stream", "view", stream, "--all", "--raw"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        assert command.stdout is not None
        command.stdout.readline()
        command.stdout.close()
        assert command.stderr is not None
        assert command.stderr.read() == b""
        assert command.wait(30) == 1


def test_nothing_that_is_published_becomes_a_second_header_or_command(cli: Run, stream: str) -> None:
    before = cli("stream", "info", stream, "--json").json["state"]
    smuggled = "\r\nNats-Rollup: all"
    for bad in (
        *(("-H", f"A: x{smuggled}"), ("-H", f"A{smuggled}: x"), ("-H", "A: x\ny"), ("-H", "A B: x")),
        *(("--msg-id", f"m{smuggled}"), ("--msg-id", "m\nx"), ("--msg-id", "")),
    ):
        for how in (("--js",), ("--js", "--count", "2"), ()):
            if bad == ("--msg-id", "") or ("--count" in how and bad[0] == "--msg-id"):
                bad = (bad[0], bad[1] + "\r{{Count}}")
            ran = cli("pub", f"{stream}.a", "x", *bad, *how)
            assert ran.code != 0, (bad, how, ran)
            assert "Traceback" not in ran.err
        if bad[0] == "-H":
            assert cli("req", f"{stream}.a", "x", *bad).code != 0
    for subject in (
        f"{stream}.a\r\nPUB {stream}.b 0\r\n\r\n",
        f"{stream}.a b",
        f"{stream}.a\nx",
        f"{stream}.*",
    ):
        for command in (("pub",), ("pub", "--js"), ("pub", "--js", "--count", "2"), ("req",)):
            ran = cli(command[0], subject, "x", *command[1:])
            assert ran.code != 0, (subject, command, ran)
            assert "Traceback" not in ran.err
    assert cli("pub", f"{stream}.a", "x", "--reply", f"r\r\nPUB {stream}.b 0\r\n\r\n").code != 0
    assert cli("stream", "info", stream, "--json").json["state"] == before
