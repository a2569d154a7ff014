"""Who may import whom, which folders are pure, and that no imports run in a circle.

The layers are data; the tests read every module's imports from its syntax tree, and the C sources as text.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import jetspark

SRC = Path(__file__).parents[2] / "src"

# What each part may import beside itself. A part that is missing here fails the test: give it its place.
BASE = {"_checks", "_lazy", "_log", "_secret", "_times", "errors"}
WIRE = BASE | {"wire"}
CONNECTION = WIRE | {"connection"}
JETSTREAM = CONNECTION | {"jetstream"}
# What observes connections, when it is asked for: above JetStream, below connect, which hangs it in.
OBSERVERS = {"metrics", "tracing"}
# jetspark.connect: the one place where the connection and JetStream, which it does not know, meet.
CONNECTING = JETSTREAM | OBSERVERS | {"connecting"}
BLOCKING = CONNECTING | {"blocking"}
# Re-exports for users, and for those of our parts that are users themselves.
PUBLIC = {"advisories", "events", "models"}
ARROW = BLOCKING | {"arrow"}
ALLOWED: dict[str, set[str]] = {
    "_checks": set(),
    "_lazy": set(),
    "_log": set(),
    "errors": {"_lazy"},
    "_secret": set(),
    "_times": set(),
    "wire": BASE,
    "connection": WIRE,
    "events": CONNECTION,
    "jetstream": CONNECTION,
    "models": JETSTREAM,
    "advisories": JETSTREAM,
    "metrics": JETSTREAM,
    "tracing": JETSTREAM,
    "connecting": JETSTREAM | OBSERVERS,
    "blocking": CONNECTING,
    "arrow": BLOCKING,
    "spark": ARROW | PUBLIC,
    "cli": ARROW | PUBLIC | {"spark", "server"},
    "server": {"errors"},
}
# Folders that are pure as a whole (bytes, state machines), and what nothing in them may see, so that time and
# IO stay arguments.
PURE = ("jetspark.wire", "jetspark.jetstream.flow")
IMPURE = {"asyncio", "selectors", "socket", "ssl", "threading", "time"}
# Doors: they re-export what other parts define and load it on use, so their imports for type checkers do not
# count. Everything else in them does.
DOORS = {"jetspark.errors"}
# By name, the part that a name of the facade comes from: `from jetspark import Stream` imports that part.
FACADE = {
    name: home.split(".")[1]
    for home, names in jetspark._EXPORTS.items()
    for name in names.split()
    if "." in home
}
# What the C sources may include and import by name; their own headers are beside them.
CORE = SRC / "jetspark" / "wire" / "_core"
C_HEADERS = {"Python.h", "structmember.h", "stddef.h", "stdint.h", "string.h"}
C_IMPORTS: set[str] = set()
# Imports that close a circle, each with the reason why it is still here. The list may only shrink.
CIRCULAR: dict[tuple[str, str], str] = {
    (
        "jetspark.jetstream.message",
        "jetspark.jetstream.consume.ack_next",
    ): "Message.ack_next makes a fetch, which drives a sink, which makes messages",
    (
        "jetspark.jetstream.message",
        "jetspark.jetstream.consume.fetch",
    ): "Message.ack_next returns a fetch, which hands out messages",
    (
        "jetspark.jetstream.consumer",
        "jetspark.arrow",
    ): "Consumer.consume_arrow is a method; pyarrow is optional, so what it calls is above and loaded on use",
    ("jetspark.blocking.consumer", "jetspark.arrow"): "the same for threads",
    (
        "jetspark.blocking.jetstream",
        "jetspark.blocking.connection",
    ): "JetStream.connection returns the connection, which makes the context",
}


def imported(source: str, module: str, is_package: bool) -> list[tuple[int, str]]:
    """Every (line, absolute dotted name) that the source imports, at any depth, TYPE_CHECKING included."""
    found: list[tuple[int, str]] = []
    package = module.split(".") if is_package else module.split(".")[:-1]
    tree = ast.parse(source)
    if module in DOORS:
        tree.body = [node for node in tree.body if not is_type_checking(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            # `from jetspark import wire` names the part in the alias, so the alias belongs to the name.
            found += [(node.lineno, f"{stem}.{alias.name}") for alias in node.names]
    return found


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def part_of(dotted: str) -> str | None:
    """The part of jetspark a dotted name lies in; None for the facade and for other packages."""
    head, _, rest = dotted.partition(".")
    if head == "pyspark_jetstream":
        return "spark"
    part = rest.split(".")[0]
    return FACADE.get(part, part) or None if head == "jetspark" else None


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    part = part_of(module)
    if part is None:
        return []  # jetspark/__init__.py is the facade: it re-exports from everywhere
    if part not in ALLOWED:
        return [f"{module}: {part!r} has no place in ALLOWED"]
    pure = is_pure(module)
    wrong = []
    for line, name in imported(source, module, is_package):
        root = name.split(".")[0]
        if pure and root in IMPURE:
            wrong.append(f"{module}:{line} imports {root}, but must stay free of IO and clocks")
        if root not in ("jetspark", "pyspark_jetstream"):
            continue
        target = part_of(name)
        if target == part or (module, name.rpartition(".")[0]) in CIRCULAR:
            continue
        if target is None or target not in ALLOWED[part]:
            wrong.append(f"{module}:{line} imports {name}, which {part!r} may not")
    return wrong


def is_pure(module: str) -> bool:
    return any(f"{module}.".startswith(f"{folder}.") for folder in PURE)


def c_violations(source: str, name: str) -> list[str]:
    """What a C source has no business with. Comments count, too: nobody needs an import in a comment."""
    wrong = []
    for line, text in enumerate(source.splitlines(), 1):
        header = re.match(r'\s*#\s*include\s*[<"](.+?)[>"]', text)
        if header and header[1] not in C_HEADERS and not header[1].startswith("_speed"):
            wrong.append(f"{name}:{line} includes {header[1]}, which is not in C_HEADERS")
        for call, argument in re.findall(r'\b(PyImport_\w+|PyCapsule_Import)\s*\(\s*("[^"]*"|[^)]*)', text):
            if argument.strip('"') not in C_IMPORTS:
                wrong.append(f"{name}:{line} calls {call}({argument}), which is not in C_IMPORTS")
        for clock in re.findall(r"\b_?PyTime_\w+|\bclock_gettime\b|\bgettimeofday\b", text):
            wrong.append(f"{name}:{line} looks at the clock: {clock}")
    return wrong


def graph(sources: dict[str, tuple[str, bool]]) -> dict[str, set[str]]:
    """By module, the modules that it imports; ``sources`` has the text, and whether it is a package."""
    found: dict[str, set[str]] = {}
    for module, (source, is_package) in sources.items():
        found[module] = set()
        for _, name in imported(source, module, is_package):
            # The name is a module, or something in one; a package is no more than what it says itself.
            target = name if name in sources else name.rpartition(".")[0]
            if target in sources and target != module:
                found[module].add(target)
    return found


def circular(edges: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The imports that are part of a circle: those whose target leads back."""
    reached: dict[str, set[str]] = {}
    for start in edges:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            fresh = edges[waiting.pop()] - seen
            seen |= fresh
            waiting += fresh
        reached[start] = seen
    return {(one, other) for one, others in edges.items() for other in others if one in reached[other]}


def modules() -> list[tuple[Path, str]]:
    found = []
    for package in ("jetspark", "pyspark_jetstream"):
        for path in sorted((SRC / package).rglob("*.py")):
            parts = list(path.relative_to(SRC).with_suffix("").parts)
            found.append((path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)))
    return found


@pytest.mark.slow
def test_the_sources_keep_the_direction() -> None:
    checked = modules()
    assert len(checked) > 5, f"no sources under {SRC}"
    wrong = [
        violation
        for path, module in checked
        for violation in violations(path.read_text(), module, is_package=path.name == "__init__.py")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_compiled_core_is_as_pure_as_its_folder() -> None:
    sources = sorted(CORE.glob("*.[ch]"))
    assert sources, f"no sources under {CORE}"
    assert not list(CORE.parent.glob("*.[ch]")), "C sources belong into _core/"
    wrong = [violation for path in sources for violation in c_violations(path.read_text(), path.name)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_no_imports_run_in_a_circle() -> None:
    """Imports for type checkers count: whoever reads a module has to read what it names."""
    edges = graph({module: (path.read_text(), path.name == "__init__.py") for path, module in modules()})
    closing = circular(edges)
    outdated = sorted(set(CIRCULAR) - closing)
    assert not outdated, f"no circle any more, take it out of CIRCULAR: {outdated}"
    for one, other in CIRCULAR:
        edges[one].discard(other)
    left = sorted(f"{one} -> {other}" for one, other in circular(edges))
    assert not left, "\n".join(left)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("jetspark.wire.parser", "import asyncio"),
        ("jetspark.wire.parser", "from time import monotonic"),
        ("jetspark.wire.parser", "def f():\n    import socket"),
        ("jetspark.jetstream.flow.pull", "import ssl"),
        ("jetspark.jetstream.flow.pull", "import asyncio.events"),
        ("jetspark.jetstream.flow.newcomer", "from time import monotonic"),
        ("jetspark.jetstream.flow", "import socket"),
        (
            "jetspark.jetstream.flow.pull_ledger",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio",
        ),
        ("jetspark.wire.parser", "from jetspark.connection import client"),
        ("jetspark.wire.parser", "from jetspark import connection"),
        ("jetspark.wire.parser", "from .. import connection"),
        ("jetspark.wire.parser", "from ..connection.client import Connection"),
        ("jetspark.connection.client", "import jetspark.jetstream.api"),
        (
            "jetspark.connection.client",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from jetspark.jetstream import api",
        ),
        ("jetspark.jetstream.api", "from jetspark.blocking import connect"),
        ("jetspark.server._server", "from jetspark.connection import connect"),
        ("jetspark.server._server", "from jetspark import connect"),
        ("jetspark.connection.client", "from jetspark import Stream"),
        ("jetspark.connection.client", "from jetspark.server import Server"),
        ("jetspark.connection.client", "import jetspark"),
        ("jetspark.errors", "from jetspark.jetstream.errors import ApiError"),
        ("jetspark.newcomer", "x = 1"),
        ("pyspark_jetstream", "from jetspark.cli import app"),
    ],
)
def test_a_violation_is_found(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("jetspark.wire.parser", "from jetspark.errors import ProtocolError\nimport struct"),
        ("jetspark.wire.parser", "from . import headers"),
        ("jetspark.connection.client", "import asyncio\nfrom jetspark.wire.parser import Parser"),
        ("jetspark.jetstream.flow.pull", "from jetspark.wire import headers"),
        ("jetspark.jetstream.flowers", "import asyncio"),
        ("jetspark.jetstream.consume.pull", "import asyncio"),
        ("jetspark.jetstream.api", "from ..connection.client import Connection"),
        ("jetspark.server._server", "from jetspark.errors import JetsparkError\nimport socket"),
        (
            "jetspark.errors",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from jetspark.jetstream import errors",
        ),
        ("jetspark", "from jetspark.blocking import connect"),
        ("jetspark.cli.messages", "from jetspark import Stream\nfrom jetspark.models import StreamState"),
        ("pyspark_jetstream", "from jetspark.spark.data_source import JetStreamDataSource"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_a_package_resolves_its_relative_imports_from_itself() -> None:
    assert violations("from .parser import Parser", "jetspark.wire", is_package=True) == []
    assert len(violations("from ..jetstream import api", "jetspark.wire", is_package=True)) == 1


@pytest.mark.parametrize(
    "source",
    [
        'PyObject *m = PyImport_ImportModule("asyncio");',
        'PyObject *m = PyImport_ImportModule("_asyncio");',
        "PyObject *m = PyImport_Import( name );",
        'PyObject *m = PyImport_ImportModuleLevel("time", NULL, NULL, NULL, 0);',
        'void *api = PyCapsule_Import("_socket.CAPI", 0);',
        "#include <sys/socket.h>",
        "#include <time.h>",
        '  # include "datetime.h"',
        "PyTime_t now; PyTime_Monotonic(&now);",
        "clock_gettime(CLOCK_MONOTONIC, &now);",
    ],
)
def test_a_violation_in_c_is_found(source: str) -> None:
    assert c_violations(f"#include <Python.h>\n{source}\n", "_speed.c")


@pytest.mark.parametrize(
    "source", ["#include <Python.h>", '#include "_speed_rows.h"', "PyObject *m = PyModule_Create(&module);"]
)
def test_what_c_may_do_passes(source: str) -> None:
    assert c_violations(source, "_speed.c") == []


TYPES_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ({"p.a": "import p.b", "p.b": "import p.a"}, {("p.a", "p.b"), ("p.b", "p.a")}),
        ({"p.a": "from p.b import x", "p.b": "from p import a"}, {("p.a", "p.b"), ("p.b", "p.a")}),
        ({"p.a": "from .b import x", "p.b": "def f():\n    import p.a"}, {("p.a", "p.b"), ("p.b", "p.a")}),
        (
            {"p.a": "import p.b", "p.b": f"{TYPES_ONLY}from p.a import A", "p.c": "import p.a"},
            {("p.a", "p.b"), ("p.b", "p.a")},
        ),
        (
            {"p.a": "import p.b", "p.b": "import p.c", "p.c": "from p.a import A"},
            {("p.a", "p.b"), ("p.b", "p.c"), ("p.c", "p.a")},
        ),
        ({"p.a": "import p.b\nimport p.c", "p.b": "import p.c", "p.c": "import os"}, set()),
        ({"p.a": "from p import b", "p.b": "from p.c import d", "p.c": ""}, set()),
    ],
)
def test_a_circle_is_found(sources: dict[str, str], found: set[tuple[str, str]]) -> None:
    texts = {"p": ("", True)} | {module: (source, False) for module, source in sources.items()}
    assert circular(graph(texts)) == found
