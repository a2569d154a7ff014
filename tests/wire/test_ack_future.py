"""The compiled core's futures, which are initialised when somebody looks at them.

Nobody may ever see that they were not there before: whatever is done to one first, it is an asyncio.Future
with the ack that came, once. What happens in between is in test_ack_future_core.py.

Without the compiled core, these functions do not exist.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import inspect
import pickle
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from ack_future_cases import ACK, PLAIN_ACK, Nosy, Sent

from jetspark.jetstream.puback import PubAck
from jetspark.wire._backend import speed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator

ACKS = [
    PLAIN_ACK,
    b'{"stream":"ORDERS","seq":12345,"duplicate":true}',
    b'{"stream":"S","seq":1,"domain":"hub"}',
    b'{"domain":"hub","duplicate":true,"seq":999999999999999999,"stream":"S"}',
]


@pytest.fixture
def nosy() -> Iterator[Nosy]:
    loop = Nosy()
    loop.asked = 0
    yield loop
    loop.close()


# How one waits for an ack


async def by_await(future: Any) -> Any:
    return await future


@types.coroutine
def by_iterating(future: Any) -> Generator[Any, Any, Any]:
    return (yield from future)


async def by_gather(future: Any) -> Any:
    one, other = await asyncio.gather(future, future)
    assert one is other
    return one


async def by_wait(future: Any) -> Any:
    done, left = await asyncio.wait([future])
    assert (done, left) == ({future}, set())
    assert done.pop() is future
    return future.result()


async def by_as_completed(future: Any) -> Any:
    (result,) = [await one for one in asyncio.as_completed([future])]
    return result


async def by_wait_for(future: Any) -> Any:
    return await asyncio.wait_for(future, 30)


async def by_shield(future: Any) -> Any:
    return await asyncio.shield(future)


async def by_task_group(future: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(by_await(future))
    return task.result()


async def by_ensure(future: Any) -> Any:
    assert asyncio.ensure_future(future) is future
    assert asyncio.wrap_future(future) is future
    return await future


async def by_callback(future: Any) -> Any:
    heard = asyncio.get_running_loop().create_future()
    future.add_done_callback(heard.set_result)
    assert await heard is future
    return future.result()


WAYS = [
    by_await,
    by_iterating,
    by_gather,
    by_wait,
    by_as_completed,
    by_wait_for,
    by_shield,
    by_task_group,
    by_ensure,
    by_callback,
]

# What one may look at first, and what a pending one and one with ACK say to it.
LOOKS: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "done": (lambda future: future.done(), False, True),
    "cancelled": (lambda future: future.cancelled(), False, False),
    "result": (lambda future: future.result(), asyncio.InvalidStateError, ACK),
    "exception": (lambda future: future.exception(), asyncio.InvalidStateError, None),
    "cancel": (lambda future: future.cancel(), True, False),
    "repr": (repr, "<AckFuture pending>", "<AckFuture finished result=PubAck(stream='S', seq=1)>"),
    "format": (lambda future: f"{future}"[:17], "<AckFuture pendin", "<AckFuture finish"),
    "_state": (lambda future: future._state, "PENDING", "FINISHED"),
    "isfuture": (asyncio.isfuture, True, True),
    "isinstance": (lambda future: isinstance(future, dict), False, False),
    "class": (lambda future: future.__class__.__mro__[1], asyncio.Future, asyncio.Future),
    "missing": (lambda future: future.missing, AttributeError, AttributeError),
    "hasattr": (lambda future: hasattr(future, "missing"), False, False),
    "setattr": (lambda future: setattr(future, "mine", 1), None, None),
    "delattr": (lambda future: delattr(future, "mine"), AttributeError, AttributeError),
    "dir": (lambda future: "add_done_callback" in dir(future), True, True),
    "copy": (copy.copy, TypeError, TypeError),
    "deepcopy": (copy.deepcopy, TypeError, TypeError),
    "pickle": (pickle.dumps, TypeError, TypeError),
    "awaitable": (inspect.isawaitable, True, True),
    "proxy": (lambda future: weakref.proxy(future).done(), False, True),
    "getsizeof": (lambda future: sys.getsizeof(future) > 100, True, True),
    "set_exception": (lambda future: future.set_exception(1), TypeError, asyncio.InvalidStateError),
    "remove": (lambda future: future.remove_done_callback(print), 0, 0),
    "_subject": (lambda future: future._subject, "sub", "sub"),
    "delete": (lambda future: setattr(future, "_subject", ""), AttributeError, AttributeError),
}


if speed is not None:
    KIND = type(Sent(None).pop())

    @pytest.mark.parametrize("data", ACKS)
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("when", ["before", "meanwhile", "before a look", "after a look"])
    async def test_an_ack_comes_whichever_way_one_waits_for_it(
        data: bytes, way: Callable[[Any], Awaitable[Any]], when: str
    ) -> None:
        loop = asyncio.get_running_loop()
        sent = Sent(loop)
        future = sent.pop()
        if when == "after a look":
            assert not future.done()
        if when == "meanwhile":
            loop.call_soon(sent.ack, data)
        else:
            sent.ack(data)
        if when == "before a look":
            assert future.done()
        async with asyncio.timeout(30):
            ack = await way(future)
        assert ack == PubAck.from_response(data)
        assert type(ack) is PubAck
        assert future.result() is ack
        assert await future is ack
        assert future.get_loop() is loop

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_failure_comes_whichever_way_one_waits_for_it(
        way: Callable[[Any], Awaitable[Any]],
    ) -> None:
        sent = Sent(asyncio.get_running_loop())
        future = sent.pop()
        asyncio.get_running_loop().call_soon(future.set_exception, ValueError("mine"))
        with pytest.raises((ValueError, ExceptionGroup)) as caught:
            async with asyncio.timeout(30):
                await way(future)
        assert "mine" in str(getattr(caught.value, "exceptions", [caught.value])[0])
        sent.ack()
        assert str(future.exception()) == "mine", "the ack came too late"

    @pytest.mark.parametrize("acked", [False, True])
    @pytest.mark.parametrize("name", LOOKS)
    def test_whatever_one_looks_at_first(nosy: Nosy, name: str, acked: bool) -> None:
        sent = Sent(nosy)
        future = sent.pop()
        if acked:
            sent.ack()
        look, pending, done = LOOKS[name]
        expected = done if acked else pending
        if isinstance(expected, type) and issubclass(expected, Exception):
            with pytest.raises(expected):
                look(future)
        else:
            assert look(future) == expected
        if not acked:
            sent.ack()
        assert sent.pending == {}
        if name == "cancel" and not acked:
            with pytest.raises(asyncio.CancelledError):
                nosy.run_until_complete(future)
        else:
            assert nosy.run_until_complete(future) == ACK

    def test_what_needs_no_contents_does_not_wake(nosy: Nosy) -> None:
        sent = Sent(nosy, 2)
        future, other = sent.futures
        assert isinstance(future, asyncio.Future)
        assert hash(future) == object.__hash__(future)
        assert {future: 1}[future] == 1
        assert future in [other, future]
        assert future != other
        assert future
        assert weakref.ref(future)() is future
        assert sorted([(0, future), (1, other)])[0][1] is future
        gc.collect()
        assert nosy.asked == 0
        assert not future.done()
        assert nosy.asked == 1
        assert future._loop is nosy
        sent.ack()
        assert future.result() == ACK
        assert nosy.asked == 1, "once is enough"

    def test_asyncios_own_functions_know_one_that_nobody_has_looked_at_for_none(nosy: Nosy) -> None:
        """Those of the base class, called with it: nothing that one does, and no crash when one does."""
        base = asyncio.Future
        sent = Sent(nosy)
        future = sent.pop()
        for name in ("get_loop", "__await__", "__iter__", "__repr__", "cancel", "result", "exception"):
            with pytest.raises((RuntimeError, asyncio.InvalidStateError), match="not initialized"):
                getattr(base, name)(future)
        for name in ("set_result", "set_exception", "remove_done_callback", "add_done_callback"):
            with pytest.raises(RuntimeError, match=r"initialized"):
                getattr(base, name)(future, ValueError("mine"))
        base.__del__(future)  # type: ignore[attr-defined]
        assert not base.done(future)
        assert nosy.asked == 0
        sent.ack()
        assert nosy.run_until_complete(future) == ACK

    def test_the_class_makes_nothing_and_stays_as_it_is() -> None:
        for make in (KIND, lambda: asyncio.Future.__new__(KIND), lambda: object.__new__(KIND)):
            with pytest.raises(TypeError):
                make()
        with pytest.raises(TypeError, match="not an acceptable base type"):
            type("Sub", (KIND,), {})
        with pytest.raises(TypeError, match="immutable"):
            KIND.__repr__ = lambda self: ""  # type: ignore[method-assign]
        future = Sent(None).pop()
        with pytest.raises((TypeError, RuntimeError, DeprecationWarning)):
            future.__class__ = asyncio.Future
        assert type(future) is KIND
        assert (KIND.__name__, KIND.__base__) == ("AckFuture", asyncio.Future)

    async def test_attributes_are_kept() -> None:
        sent = Sent(asyncio.get_running_loop())
        future = sent.pop()
        future.mine = ["a"]
        sent.ack()
        assert await future == ACK
        assert future.mine == ["a"]
        del future.mine
        assert not hasattr(future, "mine")
        future._asyncio_future_blocking = True
        assert future._asyncio_future_blocking
        assert future._subject == "sub"

    # Callbacks

    async def test_a_callback_gets_the_future_that_nobody_else_holds() -> None:
        loop = asyncio.get_running_loop()
        sent = Sent(loop)
        heard = loop.create_future()
        sent.futures[0].mine = "mine"
        sent.futures[0].add_done_callback(heard.set_result)
        address = id(sent.futures[0])
        sent.futures.clear()
        gc.collect()
        sent.ack()
        got = await heard
        assert (id(got), got.mine, got.result()) == (address, "mine", ACK)

    async def test_callbacks_are_called_once_in_their_order_and_context() -> None:
        loop = asyncio.get_running_loop()
        sent = Sent(loop)
        future, heard = sent.pop(), []
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outer")
        context = contextvars.copy_context()
        context.run(variable.set, "inner")

        def note(got: Any) -> None:
            assert got is future
            heard.append(variable.get())

        def never(got: Any) -> None:
            raise AssertionError("it was removed")

        future.add_done_callback(note, context=context)
        future.add_done_callback(never)
        future.add_done_callback(note)
        assert future.remove_done_callback(never) == 1
        sent.ack()
        future.add_done_callback(note, context=context)
        assert heard == [], "the loop calls them"
        last = loop.create_future()
        loop.call_soon(last.set_result, None)
        await last
        assert heard == ["inner", "outer", "inner"]

    async def test_one_that_was_cancelled_stays_so() -> None:
        sent = Sent(asyncio.get_running_loop(), 2)
        first, second = sent.futures
        assert first.cancel("why")
        sent.ack()
        assert first.cancelled()
        with pytest.raises(asyncio.CancelledError, match="why"):
            await first
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second, 0)
        sent.ack(serial=1)
        assert second.cancelled()

    async def test_who_waits_may_be_cancelled_behind_a_shield() -> None:
        sent = Sent(asyncio.get_running_loop())
        future = sent.pop()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(future), 0)
        assert not future.done()
        sent.ack()
        assert await future == ACK

    # Loops and threads

    def test_each_belongs_to_its_own_loop(nosy: Nosy) -> None:
        other = Nosy()
        try:
            here, there = Sent(nosy), Sent(other)
            foreign = there.pop()

            async def wait_for_a_foreign_one() -> None:
                await foreign

            with pytest.raises(RuntimeError, match="attached to a different loop"):
                nosy.run_until_complete(wait_for_a_foreign_one())
            nosy.call_soon(here.ack)
            other.call_soon(there.ack, ACKS[1])
            assert nosy.run_until_complete(here.pop()) == ACK
            assert other.run_until_complete(foreign).seq == 12345
        finally:
            other.close()

    def test_a_loop_that_is_being_debugged(nosy: Nosy) -> None:
        nosy.set_debug(True)
        sent = Sent(nosy)
        future = sent.pop()
        nosy.call_soon(sent.ack)
        assert nosy.run_until_complete(future) == ACK
        assert "created at" in repr(future)
        assert any("test_ack_future.py" in frame.filename for frame in future._source_traceback)

    @pytest.mark.parametrize("acked", ["before", "after", "after the end"])
    def test_looked_at_when_its_loop_is_closed(acked: str) -> None:
        loop = Nosy()
        sent = Sent(loop)
        future = sent.pop()
        if acked == "before":
            sent.ack()
        loop.close()
        if acked == "after the end":
            assert not future.done()
            future.add_done_callback(print)  # which the loop would have to call
        if acked != "before":
            sent.ack()
        assert future.result() == ACK
        with pytest.raises(RuntimeError, match="closed"):
            future.add_done_callback(print)

    def test_looked_at_by_many_threads_while_its_ack_comes() -> None:
        loop = asyncio.new_event_loop()
        sent = Sent(loop, 600)
        begin = threading.Barrier(4)
        problems: list[Any] = []

        def look() -> None:
            begin.wait()
            for future in sent.futures:
                marks = vars_of(future)
                marks.append(threading.get_ident())
                if future.done() and future.result() != ACK:
                    problems.append(future)

        def vars_of(future: Any) -> list[int]:
            try:
                return future.marks  # type: ignore[no-any-return]
            except AttributeError:
                future.marks = []
                return future.marks

        threads = [threading.Thread(target=look) for _ in range(3)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            begin.wait()
            for serial in range(600):
                sent.ack(serial=serial)
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
            loop.close()
        assert problems == []
        assert [future.result() for future in sent.futures] == [ACK] * 600
        assert all(future.marks for future in sent.futures)
