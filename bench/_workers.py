"""The processes of the contenders, as the parent sees them, and how several of them take turns.

A worker talks in lines on stdout: `READY` (subscribed; the load may start), `TURN` (it has warmed up, or done
a pass, and waits for a line before the next one), `RESULT {...}` or `ERROR {...}`. Nobody works while another
does, the warm-up included, and the order turns with each pass.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from _harness import Context, Figures, Measure, Params

HERE = Path(__file__).resolve().parent


class MeasureFailed(Exception):
    pass


class Worker:
    """One contender doing one thing in a fresh process; `passes` has its figures in the end."""

    def __init__(self, script: str, measure: Measure, ctx: Context, params: Params, timeout: float) -> None:
        self._measure, self._ctx, self._params, self._timeout = measure, ctx, params, timeout
        self.key = measure.key
        self._said = b""
        self._phase = 0
        self.passes: list[Figures] = []
        ctx.settle()
        if measure.setup is not None:
            measure.setup(ctx, params)
        environment = {**os.environ, **measure.env}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(HERE.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        arguments = ["--worker", measure.key, "--params", json.dumps(asdict(params))]
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / f"{script}.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def go(self) -> None:
        """Its turn has come."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"GO\n")
        self._process.stdin.flush()

    def work(self) -> bool:
        """Let it work until it waits for its turn; False: it has its result."""
        deadline = time.monotonic() + self._timeout
        while (line := self._line(deadline)) is not None:
            word, _, rest = line.partition(" ")
            if word == "TURN":
                return True
            if word == "READY" and self._measure.load is not None:
                self._measure.load(self._ctx, self._params, self._phase)
                self._phase += 1
            elif word == "ERROR":
                raise MeasureFailed(json.loads(rest))
            elif word == "RESULT":
                found = json.loads(rest)
                self.passes = found if isinstance(found, list) else [found]
                if self._measure.check is not None:
                    self._measure.check(self._ctx, self._params)
                return False
        raise MeasureFailed(f"the worker ended without a result (exit code {self._process.wait()})")

    def _line(self, deadline: float) -> str | None:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._said:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise MeasureFailed(f"no result within {self._timeout:.0f} s")
                chunk = os.read(self._process.stdout.fileno(), 65536)
                if not chunk:
                    return None
                self._said += chunk
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()


def run_together(
    script: str, measures: Sequence[tuple[Measure, Params]], ctx: Context, timeout: float
) -> dict[str, list[Figures] | str]:
    """The passes of each measure, or why there are none. One that fails does not keep the others."""
    outcomes: dict[str, list[Figures] | str] = {}
    waiting: list[Worker] = []
    with contextlib.ExitStack() as stack:
        for measure, params in measures:
            with _noting(outcomes, measure.key):
                worker = stack.enter_context(Worker(script, measure, ctx, params, timeout))
                waiting += _worked(worker, outcomes)
        while waiting:
            turn, waiting = [*waiting[1:], waiting[0]], []
            for worker in turn:
                with _noting(outcomes, worker.key):
                    worker.go()
                    waiting += _worked(worker, outcomes)
    return outcomes


def _worked(worker: Worker, outcomes: dict[str, list[Figures] | str]) -> list[Worker]:
    """Itself when it waits for another turn; none when it has its result."""
    if worker.work():
        return [worker]
    outcomes[worker.key] = worker.passes
    return []


@contextlib.contextmanager
def _noting(outcomes: dict[str, list[Figures] | str], key: str) -> Iterator[None]:
    try:
        yield
    except MeasureFailed as error:
        outcomes[key] = str(error)
    except Exception as error:
        outcomes[key] = f"{type(error).__name__}: {error}"
