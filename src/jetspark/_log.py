"""Logging: one logger for each package, quiet unless the application asks, with fields beside the text.

Fields are attributes of the log record, as ``extra=`` makes them, and begin with ``nats_``: the names that
records have already must not be taken.
"""

from __future__ import annotations

import logging


def get_logger(package: str) -> logging.Logger:
    """The logger ``jetspark.<package>``. Without a handler of the application it says nothing."""
    logger = logging.getLogger(f"jetspark.{package}")
    if not logger.handlers:
        # Or warnings would go to stderr (logging.lastResort) in programs that never set up logging.
        logger.addHandler(logging.NullHandler())
    return logger


def fields(**values: object) -> dict[str, object]:
    """The fields of a record, for ``extra=``. An exception becomes its text, beside its type."""
    found: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, BaseException):
            found[f"nats_{name}"] = str(value)
            found[f"nats_{name}_type"] = type(value).__name__
        elif value is not None:
            found[f"nats_{name}"] = value
    return found
