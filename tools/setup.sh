#!/usr/bin/env bash
# Builds the development environment. Called by make with PYTHON, VENV and STAMP set:
#   setup.sh environment   a venv with the pinned dependencies and an editable jetspark with its C core
#   setup.sh java          a Java runtime for Spark, where one is missing and we may install it
set -euo pipefail
cd "$(dirname "$0")/.."

# What apt packages to install, and for what.
install_packages() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        return 1
    fi
    echo "installing $2"
    DEBIAN_FRONTEND=noninteractive apt-get -qq update >/dev/null
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $1 >/dev/null
}

install_compiler() {
    if command -v "${CC:-gcc}" >/dev/null 2>&1 || [ "${JETSPARK_BUILD:-}" = python ]; then
        return
    fi
    if ! install_packages "gcc libc6-dev" "a compiler for the C core"; then
        echo "No compiler was found: the client will run in pure Python. On Debian or Ubuntu:" >&2
        echo "  sudo apt-get install -y gcc libc6-dev" >&2
    fi
}

install_environment() {
    install_compiler
    if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        found=$("$PYTHON" -V 2>/dev/null || true)
        echo "jetspark needs Python 3.11 or newer; $PYTHON is: ${found:-not found}." >&2
        echo "Point to another one: make setup PYTHON=/path/to/python3.11" >&2
        exit 1
    fi
    if [ ! -x "$VENV/bin/python" ]; then
        echo "creating $VENV"
        "$PYTHON" -m venv "$VENV"
    fi
    echo "installing the pinned dependencies into $VENV"
    # --quiet hides progress, not errors.
    # Only files with a hash that is in the lock. The package itself is built with the hatchling of the lock.
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
        --require-hashes --requirement requirements.lock
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
        --no-deps --no-build-isolation --editable .
    rm -f "$VENV"/.ready-*
    touch "$STAMP"
}

# Not called `java`: `command -v` would find the function instead of the program.
install_java() {
    if command -v java >/dev/null 2>&1 || [ -x "${JAVA_HOME:-/nonexistent}/bin/java" ]; then
        return
    fi
    if ! install_packages openjdk-17-jre-headless "a Java runtime for Spark"; then
        echo "Spark needs Java 17 or newer and none was found. On Debian or Ubuntu:" >&2
        echo "  sudo apt-get install -y openjdk-17-jre-headless" >&2
    fi
}

case "${1:-}" in
    environment) install_environment ;;
    java) install_java ;;
    *) echo "usage: setup.sh environment|java" >&2; exit 2 ;;
esac
