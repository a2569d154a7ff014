"""Errors of the commands, and how any error is shown: one or two lines with the remedy."""

from __future__ import annotations

from jetspark.errors import (
    AuthorizationError,
    InvalidArgument,
    JetsparkError,
    NoServersAvailable,
    RequestTimeout,
    TLSError,
)


class UsageError(JetsparkError):
    """The command line itself is wrong: exit code 2."""


class CommandFailed(JetsparkError):
    """The command line is right, but the command failed: exit code 1."""


def exit_code(error: BaseException) -> int:
    """2 when the command line is wrong, else 1."""
    return 2 if isinstance(error, UsageError | InvalidArgument) else 1


def describe(error: BaseException) -> str:
    """The text of an error, at most two lines."""
    from jetspark.errors import ConsumerNotFound, JetStreamNotEnabled, MessageNotFound, StreamNotFound

    text = _text(error)
    if isinstance(error, StreamNotFound):
        return f"{text}\n'jetspark stream ls' lists the streams of this account"
    if isinstance(error, ConsumerNotFound):
        return f"{text}\n'jetspark consumer ls STREAM' lists the consumers"
    if isinstance(error, MessageNotFound):
        return f"{text}\n'jetspark stream info STREAM' shows its first and last sequence"
    if isinstance(error, NoServersAvailable):
        return f"{text}\nstart one with 'jetspark server', or name another with --server or --context"
    if isinstance(error, AuthorizationError):
        return f"{text}\ngive --user and --password, --token, --creds or --nkey, or a --context that has them"
    if isinstance(error, TLSError):
        return f"{text}\ngive the authority with --tlsca, and --tlscert with --tlskey if it wants a client's"
    if isinstance(error, JetStreamNotEnabled):
        return f"{text}\nthe server or account has no JetStream; 'jetspark server' starts one that has it"
    if isinstance(error, RequestTimeout):
        return f"{text}\nraise --timeout if the server is slow"
    return text


def _text(error: BaseException) -> str:
    # ServerStartError carries the log; its reason and the log's last error fit into two lines.
    reason, log = getattr(error, "reason", None), getattr(error, "log", None)
    if isinstance(reason, str) and isinstance(log, str):
        complaints = [line for line in log.splitlines() if "[FTL]" in line or "[ERR]" in line]
        complaint = complaints[-1].rpartition("] ")[2] if complaints else ""
        return f"{reason}\n{complaint}" if complaint else reason
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, UsageError | CommandFailed):
        return str(error)
    if isinstance(error, JetsparkError):
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return lines[0] if len(lines) == 1 else "; ".join(line.strip() for line in lines if line.strip())
    return f"unexpected {type(error).__name__}: {error}\n--debug shows where it comes from"
