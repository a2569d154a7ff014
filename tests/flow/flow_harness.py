"""Drives the machines in simulated time. Nothing here sleeps; time moves when a test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetspark.jetstream.flow.actions import Action, ChangeInbox, Conclude, SendPull, Warn
from jetspark.jetstream.flow.options import PullOptions
from jetspark.jetstream.flow.pull import PullFlow
from jetspark.jetstream.flow.statuses import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetspark.errors import JetsparkError
    from jetspark.jetstream.flow.options import FetchOptions


def status(code: int, description: str = "", *, left: tuple[int, int] | None = None) -> Status:
    """A status as the server sends it; ``left`` are the pending headers."""
    if left is None:
        return Status(code, description)
    headers = {"Nats-Pending-Messages": str(left[0]), "Nats-Pending-Bytes": str(left[1])}
    return Status(code, description, headers)


HEARTBEAT = status(100, "Idle Heartbeat")


def pulls(actions: Iterable[Action]) -> list[SendPull]:
    return [action for action in actions if isinstance(action, SendPull)]


def warnings(actions: Iterable[Action]) -> list[JetsparkError]:
    return [action.warning for action in actions if isinstance(action, Warn)]


def conclusions(actions: Iterable[Action]) -> list[Conclude]:
    return [action for action in actions if isinstance(action, Conclude)]


class Sim:
    """A pull machine with a clock. A change of the inbox is done at once, unless ``confirms`` is False."""

    def __init__(
        self,
        options: PullOptions | FetchOptions,
        *,
        pin_id: str = "",
        connected: bool = True,
        narrow: bool = False,
        confirms: bool = True,
    ):
        self.confirms = confirms
        self.flow = PullFlow(options, pin_id=pin_id, connected=connected, narrow=narrow)
        self.now = 1000.0

    def start(self) -> list[Action]:
        return self._perform(self.flow.start(self.now))

    def receive(self, count: int, nbytes: int | None = None) -> list[Action]:
        return self._perform(
            self.flow.on_messages(count, count * 100 if nbytes is None else nbytes, self.now)
        )

    def process(self, count: int, nbytes: int | None = None) -> list[Action]:
        return self._perform(
            self.flow.on_processed(count, count * 100 if nbytes is None else nbytes, self.now)
        )

    def status(self, code: int, description: str = "", left: tuple[int, int] | None = None) -> list[Action]:
        return self._perform(self.flow.on_status(status(code, description, left=left), self.now))

    def heartbeat(self) -> list[Action]:
        return self._perform(self.flow.on_status(HEARTBEAT, self.now))

    def disconnect(self) -> list[Action]:
        return self._perform(self.flow.on_disconnect(self.now))

    def reconnect(self) -> list[Action]:
        return self._perform(self.flow.on_reconnect(self.now))

    def change_inbox(self) -> list[Action]:
        return list(self.flow.on_inbox_changed(self.now))

    def _perform(self, actions: Iterable[Action]) -> list[Action]:
        done = list(actions)
        if self.confirms and ChangeInbox() in done:
            # Done, and of no interest to most tests.
            done.remove(ChangeInbox())
            done.extend(self.change_inbox())
        return done

    def advance(self, seconds: float) -> list[Action]:
        """Let time pass, with every timer on time."""
        end = self.now + seconds
        actions: list[Action] = []
        while (due := self.flow.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            actions.extend(self._perform(self.flow.on_timer(self.now)))
        self.now = end
        return actions


def consuming(**options: object) -> tuple[Sim, list[SendPull]]:
    """A ``consume`` that has begun, and its first requests."""
    sim = Sim(PullOptions(**options))  # type: ignore[arg-type]
    return sim, pulls(sim.start())
