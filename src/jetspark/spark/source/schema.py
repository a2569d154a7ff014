"""The columns of the source, and the check of a user's ``.schema(...)`` against them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from jetspark.spark.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = StructType(
    [
        StructField("stream", StringType()),
        StructField("sequence", LongType()),
        StructField("subject", StringType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", MapType(StringType(), ArrayType(StringType()))),
        StructField("data", BinaryType()),
    ]
)
"""``stream``, ``sequence``: where the message is stored. ``timestamp``: when the server stored it, UTC.
``headers``: every value of every name; an empty map when there are none. ``data``: the payload."""


def check_schema(schema: StructType) -> None:
    """Refuse a user's schema that is not a subset of the source's; columns left out are not read."""
    known = {field.name: field.dataType for field in SCHEMA.fields}
    if not schema.fields:
        raise OptionError("schema", f"has no columns; choose from {', '.join(known)}")
    for field in schema.fields:
        expected = known.get(field.name)
        if expected is None:
            raise OptionError(
                "schema", f"column {field.name!r} does not exist; choose from {', '.join(known)}"
            )
        if _loose(field.dataType) != _loose(expected):
            raise OptionError(
                "schema",
                f"column {field.name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}; "
                "convert it with cast() after load()",
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The exact Arrow schema that Spark expects."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


def _loose(kind: DataType) -> str:
    # simpleString leaves nullability out, which may differ: our columns have nulls in none but headers.
    text: str = kind.simpleString()
    return text
