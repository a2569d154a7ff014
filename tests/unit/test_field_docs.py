"""Every field of a config says what it means, its default, its server version and whether it is editable."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import re

import pytest

from jetspark import ConsumerConfig, OrderedConsumerConfig, StreamConfig
from jetspark.jetstream.models.field_docs import field_docs

# Only between servers, or of servers that are no longer supported; there is nothing to choose.
INTERNAL = {"direct", "sourcing", "template_owner"}
DEFAULT = re.compile(r"[Dd]efault|Required|required|Unset:")
SINCE = re.compile(r"Since\s+\d+\.\d+")
EDIT = re.compile(
    r"[Ee]ditable|An update may|refuses an edit|by an update|not by\s+an update|edit changes nothing"
)


@pytest.mark.parametrize("config", [StreamConfig, ConsumerConfig])
def test_every_field_says_all_of_it(config: type[StreamConfig] | type[ConsumerConfig]) -> None:
    texts = field_docs(config)
    assert set(texts) | {"extra"} == set(config.__struct_fields__)
    lacking = [
        (name, rule.pattern)
        for name, text in texts.items()
        for rule in (DEFAULT, SINCE, EDIT)
        if name not in INTERNAL and not rule.search(text)
    ]
    assert lacking == []


@pytest.mark.parametrize("config", [StreamConfig, ConsumerConfig, OrderedConsumerConfig])
def test_help_shows_them(config: type) -> None:
    shown = re.sub(r"[\s|]+", " ", pydoc.render_doc(config, renderer=pydoc.plaintext))
    for name, text in field_docs(config).items():
        assert " ".join(text.split()) in shown.replace(" .", "."), name
        assert inspect.getdoc(getattr(config, name)) == text


@pytest.mark.parametrize(
    "config",
    [StreamConfig(name="S"), ConsumerConfig(durable_name="c"), OrderedConsumerConfig(opt_start_seq=7)],
    ids=lambda config: type(config).__name__,
)
def test_values_are_copied_and_pickled_as_before(config: object) -> None:
    assert copy.copy(config) == config
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_class_without_source_has_none() -> None:
    made = type("Made", (), {})
    assert field_docs(made) == {}
