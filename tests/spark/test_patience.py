"""Trouble that may pass is waited out, and nothing else."""

from __future__ import annotations

import threading

import pytest

from jetspark import blocking
from jetspark.errors import AuthorizationError, ConnectionLost, NoServersAvailable
from jetspark.spark import patience
from jetspark.spark.patience import patiently


def test_a_server_that_comes_back_is_waited_for(own_server):
    own_server.kill()
    attempts = 0
    restart = threading.Thread(target=own_server.restart)

    def connect() -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 2:
            restart.start()
        with blocking.connect(own_server.url) as nc:
            return nc.connected_url or ""

    assert patiently(connect, "connecting") == own_server.url
    # The second may succeed already, when this thread is slower than the server.
    assert attempts >= 2
    restart.join()


def test_what_can_not_pass_is_raised_at_once():
    attempts = []

    def refused() -> None:
        attempts.append(1)
        raise AuthorizationError("no")

    with pytest.raises(AuthorizationError):
        patiently(refused, "connecting")
    assert len(attempts) == 1


def test_it_ends(monkeypatch):
    monkeypatch.setattr(patience, "PATIENCE", 0.2)

    def gone() -> None:
        raise NoServersAvailable("nobody there")

    with pytest.raises(ConnectionLost, match="nobody there"):
        patiently(gone, "connecting")
