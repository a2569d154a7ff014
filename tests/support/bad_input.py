"""Every wrong thing that one can ask for, as one table: each must be refused before anything is sent.

Most tables live beside the tests of their part and are gathered here; what goes through a connection is
listed here. A case is called with a `World`, whose connection is open, and must raise a typed error.
"""

from __future__ import annotations

import inspect
import json
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import jetspark
from jetspark import ConsumerConfig, Expect, Schedule, StreamConfig
from jetspark.errors import AuthorizationError, InvalidArgument, JetsparkError, MaxPayloadExceeded
from jetspark.spark.options import OptionError
from support import wire_arguments
from support.case_tables import module, parameters
from support.helpers import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from jetspark import Message
    from jetspark.server import Server

MAX_PAYLOAD = 65_536


class World:
    """What the cases are tried on."""

    def __init__(self, server: Server, nkeys: Server, folder: Path) -> None:
        self.server = server
        self.nkeys = nkeys
        self.folder = folder
        self.nc: jetspark.Connection
        self.client_id = 0
        self.js: jetspark.JetStream
        self.stream: jetspark.Stream
        self.consumer: jetspark.Consumer
        self.message: Message
        self.msg: jetspark.Msg
        self.subscription: jetspark.Subscription
        self.pull_subscription: jetspark.PullSubscription
        self.push_subscription: jetspark.PushSubscription

    def seen(self) -> dict[str, int]:
        """How much the servers have got from anybody."""
        answers = {}
        for page in ("varz", "jsz"):
            with urllib.request.urlopen(f"{self.server.http_url}/{page}", timeout=LIMIT) as answer:
                answers[page] = json.load(answer)
        with urllib.request.urlopen(f"{self.nkeys.http_url}/varz", timeout=LIMIT) as answer:
            others = json.load(answer)["total_connections"]
        return {
            "connections": answers["varz"]["total_connections"] + others,
            "messages": answers["varz"]["in_msgs"],
            "API requests": answers["jsz"]["api"]["total"],
            "subscriptions": answers["varz"]["subscriptions"],
            "streams": answers["jsz"]["streams"],
            "consumers": answers["jsz"]["consumers"],
        }

    def subscriptions_left(self) -> list[str]:
        """What the server still holds of the connection with this ``client_id``."""
        with urllib.request.urlopen(f"{self.server.http_url}/subsz?subs=1", timeout=LIMIT) as answer:
            page = json.load(answer)
        assert page["total"] <= page["limit"], "more subscriptions than one page shows"
        return [sub["subject"] for sub in page["subscriptions_list"] if sub["cid"] == self.client_id]


@dataclass(frozen=True)
class Case:
    """``words`` must be in the error's text. ``connects``: found out only when the server has said INFO."""

    area: str
    title: str
    call: Callable[[World], Any]
    error: type[JetsparkError] = InvalidArgument
    words: tuple[str, ...] = ()
    connects: bool = False


async def attempt(case: Case, world: World) -> str:
    """What is wrong with how the case was refused; nothing when all is well."""
    try:
        result = case.call(world)
        if inspect.isasyncgen(result) or hasattr(result, "__anext__"):
            result = anext(result)
        if inspect.isawaitable(result):
            result = await result
    except case.error as error:
        text = str(error)
        missing = [word for word in case.words if word not in text]
        if missing:
            return f"does not say {missing}: {text[:300]}"
        if isinstance(error, InvalidArgument) and not (error.field in text and error.rule in text):
            return f"does not name field and rule: {text[:300]}"
        if len(text) > 1500:
            return f"takes {len(text)} characters to say so: {text[:200]}"
        return "" if len(text.split()) >= 3 else f"names no remedy: {text}"
    except BaseException as error:
        return f"raised {type(error).__name__}: {str(error)[:300]}"
    return f"was accepted: {result!r:.200}"


def all_cases() -> Iterator[Case]:
    """All but those of the command line, which is no function to call."""
    for area in (_urls, _options, _creds, _names, _streams, _consumers, _headers, _sizes, _calls, _spark):
        yield from area()
    yield from _wire()


def command_lines() -> list[tuple[list[str], str, int]]:
    """Words, message and exit code of each wrong use of the command line, which needs no server."""
    table = module("cli/test_table.py")
    return [
        (table.words(line), message, 1 if "No such file" in message else 2)
        for line, message in table.WRONG_USE
    ]


def _urls() -> Iterator[Case]:
    for text, rule in parameters("unit/test_urls.py", "test_bad_urls_are_refused_with_the_rule"):
        # connect() itself takes an empty text for a list without servers.
        rule = rule if text else "at least one"
        yield Case("URLs", repr(text), lambda w, text=text: jetspark.connect(text), words=("servers=", rule))
    for servers in parameters("unit/test_urls.py", "test_empty_server_lists_are_refused"):
        yield Case("URLs", repr(servers), lambda w, s=servers: jetspark.connect(s), words=("at least one",))


def _options() -> Iterator[Case]:
    for option, value in module("connection/test_options.py").CASES:
        yield Case(
            "connect options",
            f"{option}={value!r}",
            lambda w, given={option: value}: jetspark.connect(**{"servers": w.server.url, **given}),
            words=(f"{option}=",),
        )
    test = "test_options_that_contradict_each_other_are_refused"
    for options, field in parameters("connection/test_options.py", test):
        yield Case(
            "connect options",
            repr(options),
            lambda w, given=options: jetspark.connect(**{"servers": w.server.url, **given}),
            words=(f"{field}=",),
        )


def _creds() -> Iterator[Case]:
    """A file is read when the server asks for it, so that a renewed one is seen; nothing is sent before."""
    for options, words in parameters("unit/test_auth.py", "test_bad_credentials"):
        yield Case(
            "creds files",
            words,
            lambda w, given=options: jetspark.connect(w.nkeys.url, **given),
            AuthorizationError,
            (words,),
            connects=True,
        )
    for options, names in parameters("unit/test_auth.py", "test_contradictory_options"):
        yield Case(
            "creds files",
            str(names),
            lambda w, given=options: jetspark.connect(w.server.url, **given),
            words=tuple(names),
        )
    contents: dict[str, tuple[bytes, str]] = {
        "binary": (b"\xff\xfe\x00", "not a text file"),
        "empty": (b"", "no credentials file"),
        "another file": (b"user: joe\n", "no credentials file"),
        "html": (b"<html>404</html>", "no credentials file"),
    }
    for title, (content, words) in contents.items():

        def connect(w: World, content: bytes = content, title: str = title) -> Any:
            path = w.folder / f"{title}.creds"
            path.write_bytes(content)
            return jetspark.connect(w.nkeys.url, creds=path)

        words_of_it = (words, f"{title}.creds")
        yield Case("creds files", title, connect, AuthorizationError, words_of_it, connects=True)


BAD_NAMES = ["", "a.b", "a b", "a*", ">", "a/b", "a\\b", "a\tb", "a\r\nb", "a\0b", "x" * 256, 5, None, b"S"]
LATER = datetime(2100, 1, 1, tzinfo=UTC)

WITH_STREAM_NAME: dict[str, Callable[[World, Any], Any]] = {
    "get_stream": lambda w, name: w.js.get_stream(name),
    "delete_stream": lambda w, name: w.js.delete_stream(name),
    "consumer_names": lambda w, name: w.js.consumer_names(name),
    "list_consumers": lambda w, name: w.js.list_consumers(name),
    "get_consumer": lambda w, name: w.js.get_consumer(name, "C"),
    "delete_consumer": lambda w, name: w.js.delete_consumer(name, "C"),
    "pause_consumer": lambda w, name: w.js.pause_consumer(name, "C", LATER),
    "create_consumer": lambda w, name: w.js.create_consumer(name, ConsumerConfig(durable_name="D")),
    "create_ordered_consumer": lambda w, name: w.js.create_ordered_consumer(name),
    "dead_letters": lambda w, name: w.js.dead_letters(name),
}
WITH_CONSUMER_NAME: dict[str, Callable[[World, Any], Any]] = {
    "stream.get_consumer": lambda w, name: w.stream.get_consumer(name),
    "stream.delete_consumer": lambda w, name: w.stream.delete_consumer(name),
    "stream.pause_consumer": lambda w, name: w.stream.pause_consumer(name, LATER),
    "stream.resume_consumer": lambda w, name: w.stream.resume_consumer(name),
}


def _names() -> Iterator[Case]:
    for calls in (WITH_STREAM_NAME, WITH_CONSUMER_NAME):
        for call, make in calls.items():
            for name in BAD_NAMES:
                title = f"{call}({name!r:.20})"
                yield Case("names", title, lambda w, make=make, name=name: make(w, name))
    subjects = parameters("connection/test_options.py", "test_bad_subjects_are_refused_everywhere")
    for subject in [*subjects, *module("wire/test_commands.py").SMUGGLED.values(), ">.a"]:
        for call, send in SENDING.items():
            title = f"{call}({subject!r})"
            yield Case("names", title, lambda w, send=send, subject=subject: send(w, subject))
    for subject in parameters("connection/test_options.py", "test_wildcards_are_for_subscribing_only"):
        for call in ("publish", "request", "js.publish"):
            send = SENDING[call]
            yield Case(
                "names", f"{call}({subject!r})", lambda w, send=send, subject=subject: send(w, subject)
            )


SENDING: dict[str, Callable[[World, Any], Any]] = {
    "publish": lambda w, subject: w.nc.publish(subject),
    "request": lambda w, subject: w.nc.request(subject),
    "subscribe": lambda w, subject: w.nc.subscribe(subject),
    "js.publish": lambda w, subject: w.js.publish(subject),
    "get_msg": lambda w, subject: w.stream.get_msg(last_by_subject=subject if subject is not None else ""),
}


def _streams() -> Iterator[Case]:
    table = module("unit/test_validation_streams.py")
    for fields, field, rule, _ in table.STREAM_CASES:
        yield Case(
            "stream configs",
            f"{fields!r:.80}",
            lambda w, fields=fields: w.js.create_stream(table.stream(fields)),
            words=(field, rule),
        )
    for fields, field, rule, _ in table.STREAM_PEDANTIC_CASES:
        yield Case(
            "stream configs",
            f"pedantic {fields!r:.80}",
            lambda w, fields=fields: w.js.create_stream(table.stream(fields), pedantic=True),
            words=(field, rule),
        )
    for value in (None, "S", {"name": "S"}, 5):
        yield Case("stream configs", repr(value), lambda w, value=value: w.js.create_stream(value))


def _consumers() -> Iterator[Case]:
    table = module("unit/test_validation.py")
    for fields, field, rule, _ in table.CONSUMER_CASES:
        yield Case(
            "consumer configs",
            f"{fields!r:.80}",
            lambda w, fields=fields: w.stream.create_consumer(table.consumer(fields)),
            words=(field, rule),
        )
    for fields, field, rule, _ in table.CONSUMER_PEDANTIC_CASES:
        yield Case(
            "consumer configs",
            f"pedantic {fields!r:.80}",
            lambda w, fields=fields: w.stream.create_consumer(table.consumer(fields), pedantic=True),
            words=(field, rule),
        )
    for value in (None, "C", {"name": "C"}, 5):
        yield Case("consumer configs", repr(value), lambda w, value=value: w.stream.create_consumer(value))


def _headers() -> Iterator[Case]:
    table = module("wire/test_headers.py")
    values = [*parameters("wire/test_headers.py", "test_line_breaks_in_values"), "x\udcff"]
    wrong = [{name: "v"} for name in table.BAD_NAMES] + [{"Name": value} for value in values]
    for headers in wrong:
        for call in ("publish", "request", "js.publish"):
            yield Case(
                "headers",
                f"{call}({headers!r})",
                lambda w, call=call, headers=headers: _with_headers(w, call, headers),
                words=("header ",),
            )


def _with_headers(w: World, call: str, headers: Any) -> Any:
    if call == "js.publish":
        return w.js.publish("bad.x", headers=headers)
    return getattr(w.nc, call)("bad.x", headers=headers)


def _sizes() -> Iterator[Case]:
    big = b"x" * (MAX_PAYLOAD + 1)
    many = {"H": "x" * MAX_PAYLOAD}
    words = (str(MAX_PAYLOAD), "max_payload")
    calls: dict[str, Callable[[World], Any]] = {
        "publish": lambda w: w.nc.publish("bad.x", big),
        "publish with headers": lambda w: w.nc.publish("bad.x", b"x", headers=many),
        "request": lambda w: w.nc.request("bad.x", big),
        "request with headers": lambda w: w.nc.request("bad.x", headers=many),
        "js.publish": lambda w: w.js.publish("bad.x", big),
        "js.publish with headers": lambda w: w.js.publish("bad.x", headers=many),
        "js.publish with msg_id": lambda w: w.js.publish("bad.x", b"x" * MAX_PAYLOAD, msg_id="1"),
    }
    for title, call in calls.items():
        yield Case("sizes", title, call, MaxPayloadExceeded, words)
    for call_name, send in SENDING.items():
        if call_name != "get_msg":  # there it is no part of a line
            yield Case("sizes", f"{call_name} of a long subject", lambda w, send=send: send(w, "s" * 5000))
    for payload in ("text", 5, None, ["x"], {"a": 1}, 1.5):
        for call_name in ("publish", "request"):
            yield Case(
                "sizes",
                f"{call_name} {payload!r}",
                lambda w, payload=payload, name=call_name: getattr(w.nc, name)("bad.x", payload),
            )
        yield Case("sizes", f"js.publish {payload!r}", lambda w, data=payload: w.js.publish("bad.x", data))


NO_COUNT = [0, -1, "5", 1.5, True]
NO_WAIT = [-1, "5", True, float("nan")]  # nothing to wait is a time, and so is for ever
NO_TIME = [0, *NO_WAIT]
NO_WIRE_TIME = [*NO_TIME, float("inf")]

# Call, argument, values. All other arguments are good.
ARGUMENTS: list[tuple[str, Callable[..., Any], str, list[Any]]] = [
    ("fetch", lambda w, **given: w.consumer.fetch(**{"max_messages": 1, **given}), "max_messages", NO_COUNT),
    ("fetch", lambda w, **given: w.consumer.fetch(**given), "max_bytes", NO_COUNT),
    ("fetch", lambda w, **given: w.consumer.fetch(1, **given), "expires", NO_WIRE_TIME),
    (
        "fetch",
        lambda w, **given: w.consumer.fetch(1, expires=5, **given),
        "idle_heartbeat",
        [3, *NO_WAIT, float("inf")],
    ),
    ("fetch", lambda w, **given: w.consumer.fetch(1, **given), "priority", [-1, 10, "x"]),
    ("fetch", lambda w, **given: w.consumer.fetch(1, **given), "no_wait", [1, "no", None]),
    ("next", lambda w, **given: w.consumer.next(**given), "expires", NO_WIRE_TIME),
    ("consume", lambda w, **given: w.consumer.consume(**given), "max_messages", NO_COUNT),
    ("consume", lambda w, **given: w.consumer.consume(**given), "max_bytes", NO_COUNT),
    ("consume", lambda w, **given: w.consumer.consume(**given), "expires", [0.5, *NO_WIRE_TIME]),
    (
        "consume",
        lambda w, **given: w.consumer.consume(expires=10, **given),
        "idle_heartbeat",
        [6, *NO_WIRE_TIME],
    ),
    ("consume", lambda w, **given: w.consumer.consume(max_messages=5, **given), "threshold_messages", [6]),
    ("consume", lambda w, **given: w.consumer.consume(**given), "stop_after", NO_COUNT),
    ("js.publish", lambda w, **given: w.js.publish("bad.x", **given), "msg_id", ["", 5, b"x"]),
    ("js.publish", lambda w, **given: w.js.publish("bad.x", **given), "ttl", [-1, "soon", 0.5, True]),
    ("js.publish", lambda w, **given: w.js.publish("bad.x", **given), "timeout", NO_TIME),
    ("js.publish", lambda w, **given: w.js.publish("bad.x", **given), "retries", [-1, "x", 1.5]),
    ("js.publish", lambda w, **given: w.js.publish("bad.x", **given), "retry_wait", [-1, "x", float("nan")]),
    ("js.publish", lambda w, **given: w.js.publish("bad.x", **given), "expect", [5, {"last_seq": 1}]),
    ("js.publish", lambda w, **given: w.js.publish("bad.x", **given), "schedule", [5, "@every 5s"]),
    ("js.publish", lambda w, **given: w.js.publish("bad.x", **given), "headers", [5, "A: b", [1]]),
    ("publisher", lambda w, **given: w.js.publisher(**given), "window", NO_COUNT),
    ("publisher", lambda w, **given: w.js.publisher(**given), "ack_timeout", NO_TIME),
    ("publisher", lambda w, **given: w.js.publisher(**given), "retry", ["yes", 1, None]),
    ("get_msg", lambda w, **given: w.stream.get_msg(**given), "seq", [None, *NO_COUNT]),
    ("delete_msg", lambda w, **given: w.stream.delete_msg(**given), "seq", [None, *NO_COUNT]),
    ("get_msgs", lambda w, **given: w.stream.get_msgs(**given), "batch", NO_COUNT),
    ("get_msgs", lambda w, **given: w.stream.get_msgs(**given), "max_messages", NO_COUNT),
    ("get_msgs", lambda w, **given: w.stream.get_msgs(**given), "seq", NO_COUNT),
    ("get_msgs", lambda w, **given: w.stream.get_msgs(**given), "subjects", ["a b", "a..b", 5]),
    ("purge", lambda w, **given: w.stream.purge(**given), "seq", [-1, "5", 1.5]),
    ("purge", lambda w, **given: w.stream.purge(**given), "keep", [-1, "5", 1.5]),
    ("purge", lambda w, **given: w.stream.purge(**given), "subject", ["", "a b", 5]),
    ("purge", lambda w, **given: w.stream.purge(keep=1, **given), "seq", [1]),
    ("jetstream", lambda w, **given: w.nc.jetstream(**given), "domain", ["", "a b", "a.*", 5]),
    ("jetstream", lambda w, **given: w.nc.jetstream(**given), "api_prefix", ["", "a b", "a.>", 5]),
    ("jetstream", lambda w, **given: w.nc.jetstream(**given), "timeout", NO_TIME),
    ("request", lambda w, **given: w.nc.request("bad.x", **given), "timeout", NO_WAIT),
    ("request_many", lambda w, **given: w.nc.request_many("bad.x", **given), "timeout", NO_WAIT),
    ("request_many", lambda w, **given: w.nc.request_many("bad.x", **given), "max_messages", NO_COUNT),
    ("request_many", lambda w, **given: w.nc.request_many("bad.x", **given), "stall", NO_WAIT),
    ("flush", lambda w, **given: w.nc.flush(**given), "timeout", NO_WAIT),
    ("rtt", lambda w, **given: w.nc.rtt(**given), "timeout", NO_WAIT),
    ("publish", lambda w, **given: w.nc.publish("bad.x", **given), "headers", [5, "A: b", [1]]),
    ("publish", lambda w, **given: w.nc.publish("bad.x", **given), "reply", ["a b", "a.*", 5]),
    ("Expect", lambda w, **given: Expect(**given), "last_seq", [-1, "5", 1.5, True]),
    ("Expect", lambda w, **given: Expect(**given), "stream", ["", "a.b", 5]),
    ("Schedule", lambda w, **given: Schedule(target="bad.x", **given), "every", [0, -1, "x"]),
    ("Schedule", lambda w, **given: Schedule(target="bad.x", **given), "at", ["tomorrow", 5]),
    ("StreamConfig", lambda w, **given: StreamConfig(name="S", **given), "max_age", ["5s", True]),
    ("StreamConfig", lambda w, **given: StreamConfig(name="S", **given), "retention", [5, True]),
    ("StreamConfig", lambda w, **given: StreamConfig(name="S", **given), "storage", [5, True]),
    ("ConsumerConfig", lambda w, **given: ConsumerConfig(**given), "ack_policy", [5, True]),
    ("ConsumerConfig", lambda w, **given: ConsumerConfig(**given), "ack_wait", ["30s", True]),
]


def _calls() -> Iterator[Case]:
    for call, make, argument, values in ARGUMENTS:
        for value in values:
            yield Case(
                "calls",
                f"{call}({argument}={value!r})",
                lambda w, make=make, given={argument: value}: make(w, **given),
                words=() if value is None else (argument,),
            )
    for argument, values in parameters("connection/test_options.py", "test_bad_arguments_of_subscribe"):
        for value in values:
            yield Case(
                "calls",
                f"subscribe({argument}={value!r})",
                lambda w, given={argument: value}: w.nc.subscribe("bad.x", **given),
                words=(f"{argument}=",),
            )


def _wire() -> Iterator[Case]:
    """Every argument of the public API with what must not reach the wire."""
    for function, argument, value, call in wire_arguments.bad_calls():
        yield Case("wire arguments", f"{function}({argument}={wire_arguments.shown(value)})", call)


def _spark() -> Iterator[Case]:
    from jetspark.spark.sink.options import SinkSchemaError, check_columns, parse_sink
    from jetspark.spark.source.options import parse_source

    source, sink = "spark/test_options.py", "spark/test_sink_rows.py"
    for options, named, words in parameters(source, "test_refusals_name_the_option_and_the_remedy"):
        yield Case(
            "Spark options",
            repr(options),
            lambda w, given=options: parse_source({"servers": w.server.url, "stream": "ORDERS", **given}),
            OptionError,
            (named, words),
        )
    for options, named, words in parameters(sink, "test_a_bad_option_is_named_with_the_remedy"):
        yield Case(
            "Spark options",
            repr(options),
            lambda w, given=options: parse_sink({"servers": w.server.url, **given}, streaming=True),
            OptionError,
            (named, words),
        )
    columns_of = module(sink).columns_of
    test = "test_columns_that_can_not_be_written_are_named_with_the_remedy"
    for schema, column, words in parameters(sink, test):
        yield Case(
            "Spark options",
            schema,
            lambda w, schema=schema: check_columns(
                columns_of(schema), parse_sink({"servers": w.server.url}, streaming=True)
            ),
            SinkSchemaError,
            (column, words),
        )
