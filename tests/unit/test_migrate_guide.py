"""docs/migrate-nats-py.md: every call it recommends exists as shown, and no call of nats-py is forgotten."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import jetspark
from jetspark import Message, errors

PAGE = (Path(__file__).parents[2] / "docs" / "migrate-nats-py.md").read_text()
# What the names in front of the dot stand for in the guide.
OBJECTS: dict[str, Any] = {
    "jetspark": jetspark,
    "nc": jetspark.Connection,
    "js": jetspark.JetStream,
    "stream": jetspark.Stream,
    "consumer": jetspark.Consumer,
    "publisher": jetspark.Publisher,
    "psub": jetspark.PullSubscription,
    "push": jetspark.PushSubscription,
    "sub": jetspark.Subscription,
    "msg": jetspark.Msg,
    "message": Message,
}
# The public calls of nats-py 2.16.
THEIRS = {
    "nc": "close connected_url discovered_servers drain flush force_reconnect is_closed is_connected "
    "is_connecting is_draining is_draining_pubs is_reconnecting jetstream jsm last_error max_payload "
    "new_inbox pending_data_size publish request rtt server_pool servers set_server_pool ssl_context "
    "subscribe client_id client_ip connected_server_version",
    "sub": "delivered drain messages next_msg pending_bytes pending_msgs unsubscribe",
    "msg": "ack ack_sync header in_progress is_acked metadata nak respond sid term",
    "psub": "consumer_info delivered fetch pending_msgs unsubscribe",
    "js": "account_info add_consumer add_stream consumer_info consumers_info create_key_value "
    "create_object_store delete_consumer delete_key_value delete_msg delete_object_store delete_stream "
    "find_stream_name_by_subject get_last_msg get_msg key_value object_store pause_consumer publish "
    "publish_async publish_async_completed publish_async_pending pull_subscribe pull_subscribe_bind "
    "purge_stream reset_consumer resume_consumer stream_info streams_info streams_info_iterator subscribe "
    "subscribe_bind update_stream",
}


def column(number: int, *, errors_table: bool) -> list[str]:
    """The code in one column of all tables but the last, or of the last one."""
    calls, _, last = PAGE.partition("## Errors\n")
    lines = (last if errors_table else calls).splitlines()
    cells = [
        line.strip("|").split("|") for line in lines if line.startswith("|") and not line.startswith("|-")
    ]
    return [code for cell in cells[1:] for code in re.findall(r"`([^`]+)`", cell[number])]


OURS = [code for code in column(1, errors_table=False) if "." in code and not code.startswith("async ")]


@pytest.mark.parametrize("code", sorted(set(OURS)))
def test_what_the_guide_recommends_exists(code: str) -> None:
    # "name=" alone is the guide's way to name an argument without a value.
    tree = ast.parse(re.sub(r"=(?=[,)])", "=...", code), mode="eval").body
    call = tree if isinstance(tree, ast.Call) else None
    target = call.func if call else tree
    assert isinstance(target, ast.Attribute)
    assert isinstance(target.value, ast.Name)
    found = getattr(OBJECTS[target.value.id], target.attr)
    if call is None:
        return
    if inspect.isclass(found):
        assert all(hasattr(found, keyword.arg or "") for keyword in call.keywords)
        return
    given = [None] * len(call.args)
    arguments = ([] if target.value.id == "jetspark" else [None]) + given
    keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
    inspect.signature(found).bind_partial(*arguments, **keywords)


def test_there_are_many() -> None:
    assert len(set(OURS)) > 90


@pytest.mark.parametrize(("name", "calls"), THEIRS.items(), ids=list(THEIRS))
def test_no_call_of_nats_py_is_forgotten(name: str, calls: str) -> None:
    assert [call for call in calls.split() if not re.search(rf"\b{name}\.{call}\b", PAGE)] == []


def test_the_errors_it_names_exist() -> None:
    names = {code for code in column(1, errors_table=True) if code[0].isupper()}
    assert len(names) > 20
    assert [name for name in sorted(names) if not hasattr(errors, name)] == []
