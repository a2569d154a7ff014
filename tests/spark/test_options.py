"""Options: what is refused, in which words, and that it shows at load()."""

from __future__ import annotations

import pickle
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from jetspark.spark import data_source
from jetspark.spark.options import (
    CONNECTION_OPTIONS,
    ConnectionOptions,
    OptionError,
    option_of,
    split_credentials,
)
from jetspark.spark.sink import options as sink_options
from jetspark.spark.source.options import Position, SourceOptions, check_batch, check_stream, parse_source

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {"servers": "nats://127.0.0.1:4222", "stream": "ORDERS"}


@pytest.mark.parametrize(
    ("options", "named", "words"),
    [
        ({"strem": "X"}, "strem", "did you mean 'stream'?"),
        ({"startingOffsets": "earliest"}, "startingoffsets", "did you mean 'startingPosition'?"),
        ({"maxOffsetsPerTrigger": "5"}, "maxoffsetspertrigger", "did you mean 'maxMessagesPerTrigger'?"),
        ({"zzz": "1"}, "zzz", "the options are"),
        ({"path": "/x"}, "path", "take no path"),
        ({"stream": "a.b"}, "stream", "'a.b'"),
        ({"stream": "A,,B"}, "stream", "empty entry"),
        ({"subjects": "a..b"}, "subjects", "'a..b'"),
        (
            {"subjects": "a.>,b,a.x"},
            "subjects",
            "'a.x' is part of 'a.>': filters must not overlap; drop 'a.x'",
        ),
        ({"subjects": "a.x,a.*"}, "subjects", "'a.x' is part of 'a.*'"),
        ({"startingPosition": "begin"}, "startingPosition", "earliest, latest"),
        ({"startingPosition": "0"}, "startingPosition", "the first is 1"),
        ({"startingSequence": "earliest"}, "startingSequence", "a sequence (1 or more)"),
        ({"startingTime": "17"}, "startingTime", "a time such as"),
        (
            {"startingSequence": "1", "startingTime": "now"},
            "startingTime",
            "contradicts option 'startingSequence'",
        ),
        ({"startingSequence": '{"OTHER": 3}'}, "startingSequence", "names stream 'OTHER'"),
        (
            {"stream": "A,B", "startingSequence": '{"A": 3}'},
            "startingSequence",
            "has no position for stream 'B'",
        ),
        ({"startingSequence": '{"ORDERS": '}, "startingSequence", "not valid JSON"),
        ({"endingPosition": "earliest"}, "endingPosition", "must be one of latest"),
        ({"startingPosition": "last-per-subject", "endingSequence": "5"}, "endingSequence", "contradicts"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss", "true or false"),
        ({"minPartitions": "0"}, "minPartitions", "1 or more"),
        ({"minPartitions": "many"}, "minPartitions", "whole number"),
        ({"maxTriggerDelay": "15m"}, "maxTriggerDelay", "minMessagesPerTrigger"),
        ({"minMessagesPerTrigger": "1", "maxTriggerDelay": "0s"}, "maxTriggerDelay", "greater than zero"),
        (
            {"minMessagesPerTrigger": "9", "maxMessagesPerTrigger": "5"},
            "minMessagesPerTrigger",
            "greater than",
        ),
        ({"durable": "a b"}, "durable", "'a b'"),
        ({"servers": ""}, "servers", "is empty"),
        ({"servers": "nats://u:p@h:1"}, "servers", "contains credentials"),
        ({"servers": "http://x"}, "servers", "http"),
        ({"user": "u"}, "password", "is missing"),
        ({"password": "p"}, "user", "is missing"),
        ({"token": "t", "credentials": "/x"}, "credentials", "contradicts option 'token'"),
        ({"credentials": "/no/such.creds"}, "credentials", "/no/such.creds"),
        ({"tlsCa": "/no/such.pem"}, "tlsCa", "/no/such.pem"),
        ({"domain": "a", "apiPrefix": "b"}, "apiPrefix", "contradicts"),
        ({"context": "no-such-context"}, "context", "no-such-context"),
    ],
)
def test_refusals_name_the_option_and_the_remedy(options: dict[str, str], named: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_source({**GOOD, **options})
    assert caught.value.option == named
    assert words in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_required_options() -> None:
    with pytest.raises(OptionError, match="'stream': is required"):
        parse_source({"servers": GOOD["servers"]})
    with pytest.raises(OptionError, match="'servers': is required"):
        parse_source({"stream": "A"})


def test_a_seed_in_an_option_is_refused_and_not_shown() -> None:
    seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    with pytest.raises(OptionError, match="path of a file") as caught:
        parse_source({**GOOD, "nkey": seed})
    assert seed not in str(caught.value)


def test_values_arrive() -> None:
    options = parse_source(
        {
            **GOOD,
            "STREAM": "A, B-*",
            "subjects": "a.>, b.*",
            "startingPosition": '{"A": 17, "B-1": "latest", "B-2": "2026-01-31T12:00:00Z"}',
            "failonDATAloss": "FALSE",
            "minPartitions": "4",
            "maxMessagesPerTrigger": "100",
            "connectTimeout": "750ms",
            "user": "u",
            "password": "hush",
        }
    )
    assert (options.streams.names, options.streams.patterns) == (("A",), ("B-*",))
    assert options.streams.selects("B-7")
    assert not options.streams.selects("C")
    assert options.subjects == ("a.>", "b.*")
    assert options.start is not None
    assert options.start.of("A") == Position(sequence=17)
    assert options.start.of("B-1").edge == "latest"
    assert options.start.of("B-9").edge == "earliest"
    assert not options.fail_on_data_loss
    assert options.min_partitions == 4
    assert options.connection.connect_timeout == 0.75
    assert "hush" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(options.connection) == hash(pickle.loads(pickle.dumps(options.connection)))


def test_every_connection_option_is_an_argument_of_connect() -> None:
    """Or one of ``jetstream()``: domain and apiPrefix."""
    assert {option_of(field.name) for field in fields(ConnectionOptions)} == set(CONNECTION_OPTIONS)


@pytest.mark.parametrize(
    ("servers", "found"),
    [
        (["nats://u:p%40x@a:1", "u:p%40x@b"], {"servers": "nats://a:1,b", "user": "u", "password": "p@x"}),
        (["nats://u:p@x@a:1"], {"servers": "nats://a:1", "user": "u", "password": "p@x"}),
        (["tls://secret@a"], {"servers": "tls://a", "token": "secret"}),
        (["wss://t@a/path?x=b@c"], {"servers": "wss://a/path?x=b@c", "token": "t"}),
        (["a:1", "ws://b/x@y"], {"servers": "a:1,ws://b/x@y"}),
    ],
)
def test_credentials_are_taken_out_of_urls(servers: list[str], found: dict[str, str]) -> None:
    assert split_credentials(servers) == found


def test_urls_with_different_credentials_are_refused_and_not_shown() -> None:
    with pytest.raises(OptionError, match="different credentials") as caught:
        split_credentials(["u:hush@a", "v:hush@b"])
    assert "hush" not in str(caught.value)


def test_options_are_parsed_once_for_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    def count(options: Any) -> SourceOptions:
        parsed.append(options)
        return parse_source(options)

    monkeypatch.setattr(data_source, "parse_source", count)
    made = data_source.DefaultSource(dict(GOOD))
    made = pickle.loads(pickle.dumps(made))
    schema = made.schema()
    made.reader(schema)
    made.streamReader(schema)
    assert len(parsed) == 1


def test_a_write_parses_its_connection_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"servers": GOOD["servers"], "subject": "s", "batchId": "1"}
    made = data_source.DefaultSource(given)

    def refuse(options: object) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr(sink_options, "parse_connection", refuse)
    found = sink_options.parse_sink(given, streaming=False, connection=made._connection)
    assert found.connection is made._connection


def test_files_of_credentials_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "x.creds"
    path.write_text("rubbish")
    with pytest.raises(OptionError) as caught:
        parse_source({**GOOD, "credentials": str(path)})
    assert caught.value.option == "credentials"
    assert "rubbish" not in str(caught.value)


def test_what_goes_with_batch_or_streaming_only() -> None:
    ending = parse_source({**GOOD, "endingSequence": "5"})
    assert check_batch(ending) is ending
    with pytest.raises(OptionError, match=r"endingSequence.*not valid in a streaming read; use trigger"):
        check_stream(ending)
    with pytest.raises(OptionError, match="last-per-subject"):
        check_stream(parse_source({**GOOD, "startingPosition": "last-per-subject"}))
    with pytest.raises(OptionError, match="not valid in a batch read"):
        check_batch(parse_source({**GOOD, "maxMessagesPerTrigger": "5"}))
    with pytest.raises(OptionError, match="would be empty"):
        check_batch(parse_source({**GOOD, "startingPosition": "latest"}))
