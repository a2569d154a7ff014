"""F14: a server that wants to hurt its client gets ProtocolError or nothing, for a bounded price.

The client runs in a process of its own, which tells its peak of memory, its CPU time, and the longest stretch
of it in which its event loop did nothing else. After each attack the server behaves, and the client has to be
well: safety while it lasts, liveness after it. A hostile handshake is tried at the first connect and at a
reconnect.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

import hostile_client
from fake_server import FakeServer, Peer
from fault_table import Outcome, Row, Scale, check
from hostile_cases import ASKING, ESTABLISHED, HANDSHAKE, STATUSES, Case, honest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DEADLINE = 60.0
"""Seconds after which a task hangs. The tasks themselves wait for a second or two at most."""
MEMORY_MB = 60.0
BUSY = 1.0
"""Seconds of CPU time that the event loop may be away."""
CPU_A_MB = 0.6
"""Seconds of CPU time for a megabyte of the smallest messages and events, listener and log included."""


class Client:
    """The process of ``hostile_client``, renewed when it had to be killed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def do(self, task: str, url: str, ping_interval: float) -> dict[str, Any]:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, hostile_client.__file__),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 24,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        order = {"task": task, "url": url, "ping_interval": ping_interval}
        process.stdin.write(json.dumps(order).encode() + b"\n")
        try:
            async with asyncio.timeout(DEADLINE):
                line = await process.stdout.readline()
        except TimeoutError:
            await self.end()
            return {"result": f"hangs: no end within {DEADLINE:g} s"}
        if not line:
            code = await process.wait()
            await self.end()
            return {"result": f"crashed with {code}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]


async def cut_at_once(peer: Peer) -> None:
    """Honest up to the moment when the client has subscribed."""
    await peer.welcome()
    await peer.sid("end")


def sized(case: Case, size: int) -> Callable[[Peer], Awaitable[None]]:
    async def script(peer: Peer) -> None:
        await case.script(peer, size)

    return script


async def run(scale: Scale) -> Outcome:
    outcome = Outcome()
    size = scale.pick(1 << 18, 16 << 20)
    done = 0
    worst: dict[str, tuple[float, str]] = {"mb": (0.0, ""), "busy": (0.0, ""), "cpu": (0.0, "")}

    async def attack(client: Client, case: Case, task: str, *scripts: Any) -> None:
        nonlocal done
        async with FakeServer(*scripts) as server:
            seen = await client.do(task, server.url, case.ping_interval)
        done += 1
        judge(outcome, f"{case.name} ({task})", case, task, seen, server.sent)
        for error in server.errors:
            outcome.problems.append(f"{case.name} ({task}): the script failed: {error!r}")
        for name in worst:
            worst[name] = max(worst[name], (seen.get(name, 0.0), f"{case.name} ({task})"))

    async def work(jobs: asyncio.Queue[tuple[Any, ...]]) -> None:
        client = Client()
        try:
            while not jobs.empty():
                await attack(client, *jobs.get_nowait())
        finally:
            await client.end()

    jobs: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
    chance = scale.chance()
    for case in HANDSHAKE:
        forms = [("connect", sized(case, size)), ("subscribe", cut_at_once, sized(case, size), honest)]
        for form in forms if scale.full else [chance.choice(forms)]:
            jobs.put_nowait((case, *form))
    for case in (*ESTABLISHED, *ASKING, *STATUSES):
        for task in case.tasks if scale.full else [chance.choice(case.tasks)]:
            jobs.put_nowait((case, task, sized(case, size), honest))
    # Two, since most of the handshakes just wait for their timeout.
    await asyncio.gather(work(jobs), work(jobs))
    outcome.figures["attacks"] = done
    outcome.figures["KB each"] = size >> 10
    for name, unit in (("mb", "MB"), ("busy", "s"), ("cpu", "s")):
        outcome.figures[f"worst {name}"] = f"{worst[name][0]:g} {unit} at {worst[name][1]}"
    return outcome


def judge(outcome: Outcome, name: str, case: Case, task: str, seen: dict[str, Any], sent: int) -> None:
    wanted = "refused" if task == "connect" else "end"
    outcome.require(seen["result"] == wanted, f"{name}: {seen['result']}, not {wanted}: {seen}")
    if "errors" not in seen:
        return
    outcome.require(not seen["loop_errors"], f"{name}: foreign exceptions {seen['loop_errors']}")
    if case.expect:
        # The first connect lists the reason of every server in its own error.
        found = set(seen["errors"]) & set(case.expect) or task == "connect"
        outcome.require(bool(found), f"{name}: errors {seen['errors']}, none of {case.expect}")
    elif not case.hangs_up:
        outcome.require("Disconnected" not in seen["events"], f"{name}: disconnected, {seen['texts']}")
    outcome.require("Closed" not in seen["events"] or seen["events"]["Closed"] == 1, f"{name}: closed twice")
    allowed_mb = MEMORY_MB + (3 * sent / (1 << 20) if case.holds else 0)
    outcome.require(seen["mb"] <= allowed_mb, f"{name}: {seen['mb']} MB of memory for {sent} bytes")
    outcome.require(seen["busy"] <= BUSY, f"{name}: busy for {seen['busy']} s of CPU time")
    allowed = 2.0 + CPU_A_MB * sent / (1 << 20)
    outcome.require(seen["cpu"] <= allowed, f"{name}: {seen['cpu']} s of CPU time for {sent} bytes")


ROW = Row(14, "untrusted server", run)


def test_f14() -> None:
    check(ROW)


WELL = {"result": "end", "errors": {}, "events": {"Closed": 1}, "texts": [], "loop_errors": []}
WELL |= {"mb": 1.0, "busy": 0.1, "cpu": 0.1}


@pytest.mark.parametrize(
    "ill",
    [
        {"result": "hangs: no end within 60 s"},
        {"loop_errors": ["Fatal error"]},
        {"events": {"Disconnected": 1}},
        {"mb": 200.0},
        {"busy": 5.0},
        {"cpu": 30.0},
    ],
)
def test_the_row_finds_an_ill_client(ill: dict[str, Any]) -> None:
    case = next(case for case in ESTABLISHED if case.name == "PING flood")
    for seen, expected in ((WELL, 0), (WELL | ill, 1)):
        outcome = Outcome()
        judge(outcome, "PING flood", case, "subscribe", seen, 1 << 20)
        assert len(outcome.problems) == expected
