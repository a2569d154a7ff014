"""Options of ``format("jetstream")``: names, values, contradictions; checked offline, before anything runs.

Spark hands a source its options as strings under lower-case names. :class:`Options` turns them into values:
each getter checks one option and names it in its error. Source and sink share the connection
(:class:`ConnectionOptions`) and the refusal of unknown names.

Secrets arrive as plain strings and leave this module as :class:`~jetspark._secret.Secret`. Spark redacts the
values of options whose names match ``spark.redaction.regex`` (password, secret, token); the names of our
secret options match it, and values that would be secrets under other names (a password inside a URL, an nkey
seed) are refused.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NoReturn

from jetspark._secret import Secret
from jetspark._times import parse_duration
from jetspark.connection.urls import parse_server_url
from jetspark.errors import InvalidArgument, JetsparkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class OptionError(JetsparkError, ValueError):
    """An option is unknown, malformed or contradicts another. ``option`` is its name."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"option {option!r}: {problem}")
        self.option = option
        self.problem = problem


CONNECTION_OPTIONS = (
    "servers",
    "context",
    "connectionName",
    "user",
    "password",
    "token",
    "credentials",
    "nkey",
    "tls",
    "tlsCa",
    "tlsCert",
    "tlsKey",
    "tlsHostname",
    "tlsVerify",
    "tlsFirst",
    "inboxPrefix",
    "domain",
    "apiPrefix",
    "connectTimeout",
    "requestTimeout",
)
SOURCE_OPTIONS = (
    "stream",
    "subjects",
    "startingPosition",
    "startingSequence",
    "startingTime",
    "endingPosition",
    "endingSequence",
    "endingTime",
    "failOnDataLoss",
    "minPartitions",
    "maxMessagesPerPartition",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
    "durable",
    "releaseWorkQueue",
    "recordBatchRows",
    "bufferMessages",
)
SINK_OPTIONS = (
    "stream",
    "subject",
    "window",
    "ackTimeout",
    "deadLetterSubject",
    "deriveMsgId",
    "msgIdPrefix",
    "batchId",
    "keepNatsHeaders",
    "requireExactlyOnce",
    "requiredDuplicateWindow",
    "resultFile",
)
# What Spark itself passes along to a sink.
SPARK_OPTIONS = ("checkpointLocation", "queryName")
# Never shown, not even in errors.
SECRET_OPTIONS = frozenset(("password", "token"))

_USERINFO = re.compile(r"(^|://)[^/?#]*@")
_UNDERSCORE = re.compile(r"_([a-z])")
_SEED = re.compile(r"\s*S[A-Z][A-Z2-7]{50,}\s*")


class Options:
    """Spark's string options behind typed getters. ``known``: all names, as they are spelled."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._known = {name.lower(): name for name in known}
        for name in self._given:
            if name not in self._known:
                raise _unknown(name, self._known)

    def given(self, name: str) -> bool:
        """Whether the option was set at all."""
        return name.lower() in self._given

    def given_of(self, *names: str) -> list[str]:
        """Those of the options that were set, in the order asked for."""
        return [name for name in names if self.given(name)]

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raise for an option; the value is shown unless it is a secret."""
        value = self._given.get(name.lower())
        shown = "" if value is None or name in SECRET_OPTIONS else f"{value!r} "
        raise OptionError(name, f"{shown}{problem}")

    def text(self, name: str) -> str | None:
        """The value without white space around it; an empty one is refused."""
        value = self._given.get(name.lower())
        if value is None:
            return None
        if not value.strip():
            self.fail(name, "is empty; leave the option out instead")
        return value.strip()

    def secret(self, name: str) -> Secret | None:
        """The value, wrapped so that it is never shown."""
        value = self._given.get(name.lower())
        if value is not None and not value:
            self.fail(name, "is empty; leave the option out instead")
        return None if value is None else Secret(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Comma-separated values, each once."""
        value = self.text(name)
        if value is None:
            return ()
        parts = [part.strip() for part in value.split(",")]
        if not all(parts):
            self.fail(name, "has an empty entry between commas")
        return tuple(dict.fromkeys(parts))

    def integer(self, name: str, *, minimum: int = 1) -> int | None:
        """A whole number."""
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            self.fail(name, f"must be a whole number, {minimum} or more")
        if number < minimum:
            self.fail(name, f"must be {minimum} or more")
        return number

    def flag(self, name: str, default: bool) -> bool:
        """``true`` or ``false``."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            self.fail(name, "must be true or false")
        return value.lower() == "true"

    def seconds(self, name: str) -> float | None:
        """A duration above zero; a number without a unit is seconds."""
        value = self.text(name)
        if value is None:
            return None
        duration = parse_duration(value)
        if not duration:
            self.fail(name, "must be a duration greater than zero, such as '5 seconds' or '15m'")
        return duration

    def json_object(self, name: str) -> dict[str, Any] | None:
        """The value when it looks like a JSON object, else None."""
        value = self.text(name)
        if value is None or not value.startswith("{"):
            return None
        try:
            found = json.loads(value)
        except ValueError as error:
            self.fail(name, f"is not valid JSON: {error}")
        if not isinstance(found, dict) or not found:
            self.fail(name, "must be a JSON object with at least one stream")
        return found


def _unknown(name: str, known: Mapping[str, str]) -> OptionError:
    if name == "path":
        return OptionError("path", "load() and save() take no path here; use option 'stream'")
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    # Names of the same options in other tools.
    elsewhere = {
        "kafka.bootstrap.servers": "servers",
        "url": "servers",
        "nats.host": "servers",
        "creds": "credentials",
        "startingoffsets": "startingPosition",
        "endingoffsets": "endingPosition",
        "maxoffsetspertrigger": "maxMessagesPerTrigger",
        "minoffsetspertrigger": "minMessagesPerTrigger",
        "subscribe": "stream",
        "subscribepattern": "stream",
    }
    guess = elsewhere.get(name) or (known[nearest[0]] if nearest else None)
    hint = f"; did you mean {guess!r}?" if guess else f"; the options are {', '.join(sorted(known.values()))}"
    return OptionError(name, f"is unknown{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to reach the server: the options that source and sink share. Hashable and picklable.

    - ``servers``: URLs, comma-separated (``nats://127.0.0.1:4222``); credentials do not belong in them.
    - ``context``: name of a context of the ``nats`` tool, on driver and executors; other options win over it.
    - ``connectionName``: shown in the server's monitoring (``jetspark-spark``).
    - ``user`` and ``password``; ``token``; ``credentials``: path of a ``.creds`` file; ``nkey``: path of a
      seed file. Paths must exist on driver and executors.
    - ``tls`` (true demands it), ``tlsCa``, ``tlsCert``, ``tlsKey`` (paths), ``tlsHostname``, ``tlsVerify``
      (true), ``tlsFirst`` (false; TLS before INFO).
    - ``inboxPrefix`` (``_INBOX``), ``domain``, ``apiPrefix``: as in ``jetspark.connect`` and ``jetstream()``.
    - ``connectTimeout`` (5 seconds), ``requestTimeout`` (10 seconds): durations.
    """

    servers: tuple[str, ...] = ()
    context: str | None = None
    name: str = "jetspark-spark"
    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    creds: str | None = None
    nkey: str | None = None
    tls: bool | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_hostname: str | None = None
    tls_verify: bool = True
    tls_handshake_first: bool = False
    inbox_prefix: str | None = None
    domain: str | None = None
    api_prefix: str | None = None
    connect_timeout: float = 5.0
    request_timeout: float = 10.0

    def connect_arguments(self) -> dict[str, Any]:
        """Keyword arguments for ``jetspark.connect`` and ``jetspark.blocking.connect``."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        del found["domain"], found["api_prefix"]
        found["servers"] = list(self.servers) or None
        for secret in ("password", "token"):
            value: Secret | None = found[secret]
            found[secret] = None if value is None else value.reveal
        # Left out, so that the context or the library decides.
        return {key: value for key, value in found.items() if value is not None}

    def jetstream_arguments(self) -> dict[str, Any]:
        """Keyword arguments for ``connection.jetstream``."""
        return {"domain": self.domain, "api_prefix": self.api_prefix, "timeout": self.request_timeout}


# Options that are named differently in jetspark.connect.
_RENAMED = {"name": "connectionName", "creds": "credentials", "tls_handshake_first": "tlsFirst"}


def option_of(argument: str) -> str:
    """The option for an argument of ``jetspark.connect``: ``tlsCa`` for ``tls_ca``."""
    return _RENAMED.get(argument) or _UNDERSCORE.sub(lambda match: match[1].upper(), argument)


def split_credentials(servers: Iterable[str]) -> dict[str, str]:
    """Option ``servers`` without credentials, and the credentials as options that Spark redacts."""
    bare: list[str] = []
    found: dict[str, str] = {}
    for server in map(str.strip, servers):
        bare.append(_USERINFO.sub(r"\1", server, count=1))
        if bare[-1] != server:
            url = parse_server_url(server)
            ways = {"user": url.user, "password": url.password, "token": url.token}
            here = {name: value.reveal() for name, value in ways.items() if value is not None}
            if found and found != here:
                raise OptionError("servers", "the URLs have different credentials; use the same for all")
            found = here
    return {**found, "servers": ",".join(bare)}


def parse_connection(options: Options) -> ConnectionOptions:
    """The connection options, checked without a server; files are read, too."""
    if not options.given("servers") and not options.given("context"):
        raise OptionError("servers", "is required, e.g. nats://127.0.0.1:4222 (or set 'context')")
    if any(_USERINFO.search(server) for server in options.texts("servers")):
        raise OptionError(
            "servers",
            "contains credentials, which Spark would show in plans and logs; use options 'user' and "
            "'password' or 'token', which it redacts, or a file with 'credentials'",
        )
    for name in ("nkey", "credentials"):
        if _SEED.fullmatch(options.text(name) or ""):
            raise OptionError(name, "is a seed, which Spark would show; give the path of a file with it")
    ways = options.given_of("user", "token", "credentials", "nkey")
    if len(ways) > 1:
        raise OptionError(ways[1], f"contradicts option {ways[0]!r}; give one kind of credentials")
    if options.given("user") != options.given("password"):
        missing, there = ("password", "user") if options.given("user") else ("user", "password")
        raise OptionError(missing, f"is missing; option {there!r} needs it")
    if options.given("domain") and options.given("apiPrefix"):
        raise OptionError("apiPrefix", "contradicts option 'domain'; give one of them")
    found = ConnectionOptions(
        servers=options.texts("servers"),
        context=options.text("context"),
        name=options.text("connectionName") or "jetspark-spark",
        user=options.text("user"),
        password=options.secret("password"),
        token=options.secret("token"),
        creds=options.text("credentials"),
        nkey=options.text("nkey"),
        tls=options.flag("tls", False) if options.given("tls") else None,
        tls_ca=options.text("tlsCa"),
        tls_cert=options.text("tlsCert"),
        tls_key=options.text("tlsKey"),
        tls_hostname=options.text("tlsHostname"),
        tls_verify=options.flag("tlsVerify", True),
        tls_handshake_first=options.flag("tlsFirst", False),
        inbox_prefix=options.text("inboxPrefix"),
        domain=options.text("domain"),
        api_prefix=options.text("apiPrefix"),
        connect_timeout=options.seconds("connectTimeout") or 5.0,
        request_timeout=options.seconds("requestTimeout") or 10.0,
    )
    _check_offline(found)
    return found


def _check_offline(found: ConnectionOptions) -> None:
    """Let ``jetspark.connect`` check the options; it opens no connection."""
    from jetspark.connecting import connect
    from jetspark.connection.auth import build_authenticator

    try:
        connect(**found.connect_arguments())
        files = build_authenticator(creds=found.creds, nkey=found.nkey)
        if files is not None:
            files.connect_fields("offline")  # reads the file, which otherwise happens when connecting
    except InvalidArgument as error:
        name = option_of(error.field)
        if name in SECRET_OPTIONS:
            raise OptionError(name, error.rule) from None
        raise OptionError(name, f"{error.value!r} {error.rule}") from None
    except JetsparkError as error:
        ways = [way for way in ("creds", "nkey", "tls_ca", "context") if getattr(found, way) is not None]
        name = ways[0] if ways else "servers"
        raise OptionError(option_of(name), str(error)) from None
