"""Three servers as one cluster."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from jetspark.errors import InvalidArgument
from jetspark.server import Cluster, ServerStartError
from jetspark.server._cluster import missing_routes
from jetspark.server._placement import refuses_replicas
from support.footprint import look
from support.helpers import LIMIT, eventually_sync, gone, unique

if TYPE_CHECKING:
    from conftest import StartServer


def ask(port: int, subject: str, body: Any) -> Any:
    payload = json.dumps(body).encode()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as client,
        client.makefile("rb") as file,
    ):
        file.readline()
        client.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB answer 1\r\n')

        def answered() -> bytes | None:
            client.sendall(b"PUB %s answer %d\r\n%s\r\n" % (subject.encode(), len(payload), payload))
            # A new leader may take its time, and the server's PING then comes before the answer.
            header = next(line for line in file if line.startswith((b"MSG ", b"HMSG ")))
            # With a header: nobody listens. A leader begins to a moment after its election.
            return header if header.startswith(b"MSG ") else None

        size = int(eventually_sync(answered).split()[-1])
        return json.loads(file.read(size))


def create_replicated(cluster: Cluster) -> str:
    name = unique("R3")
    config = {"name": name, "subjects": [name], "num_replicas": 3}
    created = ask(cluster.servers[0].port, f"$JS.API.STREAM.CREATE.{name}", config)
    assert created.get("config", {}).get("num_replicas") == 3, created
    return name


def test_a_cluster_forms(cluster: Cluster) -> None:
    assert [server.name for server in cluster.servers] == ["n1", "n2", "n3"]
    assert cluster.urls == [server.url for server in cluster.servers]
    assert len(set(cluster.urls)) == 3
    assert cluster.meta_leader() in ("n1", "n2", "n3")
    name = create_replicated(cluster)
    leader = eventually_sync(lambda: cluster.leader_of(name))
    assert leader in cluster.servers
    assert cluster.leader_of("NO_SUCH") is None


def test_each_has_all_routes_to_each(cluster: Cluster) -> None:
    for index, names in enumerate(({"n2", "n3"}, {"n1", "n3"}, {"n1", "n2"})):
        varz, routez = (look(cluster.servers[index], page) for page in ("varz", "routez"))
        assert missing_routes(varz, routez, names) == []
        assert len(routez["routes"]) == 8
        # Any one of them missing would be found, that of the system account among them.
        for route in routez["routes"]:
            rest = {"routes": [one for one in routez["routes"] if one is not route]}
            assert missing_routes(varz, rest, names) == [route["remote_name"]]
        assert missing_routes(varz, {"routes": None}, names) == sorted(names)
        assert missing_routes(varz, {}, names) == sorted(names)


def test_a_server_without_a_pool_has_one_route_for_everything() -> None:
    old = {"cluster": {"name": "C"}}
    routes = {"routes": [{"remote_name": "n2"}]}
    assert missing_routes(old, routes, {"n2"}) == []
    assert missing_routes(old, routes, {"n2", "n3"}) == ["n3"]


def test_a_route_that_never_comes_is_named(own_cluster: Cluster) -> None:
    own_cluster.servers[2].name = "n9"  # healthy, and knows the leader; but nobody has a route to that one
    with pytest.raises(ServerStartError, match="cluster 'jetspark' has no route from n1 to n9"):
        own_cluster.wait_ready(timeout=0.5)


def test_it_survives_the_death_and_return_of_a_member(own_cluster: Cluster) -> None:
    name = create_replicated(own_cluster)
    leader = eventually_sync(lambda: own_cluster.leader_of(name))
    index = own_cluster.servers.index(leader)
    urls = own_cluster.urls
    own_cluster.kill(index)
    other = eventually_sync(lambda: own_cluster.leader_of(name))
    assert other is not leader
    assert ask(other.port, name, "still here")["seq"] == 1
    own_cluster.restart(index)
    own_cluster.wait_ready()
    assert own_cluster.urls == urls
    assert all(server.running for server in own_cluster.servers)

    def kept() -> bool:
        # An error while a leader is being elected.
        info = ask(leader.port, f"$JS.API.STREAM.INFO.{name}", None)
        return "error" not in info and info["state"]["messages"] == 1

    eventually_sync(kept)


@pytest.mark.cluster
def test_stop_leaves_nothing_and_start_works_again() -> None:
    cluster = Cluster(2)
    with cluster:
        pids = [server.pid for server in cluster.servers]
        folders = [server.config_path.parent for server in cluster.servers]
    assert all(gone(pid) for pid in pids)
    assert not any(folder.exists() for folder in folders)
    with cluster:
        assert cluster.meta_leader() is not None


@pytest.mark.cluster
def test_one_bad_member_ends_all() -> None:
    cluster = Cluster(2, config="no_such_option: 1")
    with pytest.raises(ServerStartError, match="no_such_option"):
        cluster.start()
    assert not any(server.running for server in cluster.servers)


@pytest.mark.cluster
def test_ready_means_that_replicas_are_placed() -> None:
    with Cluster(2) as cluster:
        node = cluster.servers[0]
        before = ask(node.port, "$JS.API.STREAM.LIST", {})["total"]
        assert not refuses_replicas(node.host, node.port, 2)
        assert refuses_replicas(node.host, node.port, 3), "there are only two servers"
        assert ask(node.port, "$JS.API.STREAM.LIST", {})["total"] == before == 0


def test_replicas_can_not_be_tried_without_credentials(start_server: StartServer) -> None:
    closed = start_server(name="closed", token="secret")
    assert not refuses_replicas(closed.host, closed.port, 3)


def test_a_server_that_does_not_answer_places_no_replicas() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert refuses_replicas("127.0.0.1", silent.getsockname()[1], 3, timeout=0.05)


def test_a_cluster_of_one_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="size=1"):
        Cluster(1)
