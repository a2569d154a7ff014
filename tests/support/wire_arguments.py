"""Every argument of the public API, what becomes of it on the wire, and what must be refused there.

``ARGUMENTS`` has a kind for each. ``tests/unit/test_wire_arguments.py`` compares it with the signatures, so a
new argument needs a kind; row F12 of the faults table calls each function with every bad value of its
arguments' kinds and sees that the server hears nothing of it.
"""

from __future__ import annotations

import enum
import inspect
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

import jetspark
import jetspark.advisories
import jetspark.models
from jetspark import ConsumerConfig, Expect, Headers, Publishing, Schedule, StoredMsg, StreamConfig
from jetspark.advisories import DeadLetter, MaxDeliveriesAdvisory
from jetspark.jetstream.models.model import Model
from jetspark.models import Timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.bad_input import World

LINE = "x\r\nPUB evil 0\r\n\r\n"
HEADER = "m4\r\nNats-Rollup: all"
BLOCK = b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n"
LATER = datetime(2100, 1, 1, tzinfo=UTC)
NAIVE = datetime(2100, 1, 1)  # that is what is wrong with it

LITERALS = [LINE, "a\rb", "a\nb", "a\0b", "a b", "a\tb", "", "a..b", ".a", 5, b"a", ["a"], "\udcff"]
WORDS = [*LITERALS, "a.b", "a*", ">", "a/b"]
IDS = [HEADER, "m4\r", "m4\n", "", 5, b"m4", ["m4"], "\udcff"]
FLAGS = [1, 0, "no", "", LINE]


MANY: list[Any] = [
    *(("text",), (b"", {"A": HEADER}), (b"", BLOCK), (b"", None, None, 5), (b"", None, None, None, HEADER)),
    *((b"", None, one) for one in IDS),
]


@dataclass(frozen=True)
class Kind:
    """What an argument is on the wire. ``good``: a value that passes; ``bad``: each must be refused."""

    good: Any
    bad: list[Any]


KINDS: dict[str, Kind] = {
    # In a line of the protocol
    "subject": Kind("bad.x", [*LITERALS, "a.*", "a.>", ">"]),
    "reply": Kind("bad.reply", [LINE, "a\rb", "a\nb", "a\0b", "a b", "a..b", 5, b"a", "a.*", "\udcff"]),
    "filter": Kind("bad.>", [*LITERALS, ">.a"]),
    "filters": Kind(["bad.>"], [5, [5], [LINE], ["a b"], [""], ["a..b"], [None], b"a", ["\udcff"]]),
    "queue": Kind("workers", [LINE, "a\rb", "a\nb", "a\0b", "a b", "a\tb", 5, b"q", "\udcff"]),
    "stream": Kind("BAD", WORDS),
    "streams": Kind(["BAD"], [5, b"a", "BAD", *([word] for word in WORDS)]),
    "consumer": Kind("C", WORDS),
    "name": Kind("N", WORDS),
    "limit": Kind(1, ["5", LINE, 1.5, True, -1, [1]]),
    # In a header
    "headers": Kind(
        None,
        [
            *({"A": HEADER}, {"A": "\n"}, {"A:B": "x"}, {"A\0": "x"}, {LINE: "x"}, {"": "x"}, {"A": 5}),
            *(BLOCK, BLOCK.decode(), 5, [1], {"A": "\udcff"}, [("A", b"x")]),
        ],
    ),
    "msg_id": Kind("m9", IDS),
    "expect": Kind(None, [5, HEADER, {"last_seq": 5}]),
    "schedule": Kind(None, [5, HEADER, {"target": HEADER}]),
    "ttl": Kind(60, [HEADER, "5s\n", "soon", 0.5, -1, True, float("nan"), float("inf"), b"5s"]),
    "delta": Kind(1, [HEADER, "1\n", "x", "", 1.5, True, None, 10**5000]),
    # In JSON, or in the payload: nothing to break out of, but a type that is wrong is
    "payload": Kind(b"x", ["text", 5, None, ["x"], 1.5]),
    "seq": Kind(1, ["5", LINE, 1.5, True, -1, 1 << 64]),
    "count": Kind(1, ["5", LINE, 1.5, True, 0, -1]),
    "amount": Kind(1, ["5", LINE, 1.5, True, -1]),
    "priority": Kind(1, ["5", LINE, 1.5, True, -1, 10]),
    "seconds": Kind(5, ["5", LINE, True, float("nan"), float("inf"), -1]),
    "delay": Kind(5, ["5", LINE, True, float("nan"), float("inf"), -1]),
    "time": Kind(LATER, ["now", 5, LINE, NAIVE]),
    "text": Kind("text", [5, b"x", ["x"]]),
    "line": Kind("text", [LINE, "a\rb", "a\nb", 5, b"x", ["x"], "\udcff"]),
    "group": Kind("g", [5, b"g", ["g"], LINE, "a b", "\udcff"]),
    "texts": Kind({"a": "b"}, [5, "x", {"a": 5}, {5: "a"}, ["a"]]),
    "flag": Kind(True, FLAGS),
    # A word that this version does not know goes to the server, which may be newer.
    "choice": Kind(None, [5, b"all", ["all"]]),
    "stream config": Kind(StreamConfig(name="N", subjects=["n"]), [None, "N", {"name": "N"}, 5]),
    "consumer config": Kind(ConsumerConfig(durable_name="N"), [None, "N", {"name": "N"}, 5]),
    "optional consumer config": Kind(None, ["N", {"name": "N"}, 5]),
    "messages": Kind(
        [],
        [
            *(5, [5], ["bad.x"], [Publishing(LINE)], [("bad.x",)], [("bad.x", b"", None)]),
            *([Publishing("bad.x", *given)] for given in MANY),
        ],
    ),
    # Stays here
    "local": Kind(None, []),
}

PUBLISH = {
    "subject": "subject",
    "data": "payload",
    "headers": "headers",
    "msg_id": "msg_id",
    "expect": "expect",
    "ttl": "ttl",
    "schedule": "schedule",
}
FETCH = {
    "max_messages": "count",
    "max_bytes": "count",
    "expires": "seconds",
    "no_wait": "flag",
    "idle_heartbeat": "seconds",
    "group": "group",
    "min_pending": "count",
    "min_ack_pending": "count",
    "priority": "priority",
}
ORDERED = {
    "config": "local",
    "filter_subjects": "filters",
    "deliver_policy": "choice",
    "opt_start_seq": "seq",
    "opt_start_time": "time",
    "replay_policy": "choice",
    "inactive_threshold": "seconds",
    "headers_only": "flag",
    "max_reset_attempts": "local",
    "name_prefix": "name",
    "metadata": "texts",
}
CONSUME = {
    "max_messages": "count",
    "max_bytes": "count",
    "threshold_messages": "local",
    "threshold_bytes": "local",
    "max_bytes_per_request": "local",
    "expires": "seconds",
    "idle_heartbeat": "seconds",
    "stop_after": "local",
    "group": "group",
    "min_pending": "count",
    "min_ack_pending": "count",
    "priority": "priority",
    "on_error": "local",
}
COLUMNAR = {"max_messages", "max_bytes", "threshold_messages", "threshold_bytes", "expires", "idle_heartbeat"}
COLUMNAR |= {"stop_after", "on_error"}
WITH_CONFIG = {"config": "consumer config", "pedantic": "flag"}
TIMEOUT = {"timeout": "local"}

ARGUMENTS: dict[str, dict[str, str]] = {
    "Advisories.next": TIMEOUT,
    "AtomicBatch.publish": PUBLISH,
    "Authenticator.connect_fields": {"nonce": "local"},
    "Connection.flush": TIMEOUT,
    "Connection.jetstream": {"domain": "name", "api_prefix": "reply", "timeout": "local"},
    "Connection.publish": {
        "subject": "subject",
        "data": "payload",
        "reply": "reply",
        "headers": "headers",
    },
    "Connection.request": {
        "subject": "subject",
        "data": "payload",
        "timeout": "local",
        "headers": "headers",
    },
    "Connection.request_many": {
        "subject": "subject",
        "data": "payload",
        "timeout": "local",
        "max_messages": "count",
        "stall": "local",
        "sentinel": "local",
        "headers": "headers",
    },
    "Connection.rtt": TIMEOUT,
    "Connection.subscribe": {
        "subject": "filter",
        "queue": "queue",
        "callback": "local",
        "max_messages": "limit",
        "pending_messages_limit": "local",
        "pending_bytes_limit": "local",
    },
    "Consumer.consume": CONSUME,
    "Consumer.consume_arrow": {
        **{name: kind for name, kind in CONSUME.items() if name in COLUMNAR},
        "columns": "local",
        "views": "local",
    },
    "Consumer.consume_batches": CONSUME,
    "Consumer.consume_with": {"callback": "local", "concurrency": "local", **CONSUME},
    "Consumer.fetch": FETCH,
    "Consumer.fetch_bytes": {"max_bytes": "count", "expires": "seconds", "idle_heartbeat": "seconds"},
    "Consumer.fetch_no_wait": {"max_messages": "count"},
    "Consumer.next": {
        name: kind for name, kind in FETCH.items() if name not in ("max_messages", "max_bytes", "no_wait")
    },
    "Consumer.pause": {"until": "time"},
    "Consumer.reset": {"seq": "seq"},
    "Consumer.unpin": {"group": "group"},
    "CounterValue.from_message": {"message": "local"},
    "DeadLetter.republish": {"subject": "subject", "headers": "headers", "msg_id": "msg_id"},
    "DeadLetters.next": TIMEOUT,
    "Duration.from_ns": {"ns": "local"},
    "Expect": {
        "stream": "stream",
        "last_seq": "seq",
        "last_subject_seq": "seq",
        "last_subject_seq_subject": "filter",
        "last_msg_id": "msg_id",
    },
    "Expect.add_to": {"headers": "local"},
    "FastIngest.publish": PUBLISH,
    "Headers.add": {"name": "local", "value": "local"},
    "Headers.get": {"name": "local", "default": "local"},
    "Headers.get_all": {"name": "local"},
    "JetStream.advisories": {"stream": "stream", "consumer": "consumer", "kinds": "local"},
    "JetStream.atomic_batch": {"hold": "local", "max_messages": "local", "timeout": "local"},
    "JetStream.consumer_names": {"stream": "stream"},
    "JetStream.create_consumer": {"stream": "stream", **WITH_CONFIG},
    "JetStream.create_or_update_consumer": {"stream": "stream", **WITH_CONFIG},
    "JetStream.create_or_update_stream": {"config": "stream config", "pedantic": "flag"},
    "JetStream.create_ordered_consumer": {"stream": "stream", **ORDERED},
    "JetStream.create_stream": {"config": "stream config", "pedantic": "flag"},
    "JetStream.dead_letters": {"stream": "stream", "consumer": "consumer", "terminated": "local"},
    "JetStream.delete_consumer": {"stream": "stream", "consumer": "consumer"},
    "JetStream.delete_stream": {"name": "stream"},
    "JetStream.fast_ingest": {
        "gap": "choice",
        "flow": "count",
        "max_outstanding_acks": "local",
        "on_gap": "local",
        "ping_interval": "local",
        "ack_timeout": "local",
        "timeout": "local",
    },
    "JetStream.get_consumer": {"stream": "stream", "consumer": "consumer"},
    "JetStream.get_stream": {"name": "stream"},
    "JetStream.increment": {
        "subject": "subject",
        "delta": "delta",
        "msg_id": "msg_id",
        "timeout": "local",
    },
    "JetStream.list_consumers": {"stream": "stream"},
    "JetStream.list_streams": {"subject": "filter"},
    "JetStream.pause_consumer": {"stream": "stream", "consumer": "consumer", "until": "time"},
    "JetStream.publish": {**PUBLISH, "timeout": "local", "retries": "local", "retry_wait": "local"},
    "JetStream.publisher": {"window": "local", "ack_timeout": "local", "retry": "local"},
    "JetStream.pull_subscribe": {
        "subject": "filter",
        "durable": "name",
        "stream": "stream",
        "consumer": "consumer",
        "config": "optional consumer config",
    },
    "JetStream.resume_consumer": {"stream": "stream", "consumer": "consumer"},
    "JetStream.stream_name_by_subject": {"subject": "filter"},
    "JetStream.stream_infos": {"names": "streams"},
    "JetStream.stream_names": {"subject": "filter"},
    "JetStream.subscribe": {
        "subject": "filter",
        "queue": "queue",
        "stream": "stream",
        "durable": "name",
        "consumer": "consumer",
        "config": "optional consumer config",
        "callback": "local",
        "manual_ack": "local",
        "ordered": "local",
        "idle_heartbeat": "seconds",
        "flow_control": "flag",
        "deliver_policy": "choice",
        "opt_start_seq": "seq",
        "opt_start_time": "time",
        "alarm_factor": "local",
        "pending_messages_limit": "local",
        "pending_bytes_limit": "local",
        "delete_on_close": "local",
        "on_error": "local",
    },
    "JetStream.update_consumer": {"stream": "stream", **WITH_CONFIG},
    "JetStream.update_stream": {"config": "stream config", "pedantic": "flag"},
    "Message.ack_next": {
        "n": "count",
        "expires": "seconds",
        "no_wait": "flag",
        "idle_heartbeat": "seconds",
        "group": "group",
    },
    "Message.ack_sync": TIMEOUT,
    "Message.nak": {"delay": "delay"},
    "Message.term": {"reason": "line"},
    "Msg.respond": {"data": "payload", "headers": "headers"},
    "PubAck.from_response": {"data": "local"},
    "Publisher.publish": PUBLISH,
    "Publisher.publish_nowait": PUBLISH,
    "Publisher.publish_many": {"messages": "messages"},
    "Publishing": {name: kind for name, kind in PUBLISH.items() if name != "schedule"},
    "PullSubscription.fetch": {"batch": "count", "timeout": "seconds"},
    "PullSubscription.unsubscribe": {"max_messages": "limit"},
    "PushSubscription.next": TIMEOUT,
    "PushSubscription.unsubscribe": {"max_messages": "limit"},
    "Schedule": {
        "target": "subject",
        "at": "time",
        "every": "seconds",
        "cron": "line",
        "timezone": "line",
        "source": "subject",
        "ttl": "ttl",
        "rollup": "flag",
    },
    "Schedule.add_to": {"headers": "local", "subject": "local"},
    "Schedule.stop_headers": {"subject": "subject"},
    "Stream.counter": {"subject": "subject"},
    "Stream.counters": {"subjects": "filters"},
    "Stream.create_consumer": WITH_CONFIG,
    "Stream.create_or_update_consumer": WITH_CONFIG,
    "Stream.create_ordered_consumer": ORDERED,
    "Stream.delete_consumer": {"consumer": "consumer"},
    "Stream.delete_msg": {"seq": "seq", "secure": "flag"},
    "Stream.get_consumer": {"consumer": "consumer"},
    "Stream.get_last_msgs_for": {
        "subjects": "filters",
        "up_to_seq": "seq",
        "up_to_time": "time",
        "batch": "count",
    },
    "Stream.get_msg": {
        "seq": "seq",
        "last_by_subject": "filter",
        "next_by_subject": "filter",
        "start_time": "time",
        "from_leader": "local",
    },
    "Stream.get_msgs": {
        "subjects": "filters",
        "seq": "seq",
        "start_time": "time",
        "max_messages": "local",
        "batch": "count",
        "max_bytes": "amount",
    },
    "Stream.info": {"subjects_filter": "filter", "deleted_details": "flag"},
    "Stream.pause_consumer": {"consumer": "consumer", "until": "time"},
    "Stream.purge": {"subject": "filter", "seq": "seq", "keep": "amount"},
    "Stream.resume_consumer": {"consumer": "consumer"},
    "Stream.update_consumer": WITH_CONFIG,
    "Subscription.next": TIMEOUT,
    "Subscription.unsubscribe": {"max_messages": "limit"},
    "Timestamp.astimezone": {"tz": "local"},
    "Timestamp.from_datetime": {"value": "local", "field": "local"},
    "Timestamp.from_ns": {"ns": "local"},
    "Timestamp.parse": {"text": "local"},
    "connect": dict.fromkeys(inspect.signature(jetspark.connect).parameters, "local")
    | {"inbox_prefix": "subject", "name": "text", "ws_headers": "local"},
    "decode_advisory": {"data": "local"},
}

INTERNAL = {"deliver", "deliver_columns", "ended", "link_lost", "link_restored", "publish_refused"}
INTERNAL |= {"acked_many", "failed"}
"""What the connection and the publisher call, on classes whose other methods are the user's."""

# Where other arguments have to be given, or another object, for the call to come to its bad one.
BESIDE: dict[str, dict[str, Any]] = {
    "Expect.last_subject_seq_subject": {"last_subject_seq": 1},
    "Schedule.at": {"target": "bad.t"},
    "Schedule.every": {"target": "bad.t"},
    "Schedule.cron": {"target": "bad.t"},
    "Schedule.timezone": {"target": "bad.t", "cron": "@daily"},
    "Stream.get_msg.next_by_subject": {"seq": 1},
    "Stream.get_msg.last_by_subject": {},
    "Stream.get_msg.start_time": {"next_by_subject": "bad.x"},
    "Stream.get_msg.seq": {},
    "JetStream.subscribe.opt_start_seq": {"deliver_policy": "by_start_sequence"},
    "JetStream.subscribe.opt_start_time": {"deliver_policy": "by_start_time"},
    "JetStream.create_ordered_consumer.opt_start_seq": {"deliver_policy": "by_start_sequence"},
    "JetStream.create_ordered_consumer.opt_start_time": {"deliver_policy": "by_start_time"},
    "Stream.create_ordered_consumer.opt_start_seq": {"deliver_policy": "by_start_sequence"},
    "Stream.create_ordered_consumer.opt_start_time": {"deliver_policy": "by_start_time"},
    "JetStream.pull_subscribe.consumer": {"stream": "BAD"},
    "JetStream.subscribe.consumer": {"stream": "BAD"},
}
SCHEDULED = {"target": "bad.t", "every": 60}
BASES: dict[str, dict[str, Any]] = {
    "Schedule": SCHEDULED,
    "Consumer.fetch": {"max_messages": 1},
}
# What is right for one of them, though its kind refuses it elsewhere.
FINE: dict[str, list[Any]] = {
    # Empty means that there is none.
    "Connection.subscribe.queue": [""],
    "JetStream.subscribe.queue": [""],
    "JetStream.subscribe.subject": [""],
    "JetStream.pull_subscribe.subject": [""],
    "Message.term.reason": [""],
}


def signatures() -> dict[str, list[str]]:
    """Every public function with arguments, by class, and their names."""
    found: dict[str, list[str]] = {}
    modules = (jetspark, jetspark.models, jetspark.advisories)
    names = {name: getattr(module, name) for module in modules for name in module.__all__}
    for name, what in names.items():
        if inspect.isfunction(what):
            found[name] = list(inspect.signature(what).parameters)
        if not inspect.isclass(what) or issubclass(what, BaseException | enum.Enum | Model):
            continue
        if what in (Expect, Schedule, Publishing):
            fields = what.__struct_fields__ if issubclass(what, msgspec.Struct) else what._fields
            found[name] = list(fields)
        for method in dir(what):
            function = inspect.getattr_static(what, method)
            function = getattr(function, "__func__", function)
            home = next((one for one in what.__mro__ if method in vars(one)), None)
            if method.startswith("_") or method in INTERNAL or not inspect.isfunction(function):
                continue
            if home is None or not home.__module__.startswith("jetspark"):
                continue
            # An ordered consumer is a Consumer, and refuses what it has of its own.
            owner = "Consumer" if name == "OrderedConsumer" else name
            arguments = [one for one in inspect.signature(function).parameters if one not in ("self", "cls")]
            if arguments:
                found.setdefault(f"{owner}.{method}", arguments)
    return found


# How a function is called


async def _publisher(w: World, method: str, given: dict[str, Any]) -> None:
    async with w.js.publisher() as publisher:
        sent = await getattr(publisher, method)(**given)
        if inspect.isawaitable(sent):
            await sent


async def _batch(w: World, given: dict[str, Any]) -> None:
    async with w.js.atomic_batch() as batch:
        await batch.publish(**given)


async def _ingest(w: World, given: dict[str, Any]) -> None:
    async with w.js.fast_ingest() as batch:
        await batch.publish(**given)


async def _republish(w: World, given: dict[str, Any]) -> None:
    stored = StoredMsg(
        stream="S", subject="s", sequence=1, timestamp=Timestamp.from_ns(0), data=b"x", headers=Headers()
    )
    advisory = MaxDeliveriesAdvisory(type="x", stream="S", consumer="C", stream_seq=1, deliveries=1)
    await DeadLetter(w.js, advisory, stored).republish(**given)


async def _first(w: World, owner: str, method: str, given: dict[str, Any]) -> None:
    """What is entered or iterated sends nothing before that."""
    result = getattr(getattr(w, owner), method)(**given)
    if hasattr(result, "__aenter__"):
        async with result as entered:
            if hasattr(entered, "__anext__"):
                await anext(entered)
    elif hasattr(result, "__anext__"):
        await anext(result)
    elif inspect.isawaitable(result):
        await result


def call_of(function: str) -> Callable[[World, dict[str, Any]], Any]:
    """How to call it with these arguments."""
    special: dict[str, Callable[[World, dict[str, Any]], Any]] = {
        "AtomicBatch.publish": _batch,
        "FastIngest.publish": _ingest,
        "DeadLetter.republish": _republish,
        "Expect": lambda w, given: Expect(**given),
        "Schedule": lambda w, given: Schedule(**given),
        "Schedule.stop_headers": lambda w, given: Schedule.stop_headers(**given),
        "Publishing": lambda w, given: _publisher(w, "publish_many", {"messages": [Publishing(**given)]}),
        "connect": lambda w, given: jetspark.connect(w.server.url, **given),
    }
    if function in special:
        return special[function]
    owner, _, method = function.partition(".")
    if owner == "Publisher":
        return lambda w, given: _publisher(w, method, given)
    places = {
        "Connection": "nc",
        "JetStream": "js",
        "Stream": "stream",
        "Consumer": "consumer",
        "Message": "message",
        "Msg": "msg",
        "Subscription": "subscription",
        "PullSubscription": "pull_subscription",
        "PushSubscription": "push_subscription",
    }
    return lambda w, given: _first(w, places[owner], method, given)


def required(function: str) -> dict[str, Any]:
    """Good values for the arguments that have to be there."""
    owner, _, method = function.partition(".")
    what = getattr(jetspark.advisories if owner in jetspark.advisories.__all__ else jetspark, owner)
    if not method:
        return {"subject": "bad.x"} if what is Publishing else {}
    parameters = inspect.signature(getattr(what, method)).parameters
    return {
        name: KINDS[kind].good
        for name, kind in ARGUMENTS[function].items()
        if parameters[name].default is inspect.Parameter.empty
    }


def shown(value: Any) -> str:
    """The value, short; Python prints no number of thousands of digits."""
    return f"an integer of {value.bit_length()} bits" if type(value) is int else f"{value!r:.60}"


def bad_calls() -> Iterator[tuple[str, str, Any, Callable[[World], Any]]]:
    """Function, argument, bad value, and the call with it."""
    for function, arguments in ARGUMENTS.items():
        for argument, kind in arguments.items():
            values = KINDS[kind].bad
            if not values:
                continue
            call = call_of(function)
            beside = BESIDE.get(f"{function}.{argument}", BASES.get(function, {}))
            for value in values:
                if any(
                    value == one and type(value) is type(one)
                    for one in FINE.get(f"{function}.{argument}", ())
                ):
                    continue
                given = {**required(function), **beside, argument: value}
                if function == "Schedule" and argument in ("at", "every", "cron"):
                    given = {**beside, argument: value}
                yield function, argument, value, lambda w, call=call, given=given: call(w, given)
