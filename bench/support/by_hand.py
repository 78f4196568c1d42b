"""The programs as a Spark user would write them by hand: on one partition, or with `transformWithStateInPandas`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headrace.spark.schema import spark_struct
from headrace.synchronize.codec import Codec
from headrace.synchronize.program import Program

_FILES: Final = 4


def output_struct(program: Program) -> Any:
    return spark_struct([(field.name, field.type) for field in program.outputs])


def one_partition(events: DataFrame, make: Callable[[], Program]) -> DataFrame:
    """All events sorted in one partition, through the columnar form of the program."""
    program: Any = make()

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        state = program.init()
        for batch in batches:
            state, given = program.update_batch(state, batch)
            if given is not None:
                yield given

    ordered = events.repartition(1).sortWithinPartitions("time", "stream")
    return ordered.mapInArrow(work, output_struct(program))


class Stateful(StatefulProcessor):
    """One key, one state; events of a micro-batch are sorted, and are newer than those before."""

    def __init__(self, program: Program, schema: pa.Schema):
        self._program: Any = program
        self._schema = schema

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._codec = Codec(self._program)
        self._kept = handle.getValueState("state", "content binary")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        kept = self._kept.get()
        state = self._program.init() if kept is None else self._codec.loads(bytes(kept[0]))
        frames = [frame[self._schema.names] for frame in rows]
        frame = pd.concat(frames, ignore_index=True).sort_values(["time", "stream"], kind="stable")
        batch = pa.RecordBatch.from_pandas(frame, self._schema, preserve_index=False)
        state, given = self._program.update_batch(state, batch)
        self._kept.update((self._codec.dumps(state),))
        if given is not None:
            yield given.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)

    def close(self) -> None:
        pass


def with_state(spark: SparkSession, make: Callable[[], Program], source: str, folder: str) -> pa.Table:
    """The events of a folder, a file a micro-batch; gives what came out."""
    schema = spark.read.parquet(source).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(source)
    keyed = stream.withColumn("all", F.lit(0)).groupBy("all")
    program = make()
    given = keyed.transformWithStateInPandas(
        Stateful(program, pq.read_schema(next(Path(source).glob("*.parquet")))),
        outputStructType=output_struct(program), outputMode="Append", timeMode="None",
    )  # fmt: skip
    writer = given.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start(f"{folder}/out").awaitTermination()
    found: pa.Table = spark.read.parquet(f"{folder}/out").toArrow()
    return found


def write(events: pa.Table, folder: str) -> str:
    """As Parquet, in the order of time over a few files."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    size = -(-events.num_rows // _FILES)
    for number in range(_FILES):
        pq.write_table(events.slice(number * size, size), f"{folder}/{number}.parquet")
    return folder
