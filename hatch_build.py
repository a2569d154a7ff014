"""Compiles the optional C core of ``jetspark.wire`` while a wheel or an editable install is built.

Pure Python is complete without it, so a missing or failing compiler is a remark and not an error.
``JETSPARK_BUILD=python`` does not even try; ``JETSPARK_BUILD=c`` makes a failure an error. A core that an
earlier build has left is removed in any case: an editable install would go on using it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("src/jetspark/wire")
SOURCE = PACKAGE / "_core" / "_speed.c"


class CoreBuildHook(BuildHookInterface[Any]):
    """Builds ``_speed`` into its package, where an editable install finds it and a wheel takes it from."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("JETSPARK_BUILD", "").lower()
        if wanted not in ("", "c", "python"):
            raise ValueError(f"JETSPARK_BUILD={wanted!r}: must be c, python, or not set")
        if self.target_name != "wheel":
            return
        target = PACKAGE / ("_speed" + str(sysconfig.get_config_var("EXT_SUFFIX") or ".so"))
        if wanted == "python":
            remove_core(Path(self.root), target)
            return
        try:
            compile_core(Path(self.root), target)
        except (OSError, subprocess.CalledProcessError) as error:
            if wanted == "c":
                raise
            self.app.display_warning(f"no compiled core, pure Python will run: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append("/" + target.as_posix())


def compile_core(root: Path, target: Path) -> None:
    """Call the compiler that Python itself was built with, or ``CC``."""
    variables = sysconfig.get_config_vars()
    linker = shlex.split(str(variables.get("LDSHARED") or "cc -shared"))
    if "CC" in os.environ:
        linker[0:1] = shlex.split(os.environ["CC"])
    # Written aside and moved, so that a process that has the old one open keeps it.
    aside = target.with_name(target.name + ".new")
    include = sysconfig.get_paths()["include"]
    command = [*linker, "-O3", "-fPIC", "-Wall", f"-I{include}", str(SOURCE), "-o", str(aside)]
    # Gone before the compiler starts: if it fails, the old one would be used with the new Python.
    remove_core(root, target)
    subprocess.run(command, cwd=root, check=True)
    (root / aside).replace(root / target)


def remove_core(root: Path, target: Path) -> None:
    """Remove what an earlier build has left."""
    for left in (target, target.with_name(target.name + ".new")):
        (root / left).unlink(missing_ok=True)
