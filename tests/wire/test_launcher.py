"""Messages launched by the compiled core: the whole command, a future that waits, and nothing of a wrong one.

Without the compiled core, these functions do not exist.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from settle_cases import INBOX, settle, to

from jetspark.wire._backend import speed

if speed is not None:
    Launcher = speed.Launcher

    @settings(deadline=None)
    @given(
        st.integers(0, 2**64 - 1),
        st.binary(max_size=300),
        st.sampled_from([b"PUB a.b ", b"PUB \xc3\xbc "]),
        st.sampled_from([INBOX, b""]),
    )
    @example(2**64 - 1, bytes(100_000), b"PUB a ", INBOX)
    @example(0, b"", b"", b"")
    def test_a_launch_is_the_whole_command(serial: int, data: bytes, prefix: bytes, inbox: bytes) -> None:
        pending: dict[int, Any] = {}
        loop = object()
        out = [b"before"]
        future = Launcher(inbox, pending, loop).launch(out, prefix, serial, "a.b", data)
        assert issubclass(type(future), asyncio.Future)
        assert out == [b"before", b"%b%b%d %d\r\n%b\r\n" % (prefix, inbox, serial, len(data), data)]
        assert list(pending) == [serial]
        assert pending[serial] is future

    async def test_a_launch_makes_futures_of_the_loop_that_settle() -> None:
        pending: dict[int, Any] = {}
        loop = asyncio.get_running_loop()
        launch = Launcher(INBOX, pending, loop).launch
        out: list[bytes] = []
        futures = [launch(out, b"PUB a ", serial, "a", b"%d" % serial) for serial in range(100)]
        assert all(future.get_loop() is loop for future in futures)
        assert len(set(map(id, futures))) == 100
        assert list(pending) == list(range(100))
        answers = [to(serial, b'{"stream":"S","seq":%d}' % (serial + 1)) for serial in range(100)]
        assert settle(answers, pending) == (100, 0, [])
        assert [(await future).seq for future in futures] == list(range(1, 101))

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ((), TypeError),
            (([], b"PUB a ", 1, "a"), TypeError),
            (([], b"PUB a ", 1, "a", b"", 1), TypeError),
            (((), b"PUB a ", 1, "a", b""), TypeError),
            ((None, b"PUB a ", 1, "a", b""), TypeError),
            (([], "PUB a ", 1, "a", b""), TypeError),
            (([], bytearray(b"PUB a "), 1, "a", b""), TypeError),
            (([], b"PUB a ", "1", "a", b""), TypeError),
            (([], b"PUB a ", 1.0, "a", b""), TypeError),
            (([], b"PUB a ", -1, "a", b""), OverflowError),
            (([], b"PUB a ", 2**64, "a", b""), OverflowError),
            (([], b"PUB a ", 1, "a", "data"), TypeError),
            (([], b"PUB a ", 1, "a", bytearray(b"data")), TypeError),
            (([], b"PUB a ", 1, "a", memoryview(b"data")), TypeError),
            (([], b"PUB a ", 1, "a", None), TypeError),
        ],
    )
    def test_wrong_arguments_of_launch_send_nothing(
        arguments: tuple[Any, ...], error: type[Exception]
    ) -> None:
        pending: dict[int, Any] = {}
        with pytest.raises(error):
            Launcher(INBOX, pending, None).launch(*arguments)
        assert pending == {}
        assert not arguments or not arguments[0]

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            (INBOX,),
            (INBOX, {}),
            (INBOX, {}, None, 1),
            ("_INBOX.", {}, None),
            (bytearray(INBOX), {}, None),
            (INBOX, [], None),
            (INBOX, None, None),
        ],
    )
    def test_wrong_arguments_of_a_launcher(arguments: tuple[Any, ...]) -> None:
        with pytest.raises(TypeError):
            Launcher(*arguments)

    def test_a_launcher_takes_no_keywords() -> None:
        with pytest.raises(TypeError, match="keyword"):
            Launcher(INBOX, {}, loop=None)
        with pytest.raises(TypeError, match="keyword"):
            Launcher(INBOX, {}, None, more=1)

    def test_a_launcher_in_a_cycle_is_freed() -> None:
        class Loop:
            """It may be the loop, or what is pending."""

        loop, in_pending = Loop(), Loop()
        pending: dict[Any, Any] = {}
        launcher = Launcher(INBOX, pending, loop)
        loop.launch = launcher.launch  # type: ignore[attr-defined]
        in_pending.launcher = launcher  # type: ignore[attr-defined]
        pending["cycle"] = in_pending
        launcher.launch([], b"PUB a ", 1, "a", b"")
        gone = [weakref.ref(loop), weakref.ref(in_pending)]
        del loop, in_pending, pending, launcher
        gc.collect()
        assert [one() for one in gone] == [None, None]

    def test_launches_keep_nothing() -> None:
        pending: dict[int, Any] = {}
        loop, subject, data = object(), "sub" + str(id(pending)), bytes(1000)
        launch = Launcher(INBOX, pending, loop).launch
        bad: list[Any] = [[], b"PUB a ", 2**64, subject, data]

        def some() -> None:
            for serial in range(200):
                launch([], b"PUB a ", serial, subject, data)
                with pytest.raises(OverflowError):
                    launch(*bad)
            pending.clear()

        some()
        gc.collect()
        before = [sys.getrefcount(thing) for thing in (loop, subject, data, pending)]
        some()
        gc.collect()
        assert [sys.getrefcount(thing) for thing in (loop, subject, data, pending)] == before
