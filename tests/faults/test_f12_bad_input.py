"""F12: whatever is wrong is refused by name, with the remedy, and before the server hears of it."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

import jetspark
from jetspark import ConsumerConfig, StreamConfig
from jetspark.server import Server
from support.bad_input import MAX_PAYLOAD, World, all_cases, attempt, command_lines
from support.cli_runner import environment, inside
from support.fault_table import Outcome, Row, Scale, check
from support.helpers import eventually_sync
from support.jwt_mint import Operator


async def library(world: World, outcome: Outcome, areas: Counter[str]) -> None:
    """Everything that is called from Python, on one connection that must outlive all of it."""
    async with jetspark.connect(world.server.url) as nc:
        world.nc, world.js = nc, nc.jetstream()
        assert nc.server_info is not None
        world.client_id = nc.server_info.client_id
        # It would do what a smuggled header asks for.
        config = StreamConfig(
            name="BAD",
            subjects=["bad.>"],
            allow_rollup_hdrs=True,
            allow_msg_ttl=True,
            allow_atomic=True,
            allow_batched=True,
        )
        world.stream = await world.js.create_stream(config)
        world.consumer = await world.stream.create_consumer(ConsumerConfig(durable_name="C"))
        await world.js.publish("bad.first")
        (world.message,) = await world.consumer.fetch(1)
        world.msg = jetspark.Msg("s", "bad.reply", b"", None, nc)
        world.subscription = await nc.subscribe("elsewhere")
        world.pull_subscription = await world.js.pull_subscribe("bad.>", durable="PULL")
        world.push_subscription = await world.js.subscribe("bad.>", durable="PUSH")
        state = (await world.stream.info()).state
        # A read is counted at its end, when the answer to what it brought may be here already.
        await nc.flush()
        for case in all_cases():
            areas[case.area] += 1
            before = world.seen()
            problem = await attempt(case, world)
            # All that was written before this is with the server now.
            await nc.flush()
            after = world.seen()
            if case.connects:
                before["connections"] += 1
            changed = [name for name, count in after.items() if count != before[name]]
            outcome.require(not problem, f"{case.area}: {case.title} {problem}")
            outcome.require(not changed, f"{case.area}: {case.title} reached the server: {changed}")
        assert nc.stats.reconnects == 0, "the server cut us off"
        now = (await world.stream.info()).state
        outcome.require(now == state, f"the stream has changed: {state}, then {now}")
        await nc.publish("bad.x", b"and it still works")
        await nc.flush()


def command_line(world: World, outcome: Outcome, areas: Counter[str]) -> None:
    """Wrong use in this process, as the script runs it."""
    env = environment(world.folder, NATS_URL=world.server.url)
    # The server clears up after the library's connection in its own time.
    eventually_sync(lambda: not world.subscriptions_left())
    for words, message, code in command_lines():
        areas["command line"] += 1
        before = world.seen()
        ran = inside(env, *words)
        shown = " ".join(words)
        outcome.require(ran.code == code, f"jetspark {shown}: exit code {ran.code}: {ran.err[-300:]}")
        outcome.require(
            " ".join(message.split()) in " ".join(ran.err.split()), f"jetspark {shown}: says {ran.err[-300:]}"
        )
        outcome.require("Traceback" not in ran.out + ran.err, f"jetspark {shown}: shows a traceback")
        after = world.seen()
        outcome.require(after == before, f"jetspark {shown}: reached the server: {before}, then {after}")


def run(scale: Scale) -> Outcome:
    outcome = Outcome()
    areas: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(name="bad-input", config=f"max_payload: {MAX_PAYLOAD}") as server,
        Server(name="nkeys", jetstream=False, config=Operator().resolver_config()) as nkeys,
    ):
        world = World(server, nkeys, Path(folder))
        asyncio.run(library(world, outcome, areas))
        command_line(world, outcome, areas)
    outcome.figures = {"cases": areas.total(), **areas}
    outcome.require(areas.total() >= 150, f"only {areas.total()} cases")
    return outcome


ROW = Row(12, "bad input", run, minutes=4)


def test_f12() -> None:
    check(ROW)
