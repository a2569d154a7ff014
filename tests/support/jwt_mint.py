"""Mints operators, accounts and users for tests of decentralised authentication.

A NATS JWT (version 2) is signed with the Ed25519 nkey of its issuer: an operator signs itself and its
accounts, an account signs its users. The server gets the operator and, in its memory resolver, the
accounts; it never sees a user before the user connects.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from typing import Any

import nkeys

_NO_LIMITS = {"subs": -1, "data": -1, "payload": -1}
_ACCOUNT_LIMITS = {"imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
_JETSTREAM_LIMITS = {
    "mem_storage": -1,
    "disk_storage": -1,
    "streams": -1,
    "consumer": -1,
    "max_ack_pending": -1,
    "mem_max_stream_bytes": -1,
    "disk_max_stream_bytes": -1,
}


class Key:
    """An nkey of the given kind (one of the ``nkeys.PREFIX_BYTE_*``)."""

    def __init__(self, kind: int) -> None:
        self.seed: str = nkeys.encode_seed(os.urandom(32), kind).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.public: str = self._pair.public_key.decode().rstrip("=")

    def sign(self, data: bytes) -> bytes:
        signature: bytes = self._pair.sign(data)
        return signature


class User:
    """A user of an account: its key, its JWT and the credentials file that holds both."""

    def __init__(self, name: str, key: Key, jwt: str) -> None:
        self.name = name
        self.seed = key.seed
        self.public = key.public
        self.jwt = jwt

    def creds(self) -> str:
        """Text of a credentials file."""
        return (
            f"-----BEGIN NATS USER JWT-----\n{self.jwt}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            "A seed is as secret as a password.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{self.seed}\n------END USER NKEY SEED------\n"
        )


def corrupt(seed: str) -> str:
    """The seed with a wrong checksum. Not by its last letter, of whose five bits two count for nothing."""
    return seed[:20] + ("A" if seed[20] != "A" else "B") + seed[21:]


class Account:
    """An account; JetStream without limits unless it is the system account or has ``tiers`` of limits."""

    def __init__(
        self,
        operator: Operator,
        name: str,
        *,
        jetstream: bool = True,
        tiers: dict[str, dict[str, int]] | None = None,
    ) -> None:
        self.name = name
        self._key = Key(nkeys.PREFIX_BYTE_ACCOUNT)
        self.public = self._key.public
        limits: dict[str, Any] = {**_NO_LIMITS, **_ACCOUNT_LIMITS, **(_JETSTREAM_LIMITS if jetstream else {})}
        if tiers is not None:
            limits = {**_NO_LIMITS, **_ACCOUNT_LIMITS}
            limits["tiered_limits"] = {tier: {**_JETSTREAM_LIMITS, **own} for tier, own in tiers.items()}
        self._operator = operator
        self._claims = {"limits": limits, "default_permissions": {"pub": {}, "sub": {}}, "type": "account"}
        self._revoked: dict[str, int] = {}
        self.jwt = _mint(operator.key, self.public, name, self._claims)

    def revoke(self, user: User) -> None:
        """Whatever was issued to the user until now is void, once the server has this account's new JWT."""
        self._revoked[user.public] = int(time.time())
        claims = {**self._claims, "revocations": self._revoked}
        self.jwt = _mint(self._operator.key, self.public, self.name, claims)

    def user(
        self,
        name: str,
        *,
        expires_in: float | None = None,
        publish: list[str] | None = None,
        subscribe: list[str] | None = None,
        deny_publish: list[str] | None = None,
        deny_subscribe: list[str] | None = None,
        bearer: bool = False,
        key: Key | None = None,
    ) -> User:
        """Mint a user. ``expires_in`` seconds may be negative; ``publish``/``subscribe`` are allow lists.

        Pass the ``key`` of an earlier user to mint a renewed JWT for the same identity.
        """
        key = key or Key(nkeys.PREFIX_BYTE_USER)
        claims: dict[str, Any] = {
            **_NO_LIMITS,
            "pub": _permission(publish, deny_publish),
            "sub": _permission(subscribe, deny_subscribe),
            "type": "user",
        }
        if bearer:
            claims["bearer_token"] = True
        return User(name, key, _mint(self._key, key.public, name, claims, expires_in))


class Operator:
    """The root of trust, with the system account ``SYS`` that every server needs."""

    def __init__(self, name: str = "TEST") -> None:
        self.key = Key(nkeys.PREFIX_BYTE_OPERATOR)
        self.system_account = Account(self, "SYS", jetstream=False)
        self.accounts = [self.system_account]
        claims = {"type": "operator", "system_account": self.system_account.public}
        self.jwt = _mint(self.key, self.key.public, name, claims)

    def account(
        self, name: str, *, jetstream: bool = True, tiers: dict[str, dict[str, int]] | None = None
    ) -> Account:
        account = Account(self, name, jetstream=jetstream, tiers=tiers)
        self.accounts.append(account)
        return account

    def resolver_config(self) -> str:
        """The part of a nats-server configuration that makes it trust this operator and its accounts."""
        preload = "\n".join(f"  {account.public}: {account.jwt}" for account in self.accounts)
        return (
            f"operator: {self.jwt}\n"
            f"system_account: {self.system_account.public}\n"
            "resolver: MEMORY\n"
            f"resolver_preload: {{\n{preload}\n}}\n"
        )


class Callout:
    """Decides over users in the server's name (ADR-26): the issuer of an ``auth_callout``."""

    def __init__(self) -> None:
        self._key = Key(nkeys.PREFIX_BYTE_ACCOUNT)
        self.issuer = self._key.public

    def answer(
        self, request: bytes, account: str | None, *, expires_in: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """What the client sent in CONNECT, and the answer that puts it into the account, or refuses it."""
        part = request.split(b".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))["nats"]
        verdict: dict[str, Any] = {"type": "authorization_response"}
        if account is None:
            verdict["error"] = "unknown user"
        else:
            user = {**_NO_LIMITS, "pub": {}, "sub": {}, "type": "user"}
            verdict["jwt"] = _mint(self._key, claims["user_nkey"], "u", user, expires_in, audience=account)
        server = claims["server_id"]["id"]
        token = _mint(self._key, claims["user_nkey"], "", verdict, audience=server)
        return claims["connect_opts"], token.encode()


def _permission(allow: list[str] | None, deny: list[str] | None) -> dict[str, list[str]]:
    return {name: subjects for name, subjects in (("allow", allow), ("deny", deny)) if subjects}


def _mint(
    issuer: Key,
    subject: str,
    name: str,
    nats: dict[str, Any],
    expires_in: float | None = None,
    audience: str | None = None,
) -> str:
    now = int(time.time())
    claims: dict[str, Any] = {"iat": now, "iss": issuer.public, "name": name, "sub": subject}
    if expires_in is not None:
        claims["exp"] = int(now + expires_in)
    if audience is not None:
        claims["aud"] = audience
    claims["nats"] = {**nats, "version": 2}
    digest = hashlib.sha256(json.dumps(claims).encode()).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    signed = f"{_part(json.dumps(head).encode())}.{_part(json.dumps(claims).encode())}"
    return f"{signed}.{_part(issuer.sign(signed.encode()))}"


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
