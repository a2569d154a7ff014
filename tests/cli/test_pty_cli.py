"""Every command in a terminal and in pipes, in one table.

A command of the application that is not in the table fails a test. In a terminal: what it shows, in the width
there is, with colours, its questions and keys. In pipes: the same facts without a single escape code, and
``--json`` that a program can read. Each run has a stream of its own on one server. The installed script runs
in the terminal and in the pipes; the second run, for ``--json``, is a fork that starts at once.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from jetspark.cli.app import tree
from support.cli_forks import installed
from support.cli_runner import ESCAPES, SCRIPT, Terminal, inside
from support.helpers import unique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.cli_forks import Forks, Piped

pytestmark = pytest.mark.slow

CTRL_C = "\x03"
COLUMNS = 100
# Frames, bars and what else only people like.
DRAWN = re.compile("[\u2500-\u259f\u2800-\u28ff\x1b\r]")
COLOUR = re.compile("\x1b\\[[0-9;]+m")


@dataclass(frozen=True)
class Case:
    """One command. In lines, S stands for a stream with three messages, C for a consumer of it, and so on."""

    line: str
    shows: tuple[str, ...]
    """What both a terminal and a pipe must say."""
    then: tuple[tuple[str, str], ...] = ()
    """When this is shown, press these keys; '$ ...' runs a command, '$* ...' runs it until all is over."""
    terminal: tuple[str, ...] = ()
    """What only a terminal shows."""
    pipe: str | None = None
    """The line for pipes, where it has to be another: nobody answers questions there."""
    before: tuple[str, ...] = ()
    beside: str | None = None
    code: int = 0
    colour: bool = False
    json: str = "document"
    """What --json prints: a document, or lines of them."""


def asks(line: str, *shows: str, question: str = "[y/N]", **more: Any) -> Case:
    """A command that asks in a terminal and needs --force in a pipe."""
    return Case(line, shows, ((question, "y\n"),), pipe=f"{line} --force", **more)


MADE = ("consumer add S C --filter S.>",)
CASES = {
    "pub": Case(
        "pub S.new x --count 40 --rate 200", ("published 40 messages",), terminal=("publishing",), colour=True
    ),
    "sub": Case("sub T", (), (("listening on", "$ pub T hello"), ("hello", CTRL_C)), json="lines"),
    "req": Case("req T ask", ("yes",), beside="reply T yes --count 1"),
    "reply": Case("reply T yes --count 1", ("ask",), (("answering on", "$ req T ask"),), json="lines"),
    "top": Case(
        "top --stream S --interval 50ms",
        ("S",),
        (("q quit", "q"),),
        pipe="top --once --stream S --interval 50ms",
        colour=True,
    ),
    "server": Case("server --port 0", ("nats://127.0.0.1:",), (("nats://", CTRL_C),)),
    "rtt": Case("rtt 2", ("on average of 2",)),
    "demo": Case("demo --out FILE", ("is a file; give a folder",), code=2, colour=True),
    "stream ls": Case("stream ls --subject S.eu", ("S", "3"), terminal=("╭", "╰"), colour=True),
    "stream info": Case("stream info S", ("Subjects: S.>", "Messages: 3"), colour=True),
    "stream subjects": Case("stream subjects S", ("S.eu", "3"), terminal=("╭",), colour=True),
    "stream add": Case("stream add NEW --subjects NEW.a", ("NEW.a",), colour=True),
    "stream edit": asks("stream edit S --max-msgs 10", "max_msgs: -1 -> 10"),
    "stream rm": asks("stream rm S", "S"),
    "stream purge": asks("stream purge S", "3"),
    "stream rmm": asks("stream rmm S 2", "2"),
    "stream get": Case("stream get S 2", ("order 2", "S.eu")),
    "stream view": Case(
        "stream view S 2",
        ("order 1", "order 2"),
        (("Enter: more", "\n"), ("order 3", "")),
        pipe="stream view S",
        json="lines",
    ),
    "stream copy": Case("stream copy S OUT", ("3 messages",), terminal=("copying",), colour=True),
    "stream restore": Case(
        "stream restore FILE",
        ("3 messages",),
        before=("stream rm S --force",),
        terminal=("restoring",),
        colour=True,
    ),
    "consumer ls": Case("consumer ls S", ("C", "3"), before=MADE, terminal=("╭",), colour=True),
    "consumer info": Case("consumer info S C", ("C", "Filter: S.>"), before=MADE, colour=True),
    "consumer add": Case("consumer add S C", ("C",), colour=True),
    "consumer edit": asks("consumer edit S C --max-deliver 3", "max_deliver: -1 -> 3", before=MADE),
    "consumer rm": asks("consumer rm S C", "C", before=MADE),
    "consumer next": Case("consumer next S C", ("order 1",), before=MADE),
    "consumer sub": Case("consumer sub S C", ("order 3",), (("order 3", CTRL_C),), before=MADE, json="lines"),
    "consumer pause": asks("consumer pause S C 1h", "C", before=MADE),
    "consumer resume": Case("consumer resume S C", ("C",), before=(*MADE, "consumer pause S C 1h --force")),
    "consumer reset": asks("consumer reset S C", "C", before=MADE),
    "bench pub": Case("bench pub T --msgs 2000", ("Msgs/s", "2,000"), terminal=("╭",), colour=True),
    "bench sub": Case(
        "bench sub T --msgs 100",
        ("Msgs/s", "100"),
        (("waiting for messages on", "$* pub T x --count 100"),),
        terminal=("╭",),
    ),
    "bench pubsub": Case("bench pubsub T --msgs 500", ("Msgs/s", "one way"), terminal=("╭",), colour=True),
    "bench js pub": Case(
        "bench js pub NEW.b --create --stream NEW --msgs 500", ("Msgs/s", "500"), terminal=("╭",), colour=True
    ),
    "bench js consume": Case("bench js consume --stream S --msgs 3", ("Msgs/s", "3"), terminal=("╭",)),
    "bench js fetch": Case("bench js fetch --stream S --msgs 3", ("Msgs/s", "3"), terminal=("╭",)),
    "account info": Case("account info", ("Round trip: ", "Streams: "), colour=True),
    "context ls": Case("context ls", ("first", "second"), terminal=("╭",), colour=True),
    "context show": Case("context show first", ("Url: nats://one.example:4222",), colour=True),
    "context select": Case("context select second", ("selected context second",)),
    "pipe run": Case("pipe run JOB", ("NOPE_X",), code=1, colour=True),
}


def leaves(command: Any, path: str = "") -> list[str]:
    """Every visible command, by its words."""
    children = getattr(command, "commands", None)
    if children is None:
        return [path.strip()]
    shown = {name: child for name, child in children.items() if not child.hidden}
    return [leaf for name, child in shown.items() for leaf in leaves(child, f"{path} {name}")]


def test_the_table_has_every_command() -> None:
    assert sorted(CASES) == sorted(leaves(tree()))
    for name, case in CASES.items():
        assert case.line.split()[: len(name.split())] == name.split()


class Place:
    """What the words of a line stand for, made before the command runs."""

    def __init__(self, env: dict[str, str], folder: Path, case: Case) -> None:
        self.env = env
        self.words = {
            "S": unique("PTY"),
            "C": unique("worker"),
            "NEW": unique("NEW"),
            "T": unique("topic"),
            "FILE": str(folder / f"{unique('export')}.jsonl"),
            "OUT": str(folder / f"{unique('copy')}.jsonl"),
            "JOB": str(folder / "job.toml"),
        }
        lines = ["stream add S --subjects S.> --storage memory", "pub S.eu order_{{Count}} --count 3 --js"]
        for line in (*lines, *(["stream copy S FILE"] if "FILE" in case.line else []), *case.before):
            self.run(line)
        (folder / "job.toml").write_text(
            'from = "NOPE_X"\nsql = "SELECT * FROM input"\nto = "console"\n'
            f'server = "{env["NATS_URL"]}"\ncheckpoint = "{folder / "checkpoint"}"\n'
        )

    def fill(self, text: str) -> str:
        return re.sub(r"\b[A-Z]+\b", lambda word: self.words.get(word[0], word[0]), text)

    def args(self, line: str) -> list[str]:
        return [self.fill(word).replace("_{{", " {{") for word in line.split()]

    def run(self, line: str) -> None:
        ran = inside(self.env, *self.args(line))
        assert ran.code == 0, (line, ran)

    def act(self, action: str, process: Any) -> None:
        """Run the command of '$ ...' or '$* ...'."""
        mark, _, line = action.partition(" ")
        self.run(line)
        while mark == "$*" and process.poll() is None:
            self.run(line)


@pytest.fixture
def contexts(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "nats" / "context"
    folder.mkdir(parents=True)
    for name, host in (("first", "one"), ("second", "two")):
        (folder / f"{name}.json").write_text(json.dumps({"url": f"nats://{host}.example:4222"}))


@contextlib.contextmanager
def helped(forks: Forks, place: Place, case: Case) -> Iterator[None]:
    """With what the command needs beside it, which ends by itself."""
    if case.beside is None:
        yield
        return
    with forks.begin(place.env, *place.args(case.beside)) as helper:
        helper.expect("answering on")
        yield
        assert helper.end() == 0


@pytest.mark.usefixtures("contexts")
@pytest.mark.parametrize("name", CASES)
def test_in_a_terminal(env: dict[str, str], forks: Forks, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    place = Place(env, tmp_path, case)
    with (
        helped(forks, place, case),
        Terminal(env, *place.args(case.line), columns=COLUMNS) as shown,
    ):
        for text, action in case.then:
            shown.expect(place.fill(text))
            if action.startswith("$"):
                place.act(action, shown.process)
            else:
                shown.press(action)
        ran = shown.end()
    assert ran.code == case.code, ran.out
    assert "Traceback" not in ran.out
    # Where lines break is the terminal's affair.
    flat = "".join(ran.out.split())
    for text in (*case.shows, *case.terminal):
        assert "".join(place.fill(text).split()) in flat, ran.out
    # Frames and bars keep to the width; a line that is drawn again and again begins with a return.
    drawn = [line for line in re.split("[\r\n]", ESCAPES.sub("", shown.raw)) if DRAWN.search(line)]
    assert all(len(line) <= COLUMNS for line in drawn), ran.out
    assert bool(drawn) is bool(case.terminal), ran.out
    if case.colour:
        assert COLOUR.search(shown.raw)
    # The cursor is there again.
    assert shown.raw.rfind("\x1b[?25h") >= shown.raw.rfind("\x1b[?25l")


def piped(forks: Forks, place: Place, case: Case, *more: str, begin: Callable[..., Piped]) -> Piped:
    """Run it in pipes to its end."""
    line = case.line if case.pipe is None else case.pipe
    with helped(forks, place, case), begin(place.env, *place.args(line), *more) as ran:
        for text, action in case.then if case.pipe is None else ():
            ran.expect(place.fill(text))
            if action == CTRL_C:
                ran.process.send_signal(signal.SIGINT)
            else:
                place.act(action, ran.process)
        code = ran.end()
    assert code == case.code, (ran.out, ran.err)
    assert "Traceback" not in ran.err
    assert DRAWN.search(ran.out + ran.err) is None
    return ran


@pytest.mark.usefixtures("contexts")
@pytest.mark.parametrize("name", CASES)
def test_in_pipes(env: dict[str, str], forks: Forks, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    place = Place(env, tmp_path, case)
    ran = piped(forks, place, case, begin=functools.partial(installed, SCRIPT))
    for text in case.shows:
        assert place.fill(text) in ran.out + ran.err
    if case.code:
        # Nothing that a program could take for data.
        assert (ran.out, ran.err[:7]) == ("", "error: ")
        return
    # The same again for a program, with a stream as it was.
    read = piped(forks, Place(env, tmp_path, case), case, "--json", begin=forks.begin).out
    documents = (
        [json.loads(line) for line in read.splitlines()] if case.json == "lines" else [json.loads(read)]
    )
    assert documents
    assert all(isinstance(one, dict | list) for one in documents)


def test_ctrl_c_at_the_first_word_is_an_orderly_end(env: dict[str, str], forks: Forks) -> None:
    with Terminal(env, "sub", unique("topic"), forks=forks) as shown:
        shown.expect("listening on")
        shown.press(CTRL_C)
        assert shown.end().code == 0
