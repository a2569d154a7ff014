"""F14: a server that wants to hurt its client gets ProtocolError or nothing, for a bounded price.

The client runs in a process of its own, which tells its peak of memory, its CPU time, and the longest stretch
of it in which its event loop did nothing else. After each attack the server behaves, and the client has to be
well: safety while it lasts, liveness after it. A hostile handshake is tried at the first connect and at a
reconnect.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support import hostile_client
from support.fake_server import FakeServer, Peer
from support.fault_table import Outcome, Row, Scale, check
from support.hostile_cases import ASKING, ESTABLISHED, HANDSHAKE, STATUSES, Case, honest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HANGS = 300.0
"""Seconds by the clock on the wall after which a task hangs: only a client that waits for ever gets there."""
SPINS = 30.0
"""Seconds of CPU time after which it spins. What takes long on a busy machine is no defect of the client."""
WORKERS = 4
MEMORY_MB = 60.0
BUSY = 1.0
"""Seconds of CPU time that the event loop may be away."""
CPU_ONCE = 1.0
"""Seconds of CPU time for the connections, the large single items and what the garbage collector does."""
CPU_A_MB = 1.0
"""Seconds of CPU time for a megabyte: who wants to keep one core busy has to send a megabyte a second.

A megabyte has 50,000 of the smallest messages that the user hears of one by one, each with an exception and
a call of a function; at 12 us each that is 0.6 s here, and the rest is for slower machines. What the user
need not hear of one by one (PING, INFO, errors that name nothing of ours) takes half of that at most.
"""


class Client:
    """The process of ``hostile_client``, renewed when it had to be killed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def do(self, case: Case, task: str, url: str) -> dict[str, Any]:
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
        order = {"task": task, "url": url}
        order |= {"ping_interval": case.ping_interval, "handshake": case.handshake}
        process.stdin.write(json.dumps(order).encode() + b"\n")
        try:
            line = await self._line(process)
        except TimeoutError as error:
            await self.end()
            return {"result": str(error)}
        if not line:
            code = await process.wait()
            await self.end()
            return {"result": f"crashed with {code}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _line(self, process: asyncio.subprocess.Process) -> bytes:
        assert process.stdout is not None
        before, until = cpu_time(process.pid), time.monotonic() + HANGS
        reading = asyncio.ensure_future(process.stdout.readline())
        try:
            while not (await asyncio.wait([reading], timeout=1))[0]:
                if cpu_time(process.pid) - before > SPINS:
                    raise TimeoutError(f"spins: no end within {SPINS:g} s of CPU time")
                if time.monotonic() > until:
                    raise TimeoutError(f"hangs: no end within {HANGS:g} s")
        finally:
            reading.cancel()
        return reading.result()

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]


def cpu_time(pid: int) -> float:
    """Seconds of CPU time that the process has used."""
    # The name of the program is in brackets and may contain anything.
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has just ended
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    size = scale.pick(1 << 18, 4 << 20)
    done = 0
    worst: dict[str, tuple[float, str]] = {"mb": (0.0, ""), "busy": (0.0, ""), "cpu": (0.0, "")}

    async def attack(client: Client, case: Case, task: str, *scripts: Any) -> None:
        nonlocal done
        async with FakeServer(*scripts) as server:
            seen = await client.do(case, task, server.url)
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
    # More than cores, since most of the handshakes and fetches just wait for their timeout.
    await asyncio.gather(*(work(jobs) for _ in range(WORKERS)))
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
    allowed = CPU_ONCE + CPU_A_MB * sent / (1 << 20)
    outcome.require(seen["cpu"] <= allowed, f"{name}: {seen['cpu']} s of CPU time for {sent} bytes")


ROW = Row(14, "untrusted server", run, minutes=8)


def test_f14() -> None:
    check(ROW)


WELL = {"result": "end", "errors": {}, "events": {"Closed": 1}, "texts": [], "loop_errors": []}
WELL |= {"mb": 1.0, "busy": 0.1, "cpu": 0.1}


@pytest.mark.parametrize(
    "ill",
    [
        {"result": "hangs: no end within 300 s"},
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
