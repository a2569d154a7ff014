"""Logging: one logger a package, quiet by default, fields beside the text."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import jetspark
from helpers import eventually, unique
from jetspark import ConsumerConfig, StreamConfig
from jetspark._log import fields, get_logger

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


def test_a_program_that_never_set_up_logging_sees_nothing(server) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOISY, server.url], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("2\n", "", 0)


def test_with_basic_config_the_same_program_is_heard(server) -> None:
    code = "import logging; logging.basicConfig(level=logging.INFO)\n" + NOISY
    done = subprocess.run(
        [sys.executable, "-c", code, server.url], capture_output=True, text=True, timeout=60
    )
    assert "INFO:jetspark.connection:Connected(" in done.stderr
    assert "WARNING:jetspark.connection:SlowConsumer(" in done.stderr
    assert "WARNING:jetspark.connection:CallbackFailed(" in done.stderr


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


async def test_a_failing_handler_is_a_warning_of_jetstream(server, caplog: pytest.LogCaptureFixture) -> None:
    def fail(message: Any) -> None:
        raise LookupError("no such article")

    def failures() -> list[Any]:
        return [r for r in caplog.records if getattr(r, "nats_error_type", "") == "HandlerFailed"]

    async with jetspark.connect(server.url) as nc:
        name = unique("LOG")
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
        consumer = await stream.create_consumer(ConsumerConfig(durable_name="worker"))
        await js.publish(f"{name}.1")
        async with consumer.consume(callback=fail):
            await eventually(failures)
    (record,) = failures()
    assert (record.name, record.levelname) == ("jetspark.jetstream", "WARNING")
    assert record.nats_source.endswith(f"{name}.worker")
    assert record.exc_info[0] is LookupError


def test_loggers_have_one_null_handler_however_often_they_are_asked_for() -> None:
    first, second = get_logger("connection"), get_logger("connection")
    assert first is second
    assert [type(handler) for handler in first.handlers] == [logging.NullHandler]
    assert first.propagate


def test_fields_are_prefixed_and_leave_out_what_is_not_there() -> None:
    shown = fields(name="a", error=ValueError("bad"), nothing=None, zero=0)
    assert shown == {"nats_name": "a", "nats_error": "bad", "nats_error_type": "ValueError", "nats_zero": 0}
