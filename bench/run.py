"""Runs every bench one after the other, prints one table, writes bench/results.json."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _harness import HERE, options, table

BENCHES = ("core", "publish", "consume", "spark")


def main() -> int:
    arguments = options("All benches; see bench/README.md.").parse_args()
    target = arguments.json or HERE / "results.json"
    passed_on = ["--quick"] if arguments.quick else []
    passed_on += ["--repeats", str(arguments.repeats)] if arguments.repeats else []
    passed_on += [word for text in arguments.only for word in ("--only", text)]
    rows: list[dict[str, Any]] = []
    code = 0
    for name in BENCHES:
        script = HERE / f"{name}.py"
        if not script.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "rows.json"
            done = subprocess.run(
                [sys.executable, str(script), *passed_on, "--json", str(written)], check=False
            )
            code = code or done.returncode
            if written.exists():
                rows += json.loads(written.read_text())["rows"]
    print("\nall benches\n")
    print(table(rows))
    target.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    print(f"\nwritten to {target}")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
