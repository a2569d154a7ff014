"""Logging: one logger a package, warnings by default, fields beside the text. See also test_visible.py."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jetspark
from jetspark import ConsumerConfig, StreamConfig
from jetspark._log import fields, get_logger
from jetspark.connection.listening import QUIET_SECONDS, Listening
from jetspark.events import PermissionViolation
from support.helpers import eventually, unique

if TYPE_CHECKING:
    import pytest

NOISY = """
import asyncio, sys
import jetspark
async def main():
    async with jetspark.connect(sys.argv[1]) as nc:
        sub = await nc.subscribe("quiet", pending_messages_limit=1)
        for _ in range(3):
            await nc.publish("quiet")
        await nc.flush()
        await nc.subscribe("fails", callback=lambda message: 1 / 0)
        await nc.publish("fails")
        await nc.flush()
        print(sub.dropped)
asyncio.run(main())
"""


def test_with_basic_config_the_same_program_is_heard(server) -> None:
    code = "import logging; logging.basicConfig(level=logging.INFO)\n" + NOISY
    done = subprocess.run(
        [sys.executable, "-c", code, server.url], capture_output=True, text=True, timeout=60
    )
    assert "INFO:jetspark.connection:Connected(" in done.stderr
    assert "WARNING:jetspark.connection:SlowConsumer(" in done.stderr
    assert "ERROR:asyncio:callback of the subscription to 'fails' raised" in done.stderr


async def test_events_carry_their_fields(server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="jetspark")
    subject = unique("log")
    async with jetspark.connect(server.url, name="shop") as nc:
        await nc.subscribe(subject, pending_messages_limit=1)
        for _ in range(3):
            await nc.publish(subject)
        await nc.flush()
        await nc.force_reconnect()
    records: dict[str, Any] = {record.nats_event: record for record in caplog.records}
    records.pop("ReconnectFailed", None)  # on a busy machine a first attempt may come to nothing
    assert list(records) == ["Connected", "SlowConsumer", "Disconnected", "Reconnected", "Closed"]
    assert {record.nats_connection for record in records.values()} == {"shop"}
    assert records["Connected"].nats_server == f"127.0.0.1:{server.port}"
    slow = records["SlowConsumer"]
    assert (slow.nats_subject, slow.nats_pending_messages) == (subject, 1)
    assert slow.nats_dropped in (1, 2)  # the second may come by a read of its own, after the event
    assert records["Disconnected"].nats_error_type == "ConnectionLost"
    assert "force_reconnect" in records["Disconnected"].nats_error


async def test_events_with_names_that_records_have_are_no_clash(
    start_server, caplog: pytest.LogCaptureFixture
) -> None:
    # PermissionViolation has a field called message, which a LogRecord must not be given.
    server = start_server(
        jetstream=False,
        config='authorization { users: [{user: u, password: p, permissions: {publish: "ok"}}] }',
    )
    async with jetspark.connect(server.url, user="u", password="p") as nc:
        await nc.publish("forbidden")
        await nc.flush()
    (record,) = [r for r in caplog.records if getattr(r, "nats_event", "") == "PermissionViolation"]
    assert (record.nats_operation, record.nats_subject) == ("publish", "forbidden")
    assert "Permissions Violation" in record.nats_message


async def test_a_failing_handler_is_an_error_of_the_loop(server, caplog: pytest.LogCaptureFixture) -> None:
    def fail(message: Any) -> None:
        raise LookupError("no such article")

    def failures() -> list[Any]:
        return [r for r in caplog.records if r.exc_info]

    async with jetspark.connect(server.url) as nc:
        name = unique("LOG")
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
        await js.publish(f"{name}.1")
        async with consumer.consume_with(fail):
            await eventually(failures)
    (record,) = failures()
    assert (record.name, record.levelname) == ("asyncio", "ERROR")
    said = f"callback of consumer 'worker' of stream {name!r} raised on a message of '{name}.1'"
    assert record.getMessage() == said
    assert record.exc_info[0] is LookupError


def test_loggers_leave_handlers_and_levels_to_the_application() -> None:
    logger = get_logger("connection")
    assert (logger.name, logger.handlers, logger.level, logger.propagate) == (
        "jetspark.connection",
        [],
        0,
        True,
    )


async def test_a_flood_of_one_kind_is_a_warning_once(server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="jetspark.connection")
    async with jetspark.connect(server.url) as nc:
        clock = nc._core.loop.time()
        nc._core.listening._loop = SimpleNamespace(time=lambda: clock)  # type: ignore[assignment]
        for _ in range(3):
            nc._core.emit(PermissionViolation("publish", "a", "no"))
            nc._core.emit(PermissionViolation("publish", "b", "no"))
        clock += QUIET_SECONDS
        nc._core.emit(PermissionViolation("publish", "a", "no"))
    records = [record for record in caplog.records if record.nats_event == "PermissionViolation"]  # type: ignore[attr-defined]
    levels = {subject: [r.levelname for r in records if r.nats_subject == subject] for subject in "ab"}  # type: ignore[attr-defined]
    assert levels == {"a": ["WARNING", "DEBUG", "DEBUG", "WARNING"], "b": ["WARNING", "DEBUG", "DEBUG"]}


def test_a_flood_of_many_subjects_is_remembered_within_bounds() -> None:
    listening = Listening(SimpleNamespace(listener=None, name=""), SimpleNamespace(time=lambda: 0.0))  # type: ignore[arg-type]
    for number in range(5000):
        listening.tell(PermissionViolation("publish", f"s.{number}", "no"))
    assert len(listening._quiet_until) <= 1000


def test_fields_are_prefixed_and_leave_out_what_is_not_there() -> None:
    shown = fields(name="a", error=ValueError("bad"), nothing=None, zero=0)
    assert shown == {"nats_name": "a", "nats_error": "bad", "nats_error_type": "ValueError", "nats_zero": 0}
