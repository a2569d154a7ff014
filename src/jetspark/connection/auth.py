"""Authentication: turns the options of ``connect`` into fields of the CONNECT command.

An :class:`Authenticator` is asked again at every connect *and reconnect*, so callables and credential
files can supply rotated secrets without a restart. Rules for this whole file:

* a secret is inside a :class:`~jetspark._secret.Secret` (or a closure) except in the dict that
  ``connect_fields`` returns;
* errors name the option or the path and the remedy, never content. Where a library's exception would
  carry content (``JSONDecodeError.doc``, ``UnicodeDecodeError.object``), ours is raised after the
  ``except`` block has ended, so that neither ``__cause__`` nor ``__context__`` refers to it;
* functions that other modules call are decorated with :func:`~jetspark._secret.hides_locals`: the locals of
  this file's frames contain raw secrets, and a traceback keeps its frames;
* whatever can be recognised as wrong before connecting (mistyped seed, seed of another user) is refused
  here, because the server only says "Authorization Violation". Whether a JWT has expired is left to the
  server: this machine's clock may be wrong.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias, runtime_checkable

from jetspark._secret import Secret, hides_locals
from jetspark.errors import AuthorizationError, InvalidArgument

SecretText: TypeAlias = "str | Secret"
SecretSource: TypeAlias = "str | Secret | Callable[[], str | Secret]"
"""A secret, or a function without arguments that returns one; it is called at every connect and reconnect."""
PathOrSecret: TypeAlias = "str | os.PathLike[str] | Secret"
AuthCallable: TypeAlias = "Callable[[str | None], Mapping[str, Any]]"
"""Takes the server's nonce (``None`` if the server sent none) and returns fields for CONNECT."""

_SEED_BYTES = 58
_SEED_SHAPE = re.compile(r"S[A-Za-z0-9]{20,}")
_BLOCK_BORDER = re.compile(r"-{2,}\s*(BEGIN|END)\s+(.+?)\s*-{2,}")


@runtime_checkable
class Authenticator(Protocol):
    """Anything with this method can be passed as ``auth=``."""

    def connect_fields(self, nonce: str | None) -> dict[str, Any]:
        """The fields of CONNECT that prove our identity. ``nonce`` is the server's challenge, if any."""
        ...


class _Source:
    """A secret or a callable that yields one, kept in a closure so that nothing can print it."""

    __slots__ = ("get",)

    def __init__(self, option: str, value: SecretSource) -> None:
        self.get: Callable[[], str]
        if isinstance(value, Secret):
            self.get = value.reveal
        elif isinstance(value, str):
            self.get = Secret(value).reveal
        elif callable(value):
            function = value
            self.get = lambda: _call(option, function)
        else:
            raise InvalidArgument(
                option,
                f"<{type(value).__name__}>",
                "must be a string, a Secret or a function without arguments",
            )

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("an authenticator can't be pickled: ship the options and build it on the other side")


class UserPassword:
    """``user``, with ``password`` if the server requires one."""

    __slots__ = ("_password", "_user")

    def __init__(self, user: SecretSource, password: SecretSource | None = None) -> None:
        self._user = _Source("user", user)
        self._password = None if password is None else _Source("password", password)

    @hides_locals
    def connect_fields(self, nonce: str | None) -> dict[str, Any]:
        fields = {"user": self._user.get()}
        if self._password is not None:
            fields["pass"] = self._password.get()
        return fields

    def __repr__(self) -> str:
        return "UserPassword(***)"


class Token:
    """A bare token."""

    __slots__ = ("_token",)

    def __init__(self, token: SecretSource) -> None:
        self._token = _Source("token", token)

    @hides_locals
    def connect_fields(self, nonce: str | None) -> dict[str, Any]:
        return {"auth_token": self._token.get()}

    def __repr__(self) -> str:
        return "Token(***)"


class NKey:
    """An Ed25519 key: ``nkey`` is a user seed (``SU...``) or the path of a file that holds one.

    A file is read again at each connect.
    """

    __slots__ = ("_origin", "_seed")

    def __init__(self, nkey: PathOrSecret) -> None:
        self._seed, self._origin = _seed_reader(nkey)

    @hides_locals
    def connect_fields(self, nonce: str | None) -> dict[str, Any]:
        public, signature = _sign(self._seed(), _require_nonce(nonce, "nkey"), self._origin)
        return {"nkey": public, "sig": signature}

    def __repr__(self) -> str:
        return f"NKey({self._origin})"


class JWT:
    """A user JWT with the seed that signs the nonce; without a seed the JWT must be a bearer token."""

    __slots__ = ("_jwt", "_origin", "_seed")

    def __init__(self, jwt: SecretSource, nkey: PathOrSecret | None = None) -> None:
        self._jwt = _Source("jwt", jwt)
        self._seed: Callable[[], str] | None = None
        self._origin = ""
        if nkey is not None:
            self._seed, self._origin = _seed_reader(nkey)

    @hides_locals
    def connect_fields(self, nonce: str | None) -> dict[str, Any]:
        seed = None if self._seed is None else self._seed()
        return _jwt_fields(self._jwt.get().strip(), seed, nonce, "jwt", self._origin)

    def __repr__(self) -> str:
        return "JWT(***)"


class CredsFile:
    """A credentials file as ``nsc`` writes it: user JWT and seed. It is read again at each connect."""

    __slots__ = ("path",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.expanduser(os.fspath(path))

    @hides_locals
    def connect_fields(self, nonce: str | None) -> dict[str, Any]:
        origin = f"creds={show_path(self.path)}"
        return _creds_fields(_read_text(self.path, "creds"), nonce, origin)

    def __repr__(self) -> str:
        return f"CredsFile({show_path(self.path)})"


class CredsText:
    """The content of a credentials file, for credentials that are kept in a secret store."""

    __slots__ = ("_text",)

    def __init__(self, text: SecretText) -> None:
        self._text = text if isinstance(text, Secret) else Secret(text)

    @hides_locals
    def connect_fields(self, nonce: str | None) -> dict[str, Any]:
        return _creds_fields(self._text.reveal(), nonce, "creds")

    def __repr__(self) -> str:
        return "CredsText(***)"


class CallableAuth:
    """``auth=function``: full control over the fields."""

    __slots__ = ("_call",)

    def __init__(self, function: AuthCallable) -> None:
        # In a closure: the repr of a functools.partial would show the secrets bound to it.
        self._call: AuthCallable = lambda nonce: function(nonce)

    @hides_locals
    def connect_fields(self, nonce: str | None) -> dict[str, Any]:
        try:
            fields = self._call(nonce)
        except Exception as exc:
            raise AuthorizationError(f"the auth function raised {type(exc).__name__}") from exc
        if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
            _discard(fields)
            raise AuthorizationError(
                f"the auth function returned {type(fields).__name__}: it must return a dict of CONNECT "
                "fields (user, pass, auth_token, jwt, nkey, sig) and must not be async"
            )
        return dict(fields)

    def __repr__(self) -> str:
        return "CallableAuth(***)"


class Combined:
    """The fields of several authenticators, for servers whose auth callout checks more than one."""

    __slots__ = ("_parts",)

    def __init__(self, *parts: Authenticator) -> None:
        self._parts = parts

    @hides_locals
    def connect_fields(self, nonce: str | None) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for part in self._parts:
            fields.update(part.connect_fields(nonce))
        return fields

    def __repr__(self) -> str:
        return f"Combined({', '.join(map(repr, self._parts))})"


@hides_locals
def build_authenticator(
    *,
    user: SecretSource | None = None,
    password: SecretSource | None = None,
    token: SecretSource | None = None,
    nkey: PathOrSecret | None = None,
    jwt: SecretSource | None = None,
    creds: PathOrSecret | None = None,
    auth: Authenticator | AuthCallable | None = None,
) -> Authenticator | None:
    """Check the options of ``connect`` against each other and build the authenticator (``None`` without any).

    Allowed: ``user`` (+ ``password``); ``token``; ``nkey``; ``jwt`` (+ ``nkey``); ``creds``; ``auth``.
    ``creds`` or ``jwt`` may be joined by ``user``/``password`` or ``token``: an auth callout in operator
    mode needs both, the first to reach the account and the second to be checked.
    """
    options: dict[str, Any] = {
        "user": user,
        "password": password,
        "token": token,
        "nkey": nkey,
        "jwt": jwt,
        "creds": creds,
        "auth": auth,
    }
    given = [name for name, value in options.items() if value is not None]
    for name in given:
        _refuse_empty(name, options[name])
    if auth is not None:
        _refuse_together("auth", [name for name in given if name != "auth"])
        if isinstance(auth, Authenticator):
            return auth
        if not callable(auth):
            raise InvalidArgument("auth", f"<{type(auth).__name__}>", "must be a function (nonce) -> dict")
        return CallableAuth(auth)
    if password is not None and user is None:
        raise InvalidArgument("password", Secret(""), "needs user; a secret without a user is a token")
    if token is not None:
        _refuse_together("token", [name for name in ("user", "password", "nkey") if name in given])
    if creds is not None:
        _refuse_together("creds", [name for name in ("nkey", "jwt") if name in given])
    if nkey is not None and jwt is None:
        _refuse_together("nkey", [name for name in ("user", "password") if name in given])

    parts: list[Authenticator] = []
    if creds is not None:
        parts.append(_creds_authenticator(creds))
    elif jwt is not None:
        parts.append(JWT(jwt, nkey))
    elif nkey is not None:
        parts.append(NKey(nkey))
    if user is not None:
        parts.append(UserPassword(user, password))
    if token is not None:
        parts.append(Token(token))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else Combined(*parts)


@hides_locals
def jwt_expiry(jwt: SecretText) -> float | None:
    """When a JWT expires, in seconds since the epoch (compare with ``time.time()``); ``None`` if never."""
    return _expiry(_claims(jwt.reveal() if isinstance(jwt, Secret) else jwt, "jwt"))


def expiry_note(fields: Mapping[str, Any]) -> str:
    """A note for the error of a refused CONNECT whose JWT has expired by this clock, else empty."""
    try:
        expiry = jwt_expiry(fields["jwt"])
        if expiry is None or expiry > time.time():
            return ""
        when = datetime.fromtimestamp(expiry, UTC).isoformat(timespec="seconds")
    except Exception:  # not a JWT, or one that an auth function made in its own way
        return ""
    return f"the user JWT expired at {when} by this machine's clock: get new credentials"


# --- options -----------------------------------------------------------------------------------------


def _refuse_empty(name: str, value: Any) -> None:
    # An empty value usually comes from an unset environment variable. An empty password may be intended.
    text = value.reveal() if isinstance(value, Secret) else value
    if isinstance(text, str) and not text.strip() and name != "password":
        raise InvalidArgument(
            name,
            "",
            "is empty; leave the option out, or check where its value comes from",
        )


def _refuse_together(name: str, others: list[str]) -> None:
    if others:
        raise InvalidArgument(
            name,
            Secret(""),
            f"can't be combined with {', '.join(others)}: keep one way to authenticate "
            "(a function in auth= may return any fields)",
        )


def _creds_authenticator(creds: PathOrSecret) -> Authenticator:
    text = creds.reveal() if isinstance(creds, Secret) else creds
    if isinstance(text, str) and ("BEGIN" in text or "\n" in text.strip()):
        return CredsText(text)
    if isinstance(text, (str, os.PathLike)):
        return CredsFile(text)
    raise InvalidArgument(
        "creds",
        f"<{type(text).__name__}>",
        "must be a path or the content of a credentials file",
    )


def _call(option: str, function: Callable[[], SecretText]) -> str:
    try:
        value = function()
    except Exception as exc:
        raise AuthorizationError(f"the function given as {option} raised {type(exc).__name__}") from exc
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, str):
        return value
    _discard(value)
    raise AuthorizationError(
        f"the function given as {option} returned {type(value).__name__}: "
        "it must return a string and must not be async"
    )


def _discard(value: object) -> None:
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python warns that it was never awaited, far from the cause


# --- files -------------------------------------------------------------------------------------------


def show_path(path: str) -> str:
    """The path as messages show it; masked if it looks like a secret passed in place of a path."""
    suspicious = "eyJ" in path or _SEED_SHAPE.search(os.path.basename(path)) or not path.isprintable()
    return "'***'" if suspicious or len(path) > 1024 else repr(path)


def _read_text(path: str, option: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8-sig")
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
    except ValueError:  # not UTF-8, or a NUL in the path
        reason = "not a text file"
    raise AuthorizationError(
        f"{option}={show_path(path)} can't be read: {reason}; check the path and its permissions"
    )


def _blocks(text: str) -> dict[str, str]:
    """The ``-----BEGIN label-----`` blocks of a decorated file, whitespace removed from their bodies."""
    found: dict[str, str] = {}
    label, body = "", ""
    for line in text.splitlines():
        border = _BLOCK_BORDER.fullmatch(line.strip())
        if border is None:
            body += "".join(line.split())
        elif border[1] == "BEGIN":
            label, body = border[2].upper(), ""
        elif label:
            found.setdefault(label, body)
            label = ""
    return found


def _creds_fields(text: str, nonce: str | None, origin: str) -> dict[str, Any]:
    blocks = _blocks(text)
    jwt = next((body for label, body in blocks.items() if "JWT" in label), "")
    seed = next((body for label, body in blocks.items() if "SEED" in label), "")
    missing = [name for name, body in (("USER JWT", jwt), ("USER NKEY SEED", seed)) if not body]
    if missing:
        raise AuthorizationError(
            f"{origin} is no credentials file: it has no BEGIN ... {' and no BEGIN ... '.join(missing)} block"
            "; make one with `nsc generate creds`"
        )
    return _jwt_fields(jwt, seed, nonce, origin, origin)


def _seed_reader(nkey: PathOrSecret) -> tuple[Callable[[], str], str]:
    text = nkey.reveal() if isinstance(nkey, Secret) else nkey
    if isinstance(text, os.PathLike):
        text = os.fspath(text)
    elif not isinstance(text, str):
        raise InvalidArgument(
            "nkey",
            f"<{type(text).__name__}>",
            "must be a seed (SU...) or the path of a seed file",
        )
    elif _SEED_SHAPE.fullmatch(text.strip()) or "\n" in text.strip():
        seed = Secret(_find_seed(text, "nkey"))
        return seed.reveal, "nkey"
    path = os.path.expanduser(text)
    origin = f"nkey={show_path(path)}"
    return lambda: _find_seed(_read_text(path, "nkey"), origin), origin


def _find_seed(text: str, origin: str) -> str:
    """The seed in a bare or a decorated seed file."""
    for line in text.splitlines():
        if _SEED_SHAPE.fullmatch(line.strip()):
            return line.strip()
    raise AuthorizationError(f"{origin} holds no seed: a line that begins with SU was expected")


# --- keys and tokens ---------------------------------------------------------------------------------


def _require_nonce(nonce: str | None, what: str) -> str:
    if nonce:
        return nonce
    raise AuthorizationError(
        f"the server sent no nonce to sign, so it does not accept {what} authentication: check that this is "
        "the right server, or configure nkeys or an operator on it"
    )


def _sign(seed: str, nonce: str, origin: str) -> tuple[str, str]:
    """Public key and signature of the nonce, in the form that CONNECT needs (base64url without padding)."""
    import nkeys  # imported here: it loads libsodium, which most connections don't need

    _check_seed(seed, origin)
    raw = bytearray(seed.encode())
    pair = nkeys.from_seed(raw)
    try:
        public: str = pair.public_key.decode().rstrip("=")
        signature: bytes = pair.sign(nonce.encode())
    finally:
        pair.wipe()
        raw[:] = bytes(len(raw))
    return public, base64.urlsafe_b64encode(signature).rstrip(b"=").decode()


def _check_seed(seed: str, origin: str) -> None:
    # nkeys does not verify the checksum, so a mistyped seed would sign as another user.
    problem = ""
    if not seed.startswith("SU"):
        kind = {
            "SA": "an account",
            "SO": "an operator",
            "SN": "a server",
            "SC": "a cluster",
        }.get(seed[:2])
        problem = f"is the seed of {kind}, not of a user" if kind else "is no seed"
    elif len(seed) != _SEED_BYTES:
        problem = f"has {len(seed)} characters instead of {_SEED_BYTES}"
    else:
        try:
            decoded = base64.b32decode(seed + "=" * (-len(seed) % 8))
        except (binascii.Error, ValueError):
            problem = "holds characters outside base32 (A-Z, 2-7)"
        else:
            if binascii.crc_hqx(decoded[:-2], 0) != int.from_bytes(decoded[-2:], "little"):
                problem = "has a wrong checksum"
    if problem:
        raise AuthorizationError(f"the seed in {origin} {problem}: copy the user's seed (SU...) again")


def _jwt_fields(
    jwt: str, seed: str | None, nonce: str | None, origin: str, seed_origin: str
) -> dict[str, Any]:
    claims = _claims(jwt, origin)
    if seed is None:
        nats = claims.get("nats")
        if not isinstance(nats, dict) or nats.get("bearer_token") is not True:
            raise AuthorizationError(
                f"the user JWT in {origin} is no bearer token, so the server wants a signature: add nkey, "
                "the user's seed (SU...), or use creds"
            )
        return {"jwt": jwt}
    public, signature = _sign(seed, _require_nonce(nonce, "JWT"), seed_origin)
    if claims.get("sub") != public:
        raise AuthorizationError(
            f"the seed in {seed_origin} does not belong to the user JWT in {origin}: "
            "both must belong to the same user"
        )
    return {"jwt": jwt, "sig": signature}


def _claims(jwt: str, origin: str) -> dict[str, Any]:
    parts = jwt.strip().split(".")
    if len(parts) == 3:
        try:
            claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        except (
            ValueError,
            RecursionError,
        ):  # bad base64, UTF-8 or JSON; the exception holds the content
            claims = None
        if isinstance(claims, dict):
            return claims
    raise AuthorizationError(
        f"{origin} holds no well-formed JWT: three base64url parts joined by dots were expected"
    )


def _expiry(claims: dict[str, Any]) -> float | None:
    expiry = claims.get("exp")
    # NATS writes 0, or nothing, for a JWT that does not expire.
    return float(expiry) if isinstance(expiry, (int, float)) and expiry > 0 else None
