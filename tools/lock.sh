#!/usr/bin/env bash
# Writes requirements.lock: one version of every dependency, of the extras and of the build too, with the
# hashes of all its files, for every Python and platform that pyproject.toml allows. Pins that still fit
# stay as they are; `make lock ARGS=--upgrade` takes the newest, `ARGS="--upgrade-package ruff"` those of one.
set -euo pipefail
cd "$(dirname "$0")/.."

build_needs() {
    "$VENV/bin/python" -c '
import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")'
}

build_needs | UV_CUSTOM_COMPILE_COMMAND="make lock" "$VENV/bin/uv" pip compile --quiet \
    --universal --generate-hashes --no-annotate --no-emit-package jetspark \
    --extra all --extra bench --extra dev \
    --output-file requirements.lock "$@" pyproject.toml -
echo "requirements.lock: $(grep -c '==' requirements.lock) packages, $(grep -c 'sha256:' requirements.lock) hashes"
