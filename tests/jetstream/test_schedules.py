"""Scheduled messages of ADR-51 on the real server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from jetspark import Expect, Headers, Schedule, StreamConfig
from jetspark.errors import (
    InvalidArgument,
    InvalidSchedule,
    MessageNotFound,
    MessageTTLDisabled,
    SchedulesDisabled,
    WrongLastSequence,
)
from support.helpers import eventually, unique

if TYPE_CHECKING:
    from jetspark import JetStream, StoredMsg, Stream


async def make(js: JetStream, **config: Any) -> Stream:
    name = unique("SC")
    defaults = {"subjects": [f"{name}.>"], "allow_msg_schedules": True, "allow_msg_ttl": True}
    return await js.create_stream(StreamConfig(name=name, **{**defaults, **config}))


async def last(stream: Stream, subject: str) -> StoredMsg | None:
    try:
        return await stream.get_msg(last_by_subject=subject)
    except MessageNotFound:
        return None


async def arrival(stream: Stream, subject: str) -> StoredMsg:
    message = await eventually(lambda: last(stream, subject), timeout=20)
    assert message is not None
    return message


@pytest.mark.slow
async def test_once_later(js: JetStream) -> None:
    stream = await make(js)
    held, target = f"{stream.name}.later.1", f"{stream.name}.orders"
    due = datetime.now(UTC) + timedelta(seconds=3)
    await js.publish(held, b"body", headers={"X": "y"}, schedule=Schedule(at=due, target=target, ttl="5m"))
    assert await last(stream, target) is None
    message = await arrival(stream, target)
    assert message.timestamp >= due
    assert message.data == b"body"
    assert message.headers["X"] == "y"
    assert message.headers["Nats-Scheduler"] == held
    assert message.headers["Nats-Schedule-Next"] == "purge"
    assert message.headers["Nats-TTL"] == "5m"
    # Once fired, the schedule is gone.
    assert await eventually(lambda: gone(stream, held))


async def gone(stream: Stream, subject: str) -> bool:
    return await last(stream, subject) is None


async def test_in_the_past_is_now(js: JetStream) -> None:
    stream = await make(js)
    past = datetime(2020, 1, 1, tzinfo=UTC)
    await js.publish(f"{stream.name}.s", schedule=Schedule(at=past, target=f"{stream.name}.t"))
    await arrival(stream, f"{stream.name}.t")
    assert await eventually(lambda: gone(stream, f"{stream.name}.s"))


@pytest.mark.parametrize("when", [{"every": 1}, {"every": timedelta(seconds=1)}, {"cron": "* * * * * *"}])
async def test_again_and_again(js: JetStream, when: dict[str, Any]) -> None:
    stream = await make(js)
    held, target = f"{stream.name}.s", f"{stream.name}.t"
    await js.publish(held, b"tick", schedule=Schedule(target=target, **when))

    async def twice() -> bool:
        counts = (await stream.info(subjects_filter=target)).state.subjects or {}
        return counts.get(target, 0) >= 2

    await eventually(twice)
    message = await arrival(stream, target)
    assert message.data == b"tick"
    assert datetime.fromisoformat(message.headers["Nats-Schedule-Next"]) > message.timestamp
    # Purging its subject ends it.
    assert await stream.purge(subject=held) == 1


async def test_rollup_keeps_the_last_only(js: JetStream) -> None:
    stream = await make(js)
    target = f"{stream.name}.t"
    await js.publish(f"{stream.name}.s", b"x", schedule=Schedule(every=1, target=target, rollup=True))
    first = await arrival(stream, target)

    async def replaced() -> bool:
        message = await last(stream, target)
        return message is not None and message.sequence > first.sequence

    await eventually(replaced)

    async def alone() -> bool:
        # What it replaces goes a moment after it was stored.
        return (await stream.info(subjects_filter=target)).state.subjects == {target: 1}

    await eventually(alone)


async def test_the_last_message_of_a_source(js: JetStream) -> None:
    stream = await make(js)
    source, target = f"{stream.name}.sensor", f"{stream.name}.sampled"
    await js.publish(source, b"old")
    await js.publish(source, b"21.5", headers={"Unit": "C"})
    await js.publish(f"{stream.name}.s", b"own", schedule=Schedule(every=1, source=source, target=target))
    message = await arrival(stream, target)
    assert message.data == b"21.5"
    assert message.headers["Unit"] == "C"


async def test_a_new_schedule_replaces_the_old_one(js: JetStream) -> None:
    stream = await make(js)
    held = f"{stream.name}.s"
    far = datetime.now(UTC) + timedelta(hours=1)
    await js.publish(held, b"1", schedule=Schedule(at=far, target=f"{stream.name}.t"))
    await js.publish(held, b"2", schedule=Schedule(cron="@hourly", target=f"{stream.name}.t"))
    assert (await stream.info(subjects_filter=held)).state.subjects == {held: 1}
    assert (await stream.get_msg(last_by_subject=held)).data == b"2"


async def test_time_zones(js: JetStream) -> None:
    stream = await make(js)
    held, target = f"{stream.name}.s", f"{stream.name}.t"
    await js.publish(
        held, schedule=Schedule(cron="0 30 4 * * mon-fri", timezone="Europe/Amsterdam", target=target)
    )
    assert (await stream.get_msg(last_by_subject=held)).headers[
        "Nats-Schedule-Time-Zone"
    ] == "Europe/Amsterdam"
    with pytest.raises(InvalidSchedule) as info:
        await js.publish(held, schedule=Schedule(cron="@daily", timezone="Europe/Atlantis", target=target))
    assert info.value.err_code == 10223


async def test_stopping_with_a_message(js: JetStream) -> None:
    stream = await make(js)
    held, target = f"{stream.name}.s", f"{stream.name}.t"
    far = datetime.now(UTC) + timedelta(hours=1)
    ack = await js.publish(held, b"later", schedule=Schedule(at=far, target=target))
    stop = Schedule.stop_headers(held)
    still_there = Expect(last_subject_seq=ack.seq, last_subject_seq_subject=held)
    await js.publish(target, b"now", headers=stop, expect=still_there)
    assert await gone(stream, held)
    assert (await stream.get_msg(last_by_subject=target)).data == b"now"
    with pytest.raises(WrongLastSequence):
        await js.publish(target, b"again", headers=stop, expect=still_there)


async def test_a_schedule_has_its_own_ttl(js: JetStream) -> None:
    stream = await make(js)
    held = f"{stream.name}.s"
    await js.publish(held, ttl=1, schedule=Schedule(cron="@yearly", target=f"{stream.name}.t"))
    assert await eventually(lambda: gone(stream, held))
    assert await gone(stream, f"{stream.name}.t")


async def test_in_the_pipelined_publisher_and_in_batches(js: JetStream) -> None:
    stream = await make(js, allow_atomic=True, allow_batched=True)
    past = datetime(2020, 1, 1, tzinfo=UTC)
    async with js.publisher() as publisher:
        await publisher.publish(f"{stream.name}.s1", schedule=Schedule(at=past, target=f"{stream.name}.t1"))
    async with js.atomic_batch() as batch:
        await batch.publish(f"{stream.name}.s2", schedule=Schedule(at=past, target=f"{stream.name}.t2"))
        await batch.publish(f"{stream.name}.x")
    async with js.fast_ingest() as ingest:
        await ingest.publish(f"{stream.name}.s3", schedule=Schedule(at=past, target=f"{stream.name}.t3"))
    for number in (1, 2, 3):
        message = await arrival(stream, f"{stream.name}.t{number}")
        assert message.headers["Nats-Scheduler"] == f"{stream.name}.s{number}"


async def test_streams_without_the_flags(js: JetStream) -> None:
    plain = await make(js, allow_msg_schedules=False, allow_msg_ttl=False)
    with pytest.raises(SchedulesDisabled, match="allow_msg_schedules=True"):
        await js.publish(f"{plain.name}.s", schedule=Schedule(every=1, target=f"{plain.name}.t"))
    without_ttl = await make(js, allow_msg_ttl=False)
    with pytest.raises(MessageTTLDisabled, match="allow_msg_ttl=True"):
        await js.publish(
            f"{without_ttl.name}.s", schedule=Schedule(every=1, target=f"{without_ttl.name}.t", ttl=5)
        )


async def test_what_only_the_server_can_refuse(js: JetStream) -> None:
    stream = await make(js)
    for wrong, code in (
        (Schedule(every=1, target="somewhere.else"), 10190),
        (Schedule(every=1, target=f"{stream.name}.t", source="somewhere.else"), 10203),
        (Schedule(every=1, target=f"{stream.name}.t", ttl="500ms"), 10191),
        (Schedule(cron="99 * * * * *", target=f"{stream.name}.t"), 10189),
    ):
        with pytest.raises(InvalidSchedule) as info:
            await js.publish(f"{stream.name}.s", schedule=wrong)
        assert info.value.err_code == code


@pytest.mark.parametrize(
    ("schedule", "pattern"),
    [
        ({"at": datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)}, "@at 2030-01-02T03:04:05Z"),
        ({"every": 90}, "@every 90s"),
        ({"every": 1.5}, "@every 1500000000ns"),
        ({"every": timedelta(minutes=5)}, "@every 300s"),
        ({"cron": "@daily"}, "@daily"),
        ({"cron": "0  30 4 1,15 * mon-fri"}, "0 30 4 1,15 * mon-fri"),
    ],
)
def test_patterns(schedule: dict[str, Any], pattern: str) -> None:
    headers = Headers()
    Schedule(target="t", **schedule).add_to(headers, "s")
    assert dict(headers.items()) == {"Nats-Schedule": pattern, "Nats-Schedule-Target": "t"}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "schedule"),
        ({"every": 1, "cron": "@daily"}, "schedule"),
        ({"every": 1, "target": "a.*"}, "schedule.target"),
        ({"every": 1, "target": ""}, "schedule.target"),
        ({"every": 0.5}, "schedule.every"),
        ({"every": timedelta(0)}, "schedule.every"),
        ({"every": float("nan")}, "schedule.every"),
        ({"every": "1s"}, "schedule.every"),
        ({"at": datetime(2030, 1, 1)}, "schedule.at"),
        ({"at": "2030-01-01T00:00:00Z"}, "schedule.at"),
        ({"cron": "* * * * *"}, "schedule.cron"),
        ({"cron": "@fortnightly"}, "schedule.cron"),
        ({"cron": "* * * * * $"}, "schedule.cron"),
        ({"cron": 5}, "schedule.cron"),
        ({"every": 1, "timezone": "UTC"}, "schedule.timezone"),
        ({"cron": "@daily", "timezone": "+02:00"}, "schedule.timezone"),
        ({"cron": "@daily", "timezone": ""}, "schedule.timezone"),
        ({"every": 1, "source": "a.>"}, "schedule.source"),
        ({"every": 1, "source": "t"}, "schedule.source"),
        ({"every": 1, "ttl": 0}, "schedule.ttl"),
        ({"every": 1, "ttl": 1.5}, "schedule.ttl"),
        ({"every": 1, "ttl": float("inf")}, "schedule.ttl"),
        ({"every": 1, "ttl": ""}, "schedule.ttl"),
    ],
)
def test_schedules_that_make_no_sense(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as info:
        Schedule(**{"target": "t", **options})
    assert info.value.field == field


@pytest.mark.parametrize(
    ("options", "field"), [({}, "schedule.target"), ({"source": "s"}, "schedule.source")]
)
def test_a_schedule_does_not_feed_itself(options: dict[str, Any], field: str) -> None:
    schedule = Schedule(every=1, **{"target": "s" if not options else "t", **options})
    with pytest.raises(InvalidArgument) as info:
        schedule.add_to(Headers(), "s")
    assert info.value.field == field
