"""Where and with what a run was made: a figure without this says nothing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any

from _harness import module, nats_server
from _raw import RawConn


def cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def machine() -> dict[str, Any]:
    """Starts a server for a moment, to ask it for its version."""
    with nats_server() as (host, port, _), RawConn(host, port) as conn:
        server = conn.info["version"]
    packages = ("nats-py", "natsrpy", "pyarrow", "pyspark", "msgspec")
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
        "server": server,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load": round(os.getloadavg()[0], 1),
        "backend": module("jetspark.wire").backend,
        "packages": {name: found for name in packages if (found := version(name))},
    }


def title(about: dict[str, Any]) -> str:
    return (
        f"{about['cpu']}, {about['cores']} cores, Python {about['python']}, nats-server {about['server']}, "
        f"backend {about['backend']}, {about['date']}, load {about['load']} at the start"
    )
