"""The world of the model test of the Spark source: servers, streams, and what can happen to them.

Every event is done with a plain socket and keeps the books of `source_truth`: what was stored, what is gone,
and why.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetspark.server import Cluster, Server
from support.helpers import eventually_sync, three_nodes
from support.raw_nats import RawApiError, RawNats
from support.source_truth import Backup, Cause, Life, Message, Truth

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SUBJECTS = ("a.1", "a.2", "a.3", "b.1", "b.2", "c.1")
_SECOND = 1_000_000_000
_SHORT_AGE = _SECOND // 10
_EVENTS = 40
"""Most events of a run, beside publishes: a run has an end."""


@dataclass(slots=True)
class Host:
    """The server or cluster on which runs take place, one at a time."""

    servers: Sequence[Server]
    folder: Path
    cluster: Cluster | None = None
    private: bool = True
    """Whether its nodes may be restarted: others may use a shared cluster."""

    @property
    def urls(self) -> list[str]:
        return [one.url for one in self.servers]

    @classmethod
    @contextlib.contextmanager
    def single(cls) -> Iterator[Host]:
        """A server of its own."""
        with Server(name="source-model", ready_timeout=60) as server, tempfile.TemporaryDirectory() as folder:
            yield cls([server], Path(folder))

    @classmethod
    @contextlib.contextmanager
    def of(cls, cluster: Cluster) -> Iterator[Host]:
        """A cluster that runs and that others use as well."""
        with tempfile.TemporaryDirectory() as folder:
            yield cls(cluster.servers, Path(folder), cluster, private=False)

    @classmethod
    @contextlib.contextmanager
    def replicated(cls) -> Iterator[Host]:
        """A cluster of its own."""
        with three_nodes() as cluster, cls.of(cluster) as host:
            host.private = True
            yield host


class World:
    """The streams of one run, and what can happen to them. Every event keeps the books."""

    def __init__(
        self, host: Host, chance: random.Random, seed: int, configs: dict[str, dict[str, Any]] | None = None
    ) -> None:
        """``configs``: these streams, empty, and nothing that happens by chance."""
        self.host, self.chance = host, chance
        self.raw = RawNats(host.urls)
        self.truth = Truth(self.raw)
        self.events: Counter[str] = Counter()
        self._numbers = iter(range(1, 1_000_000_000))
        self._backup: tuple[Backup, Path] | None = None
        self._workers: dict[str, list[str]] = {}
        self.kinds: list[str] = []
        if configs is None:
            self.kinds = self._kinds()
            names = [f"M{seed}_{number}" for number in range(chance.choice((1, 1, 1, 2, 3)))]
            configs = {name: self._config(name) for name in names}
        self.names, self.configs = list(configs), configs
        self.flavour = " ".join(self.kinds) + " | " + "; ".join(map(_shown, self.configs.values()))
        self.truth.note(f"streams: {self.configs}")
        for name in self.names:
            self._create(name)
            if self.kinds:
                self.publish(name, chance.randrange(1, 40))
        if {"restore", "restore_and_regrow"} & set(self.kinds):
            self.restore()  # there has to be something older

    def close(self) -> None:
        for name in self.names:
            with contextlib.suppress(RawApiError):
                self.raw.api(f"STREAM.DELETE.{name}")
                self._clear(name)
        self.raw.close()

    # What there is

    def _kinds(self) -> list[str]:
        """A few kinds of events for the run, so that not everything is mixed with everything."""
        kinds = ["delete", "purge_all", "purge_seq", "purge_keep", "purge_subject", "recreate", "vanish"]
        if self.host.cluster is None:
            kinds += ["expire", "shrink", "restart", "kill", "restore", "restore_and_regrow"]
        else:
            kinds += ["step_down", "step_down"] + ["restart_node"] * self.host.private
        return sorted(set(self.chance.sample(kinds, self.chance.choice((1, 2, 2, 3)))))

    @property
    def _possible(self) -> list[str]:
        ttl = any(life.config.get("allow_msg_ttl") for life in self.truth.alive(self.names))
        return [*self.kinds, "wait_for_ttl"] if ttl else self.kinds

    def _config(self, name: str) -> dict[str, Any]:
        chance = self.chance
        config: dict[str, Any] = {"name": name, "subjects": [f"{name}.>"], "storage": "memory"}
        if set(self.kinds) & {"restart", "kill", "restore", "restore_and_regrow", "restart_node"}:
            config["storage"] = "file"
        config["num_replicas"] = 1 if self.host.cluster is None else 3
        config["allow_direct"] = True
        config["retention"] = chance.choices(("limits", "workqueue", "interest"), (10, 2, 1))[0]
        if self.host.cluster is None:
            config["duplicate_window"] = _SHORT_AGE  # must not be longer than max_age
        if "expire" in self.kinds:
            config["max_age"] = 3600 * _SECOND
        limit = chance.choices(("", "msgs", "bytes", "subject", "ttl", "new"), (6, 2, 1, 3, 1, 1))[0]
        if limit == "msgs":
            config["max_msgs"] = chance.randrange(5, 60)
        elif limit == "bytes":
            config["max_bytes"] = chance.randrange(2_000, 20_000)
        elif limit == "subject":
            config["max_msgs_per_subject"] = chance.choice((1, 1, 3, 1000, 1000))
        elif limit == "ttl":
            config["allow_msg_ttl"] = True
        elif limit == "new":
            config |= {"max_msgs": chance.randrange(20, 60), "discard": "new"}
        return config

    def _create(self, name: str) -> None:
        config = self.configs[name]
        self.raw.api(f"STREAM.CREATE.{name}", config)
        self.truth.born(name, dict(config))
        if config["retention"] == "workqueue":
            self._workers[name] = [self._worker(name, "b", f"{name}.b.>")]
        elif config["retention"] == "interest":
            self._workers[name] = [self._worker(name, "all", ""), self._worker(name, "b", f"{name}.b.>")]

    def _worker(self, stream: str, worker: str, subject: str) -> str:
        config = {"durable_name": worker, "ack_policy": "explicit", "ack_wait": 30 * _SECOND}
        if subject:
            config["filter_subject"] = subject
        body = {"stream_name": stream, "config": config}
        self.raw.api(f"CONSUMER.DURABLE.CREATE.{stream}.{worker}", body)
        return worker

    # What happens

    def some(self, most: int) -> None:
        """Up to so many events, as the chance wills."""
        for _ in range(self.chance.randrange(most + 1)):
            self.one()

    def one(self) -> None:
        roll = self.chance.random()
        if roll < 0.45 or self.events.total() - self.events["publish"] >= _EVENTS:
            self.publish()
        elif roll < 0.60 and self._workers:
            self.acks()
        else:
            self._happen(self.chance.choice(self._possible))

    def _happen(self, kind: str) -> None:
        self.events[kind] += 1
        getattr(self, kind)()

    def _any(self) -> Life | None:
        """One of the streams that there are."""
        alive = self.truth.alive(self.names)
        return self.chance.choice(alive) if alive else None

    def publish(self, name: str = "", count: int = 0) -> None:
        life = self.truth.current(name) if name else self._any()
        if life is None:
            if not name:
                self._create_missing()
            return
        count = count or self.chance.choice((1, 2, 5, 12, 25))
        self.events["publish"] += 1
        step = self.truth.tick(f"publish {count} to {life.name}")
        config = life.config
        narrow = bool(config.get("max_msgs_per_subject") or life.limited)
        refused = 0
        for _ in range(count):
            message = self._message(life, step)
            headers = {"Nats-Msg-Id": f"{message.number}"}
            if message.ttl is not None:
                headers["Nats-TTL"] = f"{int(message.ttl)}s"
            try:
                ack = self.raw.publish(message.subject, message.payload, headers)
            except RawApiError:
                refused += 1
                assert config.get("discard") == "new", f"{life.name} refused a message: {config}"
                continue
            message.sequence = int(ack["seq"])
            assert message.sequence == life.last + 1, f"{life.name} ends at {life.last}, its ack says {ack}"
            message.expires = time.monotonic() + (message.ttl or 0)
            self.truth.stored(message)
            if narrow:
                self.truth.look(life.name, partial(_pushed_out, life, message))
        self.truth.look(life.name)
        self.truth.note(f"{life.name} ends at {life.last}" + (f", {refused} refused" if refused else ""))

    def _message(self, life: Life, step: int) -> Message:
        chance = self.chance
        number = next(self._numbers)
        subject = f"{life.name}.{chance.choice(SUBJECTS)}"
        payload = b"%d " % number + b"x" * chance.choice((0, 0, 10, 100, 900))
        ttl = 1.0 if life.config.get("allow_msg_ttl") and chance.random() < 0.3 else None
        return Message(number, life.name, life.created, 0, subject, payload, step, ttl)

    def delete(self) -> None:
        life = self._any()
        if life is None or not life.existing:
            return
        there = sorted(life.existing)
        # At the head, in the middle, at the end.
        sequence = self.chance.choice((there[0], there[len(there) // 2], there[-1]))
        self.truth.tick(f"delete {life.name}/{sequence}")
        self.raw.api(f"STREAM.MSG.DELETE.{life.name}", {"seq": sequence})
        self.truth.look(life.name, lambda one: Cause.DELETED if one.sequence == sequence else None)

    def purge_all(self) -> None:
        self._purge({}, Cause.PURGED)

    def purge_seq(self) -> None:
        life = self._any()
        if life is not None and life.existing:
            there = sorted(life.existing)
            self._purge({"seq": there[self.chance.randrange(len(there))] + 1}, Cause.PURGED, life)

    def purge_keep(self) -> None:
        self._purge({"keep": self.chance.choice((1, 3, 10))}, Cause.PURGED)

    def purge_subject(self) -> None:
        life = self._any()
        if life is not None:
            subject = f"{life.name}.{self.chance.choice(('a.>', 'a.1', 'b.*', 'c.1'))}"
            more = self.chance.choice(({}, {}, {"keep": 1}))
            self._purge({"filter": subject, **more}, Cause.PURGED_BY_SUBJECT, life)

    def _purge(self, body: dict[str, Any], cause: Cause, life: Life | None = None) -> None:
        life = life or self._any()
        if life is None:
            return
        self.truth.tick(f"purge {life.name} {body}")
        self.raw.api(f"STREAM.PURGE.{life.name}", body)
        self.truth.look(life.name, lambda _: cause)

    def expire(self) -> None:
        """What is older than a moment expires: max_age goes down and up again."""
        life = self._any()
        if life is None or not life.existing or not life.config.get("max_age"):
            return
        there = sorted(life.existing)
        half = there[self.chance.randrange(len(there))]
        message = self.raw.api(f"STREAM.MSG.GET.{life.name}", {"seq": half})["message"]
        now = self.raw.api(f"STREAM.INFO.{life.name}")["ts"]
        age = max(_SHORT_AGE, _nanoseconds(now) - _nanoseconds(message["time"]))
        self.truth.tick(f"expire {life.name} up to {half} or more, max_age {age / _SECOND:.3f} s")
        self._update(life, {"max_age": age})
        eventually_sync(lambda: int(self.raw.api(f"STREAM.INFO.{life.name}")["state"]["first_seq"]) > half)
        self.truth.look(life.name, lambda _: Cause.AGED)
        self._update(life, {"max_age": 3600 * _SECOND})
        self.truth.look(life.name, lambda _: Cause.AGED)

    def wait_for_ttl(self) -> None:
        """Messages with a TTL expire one by one."""
        lives = self.truth.alive(self.names)
        mortal = [life.now[one] for life in lives for one in life.existing if life.now[one].ttl is not None]
        if not mortal:
            return
        self.truth.tick(f"wait until {len(mortal)} messages have expired by their TTL")

        def expired() -> bool:
            self.look()
            return all(one.gone is not None for one in mortal)

        eventually_sync(expired)

    def shrink(self) -> None:
        """A lower limit of messages or bytes removes the oldest at once."""
        life = self._any()
        if life is None or not life.existing or life.config.get("discard") == "new":
            return
        most = self.chance.randrange(1, len(life.existing) + 1)
        self.truth.tick(f"update {life.name}: max_msgs {most}")
        before = life.config.get("max_msgs", -1)
        self._update(life, {"max_msgs": most})
        self.truth.look(life.name, lambda _: Cause.PUSHED_OUT)
        if self.chance.random() < 0.5:
            self._update(life, {"max_msgs": before})

    def _update(self, life: Life, change: dict[str, Any]) -> None:
        life.config |= change
        self.raw.api(f"STREAM.UPDATE.{life.name}", life.config)

    def acks(self) -> None:
        """Other workers do some of their work."""
        names = [life.name for life in self.truth.alive(self._workers)]
        if not names:
            return
        name = self.chance.choice(names)
        self.events["acks"] += 1
        worker = self.chance.choice(self._workers[name])
        self.truth.tick(f"worker {worker} of {name} acks")
        for reply, _ in self.raw.pull(name, worker, self.chance.choice((1, 5, 50))):
            self.raw.request(reply, b"+ACK")
        self.truth.look(name, lambda _: Cause.CONSUMED)

    def vanish(self) -> None:
        life = self._any()
        if life is not None:
            self.truth.tick(f"delete stream {life.name}")
            self.raw.api(f"STREAM.DELETE.{life.name}")
            self.truth.died(life.name)
            self._clear(life.name)

    def _clear(self, name: str) -> None:
        """Wait until the files of a deleted stream are gone.

        The server removes them in its own time. When streams come and go within milliseconds its writer may
        make their folder again; the next stream of the name then has messages that nobody sent to it, and
        without one the next start of the server reports itself unhealthy. That is not what we test here.
        """
        folders = [one.store_dir / "jetstream/$G/streams" / name for one in self.host.servers]
        deadline = time.monotonic() + 1.0
        while any(one.exists() for one in folders) and time.monotonic() < deadline:
            time.sleep(0.01)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _create_missing(self) -> None:
        missing = [name for name in self.names if self.truth.current(name) is None]
        if missing:
            name = self.chance.choice(missing)
            self.truth.tick(f"create stream {name}")
            self._create(name)
            self.publish(name)

    def recreate(self) -> None:
        life = self._any()
        if life is not None:
            self.vanish()
        self._create_missing()

    def restart(self) -> None:
        self.truth.tick("restart the server")
        self.host.servers[0].restart(60)

    def kill(self) -> None:
        self.truth.tick("kill -9 of the server")
        server = self.host.servers[0]
        server.kill()
        server.start()

    def restore(self) -> None:
        """Keep a copy of the store's files, or put the older copy in their place."""
        server = self.host.servers[0]
        if self._backup is None:
            self.truth.tick("backup of the server's files")
            self.look()
            path = self.host.folder / f"backup-{random.getrandbits(48):x}"
            server.terminate(60)
            shutil.copytree(server.store_dir, path)
            server.start()
            self._backup = (self.truth.backup(), path)
            return
        backup, path = self._backup
        self.truth.tick("restore of the server's files")
        server.terminate(60)
        shutil.rmtree(server.store_dir)
        shutil.copytree(path, server.store_dir)
        server.start()
        self.truth.restore(backup)
        self.look()

    def restore_and_regrow(self) -> None:
        self.restore()
        self.publish()

    def step_down(self) -> None:
        life = self._any()
        if life is None:
            return
        self.truth.tick(f"leader of {life.name} steps down")
        self.raw.api(f"STREAM.LEADER.STEPDOWN.{life.name}")
        self.look()

    def restart_node(self) -> None:
        assert self.host.cluster is not None
        node = self.chance.randrange(len(self.host.servers))
        self.truth.tick(f"restart node {node + 1}")
        self.host.cluster.restart(node)
        self.host.cluster.wait_ready()
        self.look()

    def look(self) -> None:
        for name in self.names:
            self.truth.look(name)


def _pushed_out(life: Life, new: Message, gone: Message) -> Cause | None:
    """Why a message went when another one came."""
    if gone.ttl is not None and time.monotonic() >= gone.expires - 0.2:
        return Cause.TTL
    if life.config.get("max_msgs_per_subject") and gone.subject == new.subject:
        return Cause.REPLACED
    if life.config.get("max_msgs") or life.config.get("max_bytes"):
        return Cause.PUSHED_OUT
    return None


def _nanoseconds(text: str) -> int:
    """Nanoseconds of a time of the server, within some days."""
    day, _, rest = text.partition("T")
    clock, _, fraction = rest.rstrip("Z").partition(".")
    hours, minutes, seconds = clock.split(":")
    whole = (int(day[-2:]) * 24 + int(hours)) * 3600 + int(minutes) * 60 + int(seconds)
    return whole * _SECOND + int(fraction.ljust(9, "0") or 0)


def _shown(config: dict[str, Any]) -> str:
    names = (
        "retention",
        "max_age",
        "max_msgs",
        "max_bytes",
        "max_msgs_per_subject",
        "allow_msg_ttl",
        "discard",
    )
    return ",".join(f"{name}={config[name]}" for name in names if name in config)
