"""Scripts of a client's life, and what each of them wrote to the server: for comparing the compiled core with
pure Python.

Run as a program: ``python tests/support/wire_scripts.py HOST PORT``. It runs every script, each on a
connection of its own, and prints what they wrote as JSON. A script is cut into steps, a step into writes, a
write into commands.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import jetspark
from jetspark import AckPolicy, ConsumerConfig, Expect, Publishing
from jetspark.arrow import get_arrow
from jetspark.connection.transport import Link
from jetspark.jetstream.publish.many import Columns
from jetspark.jetstream.publish.publisher import publish_columns
from jetspark.wire import backend
from support.wire_scene import Scene

LIMIT = 60.0
BAD_SUBJECTS = ["", "a b", "a..b", ".a", "a.", "a.*", "a.>", "a\r\nPUB b 0", None, 7, b"a", ["a"], "x" * 5000]
TURNS = (40, 21)
"""What a buffer of 40 gets: all it holds, and then what was asked for again at half of it."""


async def core(scene: Scene) -> None:
    nc = scene.nc
    answered = await nc.subscribe("ask.*", callback=lambda message: message.respond(message.data * 2))
    sub = await nc.subscribe("news.>", queue="readers")
    await scene.step("subscribe")
    scene.together(40)
    for number in range(40):
        await nc.publish(f"news.{number % 3}", b"n" * number, headers={"A": "b"} if number == 20 else None)
    scene.say(*[(await sub.next(timeout=LIMIT)).data for _ in range(40)])
    await nc.publish("news.x", "text and ü".encode(), reply="back.to", headers={"A": ["1", "2"], "B": ""})
    await scene.step("publish")
    for headers in (None, {"C": "d"}):
        scene.say((await nc.request("ask.a", b"twice", headers=headers, timeout=LIMIT)).data)
    await scene.refused(nc.request, "nobody.there", timeout=LIMIT)
    await scene.step("request")
    for subject in BAD_SUBJECTS:
        await scene.refused(nc.publish, subject)
    for data in (None, 7, bytes(nc.max_payload + 1), ["x"]):
        await scene.refused(nc.publish, "a", data)
    await scene.refused(nc.publish, "a", reply="b c")
    for bad in ({"A\r\n": "b"}, {"A": "b\r\nC: d"}, {"": "x"}, {"A": 1}, 7, {"A": "x" * nc.max_payload}):
        await scene.refused(nc.publish, "a", headers=bad)
    await scene.step("refused")
    await sub.unsubscribe()
    await answered.drain()
    await scene.step("unsubscribe")


async def publish(scene: Scene) -> None:
    js, name = scene.js, scene.name
    await scene.stream(allow_msg_ttl=True)
    two: dict[str, Any] = {"msg_id": "two", "headers": {"A": "b"}, "ttl": 60}
    for options in ({}, two, two, {"expect": Expect(stream=name, last_seq=2)}):
        scene.say(await js.publish(f"{name}.a", b"x", **options))
    await scene.step("published")
    await scene.refused(js.publish, f"{name}.a", expect=Expect(last_seq=77))
    await scene.refused(js.publish, f"{name}.a", expect=Expect(last_msg_id="other"))
    await scene.refused(js.publish, "no.stream", retries=0)
    await scene.refused(js.publish, "a b")
    await scene.refused(js.publish, f"{name}.a", msg_id="")
    await scene.refused(js.publish, f"{name}.a", bytes(scene.nc.max_payload + 1))
    await scene.step("refused")


async def publisher(scene: Scene) -> None:
    name = scene.name
    await scene.stream()
    await scene.step("stream")
    async with scene.js.publisher(window=40) as publisher:
        await scene.step("opened")
        scene.together(40)
        # Among plain answers there are errors and duplicates, at the start, inside and at the end of a run.
        options: dict[int, dict[str, Any]] = {
            0: {"expect": Expect(last_seq=99)},
            5: {"msg_id": "same", "headers": {"A": "b"}},
            17: {"msg_id": "same"},
            18: {"expect": Expect(stream="OTHER")},
            39: {"msg_id": "same", "headers": {"X": ["1", "2"]}},
        }
        futures = [
            publisher.publish_nowait(f"{name}.{row % 2}", b"x" * row, **options.get(row, {}))
            for row in range(40)
        ]
        await scene.refused(publisher.publish_nowait, f"{name}.a")
        scene.say(*await asyncio.gather(*futures, return_exceptions=True), publisher.stats)
        await scene.refused(publisher.flush)
        await scene.step("nowait")
        scene.together(3)
        scene.say(*await asyncio.gather(*[await publisher.publish(f"{name}.a", b"y") for _ in range(3)]))
        await scene.step("publish")
        for subject, data in [*((subject, b"") for subject in BAD_SUBJECTS), ("a", 7), ("a", None)]:
            await scene.refused(publisher.publish, subject, data)
            await scene.refused(publisher.publish_nowait, subject, data)
            await scene.refused(publisher.publish_many, [(f"{name}.good", b""), (subject, data)])
        await scene.refused(publisher.publish_nowait, "a", bytes(scene.nc.max_payload + 1))
        await scene.refused(publisher.publish_many, [("a", bytes(scene.nc.max_payload + 1))])
        for messages in (7, [7], [("a",)], [("a", "text")], [Publishing("a", b"", None, "")]):
            await scene.refused(publisher.publish_many, messages)
        await scene.step("refused")


async def publish_many(scene: Scene) -> None:
    name = scene.name
    await scene.stream()
    async with scene.js.publisher(window=200) as publisher:
        many = [Publishing(f"{name}.{row % 3}", b"x" * row, None, f"id {row % 50}") for row in range(60)]
        columns = Columns([f"{name}.{row % 3}" for row in range(60)], [b"y" * row for row in range(60)], None)
        ids = columns._replace(ids=[b"id %d" % (row % 40 + 30) for row in range(60)])
        bad = columns._replace(expect=Expect(stream="OTHER"))
        for step, call in (
            ("many", publisher.publish_many(many)),
            ("pairs", publisher.publish_many([(f"{name}.p", b"%d" % row) for row in range(60)])),
            ("columns", publish_columns(publisher, columns)),
            ("ids", publish_columns(publisher, ids)),
            ("refused columns", publish_columns(publisher, bad)),
        ):
            scene.together(60)
            batch = await (await call)
            scene.say(
                batch, batch.duplicates, sorted(batch.streams), list(map(repr, batch.failures.values()))
            )
            await scene.refused(publisher.flush)
            await scene.step(step)
        await scene.refused(
            publish_columns, publisher, columns._replace(datas=[bytes(scene.nc.max_payload + 1)] * 60)
        )
        for subject in ("a b", "a.*", "x" * 5000):
            await scene.refused(publish_columns, publisher, columns._replace(subjects=[subject] * 60))
        await scene.step("refused")


async def acks(scene: Scene) -> None:
    consumer = await scene.filled(40)
    scene.together(40)
    batch = await consumer.fetch(40, expires=LIMIT)
    await scene.step("fetched")
    for message in batch[7:]:
        await message.ack()
    await scene.step("many acks")
    await batch[0].ack()
    await batch[1].nak()
    await batch[2].nak(delay=90.5)
    await batch[3].in_progress()
    await batch[3].term()
    await batch[4].term("no use")
    await scene.step("each kind")
    await batch[5].ack_sync(timeout=LIMIT)
    await scene.step("ack_sync")
    for again in (batch[0].ack, batch[1].nak, batch[3].term, batch[4].in_progress, batch[5].ack_sync):
        await scene.refused(again)
    for delay in (-1, "x", float("nan")):
        await scene.refused(batch[6].nak, delay=delay)
    await scene.refused(batch[6].term, "two\r\nlines")
    await scene.step("refused")


async def fetch(scene: Scene) -> None:
    consumer = await scene.filled(60)
    scene.together(50)
    scene.say(*[message.data for message in await consumer.fetch(50, expires=LIMIT)])
    await scene.step("fetch")
    for _ in range(3):
        message = await consumer.next(expires=LIMIT)
        assert message is not None
        scene.say(message.metadata.sequence, message.data)
    await scene.step("next")
    scene.say(len(await consumer.fetch(max_bytes=600, max_messages=4, expires=LIMIT)))
    scene.say(len(await consumer.fetch_no_wait(10)), len(await consumer.fetch_no_wait(10)))
    await scene.step("less than asked for")
    for count in (0, -1, "x", None):
        await scene.refused(lambda count=count: consumer.fetch(count))
    await scene.step("refused")


async def consume(scene: Scene) -> None:
    consumer = await scene.filled(sum(TURNS))
    scene.hold_messages()
    async with consumer.consume(max_messages=40, expires=LIMIT) as messages:
        for turn in TURNS:
            scene.together(turn, more=turn != TURNS[-1])
            for _ in range(turn):
                message = await anext(messages)
                scene.say(message.metadata.sequence, message.subject, message.data, message.headers)
                await message.ack()
            await scene.step(f"{turn} more")
    await scene.step("stopped")
    for options in ({"max_messages": 0}, {"max_messages": 1, "max_bytes": 1}, {"expires": 0.1}):
        await scene.refused(consumer.consume, **options)


async def consume_bytes(scene: Scene) -> None:
    """Whatever was read is asked for again, to the byte."""
    consumer = await scene.filled(120)
    scene.together(120)
    async with consumer.consume(max_bytes=100_000, threshold_bytes=99_900, expires=LIMIT) as messages:
        for _ in range(120):
            await (await anext(messages)).ack()
        await scene.step("read")
    await scene.step("stopped")


async def consume_batches(scene: Scene) -> None:
    consumer = await scene.filled(120)
    scene.hold_messages()
    async with consumer.consume_batches(max_messages=40, expires=LIMIT) as batches:
        for turn in range(3):
            scene.together(40, more=turn < 2)
            batch = await anext(batches)
            scene.say(len(batch), *[message.data for message in batch])
            for message in batch:
                await message.ack()
            await scene.step(f"turn {turn}")
    await scene.step("stopped")


async def arrow(scene: Scene) -> None:
    consumer = await scene.filled(120, ack_policy=AckPolicy.NONE)
    scene.hold_messages()
    async with consumer.consume_arrow(max_messages=40, expires=LIMIT) as batches:
        for turn in range(3):
            scene.together(40, more=turn < 2)
            scene.say(*(await anext(batches)).drop_columns(["timestamp"]).to_pylist())
            await scene.step(f"turn {turn}")
    await scene.step("stopped")
    again = await scene.js.create_consumer(
        scene.name, ConsumerConfig(durable_name="again", ack_policy=AckPolicy.NONE)
    )
    scene.together(120)
    async with again.consume_arrow(max_bytes=100_000, threshold_bytes=99_900, expires=LIMIT) as batches:
        scene.say((await anext(batches)).num_rows)
        await scene.step("bytes")
    await scene.step("stopped again")
    stream = await scene.js.get_stream(scene.name)
    async for page in get_arrow(stream, columns=["sequence", "data"], batch=50):
        scene.say(*page.to_pylist())
    await scene.step("stored")


async def batches(scene: Scene) -> None:
    js, name = scene.js, scene.name
    await scene.stream(allow_atomic=True, allow_batched=True)
    async with js.atomic_batch() as batch:
        for row in range(5):
            await batch.publish(f"{name}.{row}", b"x" * row, msg_id=f"id {row}", headers={"A": "b"})
    scene.say(batch.ack)
    await scene.step("atomic")
    async with js.atomic_batch(hold=0) as batch:
        for row in range(3):
            await batch.publish(f"{name}.{row}", b"y" * row)
        await scene.refused(batch.publish, "a b")
        await scene.refused(batch.publish, "a", 7)
    scene.say(batch.ack)
    await scene.step("atomic, at once")
    async with js.fast_ingest() as ingest:
        for row in range(20):
            await ingest.publish(f"{name}.{row}", b"z" * row, headers={"A": "b"} if row == 7 else None)
        await scene.refused(ingest.publish, "a b")
        await scene.refused(ingest.publish, "a", bytes(scene.nc.max_payload + 1))
    scene.say(ingest.ack)
    await scene.step("fast ingest")


PUBLISHING = [core, publish, publisher, publish_many, batches]
CONSUMING = [acks, fetch, consume, consume_bytes, consume_batches, arrow]
SCRIPTS = PUBLISHING + CONSUMING


async def run(host: str, port: int) -> dict[str, Any]:
    captures: dict[str, Any] = {}
    write = Link._raw_write
    for script in SCRIPTS:
        async with asyncio.timeout(LIMIT), Scene(host, port, script.__name__.upper()) as scene:

            def noted(link: Link, data: bytes, scene: Scene = scene) -> None:
                scene.writes.append(bytes(data))
                write(link, data)

            Link._raw_write = noted  # type: ignore[assignment, method-assign]
            async with jetspark.connect(scene.url) as scene.nc:
                scene.js = scene.nc.jetstream(timeout=LIMIT)
                await scene.step("connect")
                await script(scene)
                await scene.step("end")
        captures[script.__name__] = {"steps": scene.steps, "said": scene.said}
    return {"backend": backend, "captures": captures}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1], int(sys.argv[2])))))
