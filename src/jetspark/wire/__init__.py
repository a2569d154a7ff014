"""The NATS protocol without IO: bytes in, events out; arguments in, bytes out.

``backend`` names the inner loops in use: ``"c"`` or ``"python"``.
"""

from jetspark.wire._backend import backend
from jetspark.wire.headers import Headers, decode_headers, decode_status, encode_headers
from jetspark.wire.info import ServerInfo
from jetspark.wire.parser import Err, Event, Info, Messages, Ok, Parser, Ping, Pong

__all__ = [
    "Err",
    "Event",
    "Headers",
    "Info",
    "Messages",
    "Ok",
    "Parser",
    "Ping",
    "Pong",
    "ServerInfo",
    "backend",
    "decode_headers",
    "decode_status",
    "encode_headers",
]
