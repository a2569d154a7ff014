"""Runs a real nats-server: one for development and tests, or a cluster of them."""

from jetspark.server._cluster import Cluster
from jetspark.server._find import find_server
from jetspark.server._server import Server, ServerTLS
from jetspark.server.errors import ServerNotFound, ServerProcessError, ServerReloadError, ServerStartError

__all__ = [
    "Cluster",
    "Server",
    "ServerNotFound",
    "ServerProcessError",
    "ServerReloadError",
    "ServerStartError",
    "ServerTLS",
    "find_server",
]
