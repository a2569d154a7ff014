"""Makes sure that no server outlives the process that started it, even one that is killed with -9.

A watchdog is a shell that waits for the end of a pipe of which only we hold the writing side, and that
leads a process group which the server joins. However we die, the kernel closes the pipe, and the watchdog
kills its group: the server and itself. It needs no pid, so a server never runs unwatched, and no
reused pid can be hit.

Why not PR_SET_PDEATHSIG: it fires when the *thread* that started the server ends. Why a shell: it starts
in a millisecond, a Python interpreter takes twenty. The group also keeps the terminal's Ctrl-C away from
the server, so that its owner stops it in order.
"""

from __future__ import annotations

import os
import subprocess
import weakref

# When a parent dies and leaves a group with a stopped member, the kernel sends the group SIGHUP: it must not
# end the watchdog before it has done its work.
_SCRIPT = "trap '' HUP INT TERM; read _; kill -KILL 0"

_live: weakref.WeakSet[Watchdog] = weakref.WeakSet()


class Watchdog:
    """Starts watching at once; :attr:`group` is the process group to put servers into."""

    def __init__(self) -> None:
        reading, self._writing = os.pipe()  # both close-on-exec: no program we start holds the pipe open
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        except BaseException:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)
        self.group = self._process.pid
        _live.add(self)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Kill everything in the group that still runs, and wait for the watchdog."""
        self._forget()
        self._process.wait()

    def _forget(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
        _live.discard(self)


def _close_in_forked_child() -> None:
    # A forked child has a copy of the pipe's writing side, which would keep our servers alive.
    for watchdog in list(_live):
        watchdog._forget()


os.register_at_fork(after_in_child=_close_in_forked_child)
