"""What the server says about itself in INFO."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

# The compiled core calculates with some of these; integers in JSON may have any size.
_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?![\d.])", re.ASCII)


class ServerInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of INFO that a client acts on. Unknown fields are ignored."""

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    go: str = ""
    host: str = ""
    port: _Int64 = 0
    headers: bool = False
    max_payload: _Int64 = 1_048_576
    proto: _Int64 = 0
    client_id: _Int64 = 0
    client_ip: str = ""
    auth_required: bool = False
    tls_required: bool = False
    tls_verify: bool = False
    tls_available: bool = False
    connect_urls: list[str] | None = None
    ws_connect_urls: list[str] | None = None
    nonce: str | None = None
    cluster: str | None = None
    domain: str | None = None
    jetstream: bool = False
    ldm: bool = False
    xkey: str | None = None

    @property
    def version_tuple(self) -> tuple[int, int, int]:
        """The version as numbers, (0, 0, 0) if it can't be read; for checks whether the server knows X."""
        # Pre-releases (2.12.0-RC.1) and custom builds (2.12.0+abc) count as the version they are based on.
        found = _VERSION.match(self.version)
        if found is None:
            return (0, 0, 0)
        return (int(found[1]), int(found[2]), int(found[3]))


decode_info = msgspec.json.Decoder(ServerInfo).decode
