"""The server pool in simulated time: order, backoff, jitter, giving up."""

from __future__ import annotations

from random import Random

import pytest

from jetspark.connection.pool import REFUSAL_WINDOW, PooledServer, ServerPool
from jetspark.connection.urls import ServerURL, discovered_url, parse_server_url, parse_servers


def make(
    servers: str = "a,b,c", *, randomize: bool = False, max_failures: int | None = None, jitter: float = 0.0
) -> ServerPool:
    pool = ServerPool(wait=0.1, wait_max=1.0, jitter=jitter, max_failures=max_failures, random=Random(7))
    pool.seed(parse_servers(servers), randomize=randomize)
    return pool


def take(pool: ServerPool, now: float) -> tuple[PooledServer, float]:
    choice = pool.next(now)
    assert choice is not None
    return choice


def urls(*names: str) -> list[ServerURL]:
    return [parse_server_url(name) for name in names]


def hosts(pool: ServerPool) -> list[str]:
    return [server.url.host for server in pool.servers]


def test_seed_order_is_kept_or_shuffled() -> None:
    names = [f"h{number}" for number in range(20)]
    assert hosts(make(",".join(names))) == names
    shuffled = hosts(make(",".join(names), randomize=True))
    assert shuffled != names
    assert sorted(shuffled) == sorted(names)


def test_every_server_is_tried_before_one_is_tried_again() -> None:
    pool = make()
    tried = []
    for _ in range(3):
        server, wait = take(pool, 0.0)
        assert wait == 0
        tried.append(server.url.host)
        pool.failed(server, 0.0)
    assert tried == ["a", "b", "c"]
    server, wait = take(pool, 0.0)
    assert (server.url.host, wait) == ("a", pytest.approx(0.1))


def test_backoff_doubles_to_its_maximum() -> None:
    pool = make("a")
    now, waits = 0.0, []
    for _ in range(7):
        server, wait = take(pool, now)
        now += wait
        waits.append(round(wait, 3))
        pool.failed(server, now)
    assert waits == [0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_backoff_does_not_overflow_after_years() -> None:
    pool = make("a")
    server, _ = take(pool, 0.0)
    server.failures = 10_000
    pool.failed(server, 0.0)
    assert take(pool, 0.0)[1] == pytest.approx(1.0)


def test_jitter_spreads_around_the_base() -> None:
    pool = make("a", jitter=0.5)
    waits = []
    for _ in range(500):
        server, _ = take(pool, 0.0)
        server.failures = 0
        pool.failed(server, 0.0)
        waits.append(take(pool, 0.0)[1])
    assert 0.05 <= min(waits) < 0.06
    assert 0.14 < max(waits) <= 0.15
    assert sum(waits) / len(waits) == pytest.approx(0.1, rel=0.05)


def test_the_wait_shrinks_as_time_passes() -> None:
    pool = make("a")
    server, _ = take(pool, 0.0)
    pool.failed(server, 0.0)
    assert take(pool, 0.04)[1] == pytest.approx(0.06)
    assert take(pool, 5.0)[1] == 0


def test_success_cleans_the_record() -> None:
    pool = make("a")
    server, _ = take(pool, 0.0)
    for _ in range(5):
        pool.failed(server, 0.0)
    pool.refused(server, b"mark", 0.0)
    pool.succeeded(server, 0.0)
    assert (server.failures, server.refusals, take(pool, 0.0)[1]) == (0, 0, 0.0)


def test_refused_credentials_are_tried_for_the_whole_window_and_no_longer() -> None:
    pool = make("a")
    now, tries = 0.0, 0
    while (choice := pool.next(now)) is not None:
        server, wait = choice
        now += wait
        tries += 1
        pool.refused(server, b"mark", now)
    # A job that runs every minute has renewed them by then; the back-off keeps the tries few.
    assert REFUSAL_WINDOW <= now <= REFUSAL_WINDOW + 1.0
    assert REFUSAL_WINDOW > 60
    assert tries < REFUSAL_WINDOW + 10


def test_one_refusal_is_not_final_however_late_it_comes() -> None:
    pool = make("a")
    pool.refused(pool.servers[0], b"mark", 0.0)
    pool.succeeded(pool.servers[0], 1.0)
    pool.refused(pool.servers[0], b"mark", 10 * REFUSAL_WINDOW)
    assert hosts(pool) == ["a"]


def test_other_credentials_start_the_count_of_refusals_again() -> None:
    pool = make("a")
    server = pool.servers[0]
    pool.refused(server, b"old", 0.0)
    pool.refused(server, b"new", REFUSAL_WINDOW)
    pool.refused(server, b"new", 2 * REFUSAL_WINDOW - 1)
    assert hosts(pool) == ["a"]
    pool.refused(server, b"new", 2 * REFUSAL_WINDOW)
    assert hosts(pool) == []


def test_failures_that_are_no_refusal_never_give_a_server_up() -> None:
    pool = make("a")
    pool.refused(pool.servers[0], b"mark", 0.0)
    for second in range(1000):
        pool.failed(pool.servers[0], float(second))
    assert hosts(pool) == ["a"]


def test_a_lost_server_waits_a_random_moment_and_others_go_first() -> None:
    pool = make("a,b", jitter=0.5)
    lost = pool.servers[0]
    pool.succeeded(lost, 0.0)
    pool.lost(lost, 10.0)
    server, wait = take(pool, 10.0)
    assert (server.url.host, wait) == ("b", 0.0)
    moments = set()
    for _ in range(50):
        pool.lost(lost, 10.0)
        assert 10.0 <= lost.not_before <= 10.15
        moments.add(lost.not_before)
    assert len(moments) > 40


def test_a_server_that_drops_us_after_each_welcome_is_backed_off_from() -> None:
    pool = make("a")
    server, now, longest = pool.servers[0], 0.0, 0.0
    for _ in range(60):
        pool.succeeded(server, now)
        now += 0.01
        pool.lost(server, now)
        wait = take(pool, now)[1]
        assert wait <= 1.0
        longest = max(longest, wait)
        now += wait
    assert longest > 0.5
    # One life of decent length, and all is forgiven.
    pool.succeeded(server, now)
    pool.lost(server, now + 60)
    assert take(pool, now + 60)[1] <= 0.1


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_server_is_given_up_after_exactly_so_many_failures(limit: int) -> None:
    pool = make("a", max_failures=limit)
    attempts = 0
    while (choice := pool.next(0.0)) is not None:
        attempts += 1
        pool.failed(choice[0], 0.0)
    assert attempts == limit


def test_zero_means_no_attempt_at_all() -> None:
    pool = make("a", max_failures=0)
    pool.lost(pool.servers[0], 0.0)
    assert pool.next(0.0) is None


def test_without_a_limit_none_is_given_up() -> None:
    pool = make("a", max_failures=None)
    for _ in range(1000):
        pool.failed(pool.servers[0], 0.0)
    assert hosts(pool) == ["a"]


def test_announced_servers_come_and_go_but_seeds_stay() -> None:
    pool = make("a,b")
    assert [url.host for url in pool.add_discovered(urls("b", "c", "d", "c"))] == ["c", "d"]
    assert sorted(hosts(pool)) == ["a", "b", "c", "d"]
    assert pool.add_discovered(urls("d")) == []
    assert sorted(hosts(pool)) == ["a", "b", "d"]
    assert [server.url.host for server in pool.servers if server.discovered] == ["d"]


def test_announced_servers_do_not_take_the_place_of_the_next_one() -> None:
    for seed in range(20):
        pool = make("a,b")
        pool.random = Random(seed)
        pool.add_discovered(urls("c", "d", "e"))
        assert take(pool, 0.0)[0].url.host == "a"


def test_a_record_survives_being_announced_again() -> None:
    pool = make("a")
    pool.add_discovered(urls("b"))
    record = next(server for server in pool.servers if server.discovered)
    pool.failed(record, 0.0)
    pool.add_discovered(urls("a", "b"))
    assert next(server for server in pool.servers if server.discovered).failures == 1


@pytest.mark.parametrize(
    ("like", "entry", "name"),
    [
        ("tls://nats.example:4222", "10.0.0.7:4222", "nats.example"),
        ("tls://nats.example:4222", "[fe80::1]:4222", "nats.example"),
        ("tls://nats.example:4222", "other.example:4222", None),
        ("tls://10.0.0.1:4222", "10.0.0.7:4222", None),
    ],
)
def test_a_gossiped_address_must_show_the_name_of_the_cluster(
    like: str, entry: str, name: str | None
) -> None:
    found = discovered_url(entry, parse_server_url(like))
    assert found.tls_name == name


def test_the_name_is_handed_on_from_address_to_address() -> None:
    first = discovered_url("10.0.0.7:4222", parse_server_url("tls://nats.example:4222"))
    assert discovered_url("10.0.0.9:4222", first).tls_name == "nats.example"
