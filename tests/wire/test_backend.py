"""Which inner loops run, and what becomes of a core that does not belong to this Python code."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from jetspark.errors import InvalidArgument
from jetspark.wire import _backend

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
WIRE = ROOT / "src" / "jetspark" / "wire"


@pytest.fixture
def importing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Lets the import of the core bring something else, or fail."""

    def replace(found: Any) -> None:
        def importer(name: str) -> Any:
            assert name == "jetspark.wire._speed"
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(_backend, "import_module", importer)

    return replace


def core(**names: Any) -> ModuleType:
    module = ModuleType("_speed")
    module.__file__ = "/old/_speed.so"
    module.__dict__.update(names)
    return module


def test_the_numbers_on_both_sides_are_the_same() -> None:
    (number,) = re.findall(r"^#define ABI (\d+)$", (WIRE / "_core" / "_speed.c").read_text(), re.MULTILINE)
    assert int(number) == _backend.ABI


@pytest.mark.parametrize("wanted", ["", "c"])
def test_a_core_of_the_same_number_is_used(importing: Callable[[Any], None], wanted: str) -> None:
    found = core(ABI=_backend.ABI)
    importing(found)
    assert _backend.load(wanted) is found
    assert _backend.load("python") is None


@pytest.mark.parametrize("names", [{}, {"ABI": _backend.ABI - 1}, {"ABI": _backend.ABI + 1}, {"ABI": "2"}])
def test_a_stale_core_is_not_used(importing: Callable[[Any], None], names: dict[str, Any]) -> None:
    importing(core(**names))
    with pytest.warns(
        RuntimeWarning, match=r"/old/_speed\.so was built from other sources.*install jetspark again"
    ):
        assert _backend.load("") is None
    with pytest.raises(ImportError, match=r"JETSPARK_WIRE=c.*other sources"):
        _backend.load("c")
    assert _backend.load("python") is None


def test_without_a_core(importing: Callable[[Any], None]) -> None:
    importing(ImportError("no module"))
    assert _backend.load("") is None
    with pytest.raises(ImportError, match=r"JETSPARK_WIRE=c, but .*no module.*JETSPARK_BUILD=c"):
        _backend.load("c")


@pytest.mark.parametrize("wanted", ["yes", "C++", "cython", "1", "pure"])
def test_other_words_are_refused_by_name(wanted: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"JETSPARK_WIRE=.*{re.escape(wanted)}.*c, python"):
        _backend.load(wanted)


def test_the_variable_is_read() -> None:
    code = "import jetspark.wire; print(jetspark.wire.backend)"
    env = {"PYTHONPATH": str(ROOT / "src"), "JETSPARK_WIRE": "Python"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "python"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**env, "JETSPARK_WIRE": "fast"}, capture_output=True, text=True
    )
    assert ran.returncode == 1
    assert "JETSPARK_WIRE='fast'" in ran.stderr


class Build:
    """The build hook in a folder with sources of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(ROOT))
        self.module: Any = import_module("hatch_build")
        self.root = folder
        self.folder = folder / "src" / "jetspark" / "wire"
        self.source = self.folder / "_core" / "_speed.c"
        self.source.parent.mkdir(parents=True)
        self.source.write_text("int answer(void) { return 42; }\n")
        self.warnings: list[str] = []
        self.data: dict[str, Any] = {"artifacts": []}

    def left(self) -> list[Path]:
        return [path for path in self.folder.rglob("_speed.*") if path != self.source]

    def leave(self) -> None:
        suffix = self.module.sysconfig.get_config_var("EXT_SUFFIX")
        for name in (f"_speed{suffix}", f"_speed{suffix}.new"):
            (self.folder / name).write_text("an old one")
        assert len(self.left()) == 2

    def run(self, target: str = "wheel") -> None:
        app = SimpleNamespace(display_warning=self.warnings.append)
        hook = self.module.CoreBuildHook(str(self.root), {}, None, None, "", target, app)
        hook.initialize("standard", self.data)


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    monkeypatch.delenv("JETSPARK_BUILD", raising=False)
    return Build(tmp_path, monkeypatch)


def test_python_wanted_leaves_no_old_core(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    build.leave()
    monkeypatch.setenv("JETSPARK_BUILD", "python")
    build.run()
    assert build.left() == []
    assert "infer_tag" not in build.data


@pytest.mark.parametrize("wanted", ["", "c"])
def test_a_compiler_that_fails_leaves_no_old_core(
    build: Build, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    build.leave()
    build.source.write_text("this is no C\n")
    monkeypatch.setenv("JETSPARK_BUILD", wanted)
    if wanted:
        with pytest.raises(subprocess.CalledProcessError):
            build.run()
    else:
        build.run()
        assert "pure Python will run" in build.warnings[0]
    assert build.left() == []
    assert build.data == {"artifacts": []}


def test_no_compiler_leaves_no_old_core(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    build.leave()
    monkeypatch.setenv("CC", "/nowhere/cc")
    build.run()
    assert build.left() == []
    assert build.warnings


def test_a_new_core_takes_the_place_of_an_old_one(build: Build) -> None:
    build.leave()
    build.run()
    (made,) = build.left()
    assert made.read_bytes() != b"an old one"
    assert build.data["infer_tag"] is True


def test_other_words_for_the_build_are_refused_by_name(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    build.leave()
    monkeypatch.setenv("JETSPARK_BUILD", "yes")
    with pytest.raises(ValueError, match=r"JETSPARK_BUILD='yes'.*c, python"):
        build.run()


def test_what_a_build_leaves_is_not_committed() -> None:
    lines = (ROOT / ".gitignore").read_text().split()
    assert {"*.so", "*.so.new"} <= set(lines)
