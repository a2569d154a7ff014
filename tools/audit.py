"""make audit: what can be said about the dependencies, offline first, then with an advisory database.

Offline: every pin has hashes and fits pyproject.toml, and the environment is what the lock says, no more and
no less. Then pip-audit asks for known vulnerabilities; where no database can be reached, that is said and is
no failure, as the rest was checked all the same.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
# Installed by venv itself in some versions of Python, and by nobody's wish.
UNASKED = {"setuptools", "wheel"}
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}(?![0-9a-f])")


@dataclass(frozen=True)
class Pin:
    """One entry of the lock."""

    requirement: Requirement
    version: str
    hashes: int

    @property
    def wanted(self) -> bool:
        """Whether it belongs into this environment."""
        return self.requirement.marker is None or self.requirement.marker.evaluate()


def read_lock(text: str) -> tuple[dict[str, Pin], list[str]]:
    """The pins by name, and what is wrong with the file."""
    pins: dict[str, Pin] = {}
    problems = []
    for entry in re.sub(r"\\\n\s*", " ", text).splitlines():
        entry = entry.strip()
        if not entry or entry.startswith("#"):
            continue
        requirement = Requirement(entry.partition(" --hash")[0].strip())
        exact = re.fullmatch(r"==([^*,]+)", str(requirement.specifier))
        hashes = len(_HASH.findall(entry))
        if exact is None:
            problems.append(f"{requirement.name} is not pinned to one version")
        if not hashes or hashes != entry.count("--hash="):
            problems.append(f"{requirement.name} has {hashes} good hashes of {entry.count('--hash=')}")
        pins[canonicalize_name(requirement.name)] = Pin(requirement, exact[1] if exact else "", hashes)
    return pins, problems


def unfit(pins: dict[str, Pin], project: dict[str, Any]) -> list[str]:
    """What pyproject.toml asks for and the lock does not have, or not in that version."""
    asked = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        asked += extra
    problems = []
    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        if name == project["project"]["name"]:
            continue
        if name not in pins:
            problems.append(f"{requirement} of pyproject.toml is not locked: make lock")
        elif not requirement.specifier.contains(pins[name].version, prereleases=True):
            problems.append(f"{requirement} of pyproject.toml, but {pins[name].version} is locked: make lock")
    return problems


def differing(pins: dict[str, Pin], installed: dict[str, str], own: str) -> list[str]:
    """Where the environment is not what the lock says."""
    problems = [
        f"{name} {pin.version} is locked, {installed.get(name, 'nothing')} is installed: make setup"
        for name, pin in pins.items()
        if pin.wanted and installed.get(name) != pin.version
    ]
    extra = sorted(set(installed) - {name for name, pin in pins.items() if pin.wanted} - UNASKED - {own})
    return problems + [f"{name} {installed[name]} is installed and not locked" for name in extra]


def vulnerabilities() -> tuple[list[str], str]:
    """Known ones in what is locked, and why they could not be looked up."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--format", "json"]
    command += ["--progress-spinner", "off", "--timeout", "10", "--requirement", str(LOCK)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        packages = json.loads(done.stdout)["dependencies"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        return [], "not checked: pip-audit could not reach a database"
    # Where the database is out of reach behind a mirror, pip-audit calls each package unknown and succeeds.
    skipped = [package for package in packages if "skip_reason" in package]
    if len(skipped) == len(packages):
        return [], "not checked: none of the packages is known to the database, so it is out of reach here"
    found = [
        f"{package['name']} {package['version']}: {one['id']}, fixed in {one['fix_versions'] or 'no version'}"
        for package in packages
        for one in package.get("vulns", ())
    ]
    return found, f"checked, but {len(skipped)} packages are unknown to the database" if skipped else ""


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins, problems = read_lock(LOCK.read_text())
    installed = {canonicalize_name(one.metadata["Name"]): one.version for one in metadata.distributions()}
    problems += unfit(pins, project)
    problems += differing(pins, installed, project["project"]["name"])
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    if checked.returncode:
        problems += checked.stdout.splitlines()
    hashes = sum(pin.hashes for pin in pins.values())
    print(f"lock: {len(pins)} packages, each with one version and its hashes ({hashes} in all)")
    print(f"environment: {sum(pin.wanted for pin in pins.values())} packages as locked; pip check ran")
    found, unknown = vulnerabilities()
    problems += found
    print(f"advisories: {unknown or 'checked, all packages'}")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    print("audit: " + (f"{len(problems)} problems" if problems else "no problem found"))
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
