"""docs/observability.md: its programs run as they stand, and its tables are those of the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jetspark.metrics import METRICS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "observability.md").read_text()
TRACES, MEMORY, HOOK, LOGS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


def run(code: str, url: str) -> subprocess.CompletedProcess[str]:
    assert "nats://127.0.0.1:4222" in code
    code = code.replace("nats://127.0.0.1:4222", url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def test_the_program_with_traces(own_server) -> None:
    shown = run(TRACES, own_server.url).stdout
    spans = {
        span["attributes"]["messaging.operation.name"]: span
        for span in map(json.loads, re.findall(r"^\{.*?^\}", shown, re.M | re.S))
    }
    publish, fetch, handled = spans["publish"], spans["fetch"], spans["process"]
    assert publish["name"] == "publish orders.new"
    assert handled["parent_id"] == publish["context"]["span_id"]
    assert [link["context"]["span_id"] for link in fetch["links"]] == [publish["context"]["span_id"]]
    documented = set(re.findall(r"`((?:messaging|nats|server|error)\.[\w.]+)`", PAGE))
    assert {name for span in spans.values() for name in span["attributes"]} <= documented


def test_the_program_with_metrics(own_server) -> None:
    shown = run(MEMORY, own_server.url).stdout
    (sample,) = re.findall(r"^```\n(# HELP jetspark.*?)^```", PAGE, re.M | re.S)
    assert sample in shown
    assert 'jetspark_published_total{api="jetstream",connection="shop"} 1\n' in shown


def test_the_program_with_a_hook(own_server) -> None:
    assert '"name": "jetspark_published_total"' in run(HOOK, own_server.url).stdout


def test_the_program_with_logs(own_server) -> None:
    lines = run(LOGS, own_server.url).stderr.splitlines()
    (sample,) = re.findall(r'^```\n(\{"level".*?)\n```', PAGE, re.M | re.S)
    assert lines[0] == sample.replace("127.0.0.1:4222", own_server.url.removeprefix("nats://"))
    told = [json.loads(line)["event"] for line in lines]
    # On a busy machine a first attempt may come to nothing.
    assert [event for event in told if event != "ReconnectFailed"] == [
        "Connected",
        "Disconnected",
        "Reconnected",
        "Closed",
    ]


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(jetspark_\w+)` \| (\w+) \| (.*) \|$", PAGE, re.M)
    assert rows == [(name, kind, meaning) for name, (kind, meaning) in METRICS.items()]


@pytest.mark.parametrize("package", ["connection", "jetstream", "blocking", "metrics"])
def test_every_logger_is_listed(package: str) -> None:
    sources = [*(ROOT / "src" / "jetspark").rglob("*.py")]
    assert any(f'get_logger("{package}")' in source.read_text() for source in sources)
    assert f"| `jetspark.{package}` |" in PAGE


def test_no_other_logger_is_used() -> None:
    used = {
        name
        for source in (ROOT / "src" / "jetspark").rglob("*.py")
        for name in re.findall(r'^\w+ = get_logger\("(\w+)"\)', source.read_text(), re.M)
    }
    assert used == {"connection", "jetstream", "blocking", "metrics"}
