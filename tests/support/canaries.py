"""A canary in every kind of credentials, and everything in which it could be heard."""

from __future__ import annotations

import contextlib
import io
import pickle
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nkeys

from jetspark import StreamConfig, blocking
from jetspark.server import Server
from support.helpers import eventually_sync
from support.jwt_mint import Key, Operator
from support.spark_helpers import Batches, Box

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

CANARY = "CanaryS3cret"
# Secret as well where the library is concerned: some put a token there.
USER = f"{CANARY}-user"


class Case:
    """A server, options that it accepts, options that it refuses, and what must never be seen."""

    def __init__(self, server: Server, good: dict[str, Any], bad: dict[str, Any], *secrets: str) -> None:
        self.server, self.good, self.bad = server, good, bad
        self.secrets = secrets


@contextlib.contextmanager
def canary_cases(folder: Path, *, jetstream: bool = False) -> Iterator[dict[str, Case]]:
    """One for each way to give credentials, with the servers that know them running."""
    key, stranger = Key(nkeys.PREFIX_BYTE_USER), Key(nkeys.PREFIX_BYTE_USER)
    operator = Operator()
    user = operator.account("A", jetstream=jetstream).user("u")
    other = Operator("OTHER").account("A", jetstream=jetstream).user("s")
    for name, owner in (("good", user), ("bad", other)):
        (folder / f"{name}.creds").write_text(owner.creds())
    (folder / "bad.nk").write_text(stranger.seed)
    (folder / "good.nk").write_text(key.seed)
    users = f"{{ user: {USER}, password: {CANARY} }}, {{ nkey: {key.public} }}"
    by_user = Server(jetstream=jetstream, websocket=True, config=f"authorization {{ users: [ {users} ] }}")
    by_token = Server(jetstream=jetstream, token=CANARY)
    by_jwt = Server(jetstream=jetstream, config=operator.resolver_config())
    jwts = (user.jwt, user.seed, other.jwt, other.seed)
    seeds = (key.seed, stranger.seed)
    with by_user, by_token, by_jwt:
        name = USER
        url = by_user.url.replace("://", f"://{name}:{{}}@")
        yield {
            "password": Case(
                by_user,
                {"user": name, "password": CANARY},
                {"user": name, "password": f"{CANARY}-x"},
                CANARY,
            ),
            "url": Case(
                by_user, {"servers": url.format(CANARY)}, {"servers": url.format(f"{CANARY}-x")}, CANARY
            ),
            "function": Case(
                by_user,
                {"user": lambda: name, "password": lambda: CANARY},
                {"user": name, "password": lambda: f"{CANARY}-x"},
                CANARY,
            ),
            "auth": Case(
                by_user,
                {"auth": lambda nonce: {"user": name, "pass": CANARY}},
                {"auth": lambda nonce: {"user": name, "pass": f"{CANARY}-x"}},
                CANARY,
            ),
            "websocket": Case(
                by_user,
                {
                    "servers": f"{by_user.ws_url}/?key={CANARY}",
                    "user": name,
                    "password": CANARY,
                    "ws_headers": {"X-Key": CANARY},
                },
                {"servers": f"{by_user.ws_url}/?key={CANARY}", "ws_headers": {"X-Key": CANARY}},
                CANARY,
            ),
            "token": Case(by_token, {"token": CANARY}, {"token": f"{CANARY}-x"}, CANARY),
            "url token": Case(
                by_token,
                {"servers": by_token.url.replace("://", f"://{CANARY}@")},
                {"servers": by_token.url.replace("://", f"://{CANARY}-x@")},
                CANARY,
            ),
            "nkey": Case(by_user, {"nkey": key.seed}, {"nkey": stranger.seed}, *seeds),
            "nkey file": Case(
                by_user, {"nkey": str(folder / "good.nk")}, {"nkey": str(folder / "bad.nk")}, *seeds
            ),
            "jwt": Case(
                by_jwt,
                {"jwt": user.jwt, "nkey": user.seed},
                {"jwt": other.jwt, "nkey": other.seed},
                *jwts,
            ),
            "jwt of another": Case(
                by_jwt,
                {"jwt": lambda: user.jwt, "nkey": user.seed},
                {"jwt": user.jwt, "nkey": other.seed},
                *jwts,
            ),
            "creds": Case(
                by_jwt, {"creds": str(folder / "good.creds")}, {"creds": str(folder / "bad.creds")}, *jwts
            ),
            "creds text": Case(by_jwt, {"creds": user.creds()}, {"creds": other.creds()}, *jwts),
        }


def failing(nonce: str | None = None) -> Any:
    """A function that supplies credentials, and raises while it has them in its locals."""
    password = CANARY
    fields = {"user": "u", "pass": password}
    raise LookupError(f"no such field among {len(fields)}")


class OwnAuthenticator:
    """An authenticator of the user's own that raises."""

    def connect_fields(self, nonce: str | None) -> dict[str, Any]:
        return failing(nonce)  # type: ignore[no-any-return]


def everything_in(value: object, seen: set[int] | None = None) -> Iterator[str]:
    """Every text that can be reached through attributes and containers; what a debugger would show."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes | bytearray):
        yield value.decode(errors="replace")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from everything_in(key, seen)
            yield from everything_in(item, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from everything_in(item, seen)
    elif type(value).__module__.startswith(("jetspark", "asyncio", "websockets")):
        yield repr(value)
        names = list(getattr(value, "__dict__", {}))
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else list(slots)
        for name in names:
            if hasattr(value, name):
                yield from everything_in(getattr(value, name), seen)


def everything_about(error: BaseException) -> Iterator[str]:
    """The error with all that hangs on it, as text, as printed, and as shipped to a Spark driver."""
    chain: BaseException | None = error
    while chain is not None:
        yield str(chain)
        yield repr(chain)
        yield repr(vars(chain))
        chain = chain.__cause__ or chain.__context__
    yield "".join(traceback.format_exception(error))
    yield pickle.dumps(error).decode(errors="replace")
    yield from locals_of(error)


def locals_of(error: BaseException) -> Iterator[str]:
    """What tools show that record the locals of a traceback, causes and contexts included.

    Frames of the tests themselves are left out: they know the secrets of course.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        left += [one.__cause__, one.__context__]
        for frame in traceback.TracebackException.from_exception(one, capture_locals=True).stack:
            if not Path(frame.filename).name.startswith("test_"):
                yield f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.locals}"


def check_silence(texts: Iterator[str], secrets: tuple[str, ...]) -> None:
    checked = 0
    for text in texts:
        checked += 1
        for secret in secrets:
            assert secret not in text, text[:2000]
    assert checked


# Spark


def plans(frame: DataFrame) -> str:
    """Everything that explain() can say about a DataFrame."""
    texts = []
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            frame.explain(mode=mode)
        texts.append(out.getvalue())
    java: Any = frame._jdf
    texts += [java.queryExecution().toString(), java.queryExecution().logical().toJSON(), frame.__repr__()]
    return "\n".join(texts)


def everything_below(folder: Path) -> bytes:
    """All bytes of all files below a folder."""
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def shown_by_spark(
    spark: SparkSession,
    server: Server,
    good: dict[str, str],
    bad: dict[str, str],
    folder: Path,
    event_log: Path,
    marker: str,
) -> dict[str, bytes]:
    """All that Spark shows of reads and a query with these options, by where it shows it."""
    connect = {"creds" if name == "credentials" else name: value for name, value in good.items()}
    with blocking.connect(server.url, **connect) as connection:
        js = connection.jetstream()
        js.create_or_update_stream(StreamConfig(name="S", subjects=["s.>"]))
        js.get_stream("S").purge()
        first = js.publish("s.0", b"x").seq
        for number in range(1, 3):
            js.publish(f"s.{number}", b"x")
        box = Box(spark, server.url, js, folder)
        frame = box.read("S", **good)
        spark.sparkContext.setJobDescription(marker)
        assert frame.count() == 3
        explain = plans(frame)
        assert "RelationV2" in explain
        rows = Batches()
        query = box.drain("S", rows, startingPosition="earliest", **good)
        assert rows.rows == [first, first + 1, first + 2]
        progress = "".join(one.json for one in query.recentProgress) + str(query.status)
        errors = ""
        for make in (
            lambda: box.read("S", **bad).collect(),
            lambda: box.read("S", **good, strem="x"),
            lambda: box.read("S", **good, minPartitions="x"),
            lambda: box.read("MISSING", **good).collect(),
            lambda: box.read("S", **good, tlsCa="/no/such/file"),
            lambda: box.drain("S", Batches(), checkpoint="other", **bad),
        ):
            taken = True
            try:
                make()
            except Exception as error:
                taken = False
                errors += repr(error) + str(error)
            assert not taken, "a wrong option was taken"
        # The log is written in the background; the job's own entry says that ours is in it.
        eventually_sync(lambda: marker.encode() in everything_below(event_log), 20)
        logged = everything_below(event_log)
        assert b"jetstream" in logged
        spark.sparkContext.setJobDescription("")
        box.close()
        return {
            "explain": explain.encode(),
            "progress": progress.encode(),
            "errors": errors.encode(),
            "event log": logged,
            "checkpoint": everything_below(folder / "checkpoint"),
        }
