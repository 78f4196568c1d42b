"""Has everything of a substream left a row of ordinary Structured Streaming queries, with Kafka topics between them?

`track/links.py` decides, by positions; `query_tracker.py` runs a ledger that reads the topics, and looks at the
checkpoints of the queries. These are not changed, and may run anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, SparkSession

from headrace.errors import FlowError, QueueDamaged
from headrace.spark.query_tracker import OnDone, QueryTracker
from headrace.spark.tracked_journal import Journal, local_path
from headrace.spark.tracked_topics import Checkpoint, Link, Topics, by_text, ledger_rows
from headrace.track.links import REMEMBERED, LinkAgent, LinkName, Offsets

_OFTEN: Final[Mapping[str, Any]] = {"processingTime": "500 milliseconds"}


def link(topic: str, *, by: Column, checkpoint: str, ends: Column | None = None, stateful_ok: bool = False) -> Link:
    """A Kafka topic that a query reads, for `track_queries`.

    `by` gives the substream of a record, `ends` (on the first link) whether it is the last one of its substream: both
    over the columns of Spark's Kafka source, key, value, topic, partition, offset, timestamp, headers. A record whose
    substream is null is not tracked. On the first topic all records of a substream share a partition, as those with the
    same key do, and the marker is the last of them. `checkpoint` is that of the query that reads the topic; it need
    not be there yet. A query that keeps state may hold records back, and is refused unless `stateful_ok`.
    """
    where = f"link({topic!r}, ...)"
    if not isinstance(topic, str) or not topic:
        raise FlowError(f"{where}: the topic is a name, such as 'orders'")
    for name, column in (("by", by), ("ends", ends)):
        if not isinstance(column, Column) and not (name == "ends" and column is None):
            raise FlowError(
                f"{where}: {name}= is a column of Spark, such as F.col('key').cast('string'); not {column!r}"
            )
    if not isinstance(checkpoint, str) or not checkpoint:
        raise FlowError(f"{where}: checkpoint= is the path of the checkpoint of the query that reads the topic")
    return Link(topic, by, checkpoint, ends, stateful_ok)


def track_queries(
    spark: SparkSession,
    links: Sequence[Link],
    at: str,
    servers: str,
    *,
    on_done: OnDone | None = None,
    remembered: int = REMEMBERED,
    trigger: Mapping[str, Any] | None = None,
    look_s: float = 0.2,
    settings: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> QueryTracker:
    """Start to track substreams through a chain of queries: the first reads link 1 and writes to link 2, and so on.

    The queries write to the topics between them before they commit a batch, as Spark's Kafka sink does (with acks=all,
    its default), and nobody else writes records of a substream there.

    `at`          a folder for what the tracker keeps; with the same folder it goes on where it was
    `on_done`     is called with each substream that is done, in a thread of the tracker; after a crash, the last ones
                  may be told again
    `remembered`  how many substreams that are done are known by name
    `trigger`     of the ledger, the query that reads the topics; by default every 500 ms
    `look_s`      how often the checkpoints of the queries are looked at
    `settings`    of librdkafka, and `options` of Spark's Kafka source, for TLS and SASL
    """
    _check(spark, links, at, trigger, remembered)
    topics, every = Topics([each.topic for each in links], servers, settings or {}), range(len(links))
    starts, ends = topics.starts(every), topics.ends(every)
    begin = [starts[number] for number in every]
    rows = ledger_rows(spark, links, servers, begin, options or {})
    checkpoints = [Checkpoint(number, each) for number, each in enumerate(links)]
    for checkpoint in checkpoints:
        checkpoint.check()
    journal = Journal(at)
    names = [LinkName(each.topic, each.checkpoint, by_text(each.by)) for each in links]
    agent = journal.begin(names, begin, remembered)
    if agent.read != begin:
        rows = ledger_rows(spark, links, servers, _resumed(agent, starts, ends), options or {})
    tracker = QueryTracker(checkpoints, topics, journal, agent, on_done)
    tracker.start(rows, trigger or _OFTEN, look_s)
    return tracker


def _check(
    spark: SparkSession, links: Sequence[Link], at: str, trigger: Mapping[str, Any] | None, remembered: int
) -> None:
    if not hasattr(spark, "_jsparkSession"):
        raise FlowError("track_queries runs its ledger in this process: use a classic session, not Spark Connect")
    if not isinstance(at, str) or not at:
        raise FlowError(f"track_queries(at={at!r}): name a folder that is the tracker's alone")
    if isinstance(links, Link) or not links or not all(isinstance(each, Link) for each in links):
        raise FlowError("track_queries needs links, in the order of the queries: links=[link('orders', ...), ...]")
    if links[0].ends is None:
        raise FlowError(
            f"link 1 (topic {links[0].topic}) says of no record that it is the last of its substream, so none would "
            f"ever be done; give it a condition: link({links[0].topic!r}, ..., ends=...)"
        )
    for number, each in enumerate(links[1:], 2):
        if each.ends is not None:
            raise FlowError(f"link {number} (topic {each.topic}) has ends=; only the first topic has markers")
    for what, values in (
        ("topic", [each.topic for each in links]),
        ("checkpoint", [local_path(each.checkpoint) for each in links]),
    ):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise FlowError(f"two links have the {what} {twice}; each query reads one topic and writes the next one")
        if local_path(at) == twice or local_path(at) in values:
            raise FlowError(f"at={at} is the checkpoint of a query; name a folder that is the tracker's alone")
    if isinstance(remembered, bool) or not isinstance(remembered, int) or remembered < 1:
        raise FlowError(f"track_queries(remembered={remembered!r}): use a number from 1 on")
    if trigger and not {"processingTime"} >= set(trigger):
        raise FlowError("the ledger runs as long as the tracker: trigger={'processingTime': '1 second'}, or none")


def _resumed(agent: LinkAgent, starts: Mapping[int, Offsets], ends: Mapping[int, Offsets]) -> list[dict[int, int]]:
    """Where a ledger goes on. Raises QueueDamaged where what it has yet to read is no longer there."""
    for number, link in enumerate(agent.links):
        fix = "start a tracker anew, with another folder (at=)"
        for partition, at in agent.read[number].items():
            first, end = starts[number].get(partition, 0), ends[number].get(partition, 0)
            if at > end:
                problem = f"it ends at offset {end}, and the ledger has read up to {at}: it was deleted and made anew"
            elif at < first:
                problem = f"offsets {at} to {first - 1} were deleted before the ledger has read them"
            else:
                continue
            raise QueueDamaged(f"{link.topic}, partition {partition}", f"{problem}; {fix}")
    return [{**starts[number], **read} for number, read in enumerate(agent.read)]
