"""No package uses the private attributes of another package's objects, and nothing patches our own objects.

What two packages need of each other has a name without an underscore. The count is read from the syntax
trees: an attribute ``_x`` of something other than ``self``, whose name another package of ours defines and
the package itself does not. Names that both define are told apart by the variables that are known to hold an
object of another package. ``getattr`` with a private name, ``setattr`` and ``__dict__`` are reaches, too.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from jetspark.connecting import Connection
from jetspark.connection.sink import Sink
from jetspark.connection.subscription import Subscription
from jetspark.jetstream.publish.atomic_batch import AtomicBatch
from jetspark.jetstream.publish.fast_ingest import FastIngest
from jetspark.jetstream.publish.publisher import Publisher

SRC = Path(__file__).parents[2] / "src" / "jetspark"

# None is left; the number may not grow again.
CEILING = 0

# By package, the variables and attributes that hold an object of another package.
FOREIGN = {
    "jetstream": {"client", "_client", "core", "_core"},
    "blocking": {"target", "_target"},
    "arrow": {"consumer", "source"},
    "metrics": {"client", "_client", "sink"},
    "tracing": {"client", "_client", "message"},
}
# What looks like a reach and is none, each with the reason.
ALLOWED = {
    "_lazy.py:setattr(sys.modules[package], name, value)": "PEP 562: a package remembers what it has loaded",
    "errors.py:error.__dict__": "how an exception is pickled with what it knows",
    "spark/sessions.py:spark._jvm": "PySpark's, which has no public way to its JVM",
}
# Functions that patch an object whatever its class says.
PATCHING = {"setattr", "delattr"}


# The public methods of named tuples have an underscore, so that they never meet a field.
OF_NAMED_TUPLES = {"_asdict", "_fields", "_replace"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_NAMED_TUPLES


def defined(tree: ast.AST) -> set[str]:
    """The private names of a module: functions, classes, variables, attributes of its objects."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return {name for name in found if is_private(name)}


def is_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def holder(node: ast.expr) -> str:
    """What the object is called: the last name of ``a.b.c``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def reaches(sources: dict[str, str]) -> list[str]:
    """``sources``: by path below the package, such as ``jetstream/api.py``, the text."""
    trees = {path: ast.parse(source) for path, source in sources.items()}
    names: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        names[package_of(path)] |= defined(tree)
    ours = set().union(*names.values())
    found = []
    for path, tree in sorted(trees.items()):
        package = package_of(path)
        own, foreign = names[package], FOREIGN.get(package, set())
        for node in ast.walk(tree):
            text = ""
            if isinstance(node, ast.Attribute) and not is_self(node.value):
                other = node.attr in ours and (node.attr not in own or holder(node.value) in foreign)
                if (is_private(node.attr) and other) or node.attr == "__dict__":
                    text = ast.unparse(node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                name = node.args[1] if len(node.args) > 1 else None
                by_name = isinstance(name, ast.Constant) and name.value in ours
                if node.func.id in PATCHING or (node.func.id in ("getattr", "hasattr") and by_name):
                    text = "" if is_self(node.args[0]) else ast.unparse(node)
            if text and f"{path}:{text}" not in ALLOWED:
                found.append(f"{path}:{node.lineno} {text}")
    return found


def package_of(path: str) -> str:
    return path.split("/")[0].removesuffix(".py")


@pytest.mark.slow
def test_no_package_reaches_into_another() -> None:
    found = reaches({str(path.relative_to(SRC)): path.read_text() for path in sorted(SRC.rglob("*.py"))})
    assert len(found) <= CEILING, "\n".join(found)
    assert len(found) == CEILING, f"fewer than the ceiling; lower it to {len(found)}"


@pytest.mark.parametrize("face", [Connection, Subscription, Publisher, AtomicBatch, FastIngest])
def test_what_users_hold_shows_nothing_that_the_connection_calls(face: type) -> None:
    shown = {name for name in dir(face) if not name.startswith("_")}
    assert not shown & {*vars(Sink), "core", "outbox", "router"}


CLIENT = "class Connection:\n    def __init__(self):\n        self._loop = None\n    def _pub(self): ...\n"


@pytest.mark.parametrize(
    "source",
    [
        "def f(nc):\n    nc._loop.time()",
        "class A:\n    def f(self):\n        self.client._pub()",
        "class A:\n    def _pub(self):\n        self.client._pub()",  # a name that both have
        "def f(nc):\n    nc._loop = None",
        "def f(nc):\n    return getattr(nc, '_loop', None)",
        "def f(nc, replacement):\n    setattr(nc, 'publish', replacement)",
        "def f(nc, replacement):\n    nc.__dict__['publish'] = replacement",
    ],
)
def test_a_reach_is_found(source: str) -> None:
    assert len(reaches({"connection/client.py": CLIENT, "jetstream/api.py": source})) == 1


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self):\n        self._loop = 1\n        super()._pub()",
        "class A:\n    def __init__(self, other):\n        self._own = other._own",
        "def f(nc):\n    nc.loop.time()",
        "def f(spark):\n    spark._jvm",  # not ours: what other libraries keep private is another matter
    ],
)
def test_what_is_no_reach_passes(source: str) -> None:
    assert reaches({"connection/client.py": CLIENT, "jetstream/api.py": source}) == []
