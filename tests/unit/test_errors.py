"""Every error survives pickle as it was, because Spark ships them from executors to the driver."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil

import pytest

import jetspark
from jetspark import Secret, errors
from jetspark.errors import InvalidArgument, JetsparkError, RequestTimeout

EXAMPLES = {
    "JetsparkError": ("something",),
    "InvalidArgument": ("subject", "a b", "must not contain a space"),
    "ProtocolError": ("bad line",),
    "ConnectionClosed": ("closed",),
    "ConnectionLost": ("lost",),
    "NotConnected": ("disconnected for 3.0 s",),
    "NoServersAvailable": ("none of them",),
    "AuthorizationError": ("refused",),
    "TLSError": ("bad certificate",),
    "RequestTimeout": ("no answer",),
    "NoRespondersError": ("svc.time",),
    "MaxPayloadExceeded": (2_000_000, 1_048_576),
    "OutboundBufferFull": (9_000_000, 8_388_608),
    "PermissionViolationError": ("publish", "a.b", "Permissions Violation"),
    "ControlLineExceeded": ("a.b", 5000),
    "DrainTimeout": ("not drained",),
}
ELSEWHERE = {name for names in errors._EXPORTS.values() for name in names.split()}
CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, BaseException) and name not in ELSEWHERE
}

every_error = pytest.mark.parametrize("name", sorted(CLASSES))


def make(name: str) -> JetsparkError:
    # A new class without an example fails here, by its name.
    return CLASSES[name](*EXAMPLES[name])


def same(a: BaseException, b: BaseException) -> bool:
    return (type(a), a.args, str(a), repr(a), vars(a)) == (type(b), b.args, str(b), repr(b), vars(b))


@every_error
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_type_args_text_and_attributes(name, protocol):
    error = make(name)
    loaded = pickle.loads(pickle.dumps(error, protocol))
    assert loaded is not error
    assert same(loaded, error)


@every_error
def test_pickle_keeps_what_was_added_later(name):
    error = make(name)
    error.add_note("a note")
    error.extra = {"stream": "S"}
    loaded = pickle.loads(pickle.dumps(error))
    assert loaded.__notes__ == ["a note"]
    assert loaded.extra == {"stream": "S"}
    # Twice: from an executor to its driver, and from there to a client.
    assert same(pickle.loads(pickle.dumps(loaded)), error)


@every_error
def test_copies(name):
    error = make(name)
    assert same(copy.copy(error), error)
    assert same(copy.deepcopy(error), error)


@every_error
def test_all_have_one_root_and_say_when_they_are_raised(name):
    assert issubclass(CLASSES[name], JetsparkError)
    assert CLASSES[name].__doc__
    assert str(make(name))


@every_error
def test_a_raised_and_chained_error_can_be_pickled(name):
    def fail() -> None:
        try:
            raise OSError("the cause")
        except OSError as cause:
            raise make(name) from cause

    with pytest.raises(CLASSES[name]) as caught:
        fail()
    assert same(pickle.loads(pickle.dumps(caught.value)), caught.value)


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("InvalidArgument", ValueError),
        ("MaxPayloadExceeded", ValueError),
        ("RequestTimeout", TimeoutError),
        ("DrainTimeout", TimeoutError),
    ],
)
def test_errors_that_are_builtin_ones_too(name, builtin):
    error = make(name)
    assert isinstance(error, builtin)
    assert isinstance(pickle.loads(pickle.dumps(error)), builtin)


def test_subclasses_with_a_signature_of_their_own_need_no_help():
    loaded = pickle.loads(pickle.dumps(Special(code=7)))
    assert type(loaded) is Special
    assert (loaded.args, loaded.code) == (("failed with code 7",), 7)


class Special(RequestTimeout):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"failed with code {code}")
        self.code = code


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("InvalidArgument", ["subject='a b'", "must not contain a space"]),
        ("NoRespondersError", ["'svc.time'", "check the subject"]),
        ("MaxPayloadExceeded", ["2000000", "1048576", "split it"]),
        ("OutboundBufferFull", ["9000000", "reconnect_buffer_size=8388608"]),
        ("PermissionViolationError", ["publish", "'a.b'", "Permissions Violation"]),
    ],
)
def test_texts_name_the_value_and_the_remedy(name, words):
    text = str(make(name))
    assert [word for word in words if word not in text] == []


def test_attributes():
    error = make("InvalidArgument")
    assert (error.field, error.value, error.rule) == EXAMPLES["InvalidArgument"]
    assert make("NoRespondersError").subject == "svc.time"
    for name in ("MaxPayloadExceeded", "OutboundBufferFull"):
        assert (make(name).size, make(name).limit) == EXAMPLES[name]
    error = make("PermissionViolationError")
    assert (error.operation, error.subject, error.message) == EXAMPLES["PermissionViolationError"]


def test_an_invalid_secret_is_refused_without_being_shown():
    error = InvalidArgument("password", Secret("hunter2"), "must not be used with token")
    assert str(error) == "password=***: must not be used with token"
    loaded = pickle.loads(pickle.dumps(error))
    assert same(loaded, error)
    assert "hunter2" not in repr(loaded) + repr(vars(loaded))


def test_a_value_that_can_not_be_pickled_does_not_cost_the_error():
    error = InvalidArgument("callback", lambda: None, "must be a coroutine function")
    loaded = pickle.loads(pickle.dumps(error))
    assert type(loaded) is InvalidArgument
    assert str(loaded) == str(error)
    assert (loaded.field, loaded.rule) == (error.field, error.rule)
    assert loaded.value == repr(error.value)


def public_errors() -> dict[str, type[BaseException]]:
    """By name, the exceptions of every module but those of Spark and of the command line."""
    found: dict[str, type[BaseException]] = {}
    for info in pkgutil.walk_packages(jetspark.__path__, "jetspark."):
        if info.name.split(".")[1] in ("spark", "cli") or info.name.endswith("._speed"):
            continue
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, type) and issubclass(value, JetsparkError) and not name.startswith("_"):
                assert found.setdefault(name, value) is value, f"two classes are called {name}"
    return found


def test_every_error_is_exported_and_no_two_have_one_name():
    found = public_errors()
    assert sorted(errors.__all__) == sorted(found)
    for name, cls in found.items():
        assert getattr(errors, name) is cls
        assert cls.__name__ == name


def test_tracebacks_and_pickles_name_the_module_to_import_from():
    assert {cls.__module__ for cls in public_errors().values()} == {"jetspark.errors"}
    error = errors.StreamNotFound(404, 10059, "stream not found")
    assert b"jetspark.jetstream" not in pickle.dumps(error)
    assert same(pickle.loads(pickle.dumps(error)), error)
