"""Orders through three ordinary streaming queries: done is said of each, once, and never before it is true."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.errors import FlowError, QueueDamaged, QueueError, StateError, StateMismatch
from headrace.spark.broker import Broker
from headrace.spark.kafka import add_kafka
from headrace.spark.tracked_queries import link, track_queries
from headrace.spark.tracked_topics import Link, Topics
from headrace.testing.checkpoints import checkpoint

from .shop import PACKED, PATIENCE_S, Order, Shop, Witness, field_of, new_topics, tracking, until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(300)]


def test_orders_are_done_when_the_last_query_has_had_all_of_them(
    spark: SparkSession, kafka_broker: Broker, tmp_path: Path
) -> None:
    shop, orders = Shop(spark, kafka_broker, tmp_path, 400), [Order(n) for n in range(1, 301)]
    witness = Witness(shop)
    shop.order(orders[:200])
    with tracking(shop, on_done=witness) as tracker:
        shop.start(0)
        # Those that are filtered away are done when the first query has had them.
        assert tracker.wait_for("6", PATIENCE_S)
        until(lambda: "waits for query 2" in tracker.why("7"))
        assert tracker.why("7").endswith("which has not started yet: no batch is committed there")
        assert not tracker.is_done("7")
        shop.fails_after_write = 1
        shop.start(1, 2)
        until(lambda: not shop.queries[1].isActive)
    shop.order(orders[200:])
    assert not witness.problems
    with tracking(shop, on_done=witness) as tracker:
        shop.start(1)
        shop.stop(2)
        shop.start(2)
        for order in orders:
            assert tracker.wait_for(str(order.number), PATIENCE_S), tracker.why(str(order.number))
        until(lambda: len(witness.told) == len(orders))
        status = tracker.status()
    shop.stop(0, 1, 2)
    witness.check(orders)
    assert max(Counter(shop.processed)[order.number] - order.rows for order in orders) > 0, "there were copies"
    assert (status.open, status.done, status.unpromised, status.trouble) == (0, len(orders), 0, None)
    assert [(each.ledger_lag, each.query_lag) for each in status.links] == [(0, 0)] * 3
    assert (status.strangers.count, status.late.count, status.after_end.count) == (0, 0, 0)


def test_a_query_that_begins_anew_stops_the_tracker(spark: SparkSession, kafka_broker: Broker, tmp_path: Path) -> None:
    (topic,), producer = new_topics(kafka_broker, [1]), quiet_producer(kafka_broker)
    for n in range(10):
        producer.produce(topic, json.dumps({"order": n // 2, "last": n % 2 == 1}))
    producer.produce(topic, json.dumps({"order": 9, "last": False}))
    producer.flush(30)
    links = [link(topic, by=field_of("order"), checkpoint=str(tmp_path / "q"), ends=field_of("last") == "true")]
    at, address = str(tmp_path / "tracker"), kafka_broker.address
    checkpoint(tmp_path / "q", 0, {topic: 5})
    with track_queries(spark, links, at, address) as tracker:
        assert tracker.wait_for("1", PATIENCE_S)
        assert tracker.done() == ["0", "1"]
        assert tracker.done() == []
        checkpoint(tmp_path / "q", 1, {topic: 11})
        assert tracker.wait_for("4", PATIENCE_S)
        assert tracker.done() == ["2", "3", "4"]
        assert tracker.why("9") == f"9: its end is not promised: no record with ends= was seen of it on topic {topic}"
        assert tracker.why("x") == "x: nothing of it was seen"
        assert not tracker.wait_for("9", 0.0)
        status = tracker.status()
        assert (status.open, status.unpromised, status.oldest) == (1, 1, (tracker.why("9"),))
    with pytest.raises(FlowError, match="the tracker is stopped, and 9: its end is not promised"):
        tracker.wait_for("9", 1)
    with pytest.raises(FlowError, match="the tracker is stopped; what was found done"):
        tracker.done()
    with track_queries(spark, links, at, address) as tracker:
        assert tracker.done() == []
        (tmp_path / "q" / "commits" / "1").unlink()
        with pytest.raises(FlowError, match=r"ask by that text, not by datetime.datetime\(2026, 1, 2, 0, 0\)"):
            tracker.is_done(datetime(2026, 1, 2))  # type: ignore[arg-type]
        with pytest.raises(FlowError, match=r"query 1 \(checkpoint .*/q\) has gone back from offset 11 to 5 on topic"):
            tracker.wait_for("9", PATIENCE_S)
        assert tracker.is_done("4")
        assert "has gone back" in str(tracker.status().trouble)
    renamed = [link(topic, by=field_of("number"), checkpoint=str(tmp_path / "q"), ends=field_of("last") == "true")]
    with pytest.raises(StateMismatch, match=rf"names substreams of topic {topic} by .*order.*, and the link by .*numb"):
        track_queries(spark, renamed, at, address)
    admin = AdminClient({"bootstrap.servers": address})
    admin.delete_topics([topic])[topic].result(30)
    until(lambda: topic not in admin.list_topics(timeout=30).topics)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    with pytest.raises(
        QueueDamaged, match="ends at offset 0, and the ledger has read up to 11: it was deleted and mad"
    ):
        track_queries(spark, links, at, address)


def test_one_that_is_waited_for_is_told_also_if_it_is_forgotten_at_once(
    spark: SparkSession, kafka_broker: Broker, tmp_path: Path
) -> None:
    (topic,), producer = new_topics(kafka_broker, [1]), quiet_producer(kafka_broker)
    for n in range(1000):
        producer.produce(topic, b"{}", key=str(n))
    producer.flush(30)
    links = [link(topic, by=F.col("key"), checkpoint=str(tmp_path / "q"), ends=F.lit(True))]
    with (
        ThreadPoolExecutor(3) as pool,
        track_queries(spark, links, str(tmp_path / "tracker"), kafka_broker.address, remembered=10) as tracker,
    ):
        waiting = [pool.submit(tracker.wait_for, name, PATIENCE_S) for name in ("0", "500", "999")]
        until(lambda: tracker.status().open == 1000)
        checkpoint(tmp_path / "q", 0, {topic: 1000})
        assert [each.result() for each in waiting] == [True] * 3
        assert tracker.why("500").endswith("it is one of the 990 that were done before the last 10")


def test_names_that_are_not_text_stop_the_tracker(spark: SparkSession, kafka_broker: Broker, tmp_path: Path) -> None:
    (topic,), producer = new_topics(kafka_broker, [1]), quiet_producer(kafka_broker)
    producer.produce(topic, b"{}", key=(4711).to_bytes(8, "big") + b"\xff")
    producer.flush(30)
    links = [link(topic, by=F.col("key"), checkpoint=str(tmp_path / "q"), ends=F.lit(True))]
    with (
        track_queries(spark, links, str(tmp_path / "tracker"), kafka_broker.address) as tracker,
        pytest.raises(FlowError, match=r"by= gives b'.*g\\xff', bytes that are not text; .* by=F.hex\('key'\)"),
    ):
        tracker.wait_for("4711", PATIENCE_S)


def test_what_is_refused(spark: SparkSession, kafka_broker: Broker, tmp_path: Path) -> None:
    add_kafka(spark)
    (one, two), address = new_topics(kafka_broker, [1, 1]), kafka_broker.address
    by, at = field_of("order"), str(tmp_path / "tracker")
    first = link(one, by=by, checkpoint=str(tmp_path / "one"), ends=F.lit(True))
    second = link(two, by=by, checkpoint=str(tmp_path / "two"))

    def refused(match: str, *links: Link, error: type[Exception] = FlowError, at: str = at, **more: Any) -> None:
        with pytest.raises(error, match=match):
            track_queries(spark, links, at, address, **more)

    refused(r"needs links, in the order of the queries")
    refused(rf"link 1 \(topic {two}\) says of no record that it is the last", second, first)
    refused(
        rf"link 2 \(topic {one}\) has ends=; only the first topic has markers",
        link(two, by=by, checkpoint="x", ends=by == "1"),
        first,
    )
    refused(rf"two links have the topic {one}; each query reads one topic", first, link(one, by=by, checkpoint="x"))
    refused("two links have the checkpoint .*/one;", first, link(two, by=by, checkpoint=f"file:{tmp_path}/one"))
    refused("is the checkpoint of a query; name a folder", first, at=str(tmp_path / "one"))
    refused(
        r"there is no topic nowhere at .*; create it", first, link("nowhere", by=by, checkpoint="x"), error=QueueError
    )
    refused(
        rf"link 2 \(topic {two}\): by= does not fit what Kafka's source gives \(key, value, .*nothing",
        first,
        link(two, by=F.col("nothing"), checkpoint="x"),
    )
    for column, why in (
        (F.max("key"), "by= does not fit .* GROUP BY"),
        (F.explode(F.split(by, ",")), "by= does not fit .*generator"),
        (F.split(by, ","), "by= is array<string>; a record is of one substream"),
        (F.struct("topic", "key"), "by= is struct<.*>; a record is of one substream"),
    ):
        refused(rf"link 2 \(topic {two}\): {why}", first, link(two, by=column, checkpoint="x"))
    refused(rf"link 1 \(topic {one}\): ends= is string; it is a condition", link(one, by=by, checkpoint="x", ends=by))
    refused(r"remembered=0\): use a number from 1 on", first, remembered=0)
    refused("the ledger runs as long as the tracker", first, trigger={"availableNow": True})
    (tmp_path / "file").touch()
    refused("is a file; name a folder", first, at=str(tmp_path / "file"), error=StateError)
    checkpoint(tmp_path / "two", 0, {"other": 3})
    refused(rf"query 2 \(checkpoint .*/two\) does not read topic {two}, but other", first, second)
    (tmp_path / "two" / "state").mkdir()
    refused("query 2 .* keeps state", first, second)
    assert not Path(at).exists()
    with pytest.raises(FlowError, match=r"link\('orders', ...\): by= is a column of Spark, such as .*; not 'order'"):
        link("orders", by="order", checkpoint="x")  # type: ignore[arg-type]
    with pytest.raises(FlowError, match=r"checkpoint= is the path of the checkpoint"):
        link("orders", by=by, checkpoint="")


# ------------------------------------------------------------- it takes minutes


def child(script: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stderr=subprocess.DEVNULL)


PACK = """
import sys
from headrace.spark.kafka import add_kafka
from headrace.spark.session import local_session
servers, priced, packed, checkpoint, sql = sys.argv[1:]
spark = add_kafka(local_session("packed", cores=1))
options = {"kafka.bootstrap.servers": servers, "subscribe": priced, "startingOffsets": "earliest"}
read = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger="300").load()
writer = spark.sql(sql, priced=read).writeStream.format("kafka").option("kafka.bootstrap.servers", servers)
writer.option("topic", packed).option("checkpointLocation", checkpoint).start().awaitTermination()
"""


def quiet_producer(broker: Broker) -> Producer:
    return Producer({"bootstrap.servers": broker.address, "log_level": 0})


def end_of(broker: Broker, topic: str) -> int:
    return sum(Topics([topic], broker.address, {}).ends([0])[0].values())


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_ten_thousand_orders_through_queries_that_stop_fail_and_are_killed(
    spark: SparkSession, kafka_broker: Broker, tmp_path: Path
) -> None:
    shop, orders = Shop(spark, kafka_broker, tmp_path, 3000), [Order(n) for n in range(10_000)]
    witness = Witness(shop)
    shop.start(0, 2)
    for wave in range(4):
        shop.order(orders[wave * 2500 : (wave + 1) * 2500])
        with tracking(shop, on_done=witness) as tracker:
            if wave % 2:
                shop.fails_after_write = 2
                for _ in range(2):
                    shop.start(1)
                    until(lambda: not shop.queries[1].isActive)
            else:
                told, written = len(witness.told), end_of(kafka_broker, shop.topics[2])
                driver = child(PACK, kafka_broker.address, *shop.topics[1:], shop.checkpoint(1), PACKED)
                try:
                    until(lambda: end_of(kafka_broker, shop.topics[2]) > written + 2000)  # noqa: B023
                    until(lambda: len(witness.told) > told)  # noqa: B023
                finally:
                    driver.kill()  # most likely in the middle of a batch
                    driver.wait()
            shop.stop(0, 2)
            shop.start(0, 1, 2)
            until(lambda: tracker.status().done > 2500 * wave + 500)  # noqa: B023
        shop.stop(1)
    shop.start(1)
    with tracking(shop, on_done=witness) as tracker:
        for order in orders:
            assert tracker.wait_for(str(order.number), PATIENCE_S), tracker.why(str(order.number))
        until(lambda: len(witness.told) == len(orders))
        status = tracker.status()
    shop.stop(0, 1, 2)
    witness.check(orders)
    assert sum(Counter(shop.processed).values()) > sum(order.rows for order in orders), "there were copies"
    assert (status.open, status.done) == (0, len(orders))
    assert (status.strangers.count, status.late.count, status.after_end.count) == (0, 0, 0)


TRACK = """
import sys, time
from pyspark.sql import functions as F
from headrace.spark.session import local_session
from headrace.spark.tracked_queries import link, track_queries
servers, at, out, topics, checkpoints = sys.argv[1:]
spark = local_session("tracker", cores=1)
field = lambda name: F.get_json_object(F.col("value").cast("string"), f"$.{name}")
ends = [field("last") == "true", None, None]
links = [
    link(topic, by=field("order"), checkpoint=checkpoint, ends=end)
    for topic, checkpoint, end in zip(topics.split(","), checkpoints.split(","), ends)
]
tracker = track_queries(spark, links, at, servers)
with open(out, "a") as file:
    while True:
        for name in tracker.done():
            print(name, file=file, flush=True)
        time.sleep(0.01)
"""


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_tracker_that_is_killed_goes_on_and_loses_nothing(
    spark: SparkSession, kafka_broker: Broker, tmp_path: Path
) -> None:
    shop, orders, out = Shop(spark, kafka_broker, tmp_path, 1000), [Order(n) for n in range(2000)], tmp_path / "told"
    out.touch()
    shop.start(0, 1, 2)
    checkpoints = ",".join(shop.checkpoint(at) for at in range(3))
    arguments = [kafka_broker.address, str(tmp_path / "tracker"), str(out), ",".join(shop.topics), checkpoints]
    told: list[str] = []
    for wave in range(5):
        shop.order(orders[wave * 400 : (wave + 1) * 400])
        before, tracker = len(told), child(TRACK, *arguments)
        wanted = before + 50 + 70 * wave if wave < 4 else len(orders)
        try:
            until(lambda: len(set(out.read_text().split())) >= wanted)  # noqa: B023
        finally:
            tracker.kill()
            tracker.wait()
        told = out.read_text().split()
        assert max(Counter(told[before:]).values()) == 1, "only what was given last before a crash is given again"
    shop.stop(0, 1, 2)
    assert sorted(map(int, set(told))) == [order.number for order in orders]
    with tracking(shop) as tracker_now:
        assert all(tracker_now.is_done(str(order.number)) for order in orders)
