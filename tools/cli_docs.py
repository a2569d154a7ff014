#!/usr/bin/env python3
"""Writes docs/cli.md from the help texts of the command line: .venv/bin/python tools/cli_docs.py

With --check it writes nothing and fails when the file is not what it would write.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# Help is wrapped for the width of the terminal; a document has one width.
os.environ["COLUMNS"] = "100"
os.environ["NO_COLOR"] = "1"


from jetspark.cli.app import tree

TARGET = Path(__file__).parents[1] / "docs" / "cli.md"

INTRODUCTION = """\
# The command line

Written by `tools/cli_docs.py` from the help texts; do not edit.

```
pip install "jetspark[cli,server]"
jetspark server                                      # a real nats-server with JetStream, until Ctrl-C
jetspark stream add ORDERS --subjects 'orders.>'     # in another terminal; it finds the server by itself
jetspark pub orders.eu '{"amount": 12.5}' --js
jetspark stream view ORDERS
jetspark top
```

- Names and habits are those of the `nats` tool. `--json` is on everything that prints data; field names are
  stable, and infos and configs have the names of the server's own API.
- Data goes to stdout, everything else to stderr. Tables have frames on a terminal and are plain columns in a
  pipe; colours are off in a pipe and with `NO_COLOR`.
- Exit codes: 0 done, 1 failed, 2 wrong use. Commands that stay until Ctrl-C end with 0.
- Errors are one or two lines with the remedy; `--debug` adds the traceback.
- Times are in UTC, printed and read: `2026-01-31T12:00:00` is `2026-01-31T12:00:00Z`. Durations are
  `250ms`, `1h30m`, `10 minutes` or `2d`; a number without a unit is seconds.
- Each setting of the connection is taken from its flag, else from its environment variable, else from the
  context (`--context`, `NATS_CONTEXT`, or the selected one). When nothing names a server it is the one that
  `jetspark server` runs on this machine.
- `jetspark --install-completion` installs completion for your shell.
"""


def sections(command: Any, path: str, parent: Any = None) -> list[tuple[str, str]]:
    """Every visible command below, with its help."""
    context = command.make_context(path.rpartition(" ")[2], ["--help"], parent=parent, resilient_parsing=True)
    context.terminal_width = 100
    found = [(path, command.get_help(context))]
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            found += sections(child, f"{path} {name}", context)
    return found


def document() -> str:
    """The whole file."""
    found = sections(tree(), "jetspark")
    index = "\n".join(f"- [`{path}`](#{path.replace(' ', '-')})" for path, _ in found)
    texts = [f"## {path}\n\n```text\n{_trim(help)}\n```\n" for path, help in found]
    return "\n".join([INTRODUCTION, index, "", *texts])


def _trim(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def main() -> int:
    wanted = document()
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text() != wanted:
            print("docs/cli.md is not what the help texts say: run tools/cli_docs.py", file=sys.stderr)
            return 1
        return 0
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
