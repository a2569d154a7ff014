"""Publishing by the compiled core itself: only what was granted; everything else as it came to who grants.

Without the compiled core, these functions do not exist.
"""

from __future__ import annotations

import asyncio
import collections.abc
import gc
import sys
import threading
import weakref
from typing import Any

import pytest

from jetspark.wire._backend import speed

if speed is not None:
    INBOX = b"_INBOX.x."

    class Waiting:
        """In the place of a future."""

        def __init__(self, *, loop: Any) -> None:
            self.loop = loop

    class Text(str):
        """Not what the core takes for a subject."""

    class Bytes(bytes):
        """Not what the core takes for data."""

    class Box:
        """A launcher with all that it needs, and what it handed on."""

        def __init__(self, window: int = 100, longest: int = 50) -> None:
            self.pending: dict[Any, Any] = {}
            self.prefixes: dict[Any, Any] = {"a": b"PUB a ", "long": b"PUB " + b"x" * 60 + b" "}
            self.out: list[bytes] = [b"before"]
            self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
            self.launcher = speed.Launcher(INBOX, self.pending, Waiting, None)
            self.launcher.arm(self.general, self.prefixes, window, longest)

        def general(self, *arguments: Any, **options: Any) -> str:
            self.calls.append((arguments, options))
            return "general"

        def grant(self, credit: int = 10_000, limit: int = 100) -> None:
            self.launcher.grant(self.out, credit, limit)

    def value(awaitable: Any) -> Any:
        with pytest.raises(StopIteration) as caught:
            awaitable.send(None)
        return caught.value.value

    def test_what_was_granted_is_sent() -> None:
        box = Box()
        box.grant()
        futures = [value(box.launcher.publish("a", b"%d" % number)) for number in range(3)]
        assert box.calls == []
        assert box.out == [
            b"before",
            *(b"PUB a _INBOX.x.%d 1\r\n%d\r\n" % (serial, serial - 1) for serial in (1, 2, 3)),
        ]
        assert box.pending == {serial: (futures[serial - 1], "a", 0, None) for serial in (1, 2, 3)}
        assert box.launcher.serial == 3
        count, size = box.launcher.tally()
        assert count == 3
        assert sum(map(len, box.out[1:])) <= size <= sum(map(len, box.out[1:])) + 3 * 16
        assert box.launcher.tally() == (0, 0)

    @pytest.mark.parametrize(
        ("arguments", "options"),
        [
            ((), {}),
            (("a",), {}),
            (("a", b"", None), {}),
            (("a", b""), {"headers": {"a": "b"}}),
            (("a",), {"data": b""}),
            ((), {"subject": "a", "data": b""}),
            (("unknown", b""), {}),
            (("long", b""), {}),
            ((Text("a"), b""), {}),
            ((b"a", b""), {}),
            ((None, b""), {}),
            (("a", Bytes(b"")), {}),
            (("a", bytearray()), {}),
            (("a", "text"), {}),
            (("a", None), {}),
            (("a", bytes(101)), {}),
        ],
    )
    def test_all_else_is_handed_on_as_it_came(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        box = Box()
        box.grant()
        assert box.launcher.publish(*arguments, **options) == "general"
        assert box.calls == [(arguments, options)]
        assert (box.out, box.pending, box.launcher.serial) == ([b"before"], {}, 0)
        assert box.launcher.tally() == (0, 0)

    def test_what_was_not_granted_is_handed_on() -> None:
        box = Box(window=2)
        assert box.launcher.publish("a", b"") == "general"
        box.grant(0)
        assert box.launcher.publish("a", b"") == "general"
        box.grant(1)
        value(box.launcher.publish("a", b""))  # the last one may go beyond it
        assert box.launcher.publish("a", b"") == "general"
        box.grant()
        value(box.launcher.publish("a", b""))
        assert box.launcher.count == 2
        assert box.launcher.publish("a", b"") == "general", "two are pending"
        box.pending.clear()
        assert box.launcher.publish("a", b"") == "general", "it must not overtake the one before"
        box.grant()
        value(box.launcher.publish("a", b""))
        box.launcher.revoke()
        assert box.launcher.publish("a", b"") == "general"
        box.grant()
        box.out.clear()
        assert box.launcher.publish("a", b"") == "general", "nobody has seen to it that it is sent"
        assert len(box.calls) == 7
        assert box.launcher.tally()[0] == 3
        assert box.launcher.count == 0

    def test_other_threads_are_handed_on() -> None:
        box = Box()
        box.grant()
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(box.launcher.publish("a", b"")))
        thread.start()
        thread.join()
        assert found == ["general"]
        assert box.pending == {}

    def test_code_that_runs_while_a_future_is_made_may_publish_too() -> None:
        inner: list[Any] = []

        def nested(*, loop: Any) -> Any:
            if len(inner) < 3:
                inner.append(None)
                inner[-1] = launcher.publish("a", b"inner")
            return Waiting(loop=loop)

        pending: dict[int, Any] = {}
        out = [b"before"]
        launcher = speed.Launcher(INBOX, pending, nested, None)
        launcher.arm(print, {"a": b"PUB a "}, 10, 100)
        launcher.grant(out, 1000, 1000)
        outer = value(launcher.publish("a", b"outer"))
        assert sorted(pending) == [1, 2, 3, 4]
        assert pending[4][0] is outer
        assert len({id(flight[0]) for flight in pending.values()}) == 4
        assert [piece.split(b" ")[2] for piece in out[1:]] == [b"_INBOX.x.%d" % n for n in (1, 2, 3, 4)]

    def test_code_that_runs_while_a_future_is_made_may_take_the_credit() -> None:
        def revoking(*, loop: Any) -> Any:
            launcher.revoke()
            return Waiting(loop=loop)

        calls: list[Any] = []
        out = [b"before"]
        launcher = speed.Launcher(INBOX, {}, revoking, None)
        launcher.arm(lambda *arguments: calls.append(arguments), {"a": b"PUB a "}, 10, 100)
        launcher.grant(out, 1000, 1000)
        launcher.publish("a", b"x")
        assert (calls, out) == ([("a", b"x")], [b"before"])

    def test_serials_are_given_once() -> None:
        box = Box()
        box.grant()
        assert box.launcher.reserve(1) == 1
        value(box.launcher.publish("a", b""))
        assert box.launcher.reserve(5) == 3
        assert box.launcher.reserve(0) == 8
        value(box.launcher.publish("a", b""))
        assert list(box.pending) == [2, 8]
        with pytest.raises(ValueError, match="negative"):
            box.launcher.reserve(-1)
        with pytest.raises(TypeError):
            box.launcher.reserve("1")  # type: ignore[arg-type]
        with pytest.raises(AttributeError):
            box.launcher.serial = 5  # type: ignore[misc]
        assert box.launcher.serial == 8

    def test_wrong_arguments() -> None:
        box = Box()
        bare = speed.Launcher(INBOX, {}, Waiting, None)
        with pytest.raises(RuntimeError, match="not armed"):
            bare.publish("a", b"")
        for arguments in ((), (print,), (print, [], 1, 1), (print, {}, "1", 1), (print, {}, 1, None)):
            with pytest.raises(TypeError):
                bare.arm(*arguments)  # type: ignore[arg-type]
        for arguments in ((), ([],), ((), 1, 1), ([], "1", 1), ([], 1, None)):
            with pytest.raises(TypeError):
                box.launcher.grant(*arguments)  # type: ignore[arg-type]
        with pytest.raises(OverflowError):
            box.launcher.grant([], 2**70, 1)
        assert box.launcher.publish("a", b"") == "general"

    def test_a_prefix_that_is_none_is_not_sent() -> None:
        box = Box()
        box.grant()
        box.prefixes["a"] = "PUB a "
        assert box.launcher.publish("a", b"") == "general"

    def test_a_future_that_can_not_be_made_is_not_counted() -> None:
        def refuse(*, loop: Any) -> Any:
            raise ValueError("no future")

        pending: dict[int, Any] = {}
        out = [b"before"]
        launcher = speed.Launcher(INBOX, pending, refuse, None)
        launcher.arm(print, {"a": b"PUB a "}, 10, 100)
        launcher.grant(out, 1000, 1000)
        with pytest.raises(ValueError, match="no future"):
            launcher.publish("a", b"")
        assert (out, pending, launcher.serial, launcher.tally()) == ([b"before"], {}, 0, (0, 0))

    async def test_the_awaitable_is_a_coroutine_that_has_ended() -> None:
        box = Box()
        box.grant()
        ready = box.launcher.publish("a", b"")
        assert isinstance(ready, collections.abc.Coroutine)
        future = await ready
        assert type(future) is Waiting
        with pytest.raises(RuntimeError, match="already awaited"):
            await ready
        assert type(await asyncio.create_task(box.launcher.publish("a", b""))) is Waiting
        assert type(await asyncio.wait_for(box.launcher.publish("a", b""), 1)) is Waiting
        with pytest.raises(TypeError, match="non-None"):
            box.launcher.publish("a", b"").send(1)
        for how in ((KeyError("x"),), (KeyError, "x"), (KeyError, "x", None)):
            thrown = box.launcher.publish("a", b"")
            with pytest.raises(KeyError, match="x"):
                thrown.throw(*how)
            with pytest.raises(RuntimeError, match="already awaited"):
                thrown.send(None)
        with pytest.raises(KeyError):
            box.launcher.publish("a", b"").throw(KeyError)
        with pytest.raises(TypeError):
            box.launcher.publish("a", b"").throw("x")
        with pytest.raises(TypeError):
            box.launcher.publish("a", b"").throw()
        closed = box.launcher.publish("a", b"")
        closed.close()
        closed.close()
        with pytest.raises(RuntimeError, match="already awaited"):
            next(closed)
        with pytest.raises(TypeError, match="cannot create"):
            type(closed)()

    async def test_a_task_that_is_cancelled_before_it_ran() -> None:
        box = Box()
        box.grant()
        task = asyncio.create_task(box.launcher.publish("a", b""))
        assert "Ready" in repr(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(box.pending) == 1, "it is sent all the same"

    def test_a_launcher_in_a_cycle_with_what_it_calls_is_freed() -> None:
        box = Box()
        box.grant()
        value(box.launcher.publish("a", b""))
        box.out.append(box)  # type: ignore[arg-type]
        box.prefixes["box"] = box
        gone = weakref.ref(box)
        del box
        gc.collect()
        assert gone() is None

    def test_publishing_keeps_nothing() -> None:
        box = Box(window=1_000_000)
        subject, data = "sub" + str(id(box)), bytes(90)
        box.prefixes[subject] = prefix = b"PUB sub "
        things = (subject, data, prefix, box.pending, box.out, box.prefixes, box.launcher)

        def some() -> None:
            for _ in range(200):
                box.grant()
                value(box.launcher.publish(subject, data))
                box.launcher.publish(subject, data)  # nobody awaits it
                box.launcher.publish(subject, data, None)
            box.pending.clear()
            box.calls.clear()
            del box.out[1:]

        some()
        gc.collect()
        before = [sys.getrefcount(thing) for thing in things]
        some()
        gc.collect()
        assert [sys.getrefcount(thing) for thing in things] == before
