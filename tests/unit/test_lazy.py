"""Packages load their parts on use; to whoever imports from them nothing is different."""

from __future__ import annotations

import ast
import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import jetspark

SRC = Path(__file__).parents[2] / "src"
MODULES = ("jetspark", "jetspark.connection", "jetspark.errors", "jetspark.spark")


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.strip()


def declared(module: str) -> dict[str, str]:
    """By name, the module that the imports for type checkers take it from."""
    source = Path(str(importlib.import_module(module).__file__)).read_text()
    block = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    found: dict[str, str] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            # "as" the same name tells type checkers that it is exported.
            assert alias.asname == alias.name
            found[alias.name] = str(node.module)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_type_checkers_and_run_time_see_the_same(module: str) -> None:
    found = importlib.import_module(module)
    assert {name: home for home, names in found._EXPORTS.items() for name in names.split()} == declared(
        module
    )
    assert len(found.__all__) == len(set(found.__all__))


@pytest.mark.parametrize("package", MODULES)
def test_every_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)
    scope: dict[str, object] = {}
    exec(f"from {package} import *", scope)
    assert set(module.__all__) <= set(scope)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = module.nothing
    with pytest.raises(ImportError, match="nothing"):
        exec(f"from {package} import nothing")


def test_the_import_alone_loads_next_to_nothing() -> None:
    code = (
        "import sys, jetspark\n"
        "heavy = ('asyncio', 'ssl', 'msgspec', 'nkeys', 'jetspark.connecting')\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "print(jetspark.__version__)"
    )
    assert fresh(code) == f"[]\n{jetspark.__version__}"


def test_core_nats_does_not_load_jetstream() -> None:
    code = "import sys, jetspark; jetspark.connect; print('jetspark.jetstream.context' in sys.modules)"
    assert fresh(code) == "False"


def test_modules_are_attributes_as_if_they_had_been_imported() -> None:
    code = (
        "import jetspark\n"
        "print(jetspark.errors.JetsparkError.__name__, jetspark.events.Connected.__name__,\n"
        "      jetspark.models.StreamState.__name__, jetspark.advisories.NakAdvisory.__name__,\n"
        "      jetspark.errors.StreamNotFound.__name__, jetspark.wire.headers.Headers.__name__)"
    )
    assert fresh(code) == "JetsparkError Connected StreamState NakAdvisory StreamNotFound Headers"


@pytest.mark.slow
def test_any_module_may_be_the_first_to_be_imported() -> None:
    # Nothing may rest on an order of imports that a package once had.
    homes = sorted({home for module in MODULES for home in importlib.import_module(module)._EXPORTS})
    homes += ["jetspark.models", "jetspark.advisories"]
    code = (
        "import asyncio, importlib, msgspec, os, ssl, sys\n"
        f"for name in {homes}:\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        try:\n"
        "            importlib.import_module(name)\n"
        "        except BaseException as error:\n"
        "            print(name, repr(error), flush=True)\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "print('done')"
    )
    assert fresh(code) == "done"


def test_pickles_of_one_process_are_read_by_the_next() -> None:
    config = jetspark.StreamConfig(name="S", subjects=["s"])
    error = jetspark.errors.InvalidArgument("name", "a.b", "must have no dot")
    sent = pickle.dumps((config, error, jetspark.connect))
    code = (
        f"import pickle; config, error, connect = pickle.loads({sent!r})\n"
        "import jetspark\n"
        "print(type(config) is jetspark.StreamConfig, config.subjects, connect is jetspark.connect)\n"
        "print(type(error) is jetspark.errors.InvalidArgument, error)"
    )
    assert fresh(code) == f"True ['s'] True\nTrue {error}"
