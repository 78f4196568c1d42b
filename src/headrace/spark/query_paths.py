"""The topic between a Structured Streaming query and its merger, whose partitions are data paths.

Each task of a micro-batch writes its rows, sorted, to a partition of its own; `order/runs.py` merges them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.errors import FlowError
from headrace.order.runs import BEGIN, END
from headrace.queues.kafka_client import Trouble, client_settings, confluent, new_client, queue_error, unreachable
from headrace.spark.operator import column

TAG: Final = "headrace"
"""The header of a row on its path: token, number of the row in its task, sequence."""
TIMEOUT_S: Final = 30.0
_ROW_BITS: Final = 33  # of monotonically_increasing_id; the rest is the task


class Client:
    """A client of Kafka, whose errors are in our words."""

    def __init__(self, paths: Paths, kind: str, own: Mapping[str, Any]):
        self.trouble, self._servers = Trouble(), paths.servers
        made = getattr(confluent().admin if kind == "AdminClient" else confluent(), kind)
        self.it = new_client(made, client_settings(paths.servers, paths.settings, self.trouble, own))

    def problem(self, error: Any, doing: str) -> Exception:
        if error.name() == "_FATAL":
            self.it.poll(0)  # where it tells `Trouble` why
        if "fenced" in f"{error.name()} {error.str()} {self.trouble.reason}".lower():
            return FlowError(f"cannot {doing}: another merger of this name has taken over; run one of them")
        return queue_error(error, doing, self._servers, TIMEOUT_S, self.trouble)

    def __call__(self, doing: str, method: str, *arguments: Any, **more: Any) -> Any:
        try:
            return getattr(self.it, method)(*arguments, **more)
        except confluent().KafkaException as error:
            raise self.problem(error.args[0], doing) from None


@dataclass(frozen=True)
class Paths:
    """The topic between a query and its merger. `options` are those of Spark's Kafka sink, `settings` librdkafka's."""

    name: str
    servers: str
    parallelism: int
    sequence: str = "offset"
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return f"{self.name}-paths"

    def write(self, rows: DataFrame, batch: int) -> None:
        """A micro-batch, for `foreachBatch`. If it fails, Spark runs it again, under another token."""
        token = self._mark([0], f"-1,{BEGIN},{batch}")
        self._numbered(rows, token).write.format("kafka").options(**self.sink_options).save()
        self._mark(range(self.parallelism), f"{token},{END},{batch}")

    @property
    def sink_options(self) -> dict[str, str]:
        options = {"kafka.acks": "all", "kafka.enable.idempotence": "true", **self.options}
        return {**options, "kafka.bootstrap.servers": self.servers, "topic": self.topic}

    @property
    def place(self) -> Column:
        """The sequence of a row; a row without one has no place."""
        nothing = F.raise_error(F.lit(f"column {self.sequence} is null: a row without a sequence has no place"))
        return F.coalesce(column(self.sequence).cast("bigint"), nothing.cast("bigint"))

    def tagged(self, rows: DataFrame, tag: str, value: Column, *more: Column) -> DataFrame:
        """Rows as Spark's sink takes them, with a header of ours behind their own."""
        headers = F.array(F.struct(F.lit(tag).alias("key"), value.cast("binary").alias("value")))
        if "headers" in rows.columns:
            headers = F.concat(F.coalesce(F.col("headers"), F.array()), headers)
        columns = [F.col(name) for name in ("key", "value") if name in rows.columns]
        return rows.select(*columns, headers.alias("headers"), *more)

    def _numbered(self, rows: DataFrame, token: int) -> DataFrame:
        number = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << _ROW_BITS) - 1))
        # Round robin sorts by hash before it deals out, and a shuffle has the rows of its map tasks in any order.
        sorted_rows = rows.coalesce(self.parallelism).sortWithinPartitions(column(self.sequence))
        tag = F.concat_ws(",", F.lit(token), number, self.place)
        return self.tagged(sorted_rows, TAG, tag, F.spark_partition_id().alias("partition"))

    def _mark(self, partitions: Iterable[int], tag: str) -> int:
        """Gives the offset of the last one."""
        client, answers = marks_to(self.topic, self.servers, tuple(self.settings.items())), list[tuple[Any, Any]]()
        doing, headers = f"write to topic {self.topic}", [(TAG, tag)]
        try:
            for at in partitions:
                told = {"partition": at, "on_delivery": lambda *it: answers.append(it)}
                client(doing, "produce", self.topic, headers=headers, **told)
            if client.it.flush(TIMEOUT_S):
                raise unreachable(doing, self.servers, TIMEOUT_S, client.trouble.reason)
            for error, _ in answers:
                if error is not None:
                    raise client.problem(error, doing)
        except Exception:
            marks_to.cache_clear()
            raise
        return int(answers[-1][1].offset())


@lru_cache(maxsize=4)
def marks_to(topic: str, servers: str, settings: tuple[tuple[str, str], ...]) -> Client:
    """What writes marks to a topic. It is kept, for such a producer takes half a second to begin."""
    own = {"enable.idempotence": True, "acks": "all", "linger.ms": 0}
    return Client(Paths(topic, servers, 0, settings=dict(settings)), "Producer", own)
