"""Ports that stay reserved from before the server starts until it is stopped for good.

Asking the kernel for a free port, closing it and telling the server to use it is a race, and ``port: -1``
does not help a restart, which must come back on the same port, nor a cluster, whose members must know
each other's route ports before any of them runs (JetStream refuses to start without routes).

So we bind the port and keep the socket, bound but never listening. With SO_REUSEADDR on both sides Linux
lets the server (Go sets it on every listener) bind and listen beside us, while the kernel gives the port
to no other process. While the server is down, connecting is refused, as it should be.

Other systems do not allow the second bind: there the socket is closed just before the server starts, and
a clash, however unlikely, shows as a ServerStartError.
"""

from __future__ import annotations

import socket
import sys

_HOLD = sys.platform == "linux"


class ReservedPort:
    """A port on ``host`` that is kept until :meth:`release`. ``port`` None lets the kernel choose."""

    def __init__(self, host: str, port: int | None = None) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port or 0))
        except BaseException:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]

    def about_to_listen(self) -> None:
        """The server is about to bind the port."""
        if not _HOLD:
            self.release()

    def release(self) -> None:
        self._socket.close()
