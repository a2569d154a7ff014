"""JetStream as a Spark data source: ``spark.read``, ``readStream``, ``write``, ``writeStream``.

Spark finds ``format("jetstream")`` through the package ``pyspark_jetstream``; :func:`register` registers it
where that look-up is switched off. Parts are loaded on use, so options can be checked without PySpark.
"""

from typing import TYPE_CHECKING

from jetspark._lazy import exports

if TYPE_CHECKING:
    from jetspark.spark.helpers import decode_json, read, read_stream, route, write, write_stream
    from jetspark.spark.lag_listener import StreamLag, StreamLagListener
    from jetspark.spark.sessions import active_session, register
    from jetspark.spark.sink.write_result import WriteResult

__all__ = [
    "StreamLag",
    "StreamLagListener",
    "WriteResult",
    "active_session",
    "decode_json",
    "read",
    "read_stream",
    "register",
    "route",
    "write",
    "write_stream",
]

_PLACES = {
    "jetspark.spark.helpers": "decode_json read read_stream route write write_stream",
    "jetspark.spark.lag_listener": "StreamLag StreamLagListener",
    "jetspark.spark.sessions": "active_session register",
    "jetspark.spark.sink.write_result": "WriteResult",
}
__getattr__, __dir__ = exports(__name__, _PLACES)
