"""Requests against the real server: the shared inbox, no responders, many answers."""

from __future__ import annotations

import asyncio
import time

import pytest

import jetspark
from jetspark.errors import ConnectionClosed, ConnectionLost, NoRespondersError, RequestTimeout
from support.helpers import FOREVER, PROMPT, eventually, unique
from support.monitoring import subscriptions


async def echo(msg: jetspark.Msg) -> None:
    await msg.respond(msg.data, headers=msg.headers)


async def answer_many(nc: jetspark.Connection, subject: str, *answers: bytes) -> None:
    """Make ``subject`` answer with each of these."""

    async def responder(msg: jetspark.Msg) -> None:
        for answer in answers:
            await msg.respond(answer)

    await nc.subscribe(subject, callback=responder)
    await nc.flush()


# request


async def test_request_returns_the_answer_with_headers(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc:
        await nc.subscribe(subject, callback=echo)
        answer = await nc.request(subject, b"ping", headers={"Trace": "1"})
        assert (answer.data, answer.headers["trace"]) == (b"ping", "1")
        assert answer.subject.startswith("_INBOX.")


async def test_a_thousand_requests_at_once_use_one_subscription(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc, jetspark.connect(server.url) as service:
        await service.subscribe(subject, callback=echo)
        await service.flush()
        payloads = [b"%d" % i for i in range(1_000)]
        answers = await asyncio.gather(*(nc.request(subject, payload) for payload in payloads))
        assert [answer.data for answer in answers] == payloads
        (inbox,) = await subscriptions(server, nc)
        assert inbox.startswith("_INBOX.")
        assert inbox.endswith(".*")
        assert nc._core.inbox is not None
        assert nc._core.inbox._pending == {}


async def test_custom_inbox_prefix(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url, inbox_prefix="my.own.box") as nc:
        await nc.subscribe(subject, callback=echo)
        assert (await nc.request(subject)).subject.startswith("my.own.box.")
        async for answer in nc.request_many(subject, max_messages=1):
            assert answer.subject.startswith("my.own.box.")
        assert nc.new_inbox().startswith("my.own.box.")
        assert all(sub == subject or sub.startswith("my.own.box.") for sub in await subscriptions(server, nc))


async def test_no_responders_is_told_at_once(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc:
        begin = time.monotonic()
        with pytest.raises(NoRespondersError) as caught:
            await nc.request(subject, timeout=FOREVER)
        assert time.monotonic() - begin < PROMPT
        assert caught.value.subject == subject
        with pytest.raises(NoRespondersError):
            await anext(nc.request_many(subject, timeout=FOREVER))
        assert time.monotonic() - begin < PROMPT


async def test_a_responder_that_answers_503_with_a_body_is_no_absence(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc:
        await nc.subscribe(subject, callback=lambda msg: msg.respond(b"body", headers={"Status": "503"}))
        assert (await nc.request(subject)).data == b"body"


async def test_timeout_and_late_answers(server) -> None:
    subject, held = unique("req"), asyncio.Queue()
    async with jetspark.connect(server.url) as nc:
        await nc.subscribe(subject, callback=held.put_nowait)
        with pytest.raises(RequestTimeout, match=subject):
            await nc.request(subject, b"first", timeout=0.02)
        with pytest.raises(TimeoutError):
            await nc.request(subject, b"second", timeout=0)
        second = asyncio.create_task(nc.request(subject, b"third"))
        for _ in range(3):
            msg = await held.get()
            await msg.respond(b"answer to " + msg.data)
        # The late ones have been dropped and not been taken for the answer to this one.
        assert (await second).data == b"answer to third"
        assert nc.is_connected


async def test_the_default_timeout_is_request_timeout(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url, request_timeout=0.02) as nc:
        await nc.subscribe(subject)
        with pytest.raises(RequestTimeout, match=r"0\.02s"):
            await nc.request(subject)
        assert [answer async for answer in nc.request_many(subject)] == []


async def test_of_several_answers_the_first_wins(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc:
        await answer_many(nc, subject, b"1", b"2", b"3")
        assert [(await nc.request(subject)).data for _ in range(3)] == [b"1"] * 3


async def test_a_cancelled_request_leaves_nothing_behind(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        task = asyncio.create_task(nc.request(subject))
        msg = await sub.next()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert nc._core.inbox is not None
        assert nc._core.inbox._pending == {}
        await msg.respond(b"late")
        await nc.flush()
        assert nc.is_connected


async def test_pending_requests_fail_by_name_when_the_connection_closes(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as service:
        sub = await service.subscribe(subject)
        await service.flush()
        nc = await jetspark.connect(server.url)

        async def many() -> list[jetspark.Msg]:
            return [answer async for answer in nc.request_many(subject, timeout=30)]

        tasks = [asyncio.create_task(nc.request(subject, timeout=30)), asyncio.create_task(many())]
        await eventually(lambda: sub.pending_messages == 2)
        await nc.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionClosed, ConnectionClosed]


async def test_pending_requests_fail_by_name_when_the_link_breaks(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as service, jetspark.connect(server.url) as nc:
        sub = await service.subscribe(subject)
        await service.flush()

        async def many() -> list[jetspark.Msg]:
            return [answer async for answer in nc.request_many(subject, timeout=30)]

        tasks = [asyncio.create_task(nc.request(subject, timeout=30)), asyncio.create_task(many())]
        await eventually(lambda: sub.pending_messages == 2)
        await nc.force_reconnect()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLost, ConnectionLost]
        assert all(subject in str(result) for result in results)
        # The same connection serves the next request.
        await service.subscribe(subject, queue="q", callback=echo)
        await service.flush()
        assert (await nc.request(subject, b"again")).data == b"again"


# request_many


async def test_many_answers_until_max_messages(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc:
        await answer_many(nc, subject, b"1", b"2", b"3", b"4")
        assert [a.data async for a in nc.request_many(subject, max_messages=3)] == [b"1", b"2", b"3"]
        await nc.flush()
        assert await subscriptions(server, nc) == [subject]


async def test_many_answers_until_the_timeout(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc:
        await answer_many(nc, subject, b"1", b"2")
        for timeout in (0.1, 1, 10):  # the short one is enough unless the machine is busy
            begin = time.monotonic()
            got = [a.data async for a in nc.request_many(subject, timeout=timeout)]
            assert time.monotonic() - begin >= 0.9 * timeout
            if got:
                break
        assert got == [b"1", b"2"]


async def test_many_answers_until_they_stall(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc:
        await answer_many(nc, subject, b"1", b"2")
        begin = time.monotonic()
        assert [a.data async for a in nc.request_many(subject, timeout=FOREVER, stall=0.5)] == [b"1", b"2"]
        assert time.monotonic() - begin < PROMPT


async def test_the_stall_counts_from_the_first_answer_on(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)
        answers = nc.request_many(subject, timeout=30, stall=0.001)
        first = asyncio.ensure_future(anext(answers))
        msg = await sub.next()
        # Far longer than the stall: nobody has answered yet.
        await asyncio.wait([first], timeout=0.05)
        await msg.respond(b"1")
        assert (await first).data == b"1"
        assert [a.data async for a in answers] == []


async def test_many_answers_until_a_sentinel(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc:
        await answer_many(nc, subject, b"1", b"2", b"", b"after")
        answers = nc.request_many(subject, timeout=30, sentinel=lambda msg: not msg.data)
        assert [a.data async for a in answers] == [b"1", b"2"]
        await nc.flush()
        assert await subscriptions(server, nc) == [subject]


async def test_answers_that_have_arrived_are_yielded_after_the_time_is_up(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc:
        await answer_many(nc, subject, b"1", b"2", b"3")
        for timeout in (0.1, 1, 10):  # the short one is enough unless the machine is busy
            got, begin = [], time.monotonic()
            async for answer in nc.request_many(subject, timeout=timeout):
                got.append(answer.data)
                # A slow reader: the time is up before it asks for the second answer.
                await eventually(lambda end=begin + timeout: time.monotonic() > end)
            if got:
                break
        assert got == [b"1", b"2", b"3"]


async def test_breaking_off_leaves_no_subscription_on_the_server(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc:
        await answer_many(nc, subject, b"1", b"2", b"3")
        async for answer in nc.request_many(subject, timeout=30):
            assert answer.data == b"1"
            break

        async def alone() -> bool:
            await nc.flush()
            return await subscriptions(server, nc) == [subject]

        await eventually(alone)
        assert [sink.subject for sink in nc._core.router.sinks.values()] == [subject]


async def test_cancelling_request_many_leaves_no_subscription(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc:
        sub = await nc.subscribe(subject)

        async def many() -> None:
            async for _ in nc.request_many(subject, timeout=30):
                pass

        task = asyncio.create_task(many())
        await sub.next()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await nc.flush()
        assert await subscriptions(server, nc) == [subject]


async def test_request_many_gathers_from_several_services(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc, jetspark.connect(server.url) as other:
        for owner, name in ((nc, b"a"), (nc, b"b"), (other, b"c")):
            await answer_many(owner, subject, name)
        answers = [a.data async for a in nc.request_many(subject, max_messages=3, timeout=5)]
        assert sorted(answers) == [b"a", b"b", b"c"]


# flush and rtt


async def test_flush_means_that_the_server_has_it(server) -> None:
    subject = unique("req")
    async with jetspark.connect(server.url) as nc, jetspark.connect(server.url) as other:
        sub = await other.subscribe(subject)
        await other.flush()
        for _ in range(100):
            await nc.publish(subject)
        await nc.flush()
        await other.flush()
        assert sub.pending_messages == 100


async def test_concurrent_flushes_and_rtt(server) -> None:
    async with jetspark.connect(server.url) as nc:
        rtts = await asyncio.gather(*(nc.rtt() for _ in range(10)), *(nc.flush() for _ in range(10)))
        assert all(0 < rtt < 5 for rtt in rtts[:10])
        assert not nc._core.pongs


async def test_flush_times_out_on_a_stuck_server_and_works_when_it_goes_on(own_server) -> None:
    async with jetspark.connect(own_server.url) as nc:
        own_server.suspend()
        with pytest.raises(RequestTimeout, match="PONG"):
            await nc.flush(timeout=0.05)
        with pytest.raises(RequestTimeout, match="PONG"):
            await nc.rtt(timeout=0.05)
        own_server.resume()
        await nc.flush()
        assert not nc._core.pongs
