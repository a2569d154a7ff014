"""F18: threads publish through a blocking publisher while links are cut at random.

Each future is settled, once; the connection comes back; what was acked is stored, and with ids once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from jetspark import StorageType, StreamConfig, blocking
from jetspark.errors import ConnectionLost, JetsparkError, PublishFailed
from jetspark.server import Server
from support.fault_table import Outcome, Row, Scale, check
from support.helpers import unique

if TYPE_CHECKING:
    from concurrent.futures import Future
    from random import Random

    from jetspark import PubAck

THREADS = 6
PATIENCE = 30.0
"""Seconds for a connection to come back, and for the last futures to be settled."""


class Users:
    """Threads that publish through one publisher, each its own numbers, until they are told to stop."""

    def __init__(self, publisher: blocking.Publisher, subject: str) -> None:
        self.publisher, self.subject = publisher, subject
        self.stop = threading.Event()
        self.futures: list[dict[str, Future[PubAck]]] = [{} for _ in range(THREADS)]
        self.raised: Counter[str] = Counter()
        self.settled: Counter[str] = Counter()
        self.threads = [threading.Thread(target=self._publish, args=(number,)) for number in range(THREADS)]

    def _publish(self, thread: int) -> None:
        number = 0
        while not self.stop.is_set():
            name = f"{thread}.{number}"
            number += 1
            # With an id or without; ready to wait for room, or not.
            publish = self.publisher.publish if number % 3 else self.publisher.publish_nowait
            try:
                future = publish(self.subject, name.encode(), msg_id=name if number % 2 else None)
            except JetsparkError as error:
                self.raised[type(error).__name__] += 1
                time.sleep(0.0002)
                continue
            self.futures[thread][name] = future
            # In the connection's thread, which settles them.
            future.add_done_callback(lambda _, name=name: self.settled.update([name]))

    def __enter__(self) -> Users:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(PATIENCE)


def _cut(core: Any) -> None:
    """The link is gone, in the middle of whatever the threads do."""
    if core.link is not None:
        core.link.abort(ConnectionLost("cut"))


def _wait(condition: Any) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def _trial(
    server: Server, chance: Random, cuts: int, outcome: Outcome, seen: Counter[str], **options: Any
) -> None:
    name = unique("F18")
    buffer, retry, window = options["buffer"], options["retry"], options["window"]
    what = f"retry={retry}, reconnect_buffer_size={buffer}, window={window}"
    # Links that last for milliseconds would otherwise be backed off from for seconds.
    wait = {"reconnect_wait": 0.001, "reconnect_wait_max": 0.01}
    with blocking.connect(server.url, reconnect_buffer_size=buffer, **wait) as nc:
        js = nc.jetstream(timeout=PATIENCE)
        stream = js.create_stream(StreamConfig(name=name, subjects=[name], storage=StorageType.MEMORY))
        publisher = js.publisher(retry=retry, window=window, ack_timeout=PATIENCE)
        core: Any = publisher._core
        try:
            with publisher:
                with Users(publisher, name) as users:
                    for number in range(cuts):
                        before = nc.stats.reconnects
                        time.sleep(chance.random() * 0.01)
                        core.loop.call_soon_threadsafe(_cut, core)
                        if not _wait(lambda before=before: nc.stats.reconnects > before):
                            outcome.problems.append(f"{what}: no way back from cut {number + 1}")
                            break
                if any(thread.is_alive() for thread in users.threads):
                    outcome.problems.append(f"{what}: a publish hangs")
        except PublishFailed:
            pass
        seen.update(users.raised)
        futures = {name: future for mine in users.futures for name, future in mine.items()}
        outcome.require(_wait(lambda: all(future.done() for future in futures.values())), f"{what}: open")
        done = [name for name, future in futures.items() if future.done()]
        outcome.require(users.settled == Counter(done), f"{what}: some were settled twice or in silence")
        outcome.require(publisher.pending == 0, f"{what}: {publisher.pending} are pending")
        stats = publisher.stats
        outcome.require(
            stats.published == len(futures) == stats.acked + stats.failed, f"{what}: {stats}, {len(futures)}"
        )
        stored: Counter[str] = Counter()
        at: dict[int, str] = {}
        for message in stream.get_msgs(batch=5000):
            stored[message.data.decode()] += 1
            at[message.sequence] = message.data.decode()
        for name in done:
            error = futures[name].exception()
            if error is None:
                seen["acked"] += 1
                outcome.require(at.get(futures[name].result().seq) == name, f"{what}: {name} is not stored")
            else:
                seen[type(error).__name__] += 1
        twice = [name for name, count in stored.items() if count > 1]
        outcome.require(not twice, f"{what}: stored twice: {twice[:5]}")
        if retry:
            lost = [
                name for name in done if int(name.partition(".")[2]) % 2 == 0 and futures[name].exception()
            ]
            outcome.require(not lost, f"{what}: {len(lost)} messages with ids failed")
        stream.delete()


def run(scale: Scale) -> Outcome:
    chance, outcome, seen = scale.chance(), Outcome(), Counter[str]()
    cuts = scale.pick(4, 60)
    with Server(name="f18") as server:
        for retry in (False, True):
            # Without a buffer threads meet the moment between the end of a link and the news of it.
            for buffer, window in ((0, 10**6), (0, 1000), (10**6, 1000)):
                _trial(server, chance, cuts, outcome, seen, retry=retry, buffer=buffer, window=window)
    outcome.require(seen["acked"] > 0, "nothing was acked")
    outcome.require(seen["ConnectionLost"] > 0, "no cut met a message in flight")
    outcome.figures = {"cuts": 6 * cuts, "threads": THREADS, **dict(sorted(seen.items()))}
    return outcome


ROW = Row(18, "threads publish through one publisher, links are cut", run)


def test_f18() -> None:
    check(ROW)
