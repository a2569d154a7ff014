"""Waiting for Ctrl-C in commands without an event loop."""

from __future__ import annotations

import subprocess
import sys

# Signals that hit every place of a wait; each loses its flag, so that the next wait is a whole one again.
OFTEN = """
import signal
from jetspark.cli.stopping import Flag

flags, seen = [Flag()], 0

def handler(number, frame):
    global seen
    flags[-1].set()
    seen += 1

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
while seen < 2000:
    if flags[-1].wait(0.00005):
        flags[:] = [Flag()]
signal.setitimer(signal.ITIMER_REAL, 0)
print("seen", flush=True)
"""


def test_a_signal_may_come_at_any_moment_of_a_wait() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", OFTEN], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "seen\n", "")
