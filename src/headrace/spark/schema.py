"""Spark's types and Arrow's."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from headrace.errors import DefinitionError

_PAIRS: Final[tuple[tuple[type[T.DataType], pa.DataType], ...]] = (
    (T.BooleanType, pa.bool_()),
    (T.ByteType, pa.int8()),
    (T.ShortType, pa.int16()),
    (T.IntegerType, pa.int32()),
    (T.LongType, pa.int64()),
    (T.FloatType, pa.float32()),
    (T.DoubleType, pa.float64()),
    (T.StringType, pa.string()),
    (T.BinaryType, pa.binary()),
    (T.DateType, pa.date32()),
    (T.TimestampType, pa.timestamp("us", "UTC")),
    (T.TimestampNTZType, pa.timestamp("us")),
)

_KNOWN: Final = "bool, int8 to int64, float32, float64, string, binary, date32, timestamp('us'), decimal128"

_OPAQUE: Final = pa.list_(pa.null())
"""Stands for a type that no metric can use (an array, a map, a variant): such a column only passes through."""


def arrow_schema(schema: DataFrame | T.StructType | pa.Schema) -> pa.Schema:
    """The schema of anything that has one, for the binder."""
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, DataFrame):
        schema = schema.schema
    if not isinstance(schema, T.StructType):
        raise DefinitionError(f"a schema is a DataFrame, a StructType or a pyarrow Schema, not {type(schema).__name__}")
    return pa.schema([pa.field(f.name, _arrow_type(f.dataType)) for f in schema.fields])


def arrow_type(type: T.DataType) -> pa.DataType | None:
    """Of a plain value; None where Arrow is to find out itself."""
    found = _arrow_type(type)
    return None if found is _OPAQUE else found


def _arrow_type(type: T.DataType) -> pa.DataType:
    if isinstance(type, T.DecimalType):
        return pa.decimal128(type.precision, type.scale)
    if isinstance(type, (T.CharType, T.VarcharType)):
        return pa.string()
    return next((arrow for spark, arrow in _PAIRS if isinstance(type, spark)), _OPAQUE)


def spark_type(type: pa.DataType) -> T.DataType:
    """The type of an answer."""
    if pa.types.is_decimal128(type):
        return T.DecimalType(type.precision, type.scale)
    if pa.types.is_list(type):
        return T.ArrayType(spark_type(type.value_type))
    if pa.types.is_struct(type):
        return spark_struct([(field.name, field.type) for field in type])
    if pa.types.is_timestamp(type) and type.unit == "us":
        return T.TimestampNTZType() if type.tz is None else T.TimestampType()
    found = next((spark() for spark, arrow in _PAIRS if arrow == type), None)
    if found is None:
        raise DefinitionError(f"{type} is no type of Spark; use one of {_KNOWN}, or lists or structs of them")
    return found


def spark_struct(names_and_types: list[tuple[str, pa.DataType]]) -> T.StructType:
    return T.StructType([T.StructField(name, spark_type(type)) for name, type in names_and_types])
