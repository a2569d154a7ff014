"""Counters for monitoring, through one small hook: ``connect(metrics=hook)``.

A hook is any object with the three methods of :class:`Metrics`; :class:`MemoryMetrics` keeps the figures in
memory and renders them in the format that Prometheus reads. ``METRICS`` lists every metric.

A connection without a hook has none of this: a :class:`Meter` is the observer of one connection. It counts
what happens, takes the rest from the statistics that are kept anyway, and reports to the hook once per second
and at the end, so the hook costs nothing per message.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from jetspark._log import fields, get_logger
from jetspark.connection import events as ev
from jetspark.connection.client import core_of
from jetspark.connection.listening import QUIET_SECONDS
from jetspark.connection.observer import Observer, Sending
from jetspark.connection.sink import Receiver
from jetspark.connection.subscription_sink import SubscriptionSink
from jetspark.jetstream.consume.flow_sink import FlowSink
from jetspark.jetstream.message import ACK
from jetspark.jetstream.publish.atomic_batch import AtomicBatch
from jetspark.jetstream.publish.fast_ingest import FastIngest
from jetspark.jetstream.publish.publisher import Publisher

if TYPE_CHECKING:
    from jetspark.connection.client import Connection
    from jetspark.connection.observer import Api
    from jetspark.errors import JetsparkError
    from jetspark.jetstream.models.puback import PubAck
    from jetspark.wire.columns import AnyColumns

__all__ = ["METRICS", "Labels", "MemoryMetrics", "Metrics"]

logger = get_logger("metrics")

Labels = Mapping[str, str]
# A name and its labels, as a key.
Key = tuple[str, tuple[tuple[str, str], ...]]

METRICS: dict[str, tuple[str, str]] = {
    "jetspark_published_total": ("counter", "Messages published; api: core or jetstream."),
    "jetspark_publish_acked_total": ("counter", "Messages that a stream has acked, duplicates included."),
    "jetspark_publish_duplicates_total": ("counter", "Acks that say the stream had the message already."),
    "jetspark_publish_failed_total": ("counter", "JetStream publishes without an ack: refused or unknown."),
    "jetspark_publish_resent_total": ("counter", "Messages sent again by a publisher with retry."),
    "jetspark_publish_seconds": ("histogram", "Time from js.publish to its ack."),
    "jetspark_requests_total": ("counter", "Requests, those of the JetStream API included."),
    "jetspark_delivered_total": ("counter", "Messages received for user code; api: core or jetstream."),
    "jetspark_redelivered_total": ("counter", "Those of jetstream that are not a first delivery."),
    "jetspark_acked_total": ("counter", "Acks sent; kind: ack, nak, term, progress or next."),
    "jetspark_pulls_total": ("counter", "Pull requests sent."),
    "jetspark_dropped_total": ("counter", "Messages dropped at a limit; direction: in or out."),
    "jetspark_sent_messages_total": ("counter", "Everything sent: publishes, requests, acks."),
    "jetspark_received_messages_total": ("counter", "Everything received: messages, answers, statuses."),
    "jetspark_sent_bytes_total": ("counter", "Bytes written."),
    "jetspark_received_bytes_total": ("counter", "Bytes read."),
    "jetspark_reconnects_total": ("counter", "Connections renewed."),
    "jetspark_reconnect_seconds": ("histogram", "Time from losing the connection to having it back."),
    "jetspark_errors_total": ("counter", "Trouble; type: the class of the event, warning or error."),
    "jetspark_connected": ("gauge", "1 while connected, else 0."),
    "jetspark_buffered_messages": ("gauge", "Messages received that user code has not taken."),
    "jetspark_unacked_publishes": ("gauge", "Messages of publishers that wait for their ack."),
}
"""Every metric: its kind and its meaning."""

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ACK_KINDS = {b"+ACK": "ack", b"-NAK": "nak", b"+TER": "term", b"+WPI": "progress", b"+NXT": "next"}
_INTERVAL = 1.0


class Metrics(Protocol):
    """What ``connect(metrics=...)`` accepts. Called in the connection's thread: be quick, never block.

    ``labels`` are few and have few values; ``connection`` is among them when the connection has a name.
    """

    def count(self, name: str, value: float, labels: Labels) -> None:
        """A counter has increased by ``value``."""

    def gauge(self, name: str, value: float, labels: Labels) -> None:
        """A gauge has the value ``value`` now."""

    def observe(self, name: str, value: float, labels: Labels) -> None:
        """Something took ``value`` seconds."""


class MemoryMetrics:
    """Keeps every figure in memory, for any number of connections and threads. ``render`` it when scraped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Key, float] = {}
        self._histograms: dict[Key, list[float]] = {}

    def count(self, name: str, value: float, labels: Labels) -> None:
        """A counter has increased by ``value``."""
        key = _key(name, labels)
        with self._lock:
            self._values[key] = self._values.get(key, 0) + value

    def gauge(self, name: str, value: float, labels: Labels) -> None:
        """A gauge has the value ``value`` now."""
        with self._lock:
            self._values[_key(name, labels)] = value

    def observe(self, name: str, value: float, labels: Labels) -> None:
        """Something took ``value`` seconds."""
        with self._lock:
            # A count per bucket and one for larger values, then the sum.
            row = self._histograms.setdefault(_key(name, labels), [0.0] * (len(_BUCKETS) + 2))
            row[bisect_left(_BUCKETS, value)] += 1
            row[-1] += value

    def value(self, name: str, **labels: str) -> float:
        """A counter or gauge, or the number of observations of a histogram; summed over omitted labels."""
        wanted = labels.items()
        with self._lock:
            found = [*self._values.items(), *((key, sum(row[:-1])) for key, row in self._histograms.items())]
        return sum(
            value for (other, pairs), value in found if other == name and wanted <= dict(pairs).items()
        )

    def render(self) -> str:
        """All figures in the text format of Prometheus (``text/plain; version=0.0.4``)."""
        with self._lock:
            values = dict(self._values)
            histograms = {key: list(row) for key, row in self._histograms.items()}
        lines: dict[str, list[str]] = {}
        for (name, pairs), value in sorted(values.items()):
            lines.setdefault(name, []).append(_sample(name, pairs, value))
        for (name, pairs), row in sorted(histograms.items()):
            found, below = lines.setdefault(name, []), 0.0
            for bound, count in zip((*map(str, _BUCKETS), "+Inf"), row, strict=False):
                below += count
                found.append(_sample(f"{name}_bucket", (*pairs, ("le", bound)), below))
            found += [_sample(f"{name}_sum", pairs, row[-1]), _sample(f"{name}_count", pairs, below)]
        text = []
        for name in sorted(lines):
            kind, meaning = METRICS.get(name, ("untyped", ""))
            text += [f"# HELP {name} {meaning}".rstrip(), f"# TYPE {name} {kind}", *lines[name]]
        return "".join(f"{line}\n" for line in text)


def _key(name: str, labels: Labels) -> Key:
    return name, tuple(sorted(labels.items()))


def _sample(name: str, pairs: tuple[tuple[str, str], ...], value: float) -> str:
    inside = ",".join(f'{label}="{_escape(text)}"' for label, text in pairs)
    number = str(int(value)) if value == int(value) else repr(value)
    return f"{name}{{{inside}}} {number}" if inside else f"{name} {number}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Meter(Observer):
    """Counts what happens on one connection and reports it to the hook."""

    def __init__(self, connection: Connection, hook: Metrics) -> None:
        self._connection = connection
        self._core = core_of(connection)
        self._hook = hook
        name = self._core.options.name
        self._base = {"connection": name} if name else {}
        self._lock = threading.Lock()  # blocking callers ack and publish in their own threads
        self._sums: dict[Key, float] = {}
        self._seen: dict[str, int] = {}
        self._sinks: dict[object, bool] = {}  # whether it has left
        self._told: WeakKeyDictionary[object, dict[Key, int]] = WeakKeyDictionary()
        self._timer: Any = None
        self._lost_at: float | None = None
        self._quiet_until = 0.0
        self._core.observe(self)

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Count something; the hook gets it with the next report."""
        key = (f"jetspark_{name}", tuple(labels.items()))
        with self._lock:
            self._sums[key] = self._sums.get(key, 0) + value

    def report(self) -> None:
        """Tell the hook what has happened since the last report."""
        stats = self._connection.stats
        for name, total in (
            ("sent_messages_total", stats.out_msgs),
            ("received_messages_total", stats.in_msgs),
            ("sent_bytes_total", stats.out_bytes),
            ("received_bytes_total", stats.in_bytes),
            ("reconnects_total", stats.reconnects),
        ):
            self.add(name, total - self._seen.get(name, 0))
            self._seen[name] = total
        buffered = unacked = 0
        for sink, left in list(self._sinks.items()):
            self._harvest(sink)
            if isinstance(sink, Publisher):
                unacked += sink.pending
            buffered += len(getattr(sink, "buffer", ())) + getattr(sink, "pending_messages", 0)
            buffered += sum(map(len, getattr(sink, "chunks", ())))  # columns
            if left:
                del self._sinks[sink]
        with self._lock:
            sums, self._sums = self._sums, {}
        for (name, labels), value in sums.items():
            if value:
                self._tell(self._hook.count, name, value, dict(labels))
        self._tell(self._hook.gauge, "jetspark_connected", int(self._core.is_connected), {})
        self._tell(self._hook.gauge, "jetspark_buffered_messages", buffered, {})
        self._tell(self._hook.gauge, "jetspark_unacked_publishes", unacked, {})

    def _tell(self, method: Callable[..., None], name: str, value: float, labels: dict[str, str]) -> None:
        try:
            method(name, value, {**self._base, **labels})
        except Exception:
            # It may raise for each of the metrics, every second.
            now = time.monotonic()
            level = logging.ERROR if now >= self._quiet_until else logging.DEBUG
            if level == logging.ERROR:
                self._quiet_until = now + QUIET_SECONDS
            logger.log(level, "the metrics hook raised on %s", name, exc_info=True, extra=fields(metric=name))

    def _tick(self) -> None:
        self.report()
        self._timer = self._core.loop.call_later(_INTERVAL, self._tick)

    def _harvest(self, sink: object) -> None:
        """Count the increase of the sink's own statistics."""
        told = self._told.setdefault(sink, {})
        for key, total in _totals(sink).items():
            self.add(key[0], max(0, total - told.get(key, 0)), **dict(key[1]))
            told[key] = total

    # What the connection tells

    def event(self, event: ev.Event) -> None:
        if isinstance(event, ev.Connected):
            self._tick()
        elif isinstance(event, ev.Disconnected):
            self._lost_at = time.monotonic()
        elif isinstance(event, ev.Reconnected) and self._lost_at is not None:
            took = time.monotonic() - self._lost_at
            self._tell(self._hook.observe, "jetspark_reconnect_seconds", took, {})
        elif isinstance(event, ev.PublishDropped):
            self.add("dropped_total", direction="out")
        if not ev.is_informational(event):
            self.add("errors_total", type=type(event).__name__)
        if isinstance(event, ev.Closed):
            if self._timer is not None:
                self._timer.cancel()
            self.report()

    def sink_added(self, sink: object) -> None:
        self._sinks[_face(sink)] = False

    def sink_removed(self, sink: object) -> None:
        sink = _face(sink)
        if sink in self._sinks:
            self._sinks[sink] = True  # kept until the next report: it may still count what it leaves behind

    def warned(self, warning: JetsparkError) -> None:
        self.add("errors_total", type=type(warning).__name__)

    def pulled(self) -> None:
        self.add("pulls_total")

    def acked(self, body: bytes) -> None:
        self.add("acked_total", kind=_ACK_KINDS[body[:4]])

    def delivered_columns(self, sink: object, columns: AnyColumns) -> None:
        if isinstance(sink, FlowSink):
            self.add("delivered_total", len(columns), api="jetstream")

    def delivered(self, sink: object, items: list[Any]) -> None:
        if not isinstance(sink, FlowSink):
            return
        count = again = 0
        for item in items:
            reply = item.reply
            if reply.startswith("$JS.ACK."):
                tokens = reply.split(".", 8)
                count += 1
                # ADR-15 "JSAck": 9 tokens, or 11 and more with domain and account.
                if len(tokens) == 9:
                    again += tokens[4 if "." not in tokens[8] else 6] != "1"
            elif item.data:
                count += 1
        self.add("delivered_total", count, api="jetstream")
        self.add("redelivered_total", again)

    def published(self, subject: str, payload: bytes, reply: str, headers: Any, own_reply: bool) -> None:
        if not own_reply:
            # Do not count answers to flow control or the end of a batch, whose headers are encoded.
            if not (subject.startswith("$JS.") or type(headers) is bytes):
                self.add("published_total", api="core")
        elif (inbox := self._core.inbox) is not None and reply.startswith(inbox.base):
            self.add("requests_total")
            if payload is ACK and subject.startswith("$JS.ACK."):
                self.add("acked_total", kind="ack")

    @contextmanager
    def publishing(
        self, api: Api, subject: str, data: Any, headers: Any, msg_id: str | None = None
    ) -> Iterator[Sending]:
        # The others count themselves, or are counted when the message is buffered.
        if api != "jetstream":
            yield Sending(headers, lambda _: None)
            return
        self.add("published_total", api="jetstream")
        start = time.perf_counter()

        def done(ack: PubAck) -> None:
            self._tell(self._hook.observe, "jetspark_publish_seconds", time.perf_counter() - start, {})
            self.add("publish_acked_total")
            self.add("publish_duplicates_total", int(ack.duplicate))

        try:
            yield Sending(headers, done)
        except BaseException as error:
            self.add("publish_failed_total")
            self.add("errors_total", type=type(error).__name__)
            raise


def _face(sink: object) -> object:
    """The object that keeps the statistics: the user's object if there is one."""
    return sink.face if isinstance(sink, Receiver) else sink


def _totals(sink: Any) -> dict[Key, int]:
    """What a sink has counted itself."""
    jetstream = (("api", "jetstream"),)
    incoming = (("direction", "in"),)
    if isinstance(sink, Publisher):
        stats = sink.stats
        return {
            ("published_total", jetstream): stats.published,
            ("publish_acked_total", ()): stats.acked,
            ("publish_duplicates_total", ()): stats.duplicates,
            ("publish_failed_total", ()): stats.failed,
            ("publish_resent_total", ()): stats.resent,
        }
    if isinstance(sink, FastIngest):
        return {("published_total", jetstream): sink.published, ("publish_acked_total", ()): sink.acked}
    if isinstance(sink, AtomicBatch):
        stored = sink.count if sink.ack is not None else 0
        return {("published_total", jetstream): sink.count, ("publish_acked_total", ()): stored}
    if isinstance(sink, SubscriptionSink):
        core = (("api", "core"),)
        arrived = sink.delivered + sink.pending_messages
        return {("delivered_total", core): arrived, ("dropped_total", incoming): sink.dropped}
    return {("dropped_total", incoming): getattr(sink, "dropped", 0)}
