"""JSON bodies for ``jetspark pipe``: a first look at a schema in DDL, and a schema from a sample of bodies.

Spark decides what is valid DDL, but a JVM takes seconds to start, and a missing type is found without one.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any

from jetspark.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCE_COLUMNS = ("stream", "sequence", "subject", "timestamp", "headers", "data")
TYPES = [
    "array",
    "bigint",
    "binary",
    "boolean",
    "byte",
    "char",
    "date",
    "dec",
    "decimal",
    "double",
    "float",
    "int",
    "integer",
    "interval",
    "long",
    "map",
    "numeric",
    "real",
    "short",
    "smallint",
    "string",
    "struct",
    "time",
    "timestamp",
    "timestamp_ltz",
    "timestamp_ntz",
    "tinyint",
    "varchar",
    "variant",
    "void",
]
_FIELD = re.compile(r"(`(?:[^`]|``)+`|[^\s:`<>(),]+)\s*(?:\s|:)\s*([A-Za-z_]+)", re.DOTALL)


def check_schema(ddl: str) -> list[str]:
    """The names of the fields; refuses what can't be DDL such as ``id long, amount double``."""
    text = ddl.strip()
    if not text:
        raise UsageError("--json-schema is empty; use e.g. 'id long, amount double'")
    if text.lower().startswith("struct<") and text.endswith(">"):
        text = text[len("struct<") : -1]
    names = []
    for part in _split(text):
        found = _FIELD.match(part.strip())
        if found is None:
            raise UsageError(
                f"--json-schema: {part.strip()!r} is not a field; use a name and a type, e.g. 'amount double'"
            )
        kind = found[2].lower()
        if kind not in TYPES:
            near = difflib.get_close_matches(kind, TYPES, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(TYPES)}"
            raise UsageError(f"--json-schema: {found[1]} has the unknown type {found[2]!r}; {hint}")
        names.append(found[1].strip("`").replace("``", "`"))
    return names


def check_clash(option: str, names: Iterable[str]) -> None:
    """Refuse fields that would hide a column of the source, or each other."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in SOURCE_COLUMNS:
            raise UsageError(
                f"{option}: {name!r} is already a column of the messages\n"
                "--json-into body keeps the fields apart, as body." + name
            )
        if name.lower() in seen:
            raise UsageError(f"{option}: {name!r} is given twice")
        seen.add(name.lower())


def _split(text: str) -> list[str]:
    """At the commas outside of brackets and backquotes."""
    parts, depth, quoted, last = [], 0, False, 0
    for place, char in enumerate(text):
        if char == "`":
            quoted = not quoted
        elif quoted:
            continue
        elif char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
            if depth < 0:
                break
        elif char == "," and depth == 0:
            parts.append(text[last:place])
            last = place + 1
    if depth != 0 or quoted:
        raise UsageError(f"--json-schema: {text!r}: brackets or quotes do not match")
    return [*parts, text[last:]]


def infer(bodies: Iterable[bytes]) -> tuple[str | None, int]:
    """DDL for a sample of bodies, in the order in which fields were seen, and how many bodies do not fit.

    None when no body is a JSON object. Whole numbers are bigint, others double. Fields of several types, and
    those that are always null, are strings.
    """
    merged: Any = None
    other = 0
    for body in bodies:
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            other += 1
            continue
        merged = _merge(merged, _kind(value))
    if not merged:
        return None, other
    return ", ".join(f"{_quoted(name)} {_ddl(kind)}" for name, kind in merged.items()), other


# A kind is None (nothing but null so far), the name of a type, ["array", kind], or a dict of fields.


def _kind(value: Any) -> Any:
    match value:
        case bool():
            return "boolean"
        case int():
            return "bigint" if -(2**63) <= value < 2**63 else "double"
        case float():
            return "double"
        case str():
            return "string"
        case list():
            inner: Any = None
            for one in value:
                inner = _merge(inner, _kind(one))
            return ["array", inner]
        case dict():
            return {name: _kind(one) for name, one in value.items()}
    return None


def _merge(a: Any, b: Any) -> Any:
    if a is None or a == b:
        return b
    if b is None:
        return a
    if isinstance(a, dict) and isinstance(b, dict):
        return {name: _merge(a.get(name), b.get(name)) for name in {**a, **b}}
    if isinstance(a, list) and isinstance(b, list):
        return ["array", _merge(a[1], b[1])]
    if isinstance(a, str) and isinstance(b, str) and {a, b} == {"bigint", "double"}:
        return "double"
    return "string"


def _ddl(kind: Any) -> str:
    if isinstance(kind, dict):
        inner = ", ".join(f"{_quoted(name)}: {_ddl(one)}" for name, one in kind.items())
        # A struct needs a field; an object that is always empty is kept as its text.
        return f"struct<{inner}>" if kind else "string"
    if isinstance(kind, list):
        return f"array<{_ddl(kind[1])}>"
    return kind or "string"


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else "`" + name.replace("`", "``") + "`"


def fields_of(ddl: str) -> list[str]:
    """The names of the top-level fields of inferred DDL."""
    return check_schema(ddl)
