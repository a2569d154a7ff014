"""JetStream through the facade."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from jetspark import ConsumerConfig, StreamConfig, blocking
from jetspark.errors import ConnectionClosed, JetsparkError, MessageNotFound, StreamNotFound
from support.helpers import unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetspark.server import Server


@pytest.fixture
def js(server: Server) -> Iterator[blocking.JetStream]:
    with blocking.connect(server.url) as nc:
        yield nc.jetstream()


@pytest.fixture
def stream(js: blocking.JetStream) -> Iterator[blocking.Stream]:
    name = unique("BLOCKING")
    made = js.create_stream(StreamConfig(name=name, subjects=[f"{name}.>"], allow_direct=True))
    yield made
    made.delete()


def fill(js: blocking.JetStream, stream: blocking.Stream, count: int) -> None:
    for number in range(count):
        js.publish(f"{stream.name}.{number % 3}", b"%d" % number)


def test_streams_are_made_changed_listed_and_deleted(js: blocking.JetStream) -> None:
    name = unique("LIFE")
    config = StreamConfig(name=name, subjects=[name])
    assert type(js.create_stream(config)) is blocking.Stream
    changed = js.update_stream(config.replace(description="changed"))
    assert changed.config.description == "changed"
    assert js.create_or_update_stream(config).config.description != "changed"
    assert js.get_stream(name).name == name
    assert name in set(js.stream_names())
    assert [info.config.name for info in js.list_streams(name)] == [name]
    assert js.stream_name_by_subject(name) == name
    assert js.account_info().streams >= 1
    js.delete_stream(name)
    with pytest.raises(StreamNotFound):
        js.get_stream(name)


def test_published_messages_are_read_back(js: blocking.JetStream, stream: blocking.Stream) -> None:
    fill(js, stream, 100)
    assert stream.info().state.messages == 100
    assert stream.get_msg(7).data == b"6"
    assert [int(msg.data) for msg in stream.get_msgs()] == list(range(100))
    assert sorted(msg.data for msg in stream.get_last_msgs_for(f"{stream.name}.>")) == [b"97", b"98", b"99"]
    stream.delete_msg(7)
    with pytest.raises(MessageNotFound):
        stream.get_msg(7)
    assert stream.purge(keep=10) == 89


def test_reading_may_be_left_early(js: blocking.JetStream, stream: blocking.Stream) -> None:
    fill(js, stream, 20)
    for msg in stream.get_msgs(batch=5):
        if msg.sequence == 7:
            break
    assert stream.info().state.messages == 20


def test_errors_come_behind_what_was_read(js: blocking.JetStream, stream: blocking.Stream) -> None:
    with pytest.raises(JetsparkError, match="max_messages"):
        list(stream.get_msgs(max_messages=-1))


def test_consumers_are_managed(js: blocking.JetStream, stream: blocking.Stream) -> None:
    consumer = stream.create_or_update_consumer(ConsumerConfig(durable_name="worker"))
    assert type(consumer) is blocking.Consumer
    assert consumer.name == "worker"
    assert js.get_consumer(stream.name, "worker").info().name == "worker"
    assert list(stream.consumer_names()) == ["worker"]
    assert [info.name for info in stream.list_consumers()] == ["worker"]
    assert consumer.pause(datetime.now(UTC) + timedelta(hours=1)).paused
    assert not consumer.resume().paused
    consumer.delete()
    assert list(stream.consumer_names()) == []


def test_handles_refuse_after_close(server: Server) -> None:
    with blocking.connect(server.url) as nc:
        js = nc.jetstream()
    with pytest.raises(ConnectionClosed):
        js.account_info()
    with pytest.raises(ConnectionClosed):
        list(js.stream_names())
