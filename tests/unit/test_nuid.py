from __future__ import annotations

import itertools
import os
import re
import threading

import pytest

from jetspark.connection import nuid
from jetspark.connection.nuid import NUID, next_nuid


def test_shape() -> None:
    assert re.fullmatch(r"[0-9A-Za-z]{22}", next_nuid())


def test_no_repeats_and_one_prefix() -> None:
    ids = [next_nuid() for _ in range(100_000)]
    assert len(set(ids)) == len(ids)
    assert len({text[:12] for text in ids}) == 1
    assert {len(text) for text in ids} == {22}


def test_sources_differ() -> None:
    assert len({NUID().next()[:12] for _ in range(100)}) == 100


@pytest.mark.slow
def test_the_counter_is_written_in_base_62_in_order() -> None:
    source = NUID()
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

    def number(text: str) -> int:
        value = 0
        for char in text[12:]:
            value = value * 62 + digits.index(char)
        return value

    numbers = [number(source.next()) for _ in range(300_000)]
    steps = {later - earlier for earlier, later in itertools.pairwise(numbers)}
    assert len(steps) == 1
    assert 33 <= steps.pop() <= 333


def test_an_exhausted_counter_draws_a_new_prefix() -> None:
    source = NUID()
    prefix, _ = source._count
    source._count = (prefix, itertools.count(62**10 - 2))
    last = [source.next() for _ in range(2)]
    assert [text[12:] for text in last] == ["zzzzzzzzzy", "zzzzzzzzzz"]
    fresh = source.next()
    assert len(fresh) == 22
    assert fresh[:12] != prefix


def test_threads_never_share_an_id() -> None:
    found: list[list[str]] = []

    def work() -> None:
        found.append([next_nuid() for _ in range(20_000)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({text for ids in found for text in ids}) == 80_000


def test_a_forked_child_starts_afresh() -> None:
    before = next_nuid()
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writable, nuid.next_nuid().encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        in_child = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert len(in_child) == 22
    assert in_child[:12] != before[:12]
    assert next_nuid()[:12] == before[:12]
