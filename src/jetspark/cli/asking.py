"""Questions to the user at the terminal. The connection stays alive meanwhile: an answer may take an hour."""

from __future__ import annotations

import asyncio
import sys

from jetspark.cli.errors import CommandFailed, UsageError
from jetspark.cli.output import is_terminal


def can_ask() -> bool:
    """Whether a user can answer."""
    return sys.stdin.isatty() and is_terminal(stderr=True)


async def ask(question: str) -> str:
    """The answer to a question, in lower case; empty for Enter alone."""
    sys.stderr.write(question)
    sys.stderr.flush()
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not answered.done():
            answered.set_result(None)

    # No thread reads stdin: Ctrl-C could not end it.
    loop.add_reader(sys.stdin.fileno(), ready)
    try:
        await answered
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline().strip().lower()


async def confirm(question: str, *, force: bool) -> None:
    """Ask before something is lost. Without a terminal --force is needed."""
    if force:
        return
    if not can_ask():
        raise UsageError(f"{question} stdin is not a terminal; use --force")
    if await ask(f"{question} [y/N] ") not in ("y", "yes"):
        raise CommandFailed("not confirmed; nothing was changed")
