"""The Spark session of the command line, and the data in it."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.markup import escape

from headrace.cli import screen
from headrace.cli.reading import PROBLEM, only_time_column, read
from headrace.cli.source import find_source
from headrace.errors import EnvironmentProblem, HeadraceError
from headrace.spark.session import local_session

CONF: Final = {
    # The default of 200 is for clusters; a few for each core keep them all busy to the end.
    "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),
    # A record with too few or too many fields is only noticed when all its fields are looked at.
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    # Spark's old default (INT96) is unknown to half of the world's readers.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@contextmanager
def spark_session(command: str, cores: str | int = "*") -> Iterator[SparkSession]:
    """A local session for one command, stopped at its end. What the JVM prints goes to a file, not to the screen."""
    with tempfile.NamedTemporaryFile("w+", prefix="headrace-spark-", suffix=".log") as log:
        spark = _start(command, Path(log.name), cores)
        # PySpark's own handler talks to the JVM in the middle of another call to it; stopping the session is enough.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield spark
        finally:
            spark.stop()


def _start(command: str, log: Path, cores: str | int) -> SparkSession:
    with os.fdopen(os.dup(2), "w") as stream, Console(file=stream).status("starting Spark"), _printed_to(log):
        try:
            return local_session(f"headrace {command}", cores, **CONF)
        except HeadraceError:
            raise
        except Exception as error:
            said = log.read_text().strip().splitlines()
            raise EnvironmentProblem(f"Spark does not start: {said[-1] if said else error}") from error


@contextmanager
def _printed_to(log: Path) -> Iterator[None]:
    """What is written to stdout and stderr inside goes to the file, also by processes started here that live on."""
    kept = {number: os.dup(number) for number in (1, 2)}
    target = os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        for number in kept:
            os.dup2(target, number)
        yield
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(target)


@contextmanager
def data_frame(command: str, path: str, input_format: str | None, time: str | None) -> Iterator[tuple[DataFrame, str]]:
    """The data at `path`, for a look at its schema, and its time column: `time`, or the only one it can be."""
    source = find_source(path, input_format)
    with spark_session(command) as spark:
        with screen.err.status(escape(f"looking at {path}")):
            frame = read(spark, source).drop(PROBLEM)
        yield frame, time if time is not None else only_time_column(frame)
