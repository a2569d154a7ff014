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
from ack_future_cases import in_an_allocation
from settle_cases import INBOX, PLAIN, settle, to

from jetspark.wire._backend import speed

if speed is not None:

    def is_future(thing: Any) -> bool:
        return issubclass(type(thing), asyncio.Future)

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
            self.launcher = speed.Launcher(INBOX, self.pending, None)
            self.launcher.isolate(sys.maxsize)
            self.launcher.arm(self.general, self.prefixes, window, longest)

        def general(self, *arguments: Any, **options: Any) -> str:
            self.calls.append((arguments, options))
            return "general"

        def grant(self, credit: int = 10_000, limit: int = 100) -> None:
            self.launcher.grant(self.out, credit, limit)

    def sharing(box: Box) -> None:
        """A box whose messages share their replies."""
        fresh = speed.Launcher(INBOX, box.pending, None)
        fresh.arm(box.general, box.prefixes, 100, 50)
        fresh.grant(box.out, 10_000, 100)
        value(fresh.publish("a", bytes(100)))  # how large they may be
        assert settle([to(1, PLAIN[0])], box.pending, fresh) == (1, 0, [])
        box.launcher = fresh

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
            *(b"PUB a _INBOX.abc.%d 1\r\n%d\r\n" % (serial, serial - 1) for serial in (1, 2, 3)),
        ]
        assert box.pending == {serial: futures[serial - 1] for serial in (1, 2, 3)}
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

    @pytest.mark.parametrize("sent", [0, 1, 2])
    @pytest.mark.parametrize("pieces", [1, 2, 3, 4, 10])
    def test_the_first_of_another_write_is_handed_on(sent: int, pieces: int) -> None:
        box = Box()
        box.grant()
        for _ in range(sent):
            value(box.launcher.publish("a", b""))
        box.out[:] = [b"of somebody else %d" % number for number in range(pieces)]
        assert box.launcher.publish("a", b"") == "general", "it was written meanwhile"
        box.grant()
        value(box.launcher.publish("a", b""))
        box.out.append(b"of somebody else, in the same write")
        value(box.launcher.publish("a", b""))
        assert len(box.out) == pieces + 3

    def test_other_threads_are_handed_on() -> None:
        box = Box()
        box.grant()
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(box.launcher.publish("a", b"")))
        thread.start()
        thread.join()
        assert found == ["general"]
        assert box.pending == {}

    @pytest.mark.parametrize("shared", [False, True])
    def test_code_that_runs_while_a_future_is_made_may_publish_too(shared: bool) -> None:
        box = Box()
        box.grant()
        if shared:
            sharing(box)
        inner: list[Any] = []
        before, first = box.launcher.serial, len(box.out)
        with in_an_allocation(lambda: inner.append(value(box.launcher.publish("a", b"inner")))):
            outer = value(box.launcher.publish("a", b"outer"))
        gc.collect()
        assert len(inner) == 1
        assert outer is not inner[0]
        assert box.launcher.serial == before + 2
        noted = box.pending.values()
        futures = [
            one for entry in noted for one in (entry.futures if type(entry) is speed.Group else [entry])
        ]
        assert {id(one) for one in futures} == {id(outer), id(inner[0])}
        assert len(box.pending) + box.launcher.grouped == 2
        # What was sent has the reply under which it is noted, in the order in which it is noted there.
        sent = [(int(piece.split(b" ")[2].rpartition(b".")[2]), piece) for piece in box.out[first:]]
        assert {serial for serial, _ in sent} == set(box.pending)
        if shared:
            (group,) = box.pending.values()
            assert [piece.split(b"\r\n")[1] for _, piece in sent] == group.datas

    def test_code_that_runs_while_a_future_is_made_may_take_the_credit() -> None:
        box = Box()
        box.grant()
        revoked: list[bool] = []

        def revoke() -> None:
            box.launcher.revoke()
            revoked.append(True)

        with in_an_allocation(revoke):
            box.launcher.publish("a", b"x")
        gc.collect()
        assert revoked == [True]
        # Before the message or after it, as the interpreter has it: it is sent or handed on, never both.
        assert (len(box.calls), len(box.out), len(box.pending)) in [(1, 1, 0), (0, 2, 1)]

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
        bare = speed.Launcher(INBOX, {}, None)
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

    async def test_the_awaitable_is_a_coroutine_that_has_ended() -> None:
        box = Box()
        box.grant()
        ready = box.launcher.publish("a", b"")
        assert isinstance(ready, collections.abc.Coroutine)
        future = await ready
        assert is_future(future)
        with pytest.raises(RuntimeError, match="already awaited"):
            await ready
        assert is_future(await asyncio.create_task(box.launcher.publish("a", b"")))
        assert is_future(await asyncio.wait_for(box.launcher.publish("a", b""), 1))
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
