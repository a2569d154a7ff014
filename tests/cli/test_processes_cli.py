"""The installed script, each command once as a process of its own; help, colours, completion, the extra."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from jetspark import __version__
from jetspark.cli.app import ALIASES, hoist, tree
from jetspark.cli.app import COMMANDS as COMMANDS_OF_ROOT
from jetspark.cli.tree import branches
from support.cli_runner import SCRIPT, Terminal, environment, process
from support.helpers import unique

if TYPE_CHECKING:
    from conftest import Open, Run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def leaves(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every visible command, by its words."""
    children = getattr(command, "commands", None)
    if children is None:
        return [path]
    return [
        leaf for name, child in children.items() if not child.hidden for leaf in leaves(child, (*path, name))
    ]


COMMANDS = leaves(tree())

# Beside those that other tests run as processes.
CHAINS = {
    "streams": [
        "stream ls --json",
        "stream info S --json",
        "stream subjects S --json",
        "stream edit S --max-msgs 100 --force --json",
        "stream get S 1 --json",
    ],
    "export": [
        "stream copy S FILE --json",
        "stream rmm S 1 --force --json",
        "stream purge S --force --json",
        "stream restore FILE --json",
        "stream rm S --force --json",
    ],
    "consumers": [
        "consumer add S c --json",
        "consumer ls S --json",
        "consumer info S c --json",
        "consumer edit S c --max-deliver 3 --force --json",
        "consumer next S c --json",
    ],
    "pauses": [
        "consumer add S c --json",
        "consumer pause S c 1h --force --json",
        "consumer resume S c --json",
        "consumer reset S c --force --json",
        "consumer rm S c --force --json",
    ],
    "others": ["pub core x --json", "account info --json", "rtt 1 --json", "context ls --json"],
    "bench": ["bench pub b --msgs 10 --json", "bench pubsub b --msgs 10 --json"],
    "bench js": [
        "bench js pub BSUBJECT --create --stream B --msgs 10 --json",
        "bench js consume --stream B --msgs 10 --json",
        "bench js fetch --stream B --msgs 10 --json",
    ],
}
LINES = [line for chain in CHAINS.values() for line in chain]


@pytest.mark.parametrize("chain", CHAINS)
def test_each_command_as_a_process_prints_json_alone(
    script: Run, stream: str, tmp_path: Path, chain: str
) -> None:
    bench = unique("PB")
    places = {"S": stream, "B": bench, "FILE": str(tmp_path / "out.jsonl"), "BSUBJECT": bench.lower()}
    for line in CHAINS[chain]:
        ran = script(*(places.get(word, word) for word in line.split()))
        assert ran.code == 0, (line, ran)
        assert "\x1b" not in ran.out + ran.err
        assert json.loads(ran.out) is not None, line


def test_every_command_is_run_as_a_process_somewhere() -> None:
    elsewhere = {
        ("stream", "add"), ("stream", "view"), ("consumer", "sub"), ("sub",), ("req",), ("reply",), ("top",),
        ("server",), ("bench", "sub"), ("context", "show"), ("context", "select"),
        ("pipe", "run"), ("demo",),
    }  # fmt: skip
    here = {path for path in COMMANDS if any(line.startswith(" ".join(path)) for line in LINES)}
    assert set(COMMANDS) - here == elsewhere


def test_the_rest_as_processes(env: dict[str, str], script: Run, tmp_path: Path) -> None:
    folder = tmp_path / "config" / "nats" / "context"
    folder.mkdir(parents=True)
    (folder / "dev.json").write_text('{"url": "nats://127.0.0.1:1"}')
    name = unique("PROC")
    assert script("stream", "add", name, "--subjects", name, "--json").json["config"]["name"] == name
    assert script("context", "select", "dev", "--json").json["selected"] is True
    assert script("context", "show", "--json").json["name"] == "dev"
    missing = script("req", unique("nobody"), "x")
    assert (missing.code, missing.out) == (1, "")
    assert missing.err.startswith("error: no responders")
    wrong = script("stream", "frob")
    assert wrong.code == 2
    del env["NATS_URL"]
    (tmp_path / "config" / "nats" / "context.txt").unlink()
    none = process(env, "stream", "ls")
    assert none.code == 1
    assert "no server given" in none.err


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_and_json(cli: Run, path: tuple[str, ...]) -> None:
    ran = cli(*path, "--help")
    assert ran.code == 0
    assert f"Usage: jetspark {' '.join(path)}" in ran.out
    assert f"Example:\n    jetspark {' '.join(path)}" in ran.out
    assert "--json" in ran.out


def test_help_and_version_of_the_script(script: Run) -> None:
    assert script("--version").out == f"jetspark {__version__}\n"
    text = script("--help").out
    assert "NATS_URL" in text
    assert "jetspark server" in text
    assert script("-h").out == text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("stream ls --server x", "--server x stream ls"),
        ("stream ls --server=x --json", "--server=x stream ls --json"),
        ("-s x pub a b --debug", "-s x --debug pub a b"),
        ("pub a -- --server", "pub a -- --server"),
        ("pub a b --timeout", "--timeout pub a b"),
        ("sub a --no-context --tlsfirst", "--no-context --tlsfirst sub a"),
    ],
)
def test_shared_options_may_stand_anywhere(given: str, expected: str) -> None:
    assert hoist(given.split()) == expected.split()


def test_colours_in_a_terminal_and_not_with_no_color(env: dict[str, str], terminal: Open) -> None:
    with terminal("stream", "info", "NOPE_X") as shown:
        ran = shown.end()
    assert ran.code == 1
    assert "\x1b[1;31merror" in shown.raw
    with Terminal({**env, "NO_COLOR": "1"}, "stream", "info", "NOPE_X") as shown:
        shown.end()
    assert "31m" not in shown.raw
    assert "no stream 'NOPE_X' here" in shown.text


def test_completion_of_shells(env: dict[str, str]) -> None:
    shown = process({**env, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}, "--show-completion", "bash")
    assert shown.code == 0
    assert "_JETSPARK_COMPLETE" in shown.out
    words = process(
        {**env, "_JETSPARK_COMPLETE": "complete_bash", "COMP_WORDS": "jetspark stream co", "COMP_CWORD": "2"}
    )
    assert "copy" in words.out.split()


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_what_to_install(missing: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from jetspark.cli import main\n"
        "sys.exit(main(['stream', 'ls']))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True
    )
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert 'pip install "jetspark[cli]"' in ran.stderr


@pytest.mark.parametrize(
    ("line", "absent"),
    [
        ("--help", ["asyncio", "rich", "jetspark.connecting", "jetspark.cli.stream.command"]),
        ("stream --help", ["rich", "jetspark.connecting", "jetspark.cli.messages"]),
        ("context ls --json", ["rich", "jetspark.connecting", "jetspark.cli.stream.command"]),
    ],
)
def test_starting_is_light(tmp_path: Path, line: str, absent: list[str]) -> None:
    # pydantic: typer would convert every value with it.
    names = [*absent, "pyarrow", "pyspark", "urllib.request", "uvloop", "pydantic"]
    code = (
        f"import sys; from jetspark.cli import main; code = main({line.split()})\n"
        f"print(code, [name for name in {names} if name in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True
    )
    assert ran.stderr == "0 []\n"


def test_the_root_lists_each_command_as_it_describes_itself() -> None:
    # The root knows name and text of commands that it has not loaded.
    whole = typer.Typer()
    for module in dict.fromkeys(module for module, _ in COMMANDS_OF_ROOT.values()):
        importlib.import_module(f"jetspark.cli.{module}").register(whole)
    found = branches(whole)
    first = {name: " ".join(one.help.partition("\n\n")[0].split()) for name, one in found.items()}
    visible = {name: text for name, text in first.items() if not found[name].hidden}
    assert visible == {name: text for name, (_, text) in COMMANDS_OF_ROOT.items()}
    assert {name for name, one in found.items() if one.hidden} == set(ALIASES)
    assert {name: first[name] for name in ALIASES} == {name: first[of] for name, of in ALIASES.items()}


@pytest.mark.parametrize("path", ["pub", "stream add", "consumer next", "rtt"])
def test_values_that_need_no_conversion_are_those_that_typer_would_give(path: str) -> None:
    command = tree()
    for word in path.split():
        command = command.commands[word]
    context = command.make_context(path, [], resilient_parsing=True)
    compared = 0
    for param in command.params:
        for value in (None, param.default, "text"):
            takes_text = getattr(param.type_descriptor, "annotation", None) is str
            if (value is None and param.required) or (value == "text" and not takes_text) or callable(value):
                continue
            plain = type(param).process_value(param, context, value)
            assert param.process_value(context, value) == plain, (param.name, value)
            compared += 1
    assert compared >= len(command.params)


def test_the_documentation_is_what_the_help_says() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "tools" / "cli_docs.py", "--check"], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_modules_stay_small() -> None:
    spec = importlib.util.find_spec("jetspark.cli")
    assert spec is not None
    assert spec.origin is not None
    for path in Path(spec.origin).parent.rglob("*.py"):
        assert len(path.read_text().splitlines()) < 600, path


def test_the_script_is_the_installed_one() -> None:
    assert SCRIPT.exists()
