"""Nine kinds of authentication: a server each, and who is let in, who is not, and who no longer is."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import nkeys

from jetspark import Msg, StreamConfig, blocking
from jetspark.errors import AuthorizationError, JetsparkError, TLSError
from jetspark.server import Server, ServerTLS
from support.jwt_mint import Callout, Key, Operator
from support.pki import PKI

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STREAM, MESSAGES = "AUTH", 3
PASSWORD = "secret-of-bcrypt"
# bcrypt of PASSWORD at the lowest cost that there is: the test is of the client.
HASHED = "$2a$04$2uEYUb5JExr7rZlryzHaGu.6L9mfwlannhF4dUByie6MLSLbV0.Wu"

# Spark's names of the options of connect().
SPARK_NAMES = {"creds": "credentials", "tls_ca": "tlsCa", "tls_cert": "tlsCert", "tls_key": "tlsKey"}


@dataclass(frozen=True)
class Attempt:
    """Options of ``connect`` and the error that they must end with; none when they are good."""

    state: str
    server: Server
    options: dict[str, Any]
    error: type[JetsparkError] | None = None

    @property
    def spark_options(self) -> dict[str, str]:
        named = {SPARK_NAMES.get(name, name): str(value) for name, value in self.options.items()}
        return {"servers": self.server.url, **named}


@dataclass
class Kind:
    """``attempts`` in order; then ``expiring`` ones lose their right by time, and ``revoke`` takes it."""

    name: str
    attempts: list[Attempt]
    revoke: Callable[[], None] | None = None
    expiring: Callable[[], Attempt] | None = None
    secrets: list[str] = field(default_factory=list)

    @property
    def good(self) -> Attempt:
        return self.attempts[0]


class AuthWorld:
    """All kinds with their servers running, until the block ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._stack = contextlib.ExitStack()
        self.kinds: list[Kind] = []

    def __enter__(self) -> AuthWorld:
        with contextlib.ExitStack() as stack:
            self._stack = stack
            token = self._token()
            self.kinds = [
                self._none(token.good.server),
                token,
                self._password("password", f'"{PASSWORD}"', '"another"'),
                self._password("bcrypt", f'"{HASHED}"', f'"{HASHED[:-1]}A"'),
                self._nkey(),
                self._creds(),
                self._certificate(),
                self._authority(),
                self._callout(),
            ]
            for kind in self.kinds:
                with blocking.connect(kind.good.server.url, **kind.good.options) as nc:
                    js = nc.jetstream()
                    js.create_stream(StreamConfig(name=STREAM, subjects=["auth.>"]))
                    for number in range(MESSAGES):
                        js.publish(f"auth.{number}", b"x")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _server(self, name: str, config: str = "", **options: Any) -> Server:
        return self._stack.enter_context(Server(name=name, config=config, **options))

    def _file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def _none(self, closed: Server) -> Kind:
        server = self._server("open")
        attempts = [Attempt("good", server, {}), Attempt("bad", closed, {}, AuthorizationError)]
        return Kind("none", attempts)

    def _token(self) -> Kind:
        server = self._server("token", "authorization { token: t0ken }")
        attempts = [
            Attempt("good", server, {"token": "t0ken"}),
            Attempt("bad", server, {"token": "wrong"}, AuthorizationError),
        ]
        return Kind("token", attempts, lambda: server.reload("authorization { token: another }"))

    def _password(self, name: str, right: str, other: str) -> Kind:
        config = "authorization {{ users: [ {{ user: joe, password: {} }} ] }}"
        server = self._server(name, config.format(right))
        attempts = [
            Attempt("good", server, {"user": "joe", "password": PASSWORD}),
            Attempt("bad", server, {"user": "joe", "password": "wrong"}, AuthorizationError),
            Attempt("unknown", server, {"user": "jim", "password": PASSWORD}, AuthorizationError),
        ]
        return Kind(name, attempts, lambda: server.reload(config.format(other)))

    def _nkey(self) -> Kind:
        key, other = Key(nkeys.PREFIX_BYTE_USER), Key(nkeys.PREFIX_BYTE_USER)
        config = "authorization {{ users: [ {{ nkey: {} }} ] }}"
        server = self._server("nkey", config.format(key.public))
        attempts = [
            Attempt("good", server, {"nkey": self._file("good.nk", key.seed)}),
            Attempt("bad", server, {"nkey": self._file("bad.nk", other.seed)}, AuthorizationError),
        ]
        return Kind("nkey", attempts, lambda: server.reload(config.format(other.public)))

    def _creds(self) -> Kind:
        operator = Operator()
        account = operator.account("APP")
        user = account.user("u")
        stranger = Operator("OTHER").account("APP").user("s")
        expired = account.user("late", expires_in=-60)
        server = self._server("creds", operator.resolver_config())

        def expiring() -> Attempt:
            short = self._file("short.creds", account.user("short", expires_in=4).creds())
            return Attempt("expiring", server, {"creds": short}, AuthorizationError)

        def revoke() -> None:
            account.revoke(user)
            server.reload(operator.resolver_config())

        attempts = [Attempt("good", server, {"creds": self._file("good.creds", user.creds())})]
        for state, one in (("bad", stranger), ("expired", expired)):
            options = {"creds": self._file(f"{state}.creds", one.creds())}
            attempts.append(Attempt(state, server, options, AuthorizationError))
        return Kind("creds", attempts, revoke, expiring)

    def _certificate(self) -> Kind:
        pki = PKI(self.folder / "mutual")
        unknown = pki.authority.issue("unknown", emails=("who@jetspark.test",), client=True)
        expired = pki.authority.issue(
            "late", emails=(pki.CLIENT_EMAIL,), client=True, valid_from_days=-20, valid_to_days=-10
        )
        tls = ServerTLS(cert=pki.server.cert, key=pki.server.key, ca=pki.ca)
        block = (
            f'tls {{ cert_file: "{pki.server.cert}", key_file: "{pki.server.key}", ca_file: "{pki.ca}"\n'
            "verify_and_map: true }\n"
        )

        def config(user: str) -> str:
            return block + f'authorization {{ users: [ {{ user: "{user}" }} ] }}'

        server = self._server("certificate", config(pki.CLIENT_EMAIL), tls=tls)
        errors = {"bad": TLSError, "unknown": AuthorizationError, "expired": TLSError}
        attempts = [
            Attempt(
                state,
                server,
                {"tls_ca": str(pki.ca), "tls_cert": str(files.cert), "tls_key": str(files.key)},
                errors.get(state),
            )
            for state, files in (
                ("good", pki.client),
                ("bad", pki.other_client),
                ("unknown", unknown),
                ("expired", expired),
            )
        ]
        attempts.append(Attempt("missing", server, {"tls_ca": str(pki.ca)}, TLSError))
        return Kind("client certificate", attempts, lambda: server.reload(config("nobody@jetspark.test")))

    def _authority(self) -> Kind:
        pki = PKI(self.folder / "authority")
        server = self._server("tls", tls=ServerTLS(cert=pki.server.cert, key=pki.server.key))
        late = self._server("late", tls=ServerTLS(cert=pki.expired.cert, key=pki.expired.key))
        return Kind(
            "certificate of the server",
            [
                Attempt("good", server, {"tls_ca": str(pki.ca)}),
                Attempt("bad", server, {"tls_ca": str(pki.other_ca)}, TLSError),
                Attempt("unknown", server, {}, TLSError),
                Attempt("expired", late, {"tls_ca": str(pki.ca)}, TLSError),
            ],
        )

    def _callout(self) -> Kind:
        callout = Callout()
        server = self._server(
            "callout",
            "accounts { AUTH: { users: [ { user: auth, password: auth } ] }\n"
            "APP: { jetstream: enabled }, SYS: {} }\n"
            "system_account: SYS\n"
            f"authorization {{ auth_callout {{ issuer: {callout.issuer}\n"
            "account: AUTH, auth_users: [ auth ] } }",
        )
        known = {"joe": PASSWORD}
        short: list[str] = []  # one for each time that they are let in, for two seconds

        def decide(message: Msg) -> None:
            given = callout.answer(message.data, None)[0]
            user, expires = given.get("user", ""), None
            right = known.get(user) == given.get("pass")
            if user == "short" and short:
                right, expires = short.pop() == given.get("pass"), 2
            message.respond(callout.answer(message.data, "APP" if right else None, expires_in=expires)[1])

        service = self._stack.enter_context(blocking.connect(server.url, user="auth", password="auth"))
        service.subscribe("$SYS.REQ.USER.AUTH", callback=decide)
        service.flush()

        def expiring() -> Attempt:
            short.append(PASSWORD)
            options = {"user": "short", "password": PASSWORD}
            return Attempt("expiring", server, options, AuthorizationError)

        return Kind(
            "callout",
            [
                Attempt("good", server, {"user": "joe", "password": PASSWORD}),
                Attempt("bad", server, {"user": "joe", "password": "wrong"}, AuthorizationError),
                Attempt("unknown", server, {"user": "jim", "password": PASSWORD}, AuthorizationError),
            ],
            expiring=expiring,
        )
