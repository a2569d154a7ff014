"""``connect(context=...)`` with the files that the nats command line writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import jetspark
from jetspark.errors import AuthorizationError, InvalidArgument, TLSError
from jetspark.server import Server, ServerTLS
from support.helpers import unique

if TYPE_CHECKING:
    from pathlib import Path
from support.jwt_mint import Operator
from support.pki import PKI

# Everything that `nats context save` writes, most of it empty.
EMPTY = {
    "description": "",
    "url": "nats://127.0.0.1:4222",
    "socks_proxy": "",
    "token": "",
    "user": "",
    "password": "",
    "creds": "",
    "nkey": "",
    "cert": "",
    "key": "",
    "ca": "",
    "nsc": "",
    "jetstream_domain": "",
    "jetstream_api_prefix": "",
    "jetstream_event_prefix": "",
    "inbox_prefix": "",
    "user_jwt": "",
    "color_scheme": "",
    "tls_first": False,
}


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that writes a context and returns its name."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)

    def write(**settings: Any) -> str:
        name = unique("context")
        (folder / f"{name}.json").write_text(json.dumps({**EMPTY, **settings}))
        return name

    return write


async def works(context: str, **options: Any) -> bool:
    async with jetspark.connect(context=context, **options) as nc:
        subject = unique("hello")
        sub = await nc.subscribe(subject)
        await nc.publish(subject, b"x")
        return (await sub.next()).data == b"x"


async def test_url_alone(save: Any, server: Server) -> None:
    assert await works(save(url=server.url))


async def test_several_urls(save: Any, server: Server, unused_tcp_port: int) -> None:
    assert await works(save(url=f"nats://127.0.0.1:{unused_tcp_port},{server.url}"))


async def test_user_and_password(save: Any) -> None:
    with Server(jetstream=False, user="u", password="p") as server:
        assert await works(save(url=server.url, user="u", password="p"))
        with pytest.raises(AuthorizationError):
            await works(save(url=server.url, user="u", password="wrong"))


async def test_token(save: Any) -> None:
    with Server(jetstream=False, token="t") as server:
        assert await works(save(url=server.url, token="t"))
        # An option beats the context.
        assert await works(save(url=server.url, token="wrong"), token="t")
        with pytest.raises(AuthorizationError):
            await works(save(url=server.url, token="wrong"))


async def test_creds_and_tls(save: Any, tmp_path: Path) -> None:
    pki = PKI(tmp_path / "pki")
    operator = Operator()
    user = operator.account("A", jetstream=False).user("u")
    (tmp_path / "u.creds").write_text(user.creds())
    tls = ServerTLS(cert=pki.server.cert, key=pki.server.key, ca=pki.ca, verify=True)
    settings = {
        "creds": str(tmp_path / "u.creds"),
        "ca": str(pki.ca),
        "cert": str(pki.client.cert),
        "key": str(pki.client.key),
    }
    with Server(jetstream=False, tls=tls, config=operator.resolver_config()) as server:
        plain_url = server.url.replace("tls://", "nats://")
        assert await works(save(url=plain_url, **settings))
        with pytest.raises(TLSError, match="not trusted"):
            await works(save(url=plain_url, creds=settings["creds"]))
        with pytest.raises(AuthorizationError, match="can't be read"):
            await works(save(url=plain_url, **{**settings, "creds": "/nowhere/u.creds"}))


async def test_tls_first(save: Any, tmp_path: Path) -> None:
    pki = PKI(tmp_path / "pki")
    tls = ServerTLS(cert=pki.server.cert, key=pki.server.key, handshake_first=True)
    with Server(jetstream=False, tls=tls) as server:
        assert await works(save(url=server.url, ca=str(pki.ca), tls_first=True))


async def test_user_jwt_and_seed(save: Any) -> None:
    operator = Operator()
    user = operator.account("A", jetstream=False).user("u")
    with Server(jetstream=False, config=operator.resolver_config()) as server:
        assert await works(save(url=server.url, user_jwt=user.jwt, user_seed=user.seed))


async def test_nkey_file(save: Any, tmp_path: Path) -> None:
    import nkeys

    from support.jwt_mint import Key

    key = Key(nkeys.PREFIX_BYTE_USER)
    (tmp_path / "u.nk").write_text(key.seed)
    with Server(jetstream=False, config=f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}") as server:
        assert await works(save(url=server.url, nkey=str(tmp_path / "u.nk")))


async def test_inbox_prefix(save: Any, server: Server) -> None:
    async with jetspark.connect(context=save(url=server.url, inbox_prefix="_MINE.x")) as nc:
        assert nc.new_inbox().startswith("_MINE.x.")


def test_unknown_context_names_those_that_exist(save: Any) -> None:
    known = save()
    with pytest.raises(InvalidArgument, match=f"no such context; known: {known}"):
        jetspark.connect(context="nope")
