"""`headrace measure`: every row of the data, with one more column for each metric."""

from __future__ import annotations

import time as clock
from dataclasses import dataclass

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from rich.markup import escape
from rich.table import Table

from headrace import Metrics
from headrace.cli import screen
from headrace.cli.options import (
    Arrival,
    Data,
    Debug,
    EventId,
    EventTime,
    InputFormat,
    OutputFormat,
    OutputPath,
    Overwrite,
    QueryFile,
    Stream,
    TimeFormat,
)
from headrace.cli.output import Output, clear, find_output, write
from headrace.cli.progress import spark_progress
from headrace.cli.query import read_query
from headrace.cli.reading import PROBLEM, read, with_assumed_types, with_time
from headrace.cli.session import spark_session
from headrace.cli.source import find_source
from headrace.language import columns_of
from headrace.measure.definition import sketch
from headrace.spark.operator import column
from headrace.spark.schema import arrow_schema


@dataclass(frozen=True)
class Done:
    """What a run did, for its summary."""

    rows: int
    rejected: int
    metrics: tuple[str, ...]
    seconds: float


def measure(
    file: QueryFile,
    input: Data,
    output: OutputPath,
    time: EventTime,
    id: EventId = None,
    arrival: Arrival = None,
    stream: Stream = None,
    time_format: TimeFormat = None,
    input_format: InputFormat = None,
    output_format: OutputFormat = None,
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Compute the metrics of a text for every row of the data, exactly.

    The result has all columns of the data and one more for each metric.
    Rows that cannot be measured (no time, or a record that cannot be read)
    go to [bold]OUT.rejected[/bold] with a reason, and are counted.
    Times without a zone are UTC.

    [dim]headrace measure rules.sql -i payments.parquet -o scored.parquet --time ts
    headrace measure rules.sql -i days/ -o scored/ --time ts --id txn --overwrite
    headrace measure rules.sql -i old.csv -o new.csv --time t --time-format 'dd/MM/yyyy HH:mm'[/dim]
    """
    metrics = Metrics(read_query(file), time=time, id=id, arrival=arrival, stream=stream)
    source = find_source(input, input_format)
    goal = find_output(output, output_format, overwrite, input)
    with spark_session("measure") as spark:
        started = clock.monotonic()
        with screen.err.status(escape(f"reading {source.path}")):
            found = with_assumed_types(read(spark, source), time, _numbers(metrics))
            frame = with_time(found, time, time_format)
            metrics.check(frame.drop(PROBLEM))
        done = _run(metrics, frame, goal, [name for name in (time, arrival) if name is not None], started)
    _print_summary(done, goal)


def _numbers(metrics: Metrics) -> frozenset[str]:
    """The columns that only fit their metrics as numbers."""
    names: set[str] = set()
    for metric in sketch(metrics.definition.statements, metrics.definition.text):
        # A function says what it makes of a type, or, as a sentence, why it does not take it.
        if metric.argument is not None and isinstance(metric.function.result_type(pa.string()), str):
            names |= columns_of(metric.argument)
    return frozenset(names)


def _run(metrics: Metrics, frame: DataFrame, goal: Output, needed: list[str], started: float) -> Done:
    bad = F.col(PROBLEM).isNotNull() | _any_null(needed)
    counts = [F.count(F.lit(1)).alias("rows"), F.count_if(bad).alias("rejected")]
    seen = Observation("input")
    measured = metrics.measure(frame.observe(seen, *counts).where(~bad).drop(PROBLEM))
    # A shuffle ends a stage of Spark's: there is one for reading, and one for each partitioner.
    stages = 1 + len(metrics.definition.plan(arrow_schema(frame.drop(PROBLEM))).stages)
    with spark_progress(frame.sparkSession.sparkContext, f"measuring {len(metrics.names)} metrics", stages):
        write(measured, goal)
    rows, rejected = _counted(seen, frame, counts)
    clear(goal.rejected())
    if rejected:
        with spark_progress(frame.sparkSession.sparkContext, "setting rejected rows aside", stages=1):
            write(_rejected(metrics, frame), goal.rejected())
    return Done(rows - rejected, rejected, metrics.names, clock.monotonic() - started)


def _counted(seen: Observation, frame: DataFrame, counts: list[Column]) -> tuple[int, int]:
    try:
        observed = seen.get
        return observed["rows"], observed["rejected"]
    except Py4JJavaError:
        # Where no row is left to measure, Spark drops the whole plan, and the observation with it.
        rows, rejected = frame.agg(*counts).collect()[0]
        return rows, rejected


def _any_null(names: list[str]) -> Column:
    found = F.lit(False)
    for name in names:
        found = found | column(name).isNull()
    return found


def _rejected(metrics: Metrics, frame: DataFrame) -> DataFrame:
    taken = {name.lower() for name in frame.columns}
    reason = next(name for name in ("reason", "headrace_reason", "rejected_because") if name not in taken)
    unreadable = frame.where(F.col(PROBLEM).isNotNull()).withColumnRenamed(PROBLEM, reason)
    without_time = metrics.rejected(frame.where(F.col(PROBLEM).isNull()).drop(PROBLEM), reason=reason)
    return without_time.unionByName(unreadable)


def _print_summary(done: Done, goal: Output) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    table.add_row("rows", f"{done.rows:,}")
    table.add_row("metrics", escape(f"{len(done.metrics)}: {', '.join(done.metrics)}"))
    table.add_row("seconds", f"{done.seconds:.1f}")
    rejected = f"{done.rejected:,} row{'s' * (done.rejected != 1)}"
    where = f"[yellow]{rejected}[/], with reasons in {escape(goal.rejected().path)}" if done.rejected else rejected
    table.add_row("rejected", where)
    table.add_row("written to", escape(goal.path))
    screen.out.print(table)
