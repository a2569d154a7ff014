"""ADR-15: what a subscription refuses outright, and which existing consumers it may use."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from jetspark import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from jetspark.errors import InvalidArgument
from jetspark.jetstream.subscribe import checks
from jetspark.jetstream.subscribe.checks import Wish, check_binding, check_options, check_ordered

NOTHING: dict[str, Any] = {
    "queue": "",
    "stream": None,
    "durable": None,
    "consumer": None,
    "config": None,
    "idle_heartbeat": None,
    "flow_control": None,
    "deliver_policy": None,
    "opt_start_seq": None,
    "opt_start_time": None,
}


def wish(subject: str | None = "a.b", **options: Any) -> Wish:
    return check_options(subject, **{**NOTHING, **options})


def info(*, push_bound: bool = False, **config: Any) -> ConsumerInfo:
    config.setdefault("deliver_subject", "deliver")
    config.setdefault("durable_name", "d")
    return ConsumerInfo(stream_name="S", name="d", config=ConsumerConfig(**config), push_bound=push_bound)


# --- refused outright ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "options", "field"),
    [
        (None, {}, "subject"),
        ("", {}, "subject"),
        ("a..b", {}, "subject"),
        ("a", {"stream": "no.dots"}, "stream"),
        ("a", {"queue": "q", "idle_heartbeat": 1.0}, "idle_heartbeat"),
        ("a", {"queue": "q", "config": ConsumerConfig(idle_heartbeat=1.0)}, "idle_heartbeat"),
        ("a", {"queue": "q", "flow_control": True}, "flow_control"),
        ("a", {"config": ConsumerConfig(deliver_group="q", flow_control=True)}, "flow_control"),
        ("a", {"queue": "q", "config": ConsumerConfig(deliver_group="other")}, "queue"),
        ("a", {"queue": "q q"}, "queue"),
        ("a", {"queue": "no.durable.name"}, "queue"),
        ("a", {"durable": "a.b"}, "durable"),
        ("a", {"durable": "x", "config": ConsumerConfig(durable_name="y")}, "durable"),
        ("a", {"consumer": "a b"}, "consumer"),
        ("a", {"consumer": "c", "durable": "d"}, "durable"),
        ("a", {"consumer": "c", "config": ConsumerConfig()}, "config"),
        ("a", {"consumer": "c", "idle_heartbeat": 1.0}, "idle_heartbeat"),
        ("a", {"consumer": "c", "deliver_policy": "new"}, "deliver_policy"),
        ("a", {"config": ConsumerConfig(filter_subject="b")}, "subject"),
        ("a", {"idle_heartbeat": 1.0, "config": ConsumerConfig(idle_heartbeat=2.0)}, "idle_heartbeat"),
    ],
)
def test_mistakes_are_refused_before_anything_is_sent(
    subject: str | None, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        wish(subject, **options)
    assert caught.value.field == field


def test_a_stream_is_enough() -> None:
    found = wish(None, stream="S")
    assert (found.subject, found.config.filter_subject, found.name) == ("", None, None)


# --- what is wanted ------------------------------------------------------------------------------------


def test_the_subject_is_the_filter() -> None:
    assert wish("a.*").config.filter_subject == "a.*"


def test_a_config_with_filters_keeps_them() -> None:
    config = wish("a", config=ConsumerConfig(filter_subjects=["a", "b"])).config
    assert (config.filter_subject, config.filter_subjects) == (None, ["a", "b"])


def test_a_queue_is_the_durable_name_unless_there_is_another() -> None:
    found = wish(queue="q")
    assert (found.name, found.config.durable_name, found.config.deliver_group) == ("q", "q", "q")
    found = wish(queue="q", durable="d")
    assert (found.name, found.config.durable_name, found.config.deliver_group) == ("d", "d", "q")
    found = wish(queue="q", consumer="c")
    assert (found.name, found.bind, found.config.durable_name) == ("c", True, None)
    found = wish(queue="q", config=ConsumerConfig(name="n"))
    assert (found.name, found.config.durable_name) == ("n", None)


def test_a_config_with_a_deliver_group_is_a_queue_subscription() -> None:
    found = wish(config=ConsumerConfig(deliver_group="g"))
    assert (found.queue, found.name) == ("g", "g")


def test_acks_are_explicit_unless_the_config_says_otherwise() -> None:
    assert wish().config.ack_policy is AckPolicy.EXPLICIT
    assert wish(config=ConsumerConfig(ack_policy="none")).config.ack_policy is AckPolicy.NONE


def test_start_options_imply_their_policy() -> None:
    assert wish(opt_start_seq=3).config.deliver_policy is DeliverPolicy.BY_START_SEQUENCE
    time = datetime(2024, 1, 1, tzinfo=UTC)
    assert wish(opt_start_time=time).config.deliver_policy is DeliverPolicy.BY_START_TIME
    assert wish(deliver_policy="new").config.deliver_policy is DeliverPolicy.NEW
    assert wish().config.deliver_policy is DeliverPolicy.ALL


# --- push consumer active information and queue group binding ------------------------------------------

FILTERED = {"filter_subject": "a.b"}


@pytest.mark.parametrize(
    ("found", "options", "error"),
    [
        (info(push_bound=True), {}, checks.ConsumerInUse),
        (info(deliver_group="g"), {}, checks.QueueRequired),
        (info(deliver_group="g", push_bound=True), {}, checks.QueueRequired),
        (info(deliver_group="g"), {"queue": "q"}, checks.QueueMismatch),
        (info(deliver_group="g", push_bound=True), {"queue": "q"}, checks.QueueMismatch),
        (info(), {"queue": "q"}, checks.NoDeliverGroup),
        (info(push_bound=True), {"queue": "q"}, checks.NoDeliverGroup),
        (info(deliver_subject=None), {}, checks.PullRequired),
        (info(deliver_subject=None), {"queue": "q"}, checks.PullRequired),
        (info(filter_subject="x"), {}, checks.SubjectMismatch),
        (info(filter_subjects=["a.b", "x"]), {}, checks.SubjectMismatch),
        (info(deliver_group="q", flow_control=True), {"queue": "q"}, checks.QueueFlowControl),
        (info(deliver_group="q", idle_heartbeat=1.0), {"queue": "q"}, checks.QueueHeartbeat),
        (info(), {"idle_heartbeat": 1.0}, checks.ConsumerConfigMismatch),
        (info(), {"config": ConsumerConfig(max_deliver=3)}, checks.ConsumerConfigMismatch),
    ],
)
def test_a_consumer_that_does_not_fit_is_its_own_error(
    found: ConsumerInfo, options: dict[str, Any], error: type[checks.IncompatibleConsumer]
) -> None:
    with pytest.raises(checks.IncompatibleConsumer) as caught:
        check_binding(found, wish(**options))
    assert type(caught.value) is error
    assert (caught.value.stream, caught.value.consumer) == ("S", "d")
    assert "'d'" in str(caught.value)
    loaded = pickle.loads(pickle.dumps(caught.value))
    assert (type(loaded), str(loaded), vars(loaded)) == (error, str(caught.value), vars(caught.value))


@pytest.mark.parametrize(
    ("found", "options"),
    [
        (info(), {}),
        (info(**FILTERED), {}),
        (info(filter_subjects=["a.b"]), {}),
        (info(deliver_group="q"), {"queue": "q"}),
        (info(deliver_group="q", push_bound=True), {"queue": "q"}),
        (info(idle_heartbeat=1.0, flow_control=True), {"idle_heartbeat": 1.0, "flow_control": True}),
        (info(idle_heartbeat=1.0, flow_control=True), {}),
        (info(idle_heartbeat=1.0), {"consumer": "d"}),
        (info(flow_control=None), {"flow_control": False}),
        (info(max_deliver=3), {"config": ConsumerConfig(max_deliver=3)}),
        (
            info(metadata={"k": "v", "_nats.ver": "2"}),
            {"config": ConsumerConfig(metadata={"k": "v"})},
        ),
        (
            info(filter_subjects=["x", "a.b"]),
            {"config": ConsumerConfig(filter_subjects=["a.b", "x"])},
        ),
    ],
)
def test_a_consumer_that_fits(found: ConsumerInfo, options: dict[str, Any]) -> None:
    check_binding(found, wish(**options))
    assert found.config.deliver_subject == "deliver"


def test_every_difference_is_told() -> None:
    config = ConsumerConfig(max_deliver=3, ack_wait=2.0, description="new")
    found = info(max_deliver=5, ack_wait=2.0, ack_policy="none")
    with pytest.raises(checks.ConsumerConfigMismatch) as caught:
        check_binding(found, wish(config=config))
    assert caught.value.differences == {
        "ack_policy": ("explicit", "none"),
        "description": ("new", None),
        "max_deliver": (3, 5),
    }
    assert "max_deliver=5, not 3" in str(caught.value)
    assert "update_consumer()" in str(caught.value)


def test_without_a_config_policies_are_not_compared() -> None:
    found = info(ack_policy="none", deliver_policy="new")
    check_binding(found, wish(durable="d"))
    with pytest.raises(checks.ConsumerConfigMismatch) as caught:
        check_binding(found, wish(durable="d", deliver_policy="all"))
    assert caught.value.differences == {"deliver_policy": ("all", "new")}


def test_errors_name_the_remedy() -> None:
    with pytest.raises(checks.QueueRequired, match="queue='g'"):
        check_binding(info(deliver_group="g"), wish())
    with pytest.raises(checks.PullRequired, match="pull_subscribe"):
        check_binding(info(deliver_subject=None), wish())
    with pytest.raises(checks.SubjectMismatch, match=r"delivers \['x'\], not \['a.b'\]"):
        check_binding(info(filter_subject="x"), wish())


# --- ordered -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"queue": "q"}, "queue"),
        ({"durable": "d"}, "durable"),
        ({"consumer": "c"}, "consumer"),
        ({"config": ConsumerConfig(max_deliver=2)}, "max_deliver"),
        ({"config": ConsumerConfig(deliver_subject="x")}, "deliver_subject"),
        ({"config": ConsumerConfig(ack_policy="all")}, "ack_policy"),
        ({"flow_control": False}, "flow_control"),
    ],
)
def test_what_does_not_go_with_ordered(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_ordered(wish(**options))
    assert caught.value.field == field


def test_what_goes_with_ordered() -> None:
    found = wish(idle_heartbeat=1.0, config=ConsumerConfig(headers_only=True, ack_policy="none"))
    check_ordered(found)
    assert found.config.headers_only is True
