"""From a source to a Spark DataFrame. Records that cannot be read are kept, with the reason, and never dropped."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.cli.problems import problem_of
from headrace.cli.source import Source
from headrace.errors import DefinitionError, InputError
from headrace.spark.operator import column

PROBLEM: Final = "__headrace_problem"
"""The column that says why a record cannot be used; null for a good one."""

_EPOCHS: Final = {"s": F.timestamp_seconds, "ms": F.timestamp_millis, "us": F.timestamp_micros}


def read(spark: SparkSession, source: Source) -> DataFrame:
    """The data, with types found by looking at all of it, plus the PROBLEM column."""
    try:
        if source.format == "parquet":
            return spark.read.parquet(source.location).withColumn(PROBLEM, F.lit(None).cast("string"))
        return _read_text(spark, source)
    except (PySparkException, Py4JJavaError) as error:
        reason = problem_of(error).message.splitlines()[0].removeprefix("Spark: ")
        raise InputError(f"{source.path}: Spark cannot read it as {source.format}: {reason}") from error


def _read_text(spark: SparkSession, source: Source) -> DataFrame:
    options: dict[str, str | bool] = {"columnNameOfCorruptRecord": PROBLEM}
    if source.format == "csv":
        # Quotes are doubled inside quotes, as RFC 4180 and everybody but Spark has it.
        options |= {"header": True, "escape": '"', "sep": source.separator}
        found = spark.read.options(**options, inferSchema=True).format("csv").load(source.location)
    else:
        options |= {"multiLine": source.is_json_array}
        found = spark.read.options(**options, inferTimestamp=True).format("json").load(source.location)
    fields = [field for field in found.schema.fields if field.name != PROBLEM]
    if not fields:
        raise InputError(f"{source.path}: no {source.format.upper()} record in it can be read")
    # With the schema given, a record that does not fit it lands in the PROBLEM column, whole.
    schema = T.StructType([*fields, T.StructField(PROBLEM, T.StringType())])
    frame = spark.read.schema(schema).options(**options).format(source.format).load(source.location)
    what = F.lit(f"not a {source.format.upper()} record with {len(fields)} fields: ")
    return frame.withColumn(PROBLEM, F.when(F.col(PROBLEM).isNotNull(), F.concat(what, PROBLEM)))


def with_time(frame: DataFrame, time: str, time_format: str | None) -> DataFrame:
    """The frame with its time column read as `time_format` says: a pattern for texts; s, ms or us for numbers."""
    if time not in frame.columns:
        return frame  # the definition says so, and what is there instead
    raw, kind = column(time), frame.schema[time].dataType
    if time_format is None:
        _refuse_unless_time(time, kind)
        return frame
    parsed = _parsed(raw, kind, time, time_format)
    unreadable = F.col(PROBLEM).isNull() & raw.isNotNull() & parsed.isNull()
    reason = F.concat(F.lit(f"{time} does not read as {time_format}: "), raw.cast("string"))
    return frame.withColumn(PROBLEM, F.when(unreadable, reason).otherwise(F.col(PROBLEM))).withColumn(time, parsed)


def _refuse_unless_time(time: str, kind: T.DataType) -> None:
    if isinstance(kind, T.StringType | T.IntegralType | T.DecimalType):
        raise DefinitionError(
            f"time column {time} is {kind.simpleString()}, not a time\n"
            "hint: say how to read it, with --time-format 'dd/MM/yyyy HH:mm:ss' for such a text, "
            "or --time-format s, ms or us for a number since 1970"
        )


def _parsed(raw: Column, kind: T.DataType, time: str, time_format: str) -> Column:
    if isinstance(kind, T.StringType) and time_format not in _EPOCHS:
        return F.try_to_timestamp(raw, F.lit(time_format))
    if isinstance(kind, T.IntegralType | T.DecimalType) and time_format in _EPOCHS:
        return _EPOCHS[time_format](raw.cast("long"))
    raise DefinitionError(
        f"--time-format {time_format}: {time} is {kind.simpleString()}; "
        "a pattern such as 'dd/MM/yyyy HH:mm:ss' is for text, s, ms or us are for whole numbers"
    )


def only_time_column(frame: DataFrame) -> str:
    """The one column of a timestamp type. Raises DefinitionError where there is none, or a choice."""
    times = [f.name for f in frame.schema.fields if isinstance(f.dataType, T.TimestampType | T.TimestampNTZType)]
    if len(times) == 1:
        return times[0]
    choice = f"{', '.join(times)} are all timestamps" if times else "no column is a timestamp"
    raise DefinitionError(f"say which column holds the time of an event with --time: {choice}")


def with_assumed_types(frame: DataFrame, time: str, numbers: frozenset[str]) -> DataFrame:
    """A text file that has a header but no rows shows no types: assume those that the metrics need."""
    texts = all(isinstance(field.dataType, T.StringType) for field in frame.schema.fields)
    if not texts or not frame.isEmpty():
        return frame
    types = {name.lower(): "double" for name in numbers} | {time.lower(): "timestamp"}
    columns = [column(name).cast(types.get(name.lower(), "string")).alias(name) for name in frame.columns]
    return frame.select(columns)
