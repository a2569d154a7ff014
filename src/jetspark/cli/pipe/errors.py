"""Spark's errors in a line or two: what went wrong and where, without plans and stacks."""

from __future__ import annotations

import re

from jetspark.cli.errors import CommandFailed

_CONDITION = re.compile(r"^\s*\[([A-Z][A-Z0-9_.]+)\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w+")
_PLACE = re.compile(r"\(?line (\d+), ?pos (\d+)\)?|line (\d+) pos (\d+)")
_PYTHON = re.compile(r"^(?:[A-Za-z_][\w]*\.)*([A-Z]\w*): (.+)$")
_JAVA = re.compile(r"^(?:Caused by: )?(?:[a-z]\w*\.)+([A-Z]\w*(?:Exception|Error)): (.+)$")
# Conditions that only say that something failed.
_WRAPPERS = ("STREAM_FAILED", "TASK_WRITE_FAILED", "FAILED_EXECUTE")
_HINTS = {
    "STREAMING_OUTPUT_MODE": "use --output-mode update, or --watermark with a window in GROUP BY",
    "UNRESOLVED_COLUMN": "fields of JSON bodies are columns with --json-schema or --json-infer only",
    "TABLE_OR_VIEW_NOT_FOUND": "the messages are the view 'input'",
    "CAST_INVALID_INPUT": "use try_cast in the SQL where values may be malformed",
}


def failed(what: str, error: BaseException) -> CommandFailed:
    """An error of Spark as an error of the command; ``what``: the part of the job that it is about."""
    text, condition = brief(error)
    text = text.replace("set failOnDataLoss=false", "use --allow-data-loss")
    hint = next((hint for start, hint in _HINTS.items() if condition.startswith(start)), "")
    return CommandFailed(f"{what}: {text}" + (f"\n{hint}" if hint else ""))


def brief(error: BaseException) -> tuple[str, str]:
    """One line, and Spark's name for the condition ("" when it has none)."""
    full = str(error)
    lines = full.splitlines()
    # An error of a Python source, sink or function is the last line of its traceback.
    if any("Traceback (most recent call last)" in line for line in lines):
        start = max(n for n, line in enumerate(lines) if "Traceback (most recent call last)" in line)
        for line in lines[start + 1 :]:
            found = _PYTHON.match(line.strip()) if not line.startswith((" ", "\t")) else None
            if found:
                return _clean(found[2])
    for line in lines:
        message = line.partition("terminated with exception: ")[2] or line
        condition = _CONDITION.match(message)
        if condition and not condition[1].startswith(_WRAPPERS):
            place = _PLACE.search(full)
            where = f" (line {place[1] or place[3]}, position {place[2] or place[4]})" if place else ""
            text, name = _clean(_PLACE.sub("", message))
            return text + where, name
    causes = [found for line in lines if (found := _JAVA.match(line.strip()))]
    if causes:
        return _clean(causes[-1][2])
    first = next((line for line in lines if line.strip()), type(error).__name__)
    return _clean(first.partition("terminated with exception: ")[2] or first)


def _clean(message: str) -> tuple[str, str]:
    """Without the name of the condition and SQLSTATE; and that name."""
    condition = _CONDITION.match(message)
    text = _STATE.sub("", _CONDITION.sub("", message)).strip(" ;")
    return _cut(text), condition[1] if condition else ""


def _cut(text: str, most: int = 400) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 3] + "..."
