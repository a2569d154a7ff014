"""Contexts of the ``nats`` command line (ADR-21): named sets of connection settings in JSON files.

They are in ``$XDG_CONFIG_HOME/nats/context/<name>.json`` (``~/.config`` if the variable is unset);
``nats/context.txt`` beside that folder names the selected one. We read them and never write them: managing
contexts is the job of the command line.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from jetspark._secret import Secret, hides_locals
from jetspark.connection.urls import parse_servers
from jetspark.errors import InvalidArgument

DEFAULT_URL = "nats://127.0.0.1:4222"

_STRINGS = (
    "description",
    "url",
    "user",
    "password",
    "token",
    "creds",
    "nkey",
    "user_jwt",
    "user_seed",
    "cert",
    "key",
    "ca",
    "inbox_prefix",
    "jetstream_domain",
    "jetstream_api_prefix",
    "nsc",
    "socks_proxy",
    "windows_cert_store",
)
_PATHS = ("creds", "nkey", "cert", "key", "ca")
_UNSUPPORTED = {
    "socks_proxy": "SOCKS proxies are not supported: connect directly, or through a local forwarder",
    "windows_cert_store": "the Windows certificate store is not supported: use PEM files in cert, key, ca",
}
_CREDENTIAL_STORES = ("op://", "nsc://", "env://", "file://")


@dataclass(frozen=True, slots=True)
class NatsContext:
    """The settings of a context file. Fields that the file leaves out are empty or ``None``."""

    name: str
    path: str
    """The file it was read from."""
    description: str = ""
    url: Secret = field(default_factory=lambda: Secret(DEFAULT_URL))
    """Comma-separated server urls; a secret because they may contain user and password."""
    user: Secret | None = None
    password: Secret | None = None
    token: Secret | None = None
    creds: str | None = None
    """Path of a credentials file, ``~`` and variables expanded; the same for nkey, cert, key and ca."""
    nkey: str | None = None
    user_jwt: Secret | None = None
    user_seed: Secret | None = None
    cert: str | None = None
    key: str | None = None
    ca: str | None = None
    tls_first: bool = False
    inbox_prefix: str | None = None
    jetstream_domain: str | None = None
    jetstream_api_prefix: str | None = None

    def connect_options(self) -> dict[str, Any]:
        """Keyword arguments for ``connect``; only those that the context sets, except ``servers``.

        Secrets stay wrapped, so the dict may be printed.
        If a file contains several ways to authenticate, the first of user, creds, nkey and user_jwt is used,
        as the command line does.
        """
        options: dict[str, Any] = {"servers": self.url}
        if self.user is not None:
            options["user"], options["password"] = self.user, self.password
        elif self.creds is not None:
            options["creds"] = self.creds
        elif self.nkey is not None:
            options["nkey"] = self.nkey
        elif self.user_jwt is not None:
            options["jwt"], options["nkey"] = self.user_jwt, self.user_seed
        if self.user is None and (self.nkey is None or self.creds is not None):
            options["token"] = self.token
        options["tls_cert"], options["tls_key"], options["tls_ca"] = (
            self.cert,
            self.key,
            self.ca,
        )
        options["tls_handshake_first"] = self.tls_first or None
        options["inbox_prefix"] = self.inbox_prefix
        return {name: value for name, value in options.items() if value is not None}

    def jetstream_options(self) -> dict[str, Any]:
        """Keyword arguments for ``nc.jetstream``: ``domain`` and ``api_prefix`` where set."""
        options = {
            "domain": self.jetstream_domain,
            "api_prefix": self.jetstream_api_prefix,
        }
        return {name: value for name, value in options.items() if value is not None}


@hides_locals
def load_context(name: str | None = None) -> NatsContext:
    """Read the context ``name``, or the selected one when ``name`` is ``None``."""
    if name is None:
        name = selected_context()
        if name is None:
            raise InvalidArgument(
                "context",
                None,
                f"no context is selected: name one, or run `nats context select`; {_known_text()}",
            )
    _check_name(name)
    path = os.path.join(_directory(), "context", f"{name}.json")
    return _from_settings(name, path, _read_settings(name, path))


def known_contexts() -> list[str]:
    """Names of the contexts on this machine, sorted."""
    try:
        files = os.listdir(os.path.join(_directory(), "context"))
    except OSError:
        return []
    return sorted(file.removesuffix(".json") for file in files if file.endswith(".json"))


def selected_context() -> str | None:
    """Name of the context that ``nats context select`` chose, ``None`` when there is none."""
    try:
        with open(os.path.join(_directory(), "context.txt"), encoding="utf-8") as file:
            return file.read().strip() or None
    except (OSError, ValueError):
        return None


def _directory() -> str:
    parent = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(parent, "nats")


def _known_text() -> str:
    known = known_contexts()
    return (
        f"known: {', '.join(known)}"
        if known
        else f"there are none in {os.path.join(_directory(), 'context')}"
    )


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise InvalidArgument("context", f"<{type(name).__name__}>", "must be the name of a context")
    if not name or ".." in name or not name.isprintable() or any(char in name for char in "/\\"):
        raise InvalidArgument(
            "context",
            name,
            "a context name is a file name: no slashes, no '..', not empty",
        )


def _read_settings(name: str, path: str) -> dict[str, Any]:
    rule = ""
    settings: Any = None
    try:
        with open(path, "rb") as file:
            settings = json.loads(file.read().decode("utf-8-sig"))
    except FileNotFoundError:
        rule = f"no such context; {_known_text()}"
    except OSError as exc:
        rule = f"{path} can't be read: {exc.strerror or type(exc).__name__}"
    except json.JSONDecodeError as exc:
        rule = f"{path} is not valid JSON at line {exc.lineno}, column {exc.colno}"
    except ValueError:
        rule = f"{path} is not UTF-8 text"
    # Raised outside the except block: a decoding error holds the whole file and must not stay in __context__.
    if rule:
        raise InvalidArgument("context", name, rule)
    if not isinstance(settings, dict):
        raise InvalidArgument("context", name, f"{path} must hold a JSON object")
    return settings


def _from_settings(name: str, path: str, settings: dict[str, Any]) -> NatsContext:
    texts: dict[str, str] = {}
    for key in _STRINGS:
        value = settings.get(key)
        if value is not None and not isinstance(value, str):
            raise InvalidArgument(
                "context",
                name,
                f"{key} in {path} must be a string, not {type(value).__name__}",
            )
        if value:  # the command line writes every field, the unset ones empty
            texts[key] = value
    tls_first = settings.get("tls_first") or False
    if not isinstance(tls_first, bool):
        raise InvalidArgument("context", name, f"tls_first in {path} must be true or false")
    _refuse_unsupported(name, path, texts)

    url = texts.get("url", DEFAULT_URL)
    try:
        parse_servers(url)
    except InvalidArgument as exc:
        raise InvalidArgument("context", name, f"url in {path}: {exc}") from None
    if "password" in texts and "user" not in texts:
        raise InvalidArgument("context", name, f"{path} has a password but no user")

    def secret(key: str) -> Secret | None:
        return Secret(texts[key]) if key in texts else None

    files = {key: _expand(texts[key]) if key in texts else None for key in _PATHS}
    return NatsContext(
        name=name,
        path=path,
        description=texts.get("description", ""),
        url=Secret(url),
        user=secret("user"),
        password=secret("password"),
        token=secret("token"),
        user_jwt=secret("user_jwt"),
        user_seed=secret("user_seed"),
        tls_first=tls_first,
        inbox_prefix=texts.get("inbox_prefix"),
        jetstream_domain=texts.get("jetstream_domain"),
        jetstream_api_prefix=texts.get("jetstream_api_prefix"),
        **files,
    )


def _refuse_unsupported(name: str, path: str, texts: dict[str, str]) -> None:
    for key, rule in _UNSUPPORTED.items():
        if key in texts:
            raise InvalidArgument("context", name, f"{key} in {path}: {rule}")
    if "nsc" in texts and not ("creds" in texts and "url" in texts):
        raise InvalidArgument(
            "context",
            name,
            f"nsc in {path}: look-ups through nsc are not supported; set url and creds instead",
        )
    for key in (*_PATHS, "password", "token", "user_jwt", "user_seed"):
        if texts.get(key, "").startswith(_CREDENTIAL_STORES):
            scheme = texts[key].partition("://")[0]
            raise InvalidArgument(
                "context",
                name,
                f"{key} in {path}: {scheme}:// look-ups are not supported; write the value or path",
            )


def _expand(path: str) -> str:
    return os.path.expanduser(os.path.expandvars(path))
