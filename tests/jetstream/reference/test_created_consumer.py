"""What the subscribe workflow writes into the consumers it makes (ADR-15 'Creating the JS Consumer')."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import jetspark
from jetspark import AckPolicy, ConsumerConfig
from support.consuming import make

if TYPE_CHECKING:
    from jetspark.server import Server


@pytest.mark.parametrize("queue", ["", "workers"])
async def test_a_push_consumer_gets_filter_inbox_ack_policy_and_group(
    js: jetspark.JetStream, queue: str
) -> None:
    stream = await make(js)
    async with await js.subscribe(f"{stream.name}.a", queue=queue) as sub:
        config = (await sub.consumer_info()).config
        assert config.filter_subject == f"{stream.name}.a"
        assert str(config.deliver_subject).startswith("_INBOX.")
        assert config.ack_policy is AckPolicy.EXPLICIT
        assert config.deliver_group == (queue or None)
        assert config.durable_name == (queue or None)


async def test_a_deliver_subject_of_choice_is_kept(js: jetspark.JetStream) -> None:
    stream = await make(js)
    config = ConsumerConfig(deliver_subject=f"to-{stream.name}")
    async with await js.subscribe(f"{stream.name}.a", config=config) as sub:
        assert sub.deliver_subject == f"to-{stream.name}"


async def test_a_pull_consumer_gets_the_filter_and_no_deliver_subject(js: jetspark.JetStream) -> None:
    stream = await make(js)
    async with await js.pull_subscribe(f"{stream.name}.a", "d") as sub:
        config = (await sub.consumer_info()).config
        assert (config.filter_subject, config.durable_name) == (f"{stream.name}.a", "d")
        assert not config.is_push
        assert config.ack_policy is AckPolicy.EXPLICIT


async def test_the_request_has_stream_name_and_filter_in_its_subject(
    js: jetspark.JetStream, server: Server
) -> None:
    stream = await make(js)
    async with jetspark.connect(server.url) as other:
        spy = await other.subscribe(f"$JS.API.CONSUMER.CREATE.{stream.name}.>")
        await other.flush()
        async with await js.subscribe(f"{stream.name}.a", durable="d"):
            durable = await spy.next()
        async with await js.subscribe(f"{stream.name}.a") as sub:
            ephemeral = await spy.next()
            name = sub.consumer_name
    create = f"$JS.API.CONSUMER.CREATE.{stream.name}"
    assert durable.subject == f"{create}.d.{stream.name}.a"
    assert ephemeral.subject == f"{create}.{name}.{stream.name}.a"
    # To create and nothing else: a race with somebody's update can't be won by accident.
    assert [json.loads(message.data)["action"] for message in (durable, ephemeral)] == ["create", "create"]
