"""Waiting for another thread: in slices, so that a signal just before the wait is noticed."""

from __future__ import annotations

import threading
import time

import pytest

from jetspark.blocking import _threads
from jetspark.blocking._threads import take


@pytest.mark.parametrize("timeout", [None, 10.0])
def test_a_release_ends_the_wait(timeout: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "_SLICE", 0.01)
    lock = threading.Lock()
    lock.acquire()
    timer = threading.Timer(0.05, lock.release)  # several slices later
    timer.start()
    assert take(lock, timeout) is True
    timer.join()


@pytest.mark.parametrize("timeout", [-1.0, 0.0, 0.005, 0.035])
def test_a_time_out_is_kept(timeout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "_SLICE", 0.01)
    lock = threading.Lock()
    lock.acquire()
    began = time.monotonic()
    assert take(lock, timeout) is False
    assert time.monotonic() - began >= timeout


def test_a_signal_that_interrupts_nothing_is_noticed_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if the signal had come just before the wait: its handler runs between two looks.
    looks = 0

    class Deaf:
        def acquire(self, timeout: float) -> bool:
            nonlocal looks
            looks += 1
            assert timeout <= _threads._SLICE
            if looks == 3:
                raise KeyboardInterrupt
            return False

    with pytest.raises(KeyboardInterrupt):
        take(Deaf())  # type: ignore[arg-type]
    assert looks == 3
