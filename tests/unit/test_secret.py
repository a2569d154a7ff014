"""A secret is shown by nothing but reveal()."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import io
import json
import logging
import pickle
import pprint
import traceback

import msgspec
import pytest

from jetspark import Secret
from jetspark._secret import hides_locals

HIDDEN = "hunter2-correct-horse"


@dataclasses.dataclass
class Options:
    user: str
    password: Secret


class Plain:
    def __init__(self, secret: Secret) -> None:
        self.secret = secret


SHOWN = {
    "repr": repr,
    "str": str,
    "ascii": ascii,
    "format": format,
    "f-string": lambda s: f"{s}",
    "f-string with repr": lambda s: f"{s!r} {s!s} {s!a}",
    "f-string with equals": lambda s: f"{s=}",
    "percent": lambda s: "%s %r" % (s, s),  # noqa: UP031
    "str.format": lambda s: "{} {!r}".format(s, s),  # noqa: UP032
    "in a list": lambda s: repr([s]),
    "in a dict": lambda s: repr({"password": s}),
    "as a key": lambda s: repr({s: 1}),
    "in a dataclass": lambda s: repr(Options("u", s)),
    "asdict": lambda s: repr(dataclasses.asdict(Options("u", s))),
    "vars of its holder": lambda s: repr(vars(Plain(s))),
    "pprint": lambda s: pprint.pformat({"password": s, "holder": vars(Plain(s))}),
    "attributes": lambda s: repr({name: repr(getattr(s, name)) for name in dir(s)}),
    "copy": lambda s: repr(copy.copy(s)),
    "deepcopy": lambda s: repr(copy.deepcopy(s)),
    "bound method": lambda s: repr(s.reveal),
    "exception": lambda s: repr(ValueError(s)) + str(ValueError("bad", s)),
}


@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN.keys())
def test_nothing_shows_it(show):
    text = show(Secret(HIDDEN))
    assert text
    assert HIDDEN not in text


def test_what_is_shown_instead():
    secret = Secret(HIDDEN)
    assert (repr(secret), str(secret), f"{secret}") == ("***", "***", "***")
    # Not even how long it is.
    assert repr(Secret("")) == repr(Secret("x" * 500)) == "***"


def test_it_has_no_attributes_to_list():
    with pytest.raises(TypeError):
        vars(Secret(HIDDEN))
    assert not hasattr(Secret(HIDDEN), "__dict__")


def test_a_format_spec_does_not_show_it():
    with pytest.raises(TypeError) as caught:
        format(Secret(HIDDEN), ">30")
    assert HIDDEN not in str(caught.value)


@pytest.mark.parametrize("encode", [json.dumps, msgspec.json.encode, msgspec.msgpack.encode])
def test_encoders_refuse_it(encode):
    with pytest.raises(TypeError) as caught:
        encode({"password": Secret(HIDDEN)})
    assert HIDDEN not in str(caught.value)


def test_a_log_record_does_not_show_it():
    stream = io.StringIO()
    logger = logging.Logger("test_secret")
    logger.addHandler(logging.StreamHandler(stream))
    logger.error("login with %s, %r", Secret(HIDDEN), Secret(HIDDEN))
    assert stream.getvalue() == "login with ***, ***\n"


def test_a_traceback_with_locals_does_not_show_it():
    def fail(password: Secret) -> None:
        options = {"password": password}
        raise RuntimeError(f"refused {options}")

    with pytest.raises(RuntimeError) as caught:
        fail(Secret(HIDDEN))
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    # The frames of this test know the constant by its name only; those of the call hold the secret.
    text = "".join(shown.format())
    assert "password = ***" in text
    assert HIDDEN not in text


@pytest.mark.parametrize("other", [5, None, HIDDEN, HIDDEN.encode()])
def test_comparing_with_something_else_fails_without_showing_it(other):
    secret = Secret(HIDDEN)
    assert secret != other
    with pytest.raises(TypeError) as caught:
        secret < other  # noqa: B015
    assert HIDDEN not in str(caught.value)


def test_reveal_is_the_way_out():
    assert Secret(HIDDEN).reveal() == HIDDEN
    assert Secret("").reveal() == ""
    assert Secret("pässwörd").reveal() == "pässwörd"


def test_equality_and_hash_go_by_value():
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("ü") == Secret("ü")
    assert hash(Secret("a")) == hash(Secret("a"))
    assert {Secret("a"), Secret("a"), Secret("b")} == {Secret("b"), Secret("a")}


def test_bytes_that_are_not_utf8_can_be_compared():
    # A password out of the environment may hold them, as lone surrogates.
    assert Secret("a\udcff") == Secret("a\udcff")
    assert Secret("a\udcff") != Secret("a")


def test_only_an_empty_one_is_false():
    assert Secret("x")
    assert not Secret("")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_round_trip(protocol):
    loaded = pickle.loads(pickle.dumps(Secret(HIDDEN), protocol))
    assert loaded == Secret(HIDDEN)
    assert repr(loaded) == "***"


def test_copies_are_equal():
    secret = Secret(HIDDEN)
    assert copy.copy(secret) == copy.deepcopy(secret) == secret


# Functions that handle raw text


@hides_locals
def handles(text: str, *, fail: BaseException | None = None) -> str:
    copy_of_it = text.upper()
    if fail is not None:
        deeper(copy_of_it, fail)
    return copy_of_it


def deeper(text: str, fail: BaseException) -> None:
    raw = text.encode()
    try:
        raise KeyError("first")
    except KeyError:
        assert raw
        raise fail from None


def shown_locals(error: BaseException) -> str:
    texts = []
    chain: BaseException | None = error
    while chain is not None:
        shown = traceback.TracebackException.from_exception(chain, capture_locals=True)
        texts += [f"{frame.name} {frame.locals}" for frame in shown.stack if "test_" not in frame.name]
        chain = chain.__context__
    return "\n".join(texts)


@pytest.mark.parametrize("error", [ValueError("no"), TypeError("no"), KeyboardInterrupt(), SystemExit(1)])
def test_what_leaves_a_function_that_hides_its_locals_has_frames_without_them(error):
    with pytest.raises(type(error)) as caught:
        handles(HIDDEN, fail=error)
    assert caught.value is error
    text = shown_locals(error)
    assert HIDDEN not in text
    assert HIDDEN.upper() not in text
    # The lines are still there, of the context too.
    assert text.count("deeper") == 2
    assert "handles" in text


def test_a_call_with_wrong_arguments_shows_none_of_them():
    with pytest.raises(TypeError) as caught:
        handles(HIDDEN, flail=1)
    assert HIDDEN not in shown_locals(caught.value)


def test_it_is_the_same_function_otherwise():
    assert handles("a") == "A"
    assert handles.__name__ == "handles"
    assert list(inspect.signature(handles).parameters) == ["text", "fail"]


async def test_a_coroutine_that_has_caught_the_error_goes_on():
    caught, go = asyncio.Event(), asyncio.Event()
    kept: list[BaseException] = []

    async def keeper() -> str:
        mine = "still here"
        try:
            raise LookupError
        except LookupError as error:
            kept.append(error)
        caught.set()
        await go.wait()
        return mine

    task = asyncio.create_task(keeper())
    await caught.wait()
    with pytest.raises(LookupError):
        handles(HIDDEN, fail=kept[0])
    go.set()
    assert await task == "still here"
