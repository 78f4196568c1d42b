"""Sums and counts over a sliding window on a batch: Headrace on Spark, Spark SQL's own window, DuckDB.

Every system reads the same Parquet file of payments and writes all its columns and two more as Parquet: the sum of the
amounts and the number of payments of the card in the last 5 minutes. The answers are compared in the same run.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench.harness import EVENTS_A_SECOND, MEGABYTES, Bench, Target
from bench.support import systems
from bench.support.memory import WorkerMemory
from bench.support.payments import ROW_GROUP, Payments
from bench.support.systems import CORES, SPARK_SETTINGS
from headrace.spark.session import local_session

HEADRACE: Final = "Headrace on Spark"
IDENTITY: Final = "Spark, a UDF that does nothing"
SPARK_SQL: Final = "Spark SQL RANGE window"
DUCKDB: Final = "DuckDB"

HOUR: Final = 3600
DAY: Final = 24 * HOUR
FEW: Final = 20_000
SMALL_WINDOW_MEMORY: Final = 8 << 20

THE_WINDOW_DECIDES: Final = (
    "Spark SQL computes the window of every row anew, so over_spark_sql grows with the payments in a window: "
    "it is measured on the first rows of the very same payments (over_spark_sql), and in a full run also on as many "
    "rows spread over the whole hour (over_spark_sql_thin). The mean windows are among the figures."
)

TARGETS: Final = (
    Target("over_spark_sql", at_least=100),
    Target("over_duckdb", at_least=0.7),
)


@dataclass(frozen=True)
class Sizes:
    """Rows and repetitions of a run."""

    rows: int
    warm_up_rows: int
    rows_with_spark_sql: int
    spark_sql_steps: tuple[int, ...]
    spark_sql_minute: float
    spark_sql_limit: float
    memory_rows: int
    rounds: int
    thin: bool
    """Race Spark SQL on payments that are as many, but spread over the whole hour, too."""


FULL: Final = Sizes(4_000_000, 1_000_000, 1_000_000, (125_000, 250_000, 500_000), 60.0, 360.0, 4_000_000, 5, thin=True)
QUICK: Final = Sizes(400_000, 100_000, 100_000, (), 60.0, 20.0, 400_000, 1, thin=False)


@dataclass(frozen=True)
class Race:
    """One run of the bench: where it reports, how large it is, and a folder that is removed at the end."""

    bench: Bench
    sizes: Sizes
    folder: Path

    def input(self, name: str, payments: Payments) -> Path:
        path = self.folder / f"{name}.parquet"
        if not path.exists():
            with self.bench.step(f"making {name}"):
                payments.write(path)
        return path

    def output(self, name: str) -> Path:
        return self.folder / f"out-{name}"

    def all_payments(self) -> Path:
        """An hour of payments."""
        return self.input("all payments", Payments(self.sizes.rows, HOUR))

    def first_payments(self, rows: int) -> Path:
        """The same payments up to some moment: as many a second, hence windows as full."""
        path = self.folder / f"first {rows}.parquet"
        if not path.exists():
            pq.write_table(pq.read_table(self.all_payments()).slice(0, rows), path, row_group_size=ROW_GROUP)
        return path


def count(rows: int) -> str:
    """4 M, 250 K."""
    return f"{rows / 1e6:g} M" if rows >= 1_000_000 else f"{rows / 1e3:g} K"


def warm_up(race: Race, spark: SparkSession) -> None:
    """Compilers, workers and file caches: nobody's first run is timed."""
    few = race.input("a few payments", Payments(FEW, HOUR))
    more = race.first_payments(race.sizes.warm_up_rows)
    with race.bench.step("warming up"):
        systems.spark_sql(spark, few, race.output("warm"))
        for path in (few, more):
            systems.headrace(spark, path, race.output("warm"))
            systems.identity(spark, path, race.output("warm"))
            systems.duckdb_sql(path, race.output("warm.parquet"))


def race_on_all_rows(race: Race, spark: SparkSession) -> None:
    """Headrace against DuckDB, and against what the same shuffle costs with a UDF that does nothing."""
    bench, rows = race.bench, race.sizes.rows
    path = race.all_payments()
    ours, theirs = race.output("headrace"), race.output("duckdb.parquet")
    racers = {
        HEADRACE: partial(systems.headrace, spark, path, ours),
        DUCKDB: partial(systems.duckdb_sql, path, theirs),
        IDENTITY: partial(systems.identity, spark, path, race.output("identity")),
    }
    seconds = bench.race(f"{count(rows)} rows", race.sizes.rounds, racers)
    for system, best in seconds.items():
        bench.figure(system, f"{count(rows)} rows", rows / best, EVENTS_A_SECOND)
    compare(race, ours, theirs, rows)
    describe_window(race, ours, f"{count(rows)} rows")
    bench.ratio("over_duckdb", seconds[DUCKDB] / seconds[HEADRACE])


def race_with_spark_sql(race: Race, spark: SparkSession) -> None:
    """Spark SQL on more and more rows while it needs less than a minute, then both on the same rows."""
    sizes = race.sizes
    for rows in sizes.spark_sql_steps:
        what = f"first {count(rows)} rows"
        run = partial(systems.spark_sql, spark, race.first_payments(rows), race.output("spark-sql"))
        seconds = race.bench.time(f"{SPARK_SQL}, {what}", run)
        race.bench.figure(SPARK_SQL, what, rows / seconds, EVENTS_A_SECOND)
        if seconds > sizes.spark_sql_minute:
            break
    rows = sizes.rows_with_spark_sql
    if sizes.thin:
        path = race.input("thinner payments", Payments(rows, HOUR))
        duel_with_spark_sql(race, spark, path, f"{count(rows)} rows over the whole hour", "over_spark_sql_thin")
    duel_with_spark_sql(race, spark, race.first_payments(rows), f"first {count(rows)} rows", "over_spark_sql")


def duel_with_spark_sql(race: Race, spark: SparkSession, path: Path, what: str, ratio: str) -> None:
    """If Spark SQL has to be stopped, its rate is an upper bound and the ratio a lower one."""
    bench, rows = race.bench, race.sizes.rows_with_spark_sql
    ours, theirs = race.output("headrace"), race.output("spark-sql")
    best = bench.race(what, race.sizes.rounds, {HEADRACE: partial(systems.headrace, spark, path, ours)})[HEADRACE]
    bench.figure(HEADRACE, what, rows / best, EVENTS_A_SECOND)
    describe_window(race, ours, what)
    done: list[bool] = []
    run = partial(systems.spark_sql_within, race.sizes.spark_sql_limit, spark, path, theirs)
    seconds = bench.time(f"{SPARK_SQL}, {what}", lambda: done.append(run()))
    bench.ratio(ratio, seconds / best)
    if done[0]:
        bench.figure(SPARK_SQL, what, rows / seconds, EVENTS_A_SECOND)
        compare(race, ours, theirs, rows)
        return
    bench.figure(SPARK_SQL, f"{what}, at most", rows / seconds, EVENTS_A_SECOND)
    bench.note(
        f"Spark SQL was stopped after {seconds:.0f} s on {what}: its rate is an upper bound, "
        f"{ratio} a lower one, and its answers were not compared on these rows."
    )


def race_on_a_hot_card(race: Race, spark: SparkSession) -> None:
    """Half of all payments are of one card: no second core can help, and a quadratic window never ends."""
    bench, rows = race.bench, race.sizes.rows_with_spark_sql
    path = race.input("hot card", Payments(rows, HOUR, hot_share=0.5))
    ours, theirs = race.output("headrace"), race.output("duckdb.parquet")
    racers = {
        HEADRACE: partial(systems.headrace, spark, path, ours),
        DUCKDB: partial(systems.duckdb_sql, path, theirs),
    }
    what = f"{count(rows)} rows, half of them one card"
    for system, best in bench.race(what, race.sizes.rounds, racers).items():
        bench.figure(system, what, rows / best, EVENTS_A_SECOND)
    compare(race, ours, theirs, rows)


def run_with_late_events(race: Race, spark: SparkSession) -> None:
    """One payment in a hundred arrives up to a minute late; each is answered over what had arrived."""
    bench, rows = race.bench, race.sizes.rows_with_spark_sql
    path = race.input("late payments", Payments(rows, HOUR, late_share=0.01))
    what = f"{count(rows)} rows, 1 % late"
    run = partial(systems.headrace, spark, path, race.output("headrace"), arrival="arrival")
    best = bench.race(what, race.sizes.rounds, {HEADRACE: run})
    bench.figure(HEADRACE, what, rows / best[HEADRACE], EVENTS_A_SECOND)


def measure_memory(race: Race) -> None:
    """Peak of the largest worker for a short and a long window over the same two weeks; fresh workers each time."""
    rows = race.sizes.memory_rows
    path = race.input("two weeks", Payments(rows, 14 * DAY))
    few = race.input("a few payments", Payments(FEW, HOUR))
    with session(**{"spark.python.worker.reuse": "false"}) as spark:
        idle = peak_of_worker(race, spark, few, "5 minutes", f", {count(FEW)} rows only")
        short = peak_of_worker(race, spark, path, "5 minutes")
        long = peak_of_worker(race, spark, path, "7 days")
        limit = f", {SMALL_WINDOW_MEMORY >> 20} MB of it in memory, the rest on disk"
        peak_of_worker(race, spark, path, "7 days", limit, SMALL_WINDOW_MEMORY)
    race.bench.ratio("memory_7d_over_5m", long / short)
    race.bench.note(
        f"Memory: {count(rows)} payments of 14 days, so that 7 days hold half of them; {idle / 1e6:.0f} MB are Python, "
        f"its libraries and a handful of events; above that 5 minutes take {max(0.0, (short - idle) / 1e6):.0f} MB, "
        f"7 days {max(0.0, (long - idle) / 1e6):.0f} MB at the default limit."
    )


def peak_of_worker(
    race: Race, spark: SparkSession, path: Path, window: str, more: str = "", memory_bytes: int | None = None
) -> float:
    name = f"peak memory of a worker, {window}{more}"
    with race.bench.step(name), WorkerMemory() as memory:
        systems.headrace(spark, path, race.output("memory"), window=window, memory_bytes=memory_bytes)
    race.bench.figure(HEADRACE, name, memory.peak_bytes / 1e6, MEGABYTES)
    return float(memory.peak_bytes)


def describe_window(race: Race, answers: Path, what: str) -> None:
    """A window that is computed anew for every row costs its length: without this figure no ratio can be judged."""
    race.bench.figure("input", f"mean window, {what}", systems.mean_window(answers), "payments")


def compare(race: Race, ours: Path, theirs: Path, rows: int) -> None:
    """Counts to the bit, sums to 1e-9: theirs are rounded at every addition, ours once."""
    with race.bench.step("comparing answers"):
        worst = systems.largest_difference(ours, theirs, rows)
    race.bench.say(f"answers agree on {count(rows)} rows: all counts equal, sums within {worst:.1e}")


@contextmanager
def session(**conf: str) -> Iterator[SparkSession]:
    spark = local_session("headrace-bench", CORES, **SPARK_SETTINGS, **conf)
    try:
        yield spark
    finally:
        spark.stop()


def steps_of(sizes: Sizes) -> int:
    """How many steps the progress bar has if Spark SQL is never too slow."""
    duels = 2 if sizes.thin else 1
    inputs = 4 + duels  # few, all, hot, late, two weeks, thinner
    timed = sizes.rounds * (3 + 2 + 1 + duels) + len(sizes.spark_sql_steps) + duels
    compared = 2 + duels
    return inputs + 1 + timed + compared + 4


def main() -> None:
    bench = Bench("measure_batch", "Sum and count by card over 5 minutes, Parquet to Parquet", targets=TARGETS)
    sizes = QUICK if bench.quick else FULL
    bench.set(
        cores=CORES, spark=SPARK_SETTINGS, duckdb={"threads": CORES}, timing=f"best of {sizes.rounds}, after a warm-up",
        rows=sizes.rows, cards=Payments.cards, zipf=Payments.power, span="1 hour", window=systems.WINDOW,
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        race = Race(bench, sizes, folder)
        with bench.running(steps_of(sizes)):
            bench.note(THE_WINDOW_DECIDES)
            with session() as spark:
                warm_up(race, spark)
                race_on_all_rows(race, spark)
                race_on_a_hot_card(race, spark)
                run_with_late_events(race, spark)
                # Last: tasks of its window that were stopped may go on for a while, and nothing else may be timed then.
                race_with_spark_sql(race, spark)
            measure_memory(race)
        bench.finish()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
