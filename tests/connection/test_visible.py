"""A program without any logging set-up sees what goes wrong on its stderr, once, in plain words."""

from __future__ import annotations

import logging
import subprocess
import sys
from textwrap import dedent, indent

import pytest

from jetspark.blocking._engine import Engine
from jetspark.errors import ConnectionClosed
from support.canaries import CANARY, USER
from support.helpers import unique

# Each program ends only after the failure has happened: a gate is opened by what then fails, and leaving the
# connection waits for callbacks and listeners. NAME is a stream with the subjects NAME.> and the consumer w.
ASYNC = """
import asyncio, sys, jetspark
from jetspark import ConsumerConfig, StreamConfig
URL, NAME = sys.argv[1:3]
async def main():
    gate = asyncio.Event()
    def broken(thing):
        gate.set()
        return 1 / 0
    async def broken_later(thing):
        await asyncio.sleep(0)
        broken(thing)
    def fine(thing):
        gate.set()
    options = {}
    {options}
    async with jetspark.connect(URL, **options) as nc:
        js = nc.jetstream()
        stream = await js.create_stream(StreamConfig(name=NAME, subjects=[NAME + ".>"]))
        w = await stream.create_consumer(ConsumerConfig(durable_name="w"))
        {body}
asyncio.run(main())
print("done")
"""

BLOCKING = """
import sys, threading
from jetspark import ConsumerConfig, StreamConfig, blocking
URL, NAME = sys.argv[1:3]
gate = threading.Event()
def broken(thing):
    gate.set()
    return 1 / 0
def leaves(thing):
    gate.set()
    sys.exit(3)
def fine(thing):
    gate.set()
options = {}
{options}
with blocking.connect(URL, **options) as nc:
    js = nc.jetstream()
    stream = js.create_stream(StreamConfig(name=NAME, subjects=[NAME + ".>"]))
    w = stream.create_consumer(ConsumerConfig(durable_name="w"))
    {body}
print("done")
"""


def stderr_of(template: str, server, name: str, body: str, options: str = "", before: str = "") -> str:
    """What the program with this body writes to stderr."""
    spaces = "        " if template is ASYNC else "    "
    program = template.replace(f"{spaces}{{body}}", indent(dedent(body).strip(), spaces))
    spaces = "    " if template is ASYNC else ""
    program = before + program.replace(f"{spaces}{{options}}", indent(dedent(options).strip(), spaces))
    done = subprocess.run(
        [sys.executable, "-c", program, server.url, name], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    return done.stderr


# What runs, what is raised, and how stderr names it. NAME stands for the stream.
FAILURES = {
    "callback": (
        "await nc.subscribe('svc.' + NAME, callback=broken)\n"
        "await nc.publish('svc.' + NAME)\n"
        "await gate.wait()",
        "callback of the subscription to 'svc.NAME' raised",
    ),
    "async callback": (
        "await nc.subscribe('svc.' + NAME, callback=broken_later)\n"
        "await nc.publish('svc.' + NAME)\n"
        "await gate.wait()",
        "callback of the subscription to 'svc.NAME' raised",
    ),
    "request handler": (
        "await nc.subscribe('svc.' + NAME, queue='q', callback=broken)\n"
        "await nc.publish('svc.' + NAME, reply=nc.new_inbox())\n"
        "await gate.wait()",
        "callback of the subscription to 'svc.NAME' raised",
    ),
    "consume": (
        "await js.publish(NAME + '.1')\nasync with w.consume_with(broken):\n    await gate.wait()",
        "callback of consumer 'w' of stream 'NAME' raised on a message of 'NAME.1'",
    ),
    "consume async": (
        "await js.publish(NAME + '.1')\nasync with w.consume_with(broken_later):\n    await gate.wait()",
        "callback of consumer 'w' of stream 'NAME' raised on a message of 'NAME.1'",
    ),
    "consume with on_error": (
        "await js.publish(NAME + '.1')\n"
        "heard = []\n"
        "async with w.consume_with(broken, on_error=heard.append):\n"
        "    await gate.wait()\n"
        "assert [type(error).__name__ for error in heard] == ['HandlerFailed'], heard",
        "callback of consumer 'w' of stream 'NAME' raised on a message of 'NAME.1'",
    ),
    "push": (
        "await js.publish(NAME + '.1')\n"
        "async with await js.subscribe(NAME + '.>', durable='p', callback=broken):\n"
        "    await gate.wait()",
        "callback of consumer 'p' of stream 'NAME' raised on a message of 'NAME.1'",
    ),
    "push with on_error": (
        "await js.publish(NAME + '.1')\n"
        "heard = []\n"
        "sub = await js.subscribe(NAME + '.>', durable='p', callback=broken, on_error=heard.append)\n"
        "async with sub:\n"
        "    await gate.wait()\n"
        "assert [type(error).__name__ for error in heard] == ['HandlerFailed'], heard",
        "callback of consumer 'p' of stream 'NAME' raised on a message of 'NAME.1'",
    ),
    "ordered push": (
        "await js.publish(NAME + '.1')\n"
        "async with await js.subscribe(NAME + '.>', ordered=True, callback=broken):\n"
        "    await gate.wait()",
        "callback of an ordered consumer of stream 'NAME' raised on a message of 'NAME.1'",
    ),
    "on_error of a consume": (
        # The first message says that the server has the request, so that it will tell of the deletion.
        "await js.publish(NAME + '.1')\n"
        "async with w.consume_with(fine, on_error=broken):\n"
        "    await gate.wait()\n"
        "    gate.clear()\n"
        "    await js.delete_consumer(NAME, 'w')\n"
        "    await gate.wait()",
        "on_error of consumer 'w' of stream 'NAME' raised",
    ),
}
BLOCKING_ONLY = {
    # Leaving a thread by sys.exit is silent in Python; here it would end the consuming.
    "sys.exit in a callback": (
        "nc.subscribe('svc.' + NAME, callback=leaves)\nnc.publish('svc.' + NAME)\ngate.wait()",
        "callback of the subscription to 'svc.NAME' raised",
    ),
    "sys.exit in a consume": (
        "js.publish(NAME + '.1')\nwith w.consume_with(leaves):\n    gate.wait()",
        "callback of consumer 'w' of stream 'NAME' raised on a message of 'NAME.1'",
    ),
    "sys.exit in a push callback": (
        "js.publish(NAME + '.1')\n"
        "with js.subscribe(NAME + '.>', durable='p', callback=leaves):\n"
        "    gate.wait()",
        "callback of consumer 'p' of stream 'NAME' raised on a message of 'NAME.1'",
    ),
}


def plain(body: str) -> str:
    """The same for the blocking API."""
    return body.replace("await ", "").replace("async ", "")


@pytest.mark.parametrize("kind", FAILURES)
def test_what_user_code_raises_is_seen_once(server, kind: str) -> None:
    name = unique("SEEN")
    body, said = FAILURES[kind]
    shown = stderr_of(ASYNC, server, name, body)
    assert said.replace("NAME", name) in shown, shown
    assert shown.count("ZeroDivisionError: division by zero") == 1, shown
    assert "$JS." not in shown, shown


@pytest.mark.parametrize("kind", [kind for kind in FAILURES if "async" not in kind] + list(BLOCKING_ONLY))
def test_what_user_code_raises_in_threads_is_seen_once(server, kind: str) -> None:
    name = unique("SEEN")
    body, said = FAILURES[kind] if kind in FAILURES else BLOCKING_ONLY[kind]
    shown = stderr_of(BLOCKING, server, name, plain(body))
    assert said.replace("NAME", name) in shown, shown
    raised = "ZeroDivisionError: division by zero" if kind in FAILURES else "SystemExit: 3"
    assert shown.count(raised) == 1, shown
    assert "$JS." not in shown, shown


@pytest.mark.parametrize("template", [ASYNC, BLOCKING], ids=["async", "blocking"])
@pytest.mark.parametrize("kind", ["broken", "broken_later"])
def test_what_a_listener_raises_is_seen(server, template: str, kind: str) -> None:
    if template is BLOCKING and kind == "broken_later":
        kind = "leaves"
    shown = stderr_of(template, server, unique("SEEN"), "pass", options=f"options['listener'] = {kind}")
    raised = "SystemExit: 3" if kind == "leaves" else "ZeroDivisionError: division by zero"
    assert shown.count(raised) == 2, shown
    for event in ("Connected", "Closed"):
        assert f"listener of the connection raised on {event}" in shown, shown


DROPS = """
sub = await nc.subscribe('a.' + NAME, pending_messages_limit=1)
for number in range(200):
    await nc.publish('a.' + NAME)
await nc.flush()
assert sub.dropped == 199
"""
PUSH_DROPS = """
for number in range(3):
    await js.publish(NAME + '.1')
sub = await js.subscribe(NAME + '.>', durable='p', pending_messages_limit=1)
while sub.dropped < 2:
    await nc.flush()
await sub.unsubscribe()
"""
DELETED = """
await js.publish(NAME + '.1')
async with w.consume_with(fine) as consuming:
    await gate.wait()  # the server has the request, so that it will tell of the deletion
    await js.delete_consumer(NAME, 'w')
    while not consuming.closed:
        await nc.flush()
"""


@pytest.mark.parametrize("template", [ASYNC, BLOCKING], ids=["async", "blocking"])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (DROPS, "SlowConsumer(subject='a.NAME'"),
        (PUSH_DROPS, "SlowConsumer("),
        (DELETED, "consumer 'w' of stream 'NAME'"),
    ],
    ids=["drops", "push drops", "consumer deleted"],
)
def test_trouble_is_seen_and_its_flood_is_bounded(server, template: str, body: str, said: str) -> None:
    name = unique("SEEN")
    shown = stderr_of(template, server, name, body if template is ASYNC else plain(body))
    assert said.replace("NAME", name) in shown, shown
    assert "Traceback" not in shown, shown
    assert len(shown.splitlines()) <= 2, shown


ALLOWED = "permissions: { publish: { deny: forbidden } }"
SECRETIVE = f"authorization {{ users: [{{user: {USER}, password: {CANARY}, {ALLOWED}}}] }}"
REFUSED = """
for number in range(300):
    await nc.publish('forbidden')
await nc.flush()
assert nc.stats.server_errors == 300
"""


@pytest.mark.parametrize("template", [ASYNC, BLOCKING], ids=["async", "blocking"])
def test_what_the_server_refuses_is_seen_and_not_300_times(start_server, template: str) -> None:
    server = start_server(config=SECRETIVE)
    options = f"options.update(user={USER!r}, password={CANARY!r})"
    body = REFUSED if template is ASYNC else plain(REFUSED)
    shown = stderr_of(template, server, "SEEN", body, options)
    assert len(shown.splitlines()) == 1, shown
    assert "PermissionViolation(operation='publish', subject='forbidden'" in shown


@pytest.mark.parametrize("template", [ASYNC, BLOCKING], ids=["async", "blocking"])
def test_no_secret_is_seen(start_server, template: str) -> None:
    server = start_server(config=SECRETIVE)
    event = "asyncio.Event" if template is ASYNC else "threading.Event"
    body = (
        FAILURES["consume with on_error"][0] + DROPS + REFUSED + f"import os\nos.kill({server.pid}, 9)\n"
        "await lost.wait()"
    )
    options = LOST.format(event=event) + f"options.update(user={USER!r}, password={CANARY!r})"
    shown = stderr_of(template, server, "SEEN", body if template is ASYNC else plain(body), options)
    for part in ("ZeroDivisionError", "SlowConsumer(", "PermissionViolation(", "Disconnected("):
        assert part in shown
    assert CANARY not in shown


LOST = """
from jetspark.events import Disconnected
lost = {event}()
options.update(listener=lambda event: isinstance(event, Disconnected) and lost.set())
"""


@pytest.mark.parametrize("template", [ASYNC, BLOCKING], ids=["async", "blocking"])
def test_a_lost_connection_is_seen(start_server, template: str) -> None:
    server = start_server()
    event = "asyncio.Event" if template is ASYNC else "threading.Event"
    wait = "await lost.wait()" if template is ASYNC else "lost.wait()"
    body = f"import os\nos.kill({server.pid}, 9)\n{wait}"
    shown = stderr_of(template, server, "SEEN", body, LOST.format(event=event))
    assert f"Disconnected(server='127.0.0.1:{server.port}', error=ConnectionLost(" in shown


@pytest.mark.parametrize("template", [ASYNC, BLOCKING], ids=["async", "blocking"])
def test_a_program_without_trouble_writes_nothing(server, template: str) -> None:
    body = "await js.publish(NAME + '.1')\nfor message in await w.fetch(1):\n    await message.ack()"
    body = body if template is ASYNC else plain(body)
    assert stderr_of(template, server, unique("SEEN"), body) == ""


@pytest.mark.parametrize("template", [ASYNC, BLOCKING], ids=["async", "blocking"])
def test_a_failure_is_logged_once_where_logging_is_set_up(server, template: str) -> None:
    name = unique("SEEN")
    body = FAILURES["consume"][0]
    shown = stderr_of(
        template,
        server,
        name,
        body if template is ASYNC else plain(body),
        before="import logging; logging.basicConfig(level=logging.INFO)\n",
    )
    logger = "asyncio" if template is ASYNC else "jetspark.blocking"
    assert f"ERROR:{logger}:callback of consumer 'w' of stream '{name}' raised" in shown
    assert shown.count("ZeroDivisionError: division by zero") == 1, shown


def test_the_loop_of_the_program_gets_it_with_its_own_handler(server) -> None:
    name = unique("SEEN")
    body = """
    said = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
    await js.publish(NAME + ".1")
    async with w.consume_with(broken):
        await gate.wait()
    (context,) = said
    assert type(context["exception"]) is ZeroDivisionError
    assert context["message"].startswith("callback of consumer 'w' of stream "), context
    """
    assert stderr_of(ASYNC, server, name, body) == ""


def test_what_fails_in_the_engine_while_nobody_waits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise LookupError("a defect")

    async def is_late() -> None:
        raise ConnectionClosed("closed meanwhile")

    async def nothing() -> None:
        pass

    engine = Engine()
    engine.run(nothing)
    engine.spawn(is_late)
    engine.spawn(fails)
    engine.run(nothing)  # behind them
    engine.stop()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (record.name, record.getMessage()) == ("jetspark.blocking", "cleaning up failed")
    assert "LookupError: a defect" in caplog.text
