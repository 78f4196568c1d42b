"""What a tracker of queries reads: topics (with its ledger, and their ends) and the checkpoints of queries."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, MapType, StructType, VariantType

from headrace.errors import FlowError, QueueError
from headrace.queues.kafka_admin import KafkaAdmin
from headrace.spark.kafka import add_kafka
from headrace.spark.query_paths import TIMEOUT_S
from headrace.spark.tracked_journal import local_path
from headrace.state.places import Place, place_of
from headrace.track.links import KEEP_THEM, Committed, Offsets, Seen

_NEW_S: Final = 2.0
"""A topic that was made a moment ago may not be known yet."""
_PAUSE_S: Final = 0.05
_OPTIONS: Final = {
    "includeHeaders": "true",
    "maxOffsetsPerTrigger": "500000",
    # What a producer has taken back was never there: neither were markers.
    "kafka.isolation.level": "read_committed",
    # A consumer's request for what is not there yet is answered after this time, and the next one waits for it.
    "kafka.fetch.max.wait.ms": "50",
}


@dataclass(frozen=True)
class Link:
    """A topic, and the query that reads it: see `link`."""

    topic: str
    by: Column
    checkpoint: str
    ends: Column | None = None
    stateful_ok: bool = False


def by_text(by: Column) -> str:
    """What names substreams, as Spark tells it: the same in every run."""
    # Spark counts the variables of its lambda functions.
    return re.sub(r"\b([xyz])_\d+", r"\1", str(by))


# ----------------------------------------------------------------------- Kafka


class Topics:
    """Of the links, by their numbers."""

    def __init__(self, names: Sequence[str], servers: str, settings: Mapping[str, str]):
        self._names, self._servers, self._settings = names, servers, dict(settings)
        self._kept: KafkaAdmin | None = None

    def close(self) -> None:
        """A client asks its broker for news for as long as it is there."""
        self._kept = None

    @property
    def _admin(self) -> KafkaAdmin:
        if self._kept is None:
            self._kept = KafkaAdmin(self._servers, self._settings, TIMEOUT_S)
        return self._kept

    def starts(self, links: Iterable[int]) -> dict[int, Offsets]:
        """The first offsets that are still there."""
        return {link: self._offsets(self._names[link], last=False) for link in links}

    def ends(self, links: Iterable[int]) -> dict[int, Offsets]:
        """The offsets after the last records, of all partitions that there are now."""
        return {link: self._offsets(self._names[link], last=True) for link in links}

    def _offsets(self, topic: str, last: bool) -> Offsets:
        return self._admin.offsets(topic, self._partitions(topic), f"ask for offsets of topic {topic}", last)

    def _partitions(self, topic: str) -> list[int]:
        deadline = time.monotonic() + _NEW_S
        while not (found := self._admin.partitions(topic, f"look at topic {topic}")):
            if time.monotonic() > deadline:
                raise QueueError(
                    f"there is no topic {topic} at {self._servers}; create it, or name the topic that the query reads: "
                    f"link(topic, ...)"
                )
            time.sleep(_PAUSE_S)
        return found


# ---------------------------------------------------------------------- ledger


def ledger_rows(
    spark: SparkSession, links: Sequence[Link], servers: str, starts: Sequence[Offsets], options: Mapping[str, str]
) -> DataFrame:
    """A streaming DataFrame: each record of a substream, with its offset once more if it is the marker."""
    begin = {link.topic: dict(start) for link, start in zip(links, starts, strict=True)}
    fixed = {"kafka.bootstrap.servers": servers, "subscribe": ",".join(begin), "startingOffsets": json.dumps(begin)}
    reader = spark.readStream.format("kafka").options(**{**_OPTIONS, **options, **fixed})
    try:
        records = reader.load()
    except AnalysisException:  # Spark has no connector yet
        add_kafka(spark)
        records = reader.load()
    for number, link in enumerate(links):
        _check_columns(records, link, number)
    topic, first = F.col("topic"), links[0]
    substream = F.when(topic == first.topic, first.by.cast("string"))
    for link in links[1:]:
        substream = substream.when(topic == link.topic, link.by.cast("string"))
    ends = first.ends if first.ends is not None else F.lit(False)
    marker = F.when((topic == first.topic) & ends, F.col("offset"))
    rows = records.select("topic", "partition", "offset", substream.alias("substream"), marker.alias("marker"))
    return rows.where("substream IS NOT NULL")


def _check_columns(records: DataFrame, link: Link, number: int) -> None:
    for name, column in (("by", link.by), ("ends", link.ends)):
        if column is None:
            continue
        where = f"link {number + 1} (topic {link.topic}): {name}="
        try:
            # Beside another column and inside of `when`, as in the ledger: there a maximum or an explode is refused.
            made = records.select("offset", F.when(F.lit(True), column)).schema[1].dataType
        except AnalysisException as error:
            raise FlowError(
                f"{where} does not fit what Kafka's source gives ({', '.join(records.columns)}): {_first_line(error)}"
            ) from None
        if name == "by" and isinstance(made, ArrayType | MapType | StructType | VariantType):
            raise FlowError(
                f"{where} is {made.simpleString()}; a record is of one substream, and its name is a single value, as "
                f"text: F.col('key').cast('string'), or F.get_json_object"
            )
        if name == "ends" and not isinstance(made, BooleanType):
            raise FlowError(
                f"{where} is {made.simpleString()}; it is a condition, true for the last record of a substream"
            )


def ledger_batch(rows: DataFrame, numbers: Mapping[str, int]) -> list[Seen]:
    """The one aggregate of a micro-batch. `numbers` are those of the links, by topic."""
    # The answer comes to this process anyway: one task puts it together.
    rows.sparkSession.conf.set("spark.sql.shuffle.partitions", "1")
    grouped = rows.groupBy("topic", "partition", "substream")
    found = grouped.agg(F.max("offset").alias("last"), F.max("marker").alias("marker")).toArrow()
    try:
        columns = [each.to_pylist() for each in found.columns]
    except UnicodeDecodeError as error:
        raise FlowError(
            f"by= gives {error.object[:40]!r}, bytes that are not text; name substreams as text: by=F.hex('key')"
        ) from None
    return [
        Seen(numbers[topic], partition, substream, last, -1 if marker is None else marker)
        for topic, partition, substream, last, marker in zip(*columns, strict=True)
    ]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


# ----------------------------------------------------------------- checkpoints


def positions(offsets: str, topic: str) -> Offsets | None:
    """Those in a topic, out of a file of a checkpoint's folder `offsets`; None if no source has begun to read it.

    One line a source, after a version and settings: its offsets as JSON, or `-`; from version 2 on after its name.
    """
    found: list[Offsets] = []
    for line in offsets.splitlines()[2:]:
        text = line if line.startswith(("{", "-")) else line.partition(":")[2]
        read = json.loads(text).get(topic) if text.startswith("{") else None
        if isinstance(read, dict):
            found.append({int(partition): int(offset) for partition, offset in read.items()})
    if not found:
        return None
    # A query may read a topic twice: it is as far as the slower of the two.
    return {partition: min(each.get(partition, 0) for each in found) for partition in set().union(*found)}


def topics_of(offsets: str) -> Iterator[str]:
    """The topics that a checkpoint names, and whatever else its sources call their parts."""
    for line in offsets.splitlines()[2:]:
        text = line if line.startswith(("{", "-")) else line.partition(":")[2]
        yield from json.loads(text) if text.startswith("{") else ()


class Checkpoint:
    """Of a query. What it tells is what was committed: a batch that runs again counts when it is done."""

    def __init__(self, number: int, link: Link):
        self._link, self._name = link, f"query {number + 1} (checkpoint {link.checkpoint})"
        self._place: Place = place_of(local_path(link.checkpoint))
        self._batch, self._query = -1, ""

    def check(self) -> None:
        """Raises FlowError for a query that cannot be tracked, as far as it has run."""
        self.news()
        self._batch, self._query = -1, ""

    def news(self) -> Committed | None:
        """What is committed, if it is another batch than the last time, or of another query in the same place."""
        commits = [int(name) for name in self._place.files("commits") if name.isdigit()]
        if not commits:
            if self._batch < 0:
                return None
            raise FlowError(f"{self._name} has no commits any more: its checkpoint was deleted; {KEEP_THEM}")
        batch, metadata = max(commits), self._text("", "metadata")
        query = None if metadata is None else str(json.loads(metadata)["id"])
        if query is None or (batch, query) == (self._batch, self._query):
            return None
        offsets = self._text("offsets", str(batch))
        if offsets is None:
            return None  # deleted since: the next look tells
        if self._batch < 0:
            self._check_state()
        self._batch, self._query, found = batch, query, positions(offsets, self._link.topic)
        if found is None:
            if "-" in offsets.splitlines():
                return None  # a source that had nothing to read yet
            raise FlowError(
                f"{self._name} does not read topic {self._link.topic}, but "
                f"{', '.join(topics_of(offsets)) or 'no topic'}; give each link the checkpoint of the query that reads "
                f"its topic"
            )
        return Committed(query, found)

    def _check_state(self) -> None:
        if "state" in self._place.folders("") and not self._link.stateful_ok:
            raise FlowError(
                f"{self._name} keeps state, and may hold records back when it has committed: what it holds cannot be "
                f"seen; if all it makes of a record leaves in the same batch, as with dropDuplicates, say "
                f"link(..., stateful_ok=True)"
            )

    def _text(self, folder: str, name: str) -> str | None:
        # With its size: a remote place keeps copies of whole files, and these are others where a query begins anew.
        size = self._place.files(folder).get(name)
        return None if size is None else self._place.read(f"{folder}/{name}".lstrip("/"), 0, size).decode()
