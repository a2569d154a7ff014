"""Contexts, credentials, precedence; and that no secret is ever shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import nkeys
import pytest

from jetspark.server import ServerTLS
from support.cli_runner import environment, inside
from support.jwt_mint import Key, Operator
from support.pki import PKI

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Run
    from jetspark.server import Server

SECRET = "s3cr3t-Pa55word"


@pytest.fixture
def guarded(start_server: Any) -> Server:
    server: Server = start_server(user="joe", password=SECRET)
    return server


def write_context(home: Path, name: str, **settings: str) -> None:
    folder = home / "config" / "nats" / "context"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(settings))


def test_ls_show_and_select(tmp_path: Path) -> None:
    env = environment(tmp_path)
    assert inside(env, "context", "ls", "--json").json == []
    assert "no contexts" in inside(env, "ctx", "ls").err
    write_context(tmp_path, "one", url=f"nats://joe:{SECRET}@host1:4222", description="first")
    write_context(tmp_path, "two", url="nats://host2", user="joe", password=SECRET, user_seed=SECRET)
    write_context(tmp_path, "hurt", url="nonsense://")
    shown = inside(env, "context", "ls", "--json")
    assert [one["name"] for one in shown.json] == ["hurt", "one", "two"]
    assert shown.json[0]["error"] != ""
    assert shown.json[1]["url"] == "nats://host1:4222"
    assert not any(one["selected"] for one in shown.json)
    assert inside(env, "context", "select", "two").out == "selected context two\n"
    table = inside(env, "context", "ls").out
    assert "two*" in table
    found = inside(env, "context", "show", "--json")
    assert found.json["name"] == "two"
    assert (found.json["user"], found.json["password"], found.json["user_seed"]) == ("joe", "***", "***")
    text = inside(env, "context", "show", "one").out
    assert "Url: nats://host1:4222" in text
    for ran in (shown, found):
        assert SECRET not in ran.out + ran.err
    assert SECRET not in table + text
    assert inside(env, "context", "select", "one", "--json").json == {"name": "one", "selected": True}


def test_a_secret_in_the_place_of_a_path_or_a_name_is_not_shown(tmp_path: Path) -> None:
    env = environment(tmp_path)
    user = Operator().account("A").user("u")
    write_context(tmp_path, "seed", url="nats://host", nkey=user.seed)
    write_context(tmp_path, "creds", url="nats://host", creds=user.creds())
    write_context(tmp_path, "token", url="nats://host", user=SECRET)  # without a password it is a token
    write_context(tmp_path, "paths", url="nats://host", nkey="/keys/joe.nk", creds="/keys/joe's.creds")
    for name, field in (("seed", "nkey"), ("creds", "creds"), ("token", "user")):
        shown = inside(env, "context", "show", name, "--json")
        assert shown.json[field] == "***"
        said = shown.out + inside(env, "context", "show", name).out
        assert not [secret for secret in (user.seed, user.jwt, SECRET) if secret in said]
    paths = inside(env, "context", "show", "paths", "--json").json
    assert (paths["nkey"], paths["creds"]) == ("/keys/joe.nk", "/keys/joe's.creds")


def test_credentials_from_each_place(tmp_path: Path, guarded: Server) -> None:
    url = guarded.url
    base = environment(tmp_path)
    joe = ("--user", "joe", "--password", SECRET)

    def reached(env: dict[str, str], *args: str) -> bool:
        ran = inside(env, "rtt", "1", *args)
        assert SECRET not in ran.out + ran.err
        return ran.code == 0

    assert reached(base, "--server", url, *joe)
    assert reached({**base, "NATS_URL": url, "NATS_USER": "joe", "NATS_PASSWORD": SECRET})
    assert reached(base, "-s", url.replace("//", f"//joe:{SECRET}@"))
    assert not reached(base, "--server", url)
    # A flag goes before a variable.
    wrong = {**base, "NATS_URL": "nats://127.0.0.1:1", "NATS_USER": "joe", "NATS_PASSWORD": "wrong"}
    assert reached(wrong, "--server", url, *joe)
    assert not reached(wrong, "--server", url)
    # A context fills in what neither says.
    write_context(tmp_path, "dev", url="nats://127.0.0.1:1", user="joe", password=SECRET)
    assert not reached(base, "--context", "dev")
    assert reached(base, "--context", "dev", "--server", url)
    assert reached({**base, "NATS_CONTEXT": "dev", "NATS_URL": url})
    inside(base, "context", "select", "dev")
    assert reached(base, "--server", url)
    assert not reached(base, "--server", url, "--no-context")


def test_refused_credentials_are_told_with_the_remedy(tmp_path: Path, guarded: Server) -> None:
    ran = inside(environment(tmp_path, NATS_URL=guarded.url), "rtt", "--user", "joe", "--password", "wrong!")
    assert ran.code == 1
    assert "give --user and --password" in ran.err
    assert "wrong!" not in ran.err
    env = environment(tmp_path, NATS_URL=guarded.url)
    debug = inside(env, "rtt", "--user", "joe", "--password", SECRET + "x", "--debug")
    assert "Traceback" in debug.err
    assert SECRET not in debug.err


def test_a_user_without_a_password_is_a_token(tmp_path: Path, start_server: Any) -> None:
    server: Server = start_server(token=SECRET)
    env = environment(tmp_path, NATS_URL=server.url)
    assert inside(env, "rtt", "1", "--user", SECRET).code == 0
    assert inside(env, "rtt", "1", "--token", SECRET).code == 0
    assert inside({**env, "NATS_TOKEN": SECRET}, "rtt", "1").code == 0
    assert inside(env, "rtt", "1").code == 1


def test_a_server_without_jetstream_is_told(tmp_path: Path, start_server: Any) -> None:
    env = environment(tmp_path, NATS_URL=start_server(jetstream=False).url)
    ran = inside(env, "stream", "ls")
    assert ran.code == 1
    assert "JetStream" in ran.err
    assert inside(env, "account", "info", "--json").json["jetstream"] is None
    assert "Enabled: no" in inside(env, "account", "info").out


def test_account_and_rtt(cli: Run, server: Server) -> None:
    found = cli("account", "info", "--json").json
    assert found["connection"]["server"] == server.url
    assert found["jetstream"]["limits"]["max_streams"] == -1
    text = cli("acct", "info").out
    assert "Storage: " in text
    assert " of unlimited" in text
    times = cli("rtt", "3", "--json").json
    assert times["count"] == 3
    assert 0 < times["min_seconds"] <= times["mean_seconds"] <= times["max_seconds"]
    assert cli("rtt", "3").out.startswith(f"{server.url}: ")


def test_a_domain_that_is_not_there(cli: Run) -> None:
    ran = cli("stream", "ls", "--js-domain", "nowhere", "--timeout", "1s")
    assert ran.code == 1
    assert len(ran.err.splitlines()) <= 2


def test_tls_and_nkeys(tmp_path: Path, start_server: Any) -> None:
    pki = PKI(tmp_path / "pki")
    key = Key(nkeys.PREFIX_BYTE_USER)
    seed = tmp_path / "user.nk"
    seed.write_text(key.seed)
    server: Server = start_server(
        tls=ServerTLS(cert=pki.server.cert, key=pki.server.key, ca=pki.ca, verify=True),
        config=f"authorization {{ users: [{{ nkey: {key.public} }}] }}",
    )
    env = environment(tmp_path, NATS_URL=server.url)
    flags = {
        "--tlsca": str(pki.ca),
        "--tlscert": str(pki.client.cert),
        "--tlskey": str(pki.client.key),
        "--nkey": str(seed),
    }
    everything = [word for pair in flags.items() for word in pair]
    assert inside(env, "rtt", "1", *everything).code == 0
    variables = dict(zip(("NATS_CA", "NATS_CERT", "NATS_KEY", "NATS_NKEY"), flags.values(), strict=True))
    assert inside({**env, **variables}, "rtt", "1").code == 0
    untrusted = inside(env, "rtt", "1", *everything[2:])
    assert untrusted.code == 1
    assert "give the authority with --tlsca" in untrusted.err
    stranger = inside(env, "rtt", "1", *everything[:-2])
    assert stranger.code == 1
    assert key.seed not in stranger.err
