from __future__ import annotations

import base64
import functools
import gc
import json
import pickle
import traceback
from typing import TYPE_CHECKING, Any

import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetspark import Authenticator, Secret
from jetspark.connection.auth import (
    JWT,
    CallableAuth,
    Combined,
    CredsFile,
    CredsText,
    NKey,
    Token,
    UserPassword,
    build_authenticator,
    expiry_note,
    jwt_expiry,
)
from jetspark.errors import AuthorizationError, InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path
from support.jwt_mint import Key, Operator, corrupt

NONCE = "fY8k0qkJcQ5xJ7E"
CANARY = "c4n4ryS3cret"
ACCOUNT = Operator().account("APP")
USER = ACCOUNT.user("bob")
OTHER = ACCOUNT.user("eve")
EXPIRED = ACCOUNT.user("late", expires_in=-60)
BEARER = ACCOUNT.user("bearer", bearer=True)


def fields(auth: Authenticator | None, nonce: str | None = NONCE) -> dict[str, Any]:
    assert auth is not None
    return auth.connect_fields(nonce)


def assert_signed(sig: str, seed: str) -> None:
    assert "=" not in sig
    raw = base64.urlsafe_b64decode(sig + "=" * (-len(sig) % 4))
    assert nkeys.from_seed(bytearray(seed.encode())).verify(NONCE.encode(), raw)


# --- what each option sends ---


def test_no_options_mean_no_authenticator() -> None:
    assert build_authenticator() is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"user": "u", "password": "p"}, {"user": "u", "pass": "p"}),
        ({"user": Secret("u"), "password": Secret("p")}, {"user": "u", "pass": "p"}),
        ({"user": "u"}, {"user": "u"}),
        ({"user": "u", "password": ""}, {"user": "u", "pass": ""}),
        ({"token": "t"}, {"auth_token": "t"}),
        ({"token": lambda: "t"}, {"auth_token": "t"}),
        ({"user": lambda: "u", "password": lambda: Secret("p")}, {"user": "u", "pass": "p"}),
        ({"jwt": BEARER.jwt}, {"jwt": BEARER.jwt}),
        ({"auth": lambda nonce: {"sig": nonce}}, {"sig": NONCE}),
        ({"auth": Token("t")}, {"auth_token": "t"}),
        ({"jwt": BEARER.jwt, "token": "t"}, {"jwt": BEARER.jwt, "auth_token": "t"}),
        ({"jwt": BEARER.jwt, "user": "u", "password": "p"}, {"jwt": BEARER.jwt, "user": "u", "pass": "p"}),
    ],
)
def test_fields(options: dict[str, Any], expected: dict[str, str]) -> None:
    assert fields(build_authenticator(**options)) == expected


@pytest.mark.parametrize("wrap", [str, Secret, lambda seed: f" {seed}\n"])
def test_nkey_seed_signs_the_nonce(wrap: Any) -> None:
    sent = fields(build_authenticator(nkey=wrap(USER.seed)))
    assert sent.keys() == {"nkey", "sig"}
    assert sent["nkey"] == USER.public
    assert_signed(sent["sig"], USER.seed)


@pytest.mark.parametrize(
    "content",
    [
        "{seed}",
        "{seed}\r\n",
        "# the seed\n\n  {seed}  \n",
        "-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n",
        "\ufeff{seed}",
    ],
)
def test_nkey_file(content: str, tmp_path: Path) -> None:
    path = tmp_path / "bob.nk"
    path.write_text(content.format(seed=USER.seed), encoding="utf-8")
    for value in (path, str(path)):
        assert fields(build_authenticator(nkey=value))["nkey"] == USER.public


def test_jwt_with_seed() -> None:
    for jwt in (USER.jwt, Secret(USER.jwt), lambda: f"{USER.jwt}\n"):
        sent = fields(build_authenticator(jwt=jwt, nkey=USER.seed))
        assert sent.keys() == {"jwt", "sig"}
        assert sent["jwt"] == USER.jwt
        assert_signed(sent["sig"], USER.seed)


CREDS_SHAPES = [
    USER.creds(),
    USER.creds().replace("\n", "\r\n"),
    USER.creds().replace("------END", "-----END").replace("E------", "E---"),
    USER.creds().replace("-----BEGIN", "---BEGIN").rstrip(),
    "\ufeff\n\n" + USER.creds().replace("\n", "  \n"),
    f"--BEGIN USER NKEY SEED--\n{USER.seed}\n--END USER NKEY SEED--\n"
    f"--BEGIN NATS USER JWT--\n{USER.jwt[:40]}\n{USER.jwt[40:]}\n--END NATS USER JWT--",
]


# The ids are numbers because the texts are new in each process, and parallel runs compare ids.
@pytest.mark.parametrize("text", CREDS_SHAPES, ids=range(len(CREDS_SHAPES)))
def test_creds_in_every_shape(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bob.creds"
    path.write_bytes(text.encode())
    for value in (path, str(path), Secret(str(path)), text, Secret(text)):
        sent = fields(build_authenticator(creds=value))
        assert sent["jwt"] == USER.jwt
        assert_signed(sent["sig"], USER.seed)


def test_creds_path_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "bob.creds").write_text(USER.creds())
    assert fields(build_authenticator(creds="~/bob.creds"))["jwt"] == USER.jwt


def test_creds_with_a_token_for_an_auth_callout() -> None:
    sent = fields(build_authenticator(creds=USER.creds(), token="t"))
    assert sent.keys() == {"jwt", "sig", "auth_token"}


def test_rotated_secrets_are_used_at_the_next_connect(tmp_path: Path) -> None:
    path = tmp_path / "x.creds"
    seed_file = tmp_path / "x.nk"
    tokens = iter(["one", "two"])
    auths = [
        build_authenticator(creds=path),
        build_authenticator(nkey=seed_file),
        build_authenticator(token=lambda: next(tokens)),
    ]
    seen = []
    for user in (USER, OTHER):
        path.write_text(user.creds())
        seed_file.write_text(user.seed)
        seen.append([fields(auth) for auth in auths])
    assert [sent[0]["jwt"] for sent in seen] == [USER.jwt, OTHER.jwt]
    assert [sent[1]["nkey"] for sent in seen] == [USER.public, OTHER.public]
    assert [sent[2]["auth_token"] for sent in seen] == ["one", "two"]


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"password": CANARY}, ["password", "user"]),
        ({"user": "u", "token": CANARY}, ["token", "user"]),
        ({"token": CANARY, "nkey": USER.seed}, ["token", "nkey"]),
        ({"user": CANARY, "password": CANARY, "nkey": USER.seed}, ["nkey", "user", "password"]),
        ({"creds": "f.creds", "nkey": USER.seed}, ["creds", "nkey"]),
        ({"creds": USER.creds(), "jwt": USER.jwt}, ["creds", "jwt"]),
        ({"auth": Token(CANARY), "user": CANARY}, ["auth", "user"]),
        ({"auth": CANARY}, ["auth"]),
        ({"user": ""}, ["user", "empty"]),
        ({"token": Secret(" ")}, ["token", "empty"]),
        ({"creds": ""}, ["creds", "empty"]),
        ({"token": 5}, ["token", "int"]),
        ({"nkey": 5}, ["nkey", "int"]),
        ({"creds": 5}, ["creds", "int"]),
    ],
)
def test_contradictory_options(options: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        build_authenticator(**options)
    assert [name for name in names if name not in str(caught.value)] == []
    assert_clean(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"nkey": corrupt(USER.seed)}, "wrong checksum"),
        ({"nkey": USER.seed[:-1]}, "57 characters instead of 58"),
        ({"nkey": USER.seed[:-1] + "1"}, "outside base32"),
        ({"nkey": USER.seed.lower().replace("s", "S", 1)}, "no seed"),
        ({"nkey": Key(nkeys.PREFIX_BYTE_ACCOUNT).seed}, "an account, not of a user"),
        ({"nkey": Key(nkeys.PREFIX_BYTE_OPERATOR).seed}, "an operator, not of a user"),
        ({"nkey": "/nonexistent/bob.nk"}, "nkey='/nonexistent/bob.nk' can't be read: No such file"),
        ({"creds": "/nonexistent/bob.creds"}, "creds='/nonexistent/bob.creds' can't be read: No such file"),
        ({"creds": "/"}, "creds='/' can't be read: Is a directory"),
        ({"creds": USER.jwt}, "creds='***' can't be read"),
        ({"creds": f"--BEGIN NATS USER JWT--\n{USER.jwt}\n--END NATS USER JWT--"}, "NKEY SEED"),
        ({"creds": f"--BEGIN USER NKEY SEED--\n{USER.seed}\n--END USER NKEY SEED--"}, "USER JWT"),
        ({"creds": "--BEGIN--\n"}, "no credentials file"),
        ({"creds": USER.creds().replace(USER.seed, OTHER.seed)}, "does not belong"),
        ({"jwt": USER.jwt, "nkey": OTHER.seed}, "does not belong"),
        ({"jwt": USER.jwt}, "no bearer token"),
        ({"jwt": "a.b"}, "no well-formed JWT"),
        ({"jwt": f"a.{CANARY}.c"}, "no well-formed JWT"),
        (
            {"jwt": "a." + base64.urlsafe_b64encode(f"[{CANARY}".encode()).decode() + ".c"},
            "no well-formed JWT",
        ),
        ({"jwt": "a." + base64.urlsafe_b64encode(b"\xff").decode() + ".c"}, "no well-formed JWT"),
        ({"jwt": "a." + base64.urlsafe_b64encode(b"[1]").decode() + ".c"}, "no well-formed JWT"),
        ({"token": lambda: None}, "returned NoneType"),
        ({"auth": lambda nonce: [CANARY]}, "returned list"),
        ({"auth": lambda nonce: {5: CANARY}}, "returned dict"),
    ],
)
def test_bad_credentials(options: dict[str, Any], text: str) -> None:
    with pytest.raises(AuthorizationError) as caught:
        fields(build_authenticator(**options))
    assert text in str(caught.value)
    assert_clean(caught.value)


def test_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xff\xfe" + CANARY.encode())
    for option in ("creds", "nkey"):
        with pytest.raises(AuthorizationError, match="not a text file") as caught:
            fields(build_authenticator(**{option: path}))  # type: ignore[arg-type]
        assert str(path) in str(caught.value)
        assert_clean(caught.value)


def test_file_without_a_seed(tmp_path: Path) -> None:
    path = tmp_path / "x.nk"
    path.write_text(f"{CANARY}\n")
    with pytest.raises(AuthorizationError, match="holds no seed") as caught:
        fields(build_authenticator(nkey=path))
    assert_clean(caught.value)


@pytest.mark.parametrize("nonce", [None, ""])
@pytest.mark.parametrize("options", [{"nkey": USER.seed}, {"creds": USER.creds()}])
def test_server_without_a_nonce(options: dict[str, Any], nonce: str | None) -> None:
    with pytest.raises(AuthorizationError, match="sent no nonce"):
        fields(build_authenticator(**options), nonce)


def test_async_callables_are_refused_without_a_stray_warning() -> None:
    async def token() -> str:
        return CANARY

    async def auth(nonce: str | None) -> dict[str, str]:
        return {}

    with pytest.raises(AuthorizationError, match="must not be async"):
        fields(build_authenticator(token=token))  # type: ignore[arg-type]
    with pytest.raises(AuthorizationError, match="must not be async"):
        fields(build_authenticator(auth=auth))  # type: ignore[arg-type]
    gc.collect()


def test_callables_that_raise_are_named_and_chained() -> None:
    def vault(*_: object) -> str:
        raise LookupError("vault is sealed")

    for options, text in (
        ({"password": vault, "user": "u"}, "password raised LookupError"),
        ({"auth": vault}, "auth"),
    ):
        with pytest.raises(AuthorizationError, match=text) as caught:
            fields(build_authenticator(**options))
        assert isinstance(caught.value.__cause__, LookupError)


# --- expiry ---


@pytest.mark.parametrize("options", [{"creds": EXPIRED.creds()}, {"jwt": EXPIRED.jwt, "nkey": EXPIRED.seed}])
def test_whether_a_jwt_has_expired_is_for_the_server_to_say(options: dict[str, Any]) -> None:
    made = fields(build_authenticator(**options))
    assert made["jwt"] == EXPIRED.jwt
    # When the server has refused it, the error says what our clock thinks of it.
    note = expiry_note(made)
    assert "expired at 20" in note
    assert EXPIRED.jwt not in note


@pytest.mark.parametrize("made", [{}, {"user": "u"}, {"jwt": USER.jwt}, {"jwt": "a.b.c"}, {"jwt": 5}])
def test_there_is_no_note_on_what_has_not_expired_or_can_not_be_read(made: dict[str, Any]) -> None:
    assert expiry_note(made) == ""


def test_jwt_expiry() -> None:
    assert jwt_expiry(USER.jwt) is None
    exp = json.loads(base64.urlsafe_b64decode(EXPIRED.jwt.split(".")[1] + "=="))["exp"]
    assert jwt_expiry(EXPIRED.jwt) == exp
    assert jwt_expiry(Secret(EXPIRED.jwt)) == float(exp)


@given(st.text())
def test_any_text_as_jwt_is_read_or_refused(text: str) -> None:
    with pytest.raises(AuthorizationError):
        jwt_expiry(text if text.count(".") != 2 else text + ".")


@pytest.mark.slow
@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
def test_any_claims_are_read_or_refused(claims: object) -> None:
    jwt = "x." + base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=") + ".y"
    if isinstance(claims, dict):
        expiry = jwt_expiry(jwt)
        assert expiry is None or expiry == claims["exp"]
    else:
        with pytest.raises(AuthorizationError):
            jwt_expiry(jwt)


# --- secrecy ---

SECRETS = [
    CANARY,
    USER.seed,
    USER.jwt,
    OTHER.seed,
    EXPIRED.jwt,
    EXPIRED.seed,
    corrupt(USER.seed),
    USER.seed[:-1],
]


def assert_clean(error: BaseException | None) -> None:
    seen: BaseException | None = error
    while seen is not None:
        text = f"{seen} {seen!r} {seen.args} {vars(seen)}"
        text += "".join(traceback.format_exception_only(seen))
        assert [secret for secret in SECRETS if secret in text] == []
        assert not isinstance(seen, (json.JSONDecodeError, UnicodeDecodeError))
        seen = seen.__cause__ or seen.__context__


def _bound(value: str, nonce: str | None = None) -> Any:
    return {"auth_token": value}


AUTHENTICATORS: list[Authenticator] = [
    UserPassword(CANARY, CANARY),
    Token(CANARY),
    Token(functools.partial(str, CANARY)),
    NKey(USER.seed),
    JWT(USER.jwt, USER.seed),
    CredsText(USER.creds()),
    CredsFile(USER.jwt),
    CallableAuth(functools.partial(_bound, CANARY)),
    Combined(Token(CANARY), UserPassword(CANARY)),
]


@pytest.mark.parametrize("auth", AUTHENTICATORS, ids=lambda auth: type(auth).__name__)
def test_no_authenticator_shows_its_secrets(auth: Authenticator) -> None:
    assert not hasattr(auth, "__dict__")
    shown = [repr(auth), str(auth), f"{auth}", format(auth), repr([auth]), "%s %r" % (auth, auth)]  # noqa: UP031
    if not isinstance(auth, CredsFile):  # its path is no secret; one that looks like a secret is tested above
        shown += [repr(getattr(auth, name)) for name in type(auth).__slots__]  # type: ignore[attr-defined]
    assert [text for text in shown if any(secret in text for secret in SECRETS)] == []


def test_pickling_an_authenticator_is_refused_without_its_secrets() -> None:
    with pytest.raises(TypeError, match="can't be pickled") as caught:
        pickle.dumps(Token(CANARY))
    assert_clean(caught.value)


def test_a_seed_is_not_left_in_the_key_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = []
    original = nkeys.from_seed

    def spy(seed: bytearray) -> Any:
        pairs.append((original(seed), seed))
        return pairs[-1][0]

    monkeypatch.setattr(nkeys, "from_seed", spy)
    fields(NKey(USER.seed))
    [(pair, seed)] = pairs
    assert not any(seed)
    assert not vars(pair)
