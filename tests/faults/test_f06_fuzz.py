"""F6: whatever bytes come, the parser gives the same events however they are cut, or ProtocolError.

The full form is 5,000,000 runs of atheris and 20,000 examples of hypothesis. The short form is the corpus, a
few seconds of a plain mutational fuzz, which needs no atheris, and some examples. Inputs that once broke a
parser stay in ``CRASHERS``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from jetspark.errors import ProtocolError
from jetspark.wire import Parser
from support import parser_fuzz
from support.fault_table import Outcome, Row, Scale, check
from support.parser_fuzz import SEEDS, WORDS, Backend, backends, make_target, mutations, play

RUNS = 5_000_000
JOBS = 2
RSS_MB = 200
SHORT_SECONDS = 2.5

CRASHERS: list[bytes] = [
    # Found before there was a fuzzer: a line break as the very first byte, with the CR only behind it.
    b"\x00\x01\nPING\r",
    b"\x00\x02MSG a 1 0\r\n\r\nPING\r\nMSG b  x 2\r\nno\r\n",
]


def run(scale: Scale) -> Outcome:
    outcome = Outcome()
    found = backends()
    outcome.figures["backends"] = "+".join(backend.name for backend in found)
    target = make_target()
    for number, data in enumerate([*SEEDS, *CRASHERS]):
        attempt(outcome, f"corpus entry {number}", target, data)
    if scale.full:
        with_atheris(scale, outcome)
    else:
        plain(scale, outcome, target)
    before = resident_mb()
    try:
        # In lots: hypothesis remembers what it tried, 10 KB an example, which would hide a leak of ours.
        lots = range(scale.pick(1, 20))
        splits = sum(split_invariance(found, scale.pick(200, 1000), scale.seed + lot) for lot in lots)
        outcome.figures["splits"] = splits
        outcome.require(splits >= scale.pick(200, 20_000), f"{splits} splits, fewer than asked for")
    except Exception as error:
        outcome.problems.append(f"hypothesis: {error!r}")
    grown = resident_mb() - before
    outcome.require(grown < RSS_MB / 2, f"the splits left {grown:.0f} MB behind")
    return outcome


def attempt(outcome: Outcome, name: str, target: Any, data: bytes) -> bool:
    try:
        target(data)
    except Exception as error:
        outcome.problems.append(f"{name}: {data!r} gave {type(error).__name__}: {error}"[:1500])
        return False
    return True


def plain(scale: Scale, outcome: Outcome, target: Any) -> None:
    """Mutations for a fixed time, so that a busy machine does less of the same."""
    runs, until = 0, time.monotonic() + SHORT_SECONDS
    for data in mutations(scale.chance()):
        runs += 1
        if not attempt(outcome, f"mutation {runs}", target, data) or time.monotonic() > until:
            break
    outcome.figures["mutations"] = runs


def with_atheris(scale: Scale, outcome: Outcome) -> None:
    """The fuzzer in a process of its own: it ends the process when it has found something."""
    if parser_fuzz.atheris is None:
        outcome.missing = "atheris is not installed; it has wheels for Linux only"
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "words").write_text(parser_fuzz.dictionary())
        fuzzers = []
        for job in range(JOBS):
            corpus = folder / f"corpus{job}"
            corpus.mkdir()
            for number, data in enumerate([*SEEDS, *CRASHERS]):
                (corpus / f"seed{number:03}").write_bytes(data)
            command = [
                *(sys.executable, parser_fuzz.__file__, f"-runs={RUNS // JOBS}"),
                *(f"-seed={scale.seed * JOBS + job + 1}", "-max_len=160", f"-dict={folder / 'words'}"),
                *(f"-rss_limit_mb={RSS_MB}", "-timeout=10", "-print_final_stats=1", "-verbosity=1"),
                *(f"-artifact_prefix={folder}/found-{job}-", str(corpus)),
            ]
            with (folder / f"said{job}").open("wb") as log:
                fuzzers.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder))
        codes = [fuzzer.wait() for fuzzer in fuzzers]
        said = [(folder / f"said{job}").read_text(errors="replace") for job in range(JOBS)]
        for crasher in folder.glob("found-*"):
            outcome.problems.append(f"keep this crasher: {crasher.read_bytes()!r}")
        for code, text in zip(codes, said, strict=True):
            outcome.require(code == 0, f"atheris ended with {code}: {text[-1500:]}")
        runs = sum(number_of("number_of_executed_units", text) for text in said)
        outcome.figures["atheris runs"] = runs
        outcome.require(runs >= RUNS, f"{runs} runs, fewer than asked for")
        peak = max(number_of("peak_rss_mb", text) for text in said)
        outcome.figures["peak RSS MB"] = peak
        outcome.require(0 < peak < RSS_MB, f"{peak} MB of memory")
        covered = [int(found) for text in said for found in re.findall(r"cov: (\d+)", text)]
        outcome.figures["branches seen"] = max(covered, default=0)


def number_of(name: str, said: str) -> int:
    found = re.search(rf"stat::{name}:\s+(\d+)", said)
    return int(found[1]) if found else 0


def resident_mb() -> float:
    """What this process has in memory now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


@st.composite
def messages(draw: Any) -> bytes:
    subject, sid, reply = draw(st.sampled_from([b"a", b"a.b", b"\xff"])), draw(SIDS), draw(REPLIES)
    header, data = draw(HEADERS), draw(PAYLOADS)
    words = b" ".join([subject, sid, reply] if reply else [subject, sid])
    if header:
        return b"HMSG %b %d %d\r\n%b%b\r\n" % (words, len(header), len(header) + len(data), header, data)
    return b"MSG %b %d\r\n%b\r\n" % (words, len(data), data)


SIDS = st.sampled_from([b"1", b"1", b"2", b"404"])
REPLIES = st.sampled_from([b"", b"r", b"r", b"$JS.ACK.s.c.1.2.3.4.5"])
HEADERS = st.sampled_from(
    [b"", b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\nA: b\r\nA: c\r\n\r\n"]
)
PAYLOADS = st.sampled_from([b"", b"\r\n", b"x", b"PING\r\n", b"MSG a 1 5\r\n", b"y" * 40]) | st.binary(
    max_size=12
)
CONTROL = st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'no'\r\n", b'INFO {"port":1}\r\n'])
STREAMS = st.lists(messages() | messages() | messages() | CONTROL, max_size=8).map(b"".join)


@st.composite
def wires(draw: Any) -> bytes:
    """A stream that is right, or hurt in a place or two."""
    wire = bytearray(draw(STREAMS))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at = draw(st.integers(0, len(wire)))
        wire[at : at + draw(st.integers(0, 4))] = draw(st.sampled_from([b"", *WORDS]))
    return bytes(wire)


def split_invariance(found: list[Backend], examples: int, number: int) -> int:
    """Every stream gives the same in one piece and in any others, by every backend; how many were tried."""
    tried = 0

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(wires(), st.lists(st.integers(0, 300), max_size=10), st.integers(0, 3))
    def holds(wire: bytes, cuts: list[int], wish: int) -> None:
        nonlocal tried
        tried += 1
        ends = sorted(min(end, len(wire)) for end in cuts)
        pieces = [wire[start:end] for start, end in zip([0, *ends], [*ends, len(wire)], strict=True)]
        whole = play(found[0], [wire], wish)
        for backend in found:
            assert play(backend, pieces, wish) == whole
            assert play(backend, parser_fuzz.cut(wire, 1), wish) == whole

    holds()
    return tried


# Six minutes on two cores of its own; another row may run beside it.
ROW = Row(6, "parser fuzz", run, minutes=12)


def test_f06() -> None:
    check(ROW)


class Foreign(Parser):
    """A parser with a defect: another exception than ours."""

    __slots__ = ()

    def feed(self, data: bytes) -> list[Any]:
        if b"99" in data:
            raise ValueError("int too large")
        return super().feed(data)


class Forgetful(Parser):
    """A parser with a defect: it loses a line that arrives in two pieces."""

    __slots__ = ()

    def feed(self, data: bytes) -> list[Any]:
        return [] if data == b"P" else super().feed(data)


class Relapsing(Parser):
    """A parser with a defect: it goes on after an error."""

    __slots__ = ()

    def feed(self, data: bytes) -> list[Any]:
        try:
            return super().feed(data)
        except ProtocolError:
            self.error = None
            return []


@pytest.mark.parametrize("broken", [Foreign, Forgetful, Relapsing])
def test_the_fuzz_finds_a_broken_parser(monkeypatch: pytest.MonkeyPatch, broken: type[Parser]) -> None:
    real = backends()[0]
    monkeypatch.setattr(parser_fuzz, "backends", lambda: [real._replace(name="broken", parser=broken)])
    target, outcome = make_target(), Outcome()
    for data in SEEDS:
        attempt(outcome, "seed", target, data)
    for _, data in zip(range(20_000), mutations(Scale(full=False, seed=1).chance()), strict=False):
        if outcome.problems:
            break
        attempt(outcome, "mutation", target, data)
    assert outcome.problems


def test_the_fuzz_finds_backends_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    real = backends()[0]
    other = real._replace(name="other", parser=lambda: Parser(max_message=3))
    monkeypatch.setattr(parser_fuzz, "backends", lambda: [real, other])
    with pytest.raises(AssertionError, match="other"):
        make_target()(b"\x00\x00MSG a 1 5\r\nhello\r\n")
