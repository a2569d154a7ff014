"""JetStream as a Spark data source: ``spark.read``, ``readStream``, ``write``, ``writeStream``.

Spark finds ``format("jetstream")`` through the package ``pyspark_jetstream``; :func:`register` registers it
where that look-up is switched off. Parts are loaded on use, so options can be checked without PySpark.
"""

from typing import TYPE_CHECKING

from jetspark._lazy import exports

if TYPE_CHECKING:
    # isort: off
    from jetspark.spark.helpers import (
        SinkArguments as SinkArguments,
        SourceArguments as SourceArguments,
        decode_json as decode_json,
        read as read,
        read_stream as read_stream,
        route as route,
        write as write,
        write_stream as write_stream,
    )
    from jetspark.spark.lag_listener import StreamLag as StreamLag, StreamLagListener as StreamLagListener
    from jetspark.spark.options import OptionError as OptionError
    from jetspark.spark.sessions import (
        NoQueryId as NoQueryId,
        active_session as active_session,
        register as register,
    )
    from jetspark.spark.sink.options import SinkSchemaError as SinkSchemaError
    from jetspark.spark.sink.rows import BadRow as BadRow
    from jetspark.spark.sink.target import NotExactlyOnce as NotExactlyOnce, UnfitStream as UnfitStream
    from jetspark.spark.sink.task import RowNotAcked as RowNotAcked
    from jetspark.spark.sink.write_result import WriteResult as WriteResult
    from jetspark.spark.source.data_loss import DataLossError as DataLossError
    from jetspark.spark.source.offsets import OffsetError as OffsetError
    from jetspark.spark.source.origin import UnknownMicroBatch as UnknownMicroBatch
    from jetspark.spark.source.positions import StreamsNotFound as StreamsNotFound
    from jetspark.spark.source.range_proof import RangeInterrupted as RangeInterrupted
    from jetspark.spark.source.range_reader import (
        ConsumersExhausted as ConsumersExhausted,
        DirectGetNeeded as DirectGetNeeded,
    )
    # isort: on

# The imports above, for run time.
_EXPORTS = {
    "jetspark.spark.helpers": (
        "SinkArguments SourceArguments decode_json read read_stream route write write_stream"
    ),
    "jetspark.spark.lag_listener": "StreamLag StreamLagListener",
    "jetspark.spark.options": "OptionError",
    "jetspark.spark.sessions": "NoQueryId active_session register",
    "jetspark.spark.sink.options": "SinkSchemaError",
    "jetspark.spark.sink.rows": "BadRow",
    "jetspark.spark.sink.target": "NotExactlyOnce UnfitStream",
    "jetspark.spark.sink.task": "RowNotAcked",
    "jetspark.spark.sink.write_result": "WriteResult",
    "jetspark.spark.source.data_loss": "DataLossError",
    "jetspark.spark.source.offsets": "OffsetError",
    "jetspark.spark.source.origin": "UnknownMicroBatch",
    "jetspark.spark.source.positions": "StreamsNotFound",
    "jetspark.spark.source.range_proof": "RangeInterrupted",
    "jetspark.spark.source.range_reader": "ConsumersExhausted DirectGetNeeded",
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = exports(__name__, _EXPORTS)
