"""Spark for tests: the `spark` fixture, and Spark Connect in a process of its own.

In your `conftest.py`:

```python
from headrace.testing.spark import spark  # noqa: F401
```

Then every test that takes an argument `spark` shares one small local session. Classic and Connect sessions do not mix
in one process, so what needs Connect goes to another one:

```python
def totals(spark, table):                      # runs there, with a Connect session
    return metrics.measure(spark.createDataFrame(table)).toArrow()

answers = on_connect(totals, table)            # called here
```
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.spark.session import java_version, local_session

Result = TypeVar("Result")

_SHOWN_ERROR = 6000
_TIMEOUT_SECONDS = 240


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session on two cores with little memory, few shuffle partitions and no UI, for the whole test run."""
    session = local_session(
        "headrace tests",
        cores=2,
        spark__driver__memory="2g",
        spark__sql__shuffle__partitions="4",
        spark__default__parallelism="2",
    )
    yield session
    session.stop()


def dataframe(spark: SparkSession, table: pa.Table) -> DataFrame:
    """An Arrow table on Spark, with the types it has in Arrow: left alone, Spark gives every timestamp a zone."""
    df = spark.createDataFrame(table)
    for field in table.schema:
        if field.type == pa.timestamp("us"):
            df = df.withColumn(field.name, F.col(field.name).cast("timestamp_ntz"))
    return df


def on_connect(function: Callable[..., Result], *arguments: object) -> Result:
    """Call `function(spark, *arguments)` with a Spark Connect session, in a new process, and give back its result.

    The server is local and comes with pyspark's own package; nothing is downloaded. The function travels by value, so
    it may live in a test module; arguments and result must be picklable. What it raises comes back as the text of a
    RuntimeError.
    """
    java_version()
    with tempfile.TemporaryDirectory(prefix="headrace-connect-") as folder:
        call, result = Path(folder, "call"), Path(folder, "result")
        call.write_bytes(_pickled(function, arguments))
        command = [sys.executable, "-m", "headrace.testing.connect_process", str(call), str(result)]
        done = subprocess.run(
            command, env=_connect_environment(), capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
        if not result.exists():
            raise RuntimeError(f"{function.__name__} failed on Spark Connect:\n{done.stderr[-_SHOWN_ERROR:]}")
        return pickle.loads(result.read_bytes())  # type: ignore[no-any-return]


@contextmanager
def connect_session(cores: int = 2) -> Iterator[SparkSession]:
    """A Spark Connect session with a local server; only in a process that has no other session (see `on_connect`)."""
    session = SparkSession.builder.remote(f"local[{cores}]").getOrCreate()
    session.conf.set("spark.sql.shuffle.partitions", "4")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        yield session
    finally:
        session.stop()


def _connect_environment() -> dict[str, str]:
    settings = (
        "spark.ui.enabled=false",
        "spark.ui.showConsoleProgress=false",
        "spark.driver.bindAddress=127.0.0.1",
        "spark.driver.host=127.0.0.1",
    )
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": " ".join(["--driver-memory 1g", *(f"--conf {s}" for s in settings), "pyspark-shell"]),
        # With this set pyspark binds the server to a free port: two test runs do not fight for one.
        "SPARK_TESTING": "1",
    }


def _pickled(function: Callable[..., Any], arguments: tuple[object, ...]) -> bytes:
    module = sys.modules[function.__module__]
    pickles: Any = cloudpickle  # it has no type hints
    # A test module cannot be imported by name in another process, so its functions travel by value.
    pickles.register_pickle_by_value(module)
    try:
        return bytes(pickles.dumps((function, arguments)))
    finally:
        pickles.unregister_pickle_by_value(module)
