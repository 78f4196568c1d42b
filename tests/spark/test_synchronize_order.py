"""What events are called and what is known of them beforehand does not change what comes out."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import ProgramError
from headrace.testing.spark import on_connect

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Word(hr.Program):
    """All that has come so far: the first column but one says what is added."""

    outputs = pa.schema([("word", pa.string())])
    depends: Any = lambda self, a, b: True

    def init(self) -> str:
        return ""

    def update(self, state: str, event: Any) -> Any:
        return state + str(event[1]), [(state + str(event[1]),)]

    def fork(self, state: str, left: Any, right: Any) -> tuple[str, str]:
        return state, ""

    def join(self, left: str, right: str) -> str:
        return left + right


def _word(df: DataFrame, **options: Any) -> str:
    made = hr.synchronize(Word(), **{"time": "t", "tag": "k", "parallelism": 2, "tasks": 2, **options})
    return max((str(row[0]) for row in df.transform(made).collect()), key=len)


def _events(spark: SparkSession, letters: str = "edcba", stream: str = "substr('zyxwv', id + 1, 1)") -> DataFrame:
    """All of one time; streams are in the other order than tags."""
    k = f"substr('{letters}', cast(id AS int) + 1, 1)"
    return spark.sql(f"SELECT 1 AS t, {k} AS k, {stream} AS s, id FROM range({len(letters)})").repartition(3)


# ------------------------------------------------------------------------- ties


@pytest.mark.parametrize("rates", [None, {}, {"b": 9, "d": 1}, dict.fromkeys("abcde", 1)])
def test_ties_do_not_depend_on_rates(spark: SparkSession, rates: Any) -> None:
    assert _word(_events(spark), rates=rates) == "abcde"
    assert _word(_events(spark, stream="id % 2"), rates=rates, stream="s", streams=[1, 0]) == "bdace"


def test_ties_of_tags_of_two_columns_do_not_depend_on_rates(spark: SparkSession) -> None:
    events = _events(spark)
    assert _word(events, tag=("k", "s"), rates={("b", "w"): 1, ("d", "y"): 2}) == "abcde"


def test_streams_of_which_the_order_is_not_known(spark: SparkSession) -> None:
    events = _events(spark, stream="chr(int(80 - id))")
    with pytest.raises(
        ProgramError, match=r"say streams=\[\.\.\.\] as well, all values that s can have in their order"
    ):
        _word(events, stream="s", rates={"a": 1})
    assert _word(events.withColumn("n", -F.col("id")), stream="s", rates={"a": 1}, arrival="n") == "abcde"


@pytest.mark.parametrize("shown", ["x", "null"])
@pytest.mark.parametrize("rates", [None, {"a": 1}])
def test_a_stream_that_is_not_listed(spark: SparkSession, shown: str, rates: Any) -> None:
    events = _events(spark, stream=f"if(id = 0, nullif('{shown}', 'null'), 'y')")
    with pytest.raises(Exception, match=f"program Word: an event has the stream {shown}, and there are only y, w"):
        _word(events, stream="s", streams=["y", "w"], rates=rates)


def test_streams_of_booleans(spark: SparkSession) -> None:
    assert _word(_events(spark, stream="id = 1"), stream="s", streams=[True, False]) == "dabce"


@pytest.mark.parametrize("nested", ["array(id)", "array(array(1, id))"])
def test_ties_that_differ_in_what_is_nested(spark: SparkSession, nested: str) -> None:
    rows = spark.sql(f"SELECT 1 AS t, {nested} AS x, 'a' AS k, id FROM range(9)")
    words = {_word(rows.repartition(n, F.hash("id", F.lit(n))).select("t", "x", "k")) for n in (1, 2, 5)}
    assert words == {"".join(str(row.x) for row in rows.orderBy("id").collect())}


# ---------------------------------------------------------------------- arrival


@pytest.mark.parametrize("type", ["timestamp", "timestamp_ntz"])
def test_arrival_by_parts_of_a_second(spark: SparkSession, type: str) -> None:
    at = f"CAST(timestamp_micros(1792890000000000 + 7 * id) AS {type})"  # about where summer ends in Berlin
    events = _events(spark).withColumn("at", F.expr(at))
    assert _word(events, arrival="at") == "edcba"
    assert _word(events.withColumn("at", F.date_add(F.lit("2026-10-25").cast("date"), F.col("id").cast("int"))),
                 arrival="at") == "edcba"  # fmt: skip


@pytest.mark.parametrize("type", ["double", "decimal(9,2)", "string"])
def test_arrival_that_is_no_whole_number(spark: SparkSession, type: str) -> None:
    events = _events(spark).withColumn("at", (F.col("id") / 10).cast(type))
    with pytest.raises(
        ProgramError, match=f"arrival='at' is {type.replace('(', '.')[:8]}.*give it whole numbers, dates or"
    ):
        _word(events, arrival="at")


@pytest.mark.parametrize("type", ["double", "decimal(9,2)", "string", "boolean", "map<string,int>", "interval month"])
def test_a_time_that_is_none(spark: SparkSession, type: str) -> None:
    events = _events(spark).withColumn("t", F.lit(None).cast(type))
    with pytest.raises(ProgramError, match=r"time='t' is .*; a time is a whole number, a date or a time stamp"):
        _word(events)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "+05:30", "UTC", "GMT+2", "Z"])
def test_a_time_zone_that_python_does_not_know(spark: SparkSession, zone: str) -> None:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        events = _events(spark).withColumn("at", F.timestamp_seconds(1792890000 - F.col("id")))
        if zone in ("GMT+2", "Z"):
            with pytest.raises(ProgramError, match=rf"zone of the session is '{zone[0]}.*; set spark.sql.session"):
                _word(events, arrival="at")
        else:
            assert _word(events, arrival="at") == "abcde"
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


# ------------------------------------------------------------------------ names


@pytest.mark.parametrize("name", ["a.b", "`q`", "K", "__base", "__tag0_", "class", ""])
def test_any_name_of_a_column(spark: SparkSession, name: str) -> None:
    events = _events(spark).withColumnRenamed("id", "other").select("*", F.lit(1).alias(name))
    assert _word(events) == "abcde"
    assert _word(events.toDF("t", name, "s", "other", "last"), tag=name, stream="s", streams=list("zyxwv")) == "edcba"


@pytest.mark.parametrize(("name", "problem"), [("s", "the column s twice"), ("__headrace_tag", "are for its own use")])
def test_names_that_cannot_be_told_apart(spark: SparkSession, name: str, problem: str) -> None:
    with pytest.raises(ProgramError, match=problem):
        _word(_events(spark).select("*", F.lit(1).alias(name)))


# ------------------------------------------------------------------------- tags


class Latest(hr.Program):
    """A number for each moment, which depends on all before; the first moment of all asks for all of them."""

    outputs = pa.schema([("n", pa.int64()), ("found", pa.int64())])

    def depends(self, a: Any, b: Any) -> bool:
        return bool(a == b or 2000 in (a.year, b.year))

    def init(self) -> Any:
        return {}

    def update(self, state: Any, event: Any) -> Any:
        if event.day.year == 2000:
            return state, [(event.n, value) for value in state.values()]
        return {**state, event.day: (state.get(event.day, 0) * 2 + event.n) % 1000003}, []

    def fork(self, state: Any, left: Any, right: Any) -> Any:
        ours = {day: value for day, value in state.items() if left(day)}
        return ours, {day: value for day, value in state.items() if right(day)}

    def join(self, left: Any, right: Any) -> Any:
        return {**left, **right}


def _latest(spark: SparkSession) -> tuple[list[Any], list[Any]]:
    """In two tasks, and in one worker."""
    day = "if(id % 10 = 9, timestamp'2000-01-01', timestamp'2024-07-01' + make_interval(0, 0, 0, int(id % 3)))"
    events = spark.sql(f"SELECT id AS n, {day} AS day FROM range(40)")
    runs = [hr.synchronize(Latest(), time="n", tag="day", parallelism=leaves, tasks=2) for leaves in (2, 1)]
    one, two = (sorted(map(tuple, events.transform(made).collect())) for made in runs)
    return one, two


def test_tags_that_are_moments(spark: SparkSession) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        found, expected = _latest(spark)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert len(found) == 12
    assert found == expected


def test_tags_that_are_moments_on_connect() -> None:
    found, expected = on_connect(_latest)
    assert len(found) == 12
    assert found == expected


def test_ties_of_tags_that_are_local_times_do_not_depend_on_rates(spark: SparkSession) -> None:
    """Whatever the zones of the session and of this process."""
    zone, late = spark.conf.get("spark.sql.session.timeZone"), dt.datetime(2024, 6, 1, 12)
    texts = "CAST(if(id = 0, '2024-06-01 12:00:00', '2024-06-01 11:30:00') AS timestamp_ntz)"
    events = spark.sql(f"SELECT 1 AS t, {texts} AS k, 's' AS s FROM range(2)")
    days = spark.sql("SELECT 1 AS t, if(id = 0, date'0001-01-01', date'2024-01-01') AS k, 's' AS s FROM range(2)")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        words = [_word(events, rates=rates) for rates in (None, {late: 1}, {late: 1, dt.datetime(2024, 6, 1): 1})]
        found = [_word(days, rates=rates) for rates in (None, {dt.date(1, 1, 1): 1})]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert words == ["2024-06-01 11:30:002024-06-01 12:00:00"] * 3
    assert found == ["0001-01-012024-01-01"] * 2


def test_rates_of_tags_that_are_one_in_their_column(spark: SparkSession) -> None:
    """Each event would find both, and count twice."""
    near = {0.1: 1, float(np.float32(0.1)): 1}
    floats = spark.sql("SELECT 1 AS t, CAST(0.1 AS float) AS k, 's' AS s")
    with pytest.raises(ProgramError, match=r"the tags 0.1 and 0.10000000149\d+ are the same in the columns of the"):
        _word(floats, rates=near)


@pytest.mark.parametrize("type", [pa.uint64(), pa.timestamp("ns"), pa.large_string(), pa.decimal256(50), pa.null()])
def test_outputs_that_spark_cannot_have(type: pa.DataType) -> None:
    class Strange(Word):
        outputs = pa.schema([("word", pa.string()), ("more", type)])

    with pytest.raises(
        ProgramError, match=r"its outputs have the column more: .* is no type of Spark; use one of bool"
    ):
        hr.synchronize(Strange(), time="t", tag="k")


def test_streams_of_no_column() -> None:
    with pytest.raises(ProgramError, match=r"streams=\['a'\]: say which column has them, stream="):
        hr.synchronize(Word(), time="t", tag="k", streams=["a"])


def test_rates_of_tags_that_the_column_cannot_have(spark: SparkSession) -> None:
    with pytest.raises(ProgramError, match=r"a tag does not fit k, which is string \(Arrow"):
        _word(_events(spark), rates={1: 9})
    moments = _events(spark).withColumn("k", F.expr("timestamp_seconds(id)"))
    with pytest.raises(ProgramError, match="the tag 2024-01-01 00:00:00 has no time zone, and k is timestamp; give it"):
        _word(moments, rates={dt.datetime(2024, 1, 1): 9})
    with pytest.raises(ProgramError, match=r"tag k is string collate UTF8_LCASE: .*; cast it, F.lower\(.k.\).cast"):
        _word(_events(spark).withColumn("k", F.expr("k COLLATE UTF8_LCASE")))
    with pytest.raises(ProgramError, match="tag k is array<string>; a tag is a plain value"):
        _word(_events(spark).withColumn("k", F.array("k")))


def test_too_many_streams(spark: SparkSession) -> None:
    events = spark.sql("SELECT id AS t, 'a' AS k, id AS s FROM range(1500)")
    with pytest.raises(ProgramError, match="there are more than 1000 streams with their tags in s; leave stream= out"):
        _word(events, stream="s")


# ---------------------------------------------------------------------- streams

_SCHEMA = pa.schema([("t", pa.int64()), ("a.b", pa.string()), ("k", pa.string()), ("s", pa.bool_())])


def _put(folder: Path, number: int, *rows: tuple[Any, ...]) -> None:
    path = folder / f"in-{number}.parquet"
    pq.write_table(pa.Table.from_pylist([dict(zip(_SCHEMA.names, row, strict=True)) for row in rows], _SCHEMA), path)
    os.utime(path, (1e9 + number, 1e9 + number))


def _take(spark: SparkSession, folder: Path, rates: Any) -> str:
    made = hr.synchronize(
        Word(), time="t", tag="k", stream="s", streams=[True, False], rates=rates, parallelism=2, tasks=2,
        state=str(folder / "state"),
    )  # fmt: skip
    rows = spark.readStream.schema("t long, `a.b` string, k string, s boolean").option("pathGlobFilter", "in-*")
    writer = rows.parquet(str(folder)).transform(made).writeStream.option("checkpointLocation", str(folder / "check"))
    writer.trigger(availableNow=True).start(str(folder / "out")).awaitTermination()
    found = spark.read.schema("word string").parquet(str(folder / "out")).collect()
    return max((str(row[0]) for row in found), key=len, default="")


def test_a_stream_whose_rates_change_while_events_wait(spark: SparkSession, tmp_path: Path) -> None:
    _put(tmp_path, 1, (5, "3", "y", True), (5, "8", "y", False), (5, "5", "z", True))
    assert _take(spark, tmp_path, {"y": 9}) == ""
    _put(tmp_path, 2, (5, "2", "x", True), (5, "1", "a", True), (5, "7", "x", False), (5, "4", "y", True))
    assert _take(spark, tmp_path, {"x": 9, "z": 1}) == ""
    _put(tmp_path, 3, (5, "6", "b", False), (9, None, None, True), (9, None, None, False))
    assert _take(spark, tmp_path, {"b": 1, "x": 9, "y": 9}) == "12345678"
