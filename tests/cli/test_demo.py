"""``jetspark demo``: it reconciles from ids, and says so when an order is lost or counted twice."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from jetspark.cli.demo import command as demo_module
from jetspark.cli.demo.chart import bar, sparkline, text_chart, write_png
from jetspark.cli.demo.command import committed_files
from jetspark.cli.demo.orders import LATE_MINUTES, Order, closing, make_orders
from jetspark.cli.demo.reconcile import Reconciliation, Total, reconcile
from support.cli_runner import SCRIPT, environment, inside
from support.helpers import gone

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = make_orders(400, 10)


def totals(orders: list[Order]) -> list[Total]:
    """What a pipeline without fault makes of them."""
    groups: dict[tuple[str, str], dict[str, Order]] = {}
    for order in orders:
        groups.setdefault((order.region, order.minute), {})[order.order_id] = order
    return [
        Total(region, minute, len(found), sum(order.cents for order in found.values()), tuple(found))
        for (region, minute), found in sorted(groups.items())
    ]


def check(
    *, stored: list[str] | None = None, read: int | None = None, parquet: list[Total] | None = None
) -> Reconciliation:
    ids = [order.order_id for order in ORDERS]
    good = totals(ORDERS)
    return reconcile(
        ORDERS,
        ids if stored is None else stored,
        {"stream": len(ORDERS), "parquet": len(ORDERS) if read is None else read},
        {"stream": good, "parquet": good if parquet is None else parquet},
    )


def test_the_orders_are_untidy_and_the_same_each_time() -> None:
    assert make_orders(400, 10) == ORDERS
    counts = Counter(order.order_id for order in ORDERS)
    assert len(counts) == 400
    assert set(counts.values()) == {1, 2}
    assert len({order.message_id for order in ORDERS}) == len(ORDERS)
    assert any(order.late for order in ORDERS)
    newest = ORDERS[0].time
    for order in ORDERS:
        newest = max(newest, order.time)
        assert (newest - order.time).total_seconds() < (LATE_MINUTES + 2) * 60
    assert closing(10).time > newest
    assert json.loads(ORDERS[0].body())["amount"] * 100 == pytest.approx(ORDERS[0].cents)


def test_all_is_well() -> None:
    found = check()
    assert found.ok
    assert found.line() == (
        f"reconciliation: published {len(ORDERS)}, unique 400, read {len(ORDERS)}, written 400, "
        "lost 0, duplicated 0"
    )


def test_a_lost_order_is_found() -> None:
    good = totals(ORDERS)
    first = good[0]
    less = dataclasses.replace(first, ids=first.ids[1:], orders=first.orders - 1)
    found = check(parquet=[less, *good[1:]])
    assert (found.lost, found.duplicated, found.written, found.ok) == (1, 0, 399, False)
    assert found.problems == [f"parquet lacks 1 orders, e.g. {first.ids[0]}"]


def test_a_doubled_total_is_found() -> None:
    good = totals(ORDERS)
    found = check(parquet=[*good, good[0]])
    assert (found.lost, found.duplicated, found.ok) == (0, good[0].orders, False)


def test_an_order_that_nobody_sent_is_found() -> None:
    good = totals(ORDERS)
    strange = dataclasses.replace(good[0], ids=(*good[0].ids, "x"), orders=good[0].orders + 1)
    found = check(parquet=[strange, *good[1:]])
    assert (found.duplicated, found.ok) == (1, False)
    assert "were never sent" in found.problems[0]


def test_a_wrong_sum_count_or_place_is_found() -> None:
    good = totals(ORDERS)
    for change, message in [
        ({"cents": good[0].cents + 1}, "instead of"),
        ({"orders": good[0].orders + 1}, "and names"),
        ({"minute": "23:59"}, "other places or minutes"),
    ]:
        found = check(parquet=[dataclasses.replace(good[0], **change), *good[1:]])
        assert (found.lost, found.duplicated, found.ok) == (0, 0, False)
        assert message in found.problems[0]


def test_what_the_stream_lost_or_stored_twice_is_found() -> None:
    ids = [order.order_id for order in ORDERS]
    assert (check(stored=ids[1:]).lost, check(stored=ids[1:]).ok) == (1, False)
    assert (check(stored=[*ids, ids[0]]).duplicated, check(stored=[*ids, ids[0]]).ok) == (1, False)


def test_messages_that_spark_did_not_read_are_found() -> None:
    found = check(read=len(ORDERS) - 3)
    assert (found.read, found.ok) == (len(ORDERS) - 3, False)


@pytest.mark.slow
def test_a_broken_count_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    good = totals(ORDERS)

    async def play(self: object, screen: object) -> tuple[Reconciliation, list[Total]]:
        return check(parquet=good[1:]), good

    monkeypatch.setattr(demo_module.Show, "play", play)
    ran = inside(environment(tmp_path), "demo", "--out", str(tmp_path))
    assert ran.code == 1
    assert f"lost {good[0].orders}, duplicated 0" in ran.out
    assert ran.err.startswith(f"error: parquet lacks {good[0].orders} orders")


@pytest.mark.slow
def test_the_charts(tmp_path: Path) -> None:
    assert sparkline([0, 1, 2], 10) == " ▄█"
    assert len(sparkline([1.0] * 100, 30)) == 30
    assert bar(1, 2, 4) == "██"
    lines = text_chart(totals(ORDERS))
    shown = [(line.split()[0], float(line.split()[1].replace(",", ""))) for line in lines[:4]]
    assert {region for region, _ in shown} == {"amer", "emea", "apac", "latam"}
    assert shown == sorted(shown, key=lambda pair: -pair[1])
    assert max(map(len, lines)) <= 78
    assert lines[-1].split() == ["09:00", "09:09"]
    assert text_chart([]) == []
    assert write_png(tmp_path / "revenue.png", totals(ORDERS))
    assert (tmp_path / "revenue.png").read_bytes().startswith(b"\x89PNG")


def test_only_committed_files_count(tmp_path: Path) -> None:
    assert committed_files(tmp_path) == set()
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    for name, files in [("9.compact", ["a", "b"]), ("10", ["c"]), (".11.tmp", ["d"])]:
        lines = [json.dumps({"path": f"file:///x/{one}.parquet", "action": "add"}) for one in files]
        (log / name).write_text("\n".join(["v1", *lines]))
    assert committed_files(tmp_path) == {"a.parquet", "b.parquet", "c.parquet"}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_demo_survives_a_crash_and_reconciles(tmp_path: Path) -> None:
    out = tmp_path / "out"
    # A server that does not exist in the environment: the demo must use its own.
    env = environment(tmp_path, NATS_URL="nats://127.0.0.1:1", TMPDIR=str(tmp_path))
    ran = subprocess.run(
        [SCRIPT, "demo", "--orders", "600", "--seconds", "3", "--out", str(out)],
        env=env,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr + (out / "pipe.log").read_text()
    lines = ran.stdout.splitlines()
    published = len(make_orders(600, 10))
    assert lines[-1].startswith(
        f"reconciliation: published {published}, unique 600, read {published}, written 600, "
        "lost 0, duplicated 0"
    )
    assert any(line.startswith("CRASH: nats-server killed with -9") for line in lines)
    assert any(line.startswith("revenue 09:0") for line in lines)
    assert "\x1b" not in ran.stdout
    assert ran.stderr == ""
    assert (out / "revenue.png").read_bytes().startswith(b"\x89PNG")
    assert committed_files(out / "revenue")
    # No server, no pipeline, no folder is left.
    pids = [int(found) for found in re.findall(r"pid (\d+)", ran.stdout)]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("jetspark-")]
