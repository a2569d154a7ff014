"""What the server says of itself."""

from __future__ import annotations

import msgspec
import pytest

from jetspark.wire import ServerInfo
from jetspark.wire.info import decode_info


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("2.15.1", (2, 15, 1)),
        ("2.9.0", (2, 9, 0)),
        ("10.0.12", (10, 0, 12)),
        ("2.12.0-RC.1", (2, 12, 0)),
        ("2.12.0-beta", (2, 12, 0)),
        ("2.12.0-preview.2", (2, 12, 0)),
        ("2.12.3+custom", (2, 12, 3)),
        ("2.12.3-RC.2+abc", (2, 12, 3)),
        ("", (0, 0, 0)),
        ("2", (0, 0, 0)),
        ("2.12", (0, 0, 0)),
        ("2.12.", (0, 0, 0)),
        ("v2.12.0", (0, 0, 0)),
        ("-2.12.0", (0, 0, 0)),
        ("2.12.0.1", (0, 0, 0)),
        ("2.1_2.0", (0, 0, 0)),
        ("2.\u0661.0", (0, 0, 0)),
        ("2.12." + "9" * 5000, (0, 0, 0)),
        ("nonsense", (0, 0, 0)),
    ],
)
def test_version_tuple(version, numbers):
    assert ServerInfo(version=version).version_tuple == numbers


def test_versions_compare_as_numbers():
    assert ServerInfo(version="2.9.25").version_tuple < ServerInfo(version="2.12.0-RC.1").version_tuple


def test_what_is_missing_has_the_servers_defaults():
    info = decode_info(b"{}")
    assert info == ServerInfo()
    assert info.max_payload == 1_048_576
    assert info.connect_urls is None
    assert not info.headers
    assert not info.tls_required


def test_unknown_fields_are_ignored_and_known_ones_read():
    info = decode_info(
        b'{"server_id":"NX","version":"2.15.1","headers":true,"nonce":"abc","ldm":true,"git_commit":"x",'
        b'"feature_flags":{"a":[1]},"connect_urls":["a:4222"],"domain":"hub","jetstream":true,"client_id":5}'
    )
    assert (info.server_id, info.nonce, info.domain, info.client_id) == ("NX", "abc", "hub", 5)
    assert info.headers
    assert info.ldm
    assert info.jetstream
    assert info.connect_urls == ["a:4222"]
    assert info.version_tuple == (2, 15, 1)


def test_info_can_not_be_changed():
    with pytest.raises(AttributeError):
        ServerInfo().port = 5  # type: ignore[misc]
    assert msgspec.structs.replace(ServerInfo(), port=5).port == 5
