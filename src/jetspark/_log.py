"""Logging: one logger for each package, with fields beside the text.

No logger has its own handler or level. So in a program that never sets up logging, warnings and errors go to
stderr through Python's last-resort handler, and the rest is silent.

Fields are attributes of the log record, set with ``extra=``. They begin with ``nats_``, so that they do not
clash with the attributes that records already have.
"""

from __future__ import annotations

import logging


def get_logger(package: str) -> logging.Logger:
    """The logger ``jetspark.<package>``."""
    return logging.getLogger(f"jetspark.{package}")


def fields(**values: object) -> dict[str, object]:
    """The fields of a record, for ``extra=``. An exception becomes its text, with its type beside it."""
    found: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, BaseException):
            found[f"nats_{name}"] = str(value)
            found[f"nats_{name}_type"] = type(value).__name__
        elif value is not None:
            found[f"nats_{name}"] = value
    return found
