"""What the command line refuses, and how it says so: option, value, message, exit code, in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.cli_runner import environment, inside
from support.helpers import unique

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Run
    from jetspark.server import Server

# Wrong use that needs no server: nothing may be sent, and the message names what to write instead.
WRONG_USE = [
    ("", "Usage: jetspark"),
    ("frob", "No such command 'frob'"),
    ("stream", "Usage: jetspark stream"),
    ("stream frob", "No such command 'frob'"),
    ("stream ls --frob", "No such option: --frob"),
    ("stream ls extra", "unexpected extra argument"),
    ("stream info", "Missing argument 'STREAM'"),
    ("stream add", "give the stream's name"),
    ("stream add S", "give --subjects, --mirror or --source"),
    ("stream add S --subjects a --max-age tomorrow", "'tomorrow' is not a duration; use 500ms"),
    ("stream add S --subjects a --max-age 5x", "'5x' is not a duration"),
    ("stream add S --subjects a --max-bytes lots", "'lots' is not a size"),
    ("stream add S --subjects a --max-msg-size -5", "'-5' is not a size"),
    ("stream add S --subjects a --max-msgs many", "'--max-msgs': Input should be a valid integer"),
    ("stream add S --subjects a --retention some", "'some'; use one of limits, interest, work"),
    ("stream add S --subjects a --storage tape", "'tape'; use one of file"),
    ("stream add S --subjects a --discard both", "'both'; use one of old, new"),
    ("stream add S --subjects a --compression zip", "'zip'; use one of none, s2"),
    ("stream add S --subjects a --persist-mode fast", "'fast'; use one of default, async"),
    ("stream add S --subjects a --metadata color", "'color' is not a pair; use KEY=VALUE"),
    ("stream add S --subjects a --transform-source b", "--transform-source needs --transform-destination"),
    ("stream add S --subjects a --republish-source b", "--republish-source needs --republish-destination"),
    ("stream add S --config /nonexistent.json", "/nonexistent.json: No such file"),
    ("stream edit S", "nothing to change"),
    ("stream get S", "either a sequence or --last-for"),
    ("stream get S 1 --last-for a", "either a sequence or --last-for"),
    ("stream get S first", "'SEQ': Input should be a valid integer"),
    ("stream view S 0", "Input should be greater than or equal to 1"),
    ("stream view S --since yesterday", "'yesterday' is not a time; use 2026-01-31"),
    ("stream copy S out.txt", "unknown format; name it .jsonl or .parquet"),
    ("stream copy S out.jsonl --format xml", "invalid --format 'xml'; use jsonl or parquet"),
    ("stream copy S - --format parquet", "parquet needs a file"),
    ("stream copy S - --json", "--json and the messages can't both go to stdout"),
    ("stream restore out.txt", "unknown format"),
    ("consumer add S", "give the consumer's name, or --ephemeral"),
    ("consumer add S C --ack maybe", "'maybe'; use one of explicit, none, all"),
    ("consumer add S C --deliver whenever", "invalid --deliver 'whenever'; use all, new, last"),
    ("consumer add S C --replay slow", "'slow'; use one of instant, original"),
    ("consumer add S C --wait soon", "'soon' is not a duration"),
    ("consumer add S C --backoff 1s,x", "'x' is not a duration"),
    ("consumer add S C --max-pull-bytes x", "'x' is not a size"),
    ("consumer edit S C", "nothing to change"),
    ("consumer next S C --count 0", "Input should be greater than or equal to 1"),
    ("consumer next S C --wait x", "'x' is not a duration"),
    ("consumer next S C --ack-mode yes", "'yes'; use one of ack, sync, none, nak, term"),
    ("consumer sub S C --batch 0", "Input should be greater than or equal to 1"),
    ("consumer pause S C later", "'later' is not a time"),
    ("consumer reset S C --seq 0", "Input should be greater than or equal to 1"),
    ("pub", "Missing argument 'SUBJECT'"),
    ("pub s b --count 0", "Input should be greater than or equal to 1"),
    ("pub s b --rate 0", "'--rate': Input should be greater than or equal to 0.001"),
    ("pub s b --rate 5 --sleep 1s", "give --rate or --sleep, not both"),
    ("pub s b --sleep x", "'x' is not a duration"),
    ("pub s b --header nothing", "'nothing' is not a header; use 'Name: value'"),
    ("pub s b --file x", "give a body or --file, not both"),
    ("pub s --file /nonexistent", "/nonexistent is not a file"),
    ("pub s b --send-on tab", "'tab'; use one of newline, eof"),
    ("pub s {{Nope}}", "unknown placeholder {{Nope}}; use Count, ID"),
    ("pub s {{Random 9 3}}", "use {{Random LENGTH}}"),
    ("pub s b --js --reply r", "--js and --reply can't be combined"),
    ("pub s b --js --count 2 --msg-id same", "all messages but the first are duplicates"),
    ("sub", "give a subject, or --stream"),
    ("sub s --new", "need --stream"),
    ("sub s --stream S --queue q", "--queue is for core subscriptions"),
    ("sub s --stream S --new --last", "give one of --all, --new, --last"),
    ("sub s --wait x", "'x' is not a duration"),
    ("req s b --replies -1", "'--replies': Input should be greater than or equal to 0"),
    ("req s b --stall x", "'x' is not a duration"),
    ("reply s", "give the answer's body, or --echo"),
    ("reply s b --echo", "give the answer's body, or --echo"),
    ("bench pub s --msgs 0", "Input should be greater than or equal to 1"),
    ("bench pub s --size big", "'big' is not a size"),
    ("bench pub s --size -1", "'-1' must be 0 or more"),
    ("bench pub s --msgs 2 --clients 3", "2 is too few for 3 clients"),
    ("bench js pub", "Missing argument 'SUBJECT'"),
    ("rtt 0", "Input should be greater than or equal to 1"),
    ("top", "top needs a terminal; in a pipe use --once"),
    ("top --once --sort size", "'size'; use one of name, lag"),
    ("top --once --interval 1ms", "'1ms' is too short"),
    ("server --port 70000", "'--port': Input should be less than or equal to 65535"),
    ("server --cluster 1", "'--cluster': Input should be greater than or equal to 2"),
    ("server --cluster 3 --websocket", "--websocket needs a single server"),
    ("server --cluster 3 --port 4222", "--port and --http-port need a single server"),
    ("server --config /nonexistent.conf", "/nonexistent.conf is not a file"),
    ("context show nope", "no such context"),
    ("context show", "no context is selected"),
    ("context select ../x", "a context name is a file name"),
    ("stream ls --timeout soon", "'soon' is not a duration"),
    ("stream ls --timeout 0", "must be greater than zero"),
    ("stream ls --server nope://x", "scheme"),
    ("stream ls --context nope", "no such context"),
]


def words(line: str) -> list[str]:
    # A placeholder has blanks inside.
    found = line.split(" ")
    joined = " ".join(found)
    if "{{" in joined:
        head, _, tail = joined.partition("{{")
        return [*head.split(), "{{" + tail]
    return [word for word in found if word]


@pytest.mark.parametrize(("line", "message"), WRONG_USE, ids=lambda value: value or "nothing")
def test_wrong_use_is_exit_2_with_the_remedy(tmp_path: Path, line: str, message: str) -> None:
    # With a server that does not exist: wrong use must be found before anything is connected.
    ran = inside(environment(tmp_path, NATS_URL="nats://127.0.0.1:1"), *words(line))
    missing_file = "No such file" in message
    assert ran.code == (1 if missing_file else 2), ran
    assert " ".join(message.split()) in " ".join(ran.err.split())
    assert ran.out == ""
    assert "Traceback" not in ran.err
    if message.startswith("Usage"):
        return
    assert ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) <= 2


# What needs a server to be found out: exit code 1 when the world is not as asked, 2 for a wrong request.
REFUSED = [
    ("stream info NOPE_X", 1, "no stream 'NOPE_X' here"),
    ("stream info a.b", 2, "stream='a.b'"),
    ("stream rm NOPE_X --force", 1, "'jetspark stream ls' lists"),
    ("stream rm STREAM", 2, "stdin is not a terminal; use --force"),
    ("stream purge STREAM", 2, "stdin is not a terminal; use --force"),
    ("stream purge STREAM --seq 2 --keep 1 --force", 2, "excludes seq=2"),
    ("stream edit STREAM --max-msgs 7", 2, "stdin is not a terminal; use --force"),
    ("stream edit STREAM --subjects $SYS.x --force", 2, "overlaps with the system API"),
    ("stream get STREAM 99", 1, "shows its first and last sequence"),
    ("stream rmm STREAM 99 --force", 1, ""),
    ("stream view NOPE_X", 1, "no stream 'NOPE_X'"),
    ("stream copy NOPE_X /tmp/never-written.jsonl", 1, "no stream 'NOPE_X'"),
    ("stream restore /nonexistent.jsonl", 1, "/nonexistent.jsonl: No such file"),
    ("stream add STREAM --subjects other.subject", 1, "already in use"),
    ("stream add OVERLAP_X --subjects STREAM.eu", 1, "overlap"),
    ("stream add REPL_X --subjects repl.x --replicas 3", 1, "replicas"),
    ("consumer ls NOPE_X", 1, "stream not found"),
    ("consumer info STREAM nope", 1, "no consumer 'nope' on stream 'STREAM'"),
    ("consumer info NOPE_X nope", 1, "no stream 'NOPE_X'"),
    ("consumer next STREAM nope", 1, "'jetspark consumer ls STREAM' lists"),
    ("consumer rm STREAM nope --force", 1, "no consumer 'nope'"),
    ("consumer add STREAM C --filter STREAM.>,STREAM.eu", 2, "overlap"),
    ("consumer pause STREAM nope 1h --force", 1, "no consumer 'nope'"),
    ("pub nobody.stores.this x --js", 1, "no stream answered the publish"),
    ("pub bad..subject x", 2, "bad..subject"),
    ("req nobody.answers.this x", 1, "no responders"),
    ("sub quiet.subject --count 1 --wait 50ms", 1, "only 0 of 1 messages arrived in time"),
    ("sub --stream NOPE_X", 1, "stream not found"),
    ("bench js pub b.x --stream NOPE_X --msgs 1", 1, "stream not found"),
    ("bench js fetch --stream STREAM --msgs 1000", 1, "has 3 messages"),
    ("top --once --stream NOPE_X", 1, "no stream 'NOPE_X'"),
    ("rtt --user joe --password wrong --tlsca /nonexistent.pem", 1, "/nonexistent.pem"),
    ("rtt --creds /nonexistent.creds", 1, "/nonexistent.creds"),
]


@pytest.fixture(scope="module")
def refused_stream(_shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One for the whole table: nothing in it changes anything."""
    env = environment(tmp_path_factory.mktemp("home"), NATS_URL=_shared_server.url)
    name = unique("REF")
    assert inside(env, "stream", "add", name, "--subjects", f"{name}.>", "--storage", "memory").code == 0
    assert inside(env, "pub", f"{name}.eu", "x", "--count", "3", "--js").code == 0
    return name


@pytest.mark.parametrize(("line", "code", "message"), REFUSED, ids=lambda value: str(value) or "any")
def test_what_can_not_be_done_is_said_in_two_lines(
    cli: Run, refused_stream: str, line: str, code: int, message: str
) -> None:
    stream = refused_stream
    ran = cli(*line.replace("STREAM", stream).split())
    assert ran.code == code, ran
    assert message.replace("STREAM", stream) in " ".join(ran.err.split())
    assert ran.out == ""
    shown = [one for one in ran.err.splitlines() if one.startswith("error: ")]
    assert len(shown) == 1, ran.err
    assert "Traceback" not in ran.err
    after = ran.err.splitlines()[ran.err.splitlines().index(shown[0]) :]
    assert len(after) <= 2, ran.err


SETTINGS = [
    ((), {"NATS_URL": "nats://127.0.0.1:1"}, "127.0.0.1:1"),
    (("--server", "nats://127.0.0.1:2"), {"NATS_URL": "nats://127.0.0.1:1"}, "127.0.0.1:2"),
    (("-s", "127.0.0.1:2"), {}, "127.0.0.1:2"),
    (("--server=127.0.0.1:2",), {}, "127.0.0.1:2"),
    (("--server", "127.0.0.1:2,127.0.0.1:3"), {}, "127.0.0.1:3"),
]


@pytest.mark.parametrize(("flags", "variables", "reached"), SETTINGS)
@pytest.mark.parametrize("behind", [True, False], ids=["behind the command", "before it"])
def test_no_server_there_is_exit_1_with_each_address(
    tmp_path: Path, flags: tuple[str, ...], variables: dict[str, str], reached: str, behind: bool
) -> None:
    args = ("rtt", *flags) if behind else (*flags, "rtt")
    ran = inside(environment(tmp_path, **variables), *args)
    assert ran.code == 1
    assert reached in ran.err
    assert "jetspark server" in ran.err
    assert len(ran.err.splitlines()) == 2


def test_no_server_named_is_told_what_to_do(tmp_path: Path) -> None:
    ran = inside(environment(tmp_path), "stream", "ls")
    assert ran.code == 1
    assert "--server URL, --context NAME or the environment variable NATS_URL" in ran.err
    assert "jetspark server" in ran.err


def test_debug_shows_the_traceback_and_nothing_else_does(cli: Run) -> None:
    assert "Traceback" in cli("stream", "info", "NOPE_X", "--debug").err
    assert "Traceback" not in cli("stream", "info", "NOPE_X").err


def test_a_fault_of_our_own_is_one_line_with_a_way_to_report_it(
    cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jetspark.cli import context

    def broken() -> list[str]:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(context, "known_contexts", broken)
    ran = cli("context", "ls")
    assert ran.code == 1
    assert ran.err == "error: unexpected ZeroDivisionError: oh\n--debug shows where it comes from\n"


def test_the_table_is_large_enough() -> None:
    assert len(WRONG_USE) + len(REFUSED) > 100
