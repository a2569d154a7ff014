"""Connections of source and sink: every way to authenticate, one for each process, nothing before a fork."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import nkeys
import pytest

from jetspark.errors import AuthorizationError, TLSError
from jetspark.server import ServerTLS
from jetspark.spark import connections
from jetspark.spark.source.options import parse_source
from support.helpers import LIMIT, unique
from support.jwt_mint import Key, Operator
from support.pki import PKI

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import StartServer
    from jetspark.server import Server
    from support.spark_helpers import Box


def account(server: Server, **options: str) -> Any:
    """Ask the server for something over a connection made from options."""
    found = parse_source({"servers": server.url, "stream": "S", **options}).connection
    try:
        return connections.jetstream(found).account_info()
    finally:
        connections.close(found)


def test_nkey_and_credentials_from_files(start_server: StartServer, tmp_path: Path) -> None:
    key = Key(nkeys.PREFIX_BYTE_USER)
    seed = tmp_path / "user.nk"
    seed.write_text(key.seed)
    server = start_server(config=f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}")
    assert account(server, nkey=str(seed)).api.total >= 0
    with pytest.raises(AuthorizationError):
        account(server)
    operator = Operator()
    creds = tmp_path / "user.creds"
    creds.write_text(operator.account("A", jetstream=True).user("u").creds())
    by_jwt = start_server(config=operator.resolver_config())
    assert account(by_jwt, credentials=str(creds)).api.total >= 0


def test_tls_files(start_server: StartServer, tmp_path: Path) -> None:
    pki = PKI(tmp_path / "pki")
    tls = ServerTLS(cert=pki.server.cert, key=pki.server.key, ca=pki.ca, verify=True)
    server = start_server(tls=tls)
    files = {"tlsCa": str(pki.ca), "tlsCert": str(pki.client.cert), "tlsKey": str(pki.client.key)}
    assert account(server, **files).api.total >= 0
    with pytest.raises(TLSError):
        account(server, **{**files, "tlsCa": str(pki.other_ca)})


def test_a_context_of_the_nats_tool(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(user="u", password="p")
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    (folder / "mine.json").write_text(json.dumps({"url": server.url, "user": "u", "password": "p"}))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = parse_source({"context": "mine", "stream": "S"}).connection
    assert connections.jetstream(found).account_info().api.total >= 0
    connections.close(found)


def test_one_connection_for_a_process_and_a_new_one_when_it_was_closed(server: Server) -> None:
    options = parse_source({"servers": server.url, "stream": "S"}).connection
    again = parse_source({"stream": "S", "servers": server.url}).connection
    first = connections.connection(options)
    assert connections.connection(again) is first
    first.close()
    second = connections.connection(options)
    assert second is not first
    assert second.is_connected
    connections.close(options)
    assert second.is_closed


def test_workers_keep_their_connection(box: Box, server: Server) -> None:
    stream = box.make(messages=20)
    name = unique("conn")
    for _ in range(4):
        assert box.read(stream, connectionName=name, minPartitions=4).count() == 20
    with urllib.request.urlopen(f"{server.http_url}/connz?state=any&limit=4096", timeout=LIMIT) as answer:
        made = [one for one in json.load(answer)["connections"] if one.get("name") == name]
    # Sixteen tasks and four plans, in the few processes that Spark keeps for two cores.
    assert 1 <= len(made) <= 6


def test_importing_and_checking_options_starts_no_thread_and_loads_little() -> None:
    """Spark forks its workers from a process that has imported us."""
    code = """
import sys, threading
import pyspark_jetstream
assert "jetspark" not in sys.modules and "pyspark" not in sys.modules, "eager import"
source = pyspark_jetstream.DefaultSource({"servers": "nats://127.0.0.1:4222", "stream": "S"})
source.schema()
source.streamReader(source.schema())
source.reader(source.schema())
assert threading.active_count() == 1, threading.enumerate()
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.stdout.strip() == "fine", done.stderr


def test_a_broken_installation_hides_only_our_source() -> None:
    code = """
import sys, warnings
sys.modules["jetspark"] = None
import pyspark_jetstream
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert not hasattr(pyspark_jetstream, "DefaultSource")
assert "format('jetstream') is not available" in str(caught[0].message)
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.stdout.strip() == "fine", done.stderr


@pytest.mark.usefixtures("spark")
def test_the_tests_of_one_session_stay_together(request: pytest.FixtureRequest) -> None:
    """With ``--dist loadgroup`` the group is part of a test's id; else each worker starts a Spark."""
    grouped = bool(request.config.getoption("loadgroup", False))
    assert request.node.nodeid.endswith("@spark") == grouped
