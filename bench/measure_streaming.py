"""Sums and counts over a sliding window on a stream: Headrace on Spark, Flink SQL, Spark's transformWithState.

Every system reads the same payments from files and writes all their columns and two more to files: the sum of the
amounts and the number of payments of the card in the last 5 minutes. The answers are compared in the same run.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench.harness import EVENTS_A_SECOND, MEGABYTES, Bench, Target
from bench.support import flink, streams, systems, tws
from bench.support.flink import FlinkUnavailable
from bench.support.memory import WorkerMemory
from bench.support.payments import Payments
from bench.support.streams import StreamFolders, StreamRun
from bench.support.systems import CORES, SPARK_SETTINGS
from headrace.spark.session import local_session

HEADRACE: Final = "Headrace on Spark"
FLINK: Final = "Flink SQL OVER"
TRANSFORM_WITH_STATE: Final = "Spark transformWithStateInPandas"
NOTHING: Final = "Spark, a stream of files to files"

HOUR: Final = 3600
MILLISECOND: Final = 1000
SETTINGS: Final = {**SPARK_SETTINGS, "spark.sql.streaming.stateStore.providerClass": tws.STATE_STORE}

TARGETS: Final = (Target("over_flink", at_least=10),)


@dataclass(frozen=True)
class Span:
    """Payments of so many hours: the fewer hours, the fuller a window."""

    name: str
    hours: int
    rows: int
    """How many of the first payments are raced; all but where Flink would need many minutes."""
    ratio: str


@dataclass(frozen=True)
class Sizes:
    """Rows and repetitions of a run."""

    rows: int
    rows_a_batch: int
    other_batches: tuple[int, ...]
    """Rows of a micro-batch to try as well."""
    warm_up_rows: int
    warm_up_batches: int
    spans: tuple[Span, ...]
    transform_with_state_batches: int
    """Of `rows_a_batch` each: it is too slow for all rows."""
    few: int
    rounds: int


FULL: Final = Sizes(
    rows=2_000_000,
    rows_a_batch=2_000_000,
    other_batches=(1_000_000, 500_000, 250_000),
    warm_up_rows=1_000_000,
    warm_up_batches=2,
    spans=(
        Span("6 hours", 6, 2_000_000, "over_flink"),
        Span("24 hours", 24, 2_000_000, "over_flink_thin"),
        Span("1 hour", 1, 500_000, "over_flink_dense"),
    ),
    transform_with_state_batches=1,
    few=10_000,
    rounds=3,
)
QUICK: Final = Sizes(
    rows=100_000,
    rows_a_batch=25_000,
    other_batches=(),
    warm_up_rows=20_000,
    warm_up_batches=1,
    spans=(Span("6 hours", 6, 100_000, "over_flink"),),
    transform_with_state_batches=1,
    few=1_000,
    rounds=1,
)

FLINK_IS_SET_UP: Final = (
    f"Flink runs in one JVM ({flink.JVM}) with {flink.SETTINGS}, WATERMARK FOR ts AS {flink.WATERMARK} and no "
    "checkpoints; Headrace and Spark have checkpoints and durable state on. It reads and writes CSV (JSON, which also "
    f"comes with it, was not clearly faster), {CORES} files that have the rows in turn; times are numbers, not "
    "texts. Seconds are from submit to finished, after a run on fewer rows in the same JVM."
)
THE_WINDOW_DECIDES: Final = (
    "Flink looks at all payments of a card that its state holds for every answer, so its rate falls with the payments "
    "in a window: over_flink is on 6 hours of payments, over_flink_thin on as many over a day, over_flink_dense on the "
    "first of as many within an hour. The mean windows are among the figures."
)


@dataclass
class Race:
    """One run of the bench: where it reports, how large it is, and a folder that is removed at the end."""

    bench: Bench
    sizes: Sizes
    folder: Path
    flink_seconds: dict[str, float] = field(default_factory=dict)

    def payments(self, span: Span) -> Path:
        """The payments of a span in one file."""
        path = self.folder / f"{span.hours}h.parquet"
        if not path.exists():
            with self.bench.step(f"making payments of {span.name}"):
                Payments(self.sizes.rows, span.hours * HOUR, tick_micros=MILLISECOND).write(path)
        return path

    def stream(self, span: Span, rows_a_batch: int, rows: int | None = None) -> StreamFolders:
        """The first payments of a span as files to stream, and new folders for a run."""
        rows = rows or span.rows
        source = self.folder / f"{span.hours}h-{rows}-by-{rows_a_batch}"
        if not source.exists():
            streams.write_batches(pq.read_table(self.payments(span)).slice(0, rows), source, rows_a_batch)
        return StreamFolders(source, self.folder / f"run-{uuid4().hex}")

    def csv(self, span: Span, rows: int) -> Path:
        folder = self.folder / f"{span.hours}h-{rows}-csv"
        if not folder.exists():
            flink.write_input(self.payments(span), folder, rows)
        return folder

    def flink_answers(self, span: Span) -> Path:
        return self.folder / f"flink-{span.hours}h"


def count(rows: int) -> str:
    """4 M, 250 K."""
    return f"{rows / 1e6:g} M" if rows >= 1_000_000 else f"{rows / 1e3:g} K"


def described(span: Span) -> str:
    return f"{count(span.rows)} rows of {span.name}"


# ----------------------------------------------------------------------- Flink


def run_flink(race: Race) -> None:
    """All spans in one JVM, after a small run; without Flink the race goes on."""
    bench, sizes = race.bench, race.sizes
    try:
        with bench.step("installing Flink, on the first run only"):
            python = flink.install()
    except FlinkUnavailable as problem:
        bench.note(f"Without Flink: {problem}")
        return
    bench.set(flink={"version": flink.version(python), "jvm": flink.JVM, **flink.SETTINGS})
    bench.note(FLINK_IS_SET_UP)
    if len(sizes.spans) > 1:
        bench.note(THE_WINDOW_DECIDES)
    main = sizes.spans[0]
    warm_up = (race.csv(main, sizes.warm_up_rows), race.folder / "flink-warm")
    # Spans where it is slow are not repeated: they are not all rows, and noise of seconds does not matter there.
    turns = [(span, turn) for span in sizes.spans for turn in range(sizes.rounds if span.rows == sizes.rows else 1)]
    timed = [(race.csv(span, span.rows), race.flink_answers(span) / str(turn)) for span, turn in turns]
    with bench.step(f"{FLINK}, {len(timed)} runs"):
        done = flink.run(python, [warm_up, *timed])
    for (span, turn), seconds in zip(turns, done.seconds[1:], strict=True):
        bench.timed(f"{FLINK}, {described(span)}, run {turn + 1}", seconds)
        race.flink_seconds[span.name] = min(seconds, race.flink_seconds.get(span.name, seconds))
    for span in sizes.spans:
        bench.figure(FLINK, described(span), span.rows / race.flink_seconds[span.name], EVENTS_A_SECOND)
    if done.jvm_peak_bytes is not None:
        bench.figure(FLINK, "peak memory of its JVM", done.jvm_peak_bytes / 1e6, MEGABYTES)


def compare_with_flink(race: Race, span: Span, ours: Path) -> None:
    theirs = race.folder / f"flink-{span.hours}h.parquet"
    flink.to_parquet(race.flink_answers(span) / "0", theirs)
    compare(race, FLINK, ours, theirs, span.rows)


# -------------------------------------------------------------------- Headrace


def warm_up(race: Race, spark: SparkSession) -> None:
    """Compilers, workers and file caches: nobody's first run is timed."""
    sizes = race.sizes
    main = sizes.spans[0]
    with race.bench.step("warming up"):
        streams.transform_with_state(spark, race.stream(main, sizes.few, 2 * sizes.few))
        rows_a_batch = sizes.warm_up_rows // sizes.warm_up_batches
        # About as many seconds as Flink's warm-up takes.
        for run in (streams.nothing, *[streams.headrace] * 6):
            run(spark, race.stream(main, rows_a_batch, sizes.warm_up_rows))


def race_on_span(race: Race, spark: SparkSession, span: Span) -> tuple[float, Path]:
    """Headrace on the rows that Flink had; gives events a second, and the answers."""
    bench = race.bench
    best, folders, run = best_of_rounds(race, spark, span, race.sizes.rows_a_batch, described(span))
    rate = span.rows / best
    bench.figure(HEADRACE, described(span), rate, EVENTS_A_SECOND)
    bench.figure("input", f"mean window, {described(span)}", systems.mean_window(folders.answers), "payments")
    if span.name in race.flink_seconds:
        compare_with_flink(race, span, folders.answers)
        bench.ratio(span.ratio, race.flink_seconds[span.name] / best)
    if span is race.sizes.spans[0]:
        bench.figure(HEADRACE, "state folder at the end", size_of(folders.state) / 1e6, MEGABYTES)
        bench.set(headrace_batch_millis=run.mean_millis())
    return rate, folders.answers


def best_of_rounds(
    race: Race, spark: SparkSession, span: Span, rows_a_batch: int, what: str
) -> tuple[float, StreamFolders, StreamRun]:
    """The seconds of the best run, from the start of the query to its end, and what the last one left."""
    seconds = []
    for number in range(1, race.sizes.rounds + 1):
        folders = race.stream(span, rows_a_batch)
        name = f"{HEADRACE}, {what}, {count(rows_a_batch)} a batch, run {number} of {race.sizes.rounds}"
        run, taken = timed_run(race, name, partial(streams.headrace, spark, folders))
        seconds.append(taken)
    return min(seconds), folders, run


def timed_run(race: Race, what: str, action: Callable[[], StreamRun]) -> tuple[StreamRun, float]:
    runs: list[StreamRun] = []
    seconds = race.bench.time(what, lambda: runs.append(action()))
    return runs[0], seconds


def try_other_batches(race: Race, spark: SparkSession) -> None:
    """How the rate grows with the rows of a micro-batch, and what files alone cost."""
    bench, span = race.bench, race.sizes.spans[0]
    for rows_a_batch in race.sizes.other_batches:
        best, _, _ = best_of_rounds(race, spark, span, rows_a_batch, described(span))
        bench.figure(HEADRACE, f"{described(span)}, {count(rows_a_batch)} a batch", span.rows / best, EVENTS_A_SECOND)
    run = partial(streams.nothing, spark, race.stream(span, race.sizes.rows_a_batch))
    seconds = bench.time(f"{NOTHING}, {described(span)}", run)
    bench.figure(NOTHING, described(span), span.rows / seconds, EVENTS_A_SECOND)


def measure_memory(race: Race, spark: SparkSession) -> None:
    """In a run that is not timed: looking at processes costs time."""
    folders = race.stream(race.sizes.spans[0], race.sizes.rows_a_batch)
    with race.bench.step("peak memory of a worker"), WorkerMemory() as memory:
        streams.headrace(spark, folders)
    race.bench.figure(HEADRACE, "peak memory of a Python worker", memory.peak_bytes / 1e6, MEGABYTES)


# -------------------------------------------------------- transformWithState


def race_with_transform_with_state(race: Race, spark: SparkSession, our_rate: float, our_answers: Path) -> None:
    """Spark's own on the first micro-batches of the same payments."""
    bench, sizes, span = race.bench, race.sizes, race.sizes.spans[0]
    rows = min(span.rows, sizes.transform_with_state_batches * sizes.rows_a_batch)
    folders = race.stream(span, sizes.rows_a_batch, rows)
    what = f"first {count(rows)} rows of {span.name}"
    seconds = bench.time(f"{TRANSFORM_WITH_STATE}, {what}", partial(streams.transform_with_state, spark, folders))
    bench.figure(TRANSFORM_WITH_STATE, what, rows / seconds, EVENTS_A_SECOND)
    bench.ratio("over_transform_with_state", our_rate * seconds / rows)
    ours = race.folder / "first-answers.parquet"
    streams.first_answers(our_answers, ours, rows)
    compare(race, TRANSFORM_WITH_STATE, ours, folders.answers, rows)


def compare(race: Race, system: str, ours: Path, theirs: Path, rows: int) -> None:
    """Counts to the bit, sums to 1e-9: theirs are rounded at every addition, ours once."""
    with race.bench.step(f"comparing answers with {system}"):
        worst = systems.largest_difference(ours, theirs, rows)
    race.bench.say(f"{system}: answers agree on {count(rows)} rows: all counts equal, sums within {worst:.1e}")


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def steps_of(sizes: Sizes) -> int:
    """How many steps the progress bar has where there is Flink."""
    spans = len(sizes.spans)
    headrace_runs = sizes.rounds * (spans + len(sizes.other_batches))
    return 2 * spans + 2 + 1 + headrace_runs + 1 + 1 + 2


def run_on_spark(race: Race) -> None:
    spark = local_session("headrace-bench", CORES, **SETTINGS)
    try:
        warm_up(race, spark)
        results = [race_on_span(race, spark, span) for span in race.sizes.spans]
        try_other_batches(race, spark)
        measure_memory(race, spark)
        race_with_transform_with_state(race, spark, *results[0])
    finally:
        spark.stop()


def main() -> None:
    title = "Sum and count by card over 5 minutes, a stream of files to files"
    bench = Bench("measure_streaming", title, targets=TARGETS)
    sizes = QUICK if bench.quick else FULL
    bench.set(
        cores=CORES, spark=SETTINGS, timing=f"best of {sizes.rounds}, after a warm-up", rows=sizes.rows,
        rows_a_batch=sizes.rows_a_batch, cards=Payments.cards, zipf=Payments.power, window=systems.WINDOW,
        trigger="availableNow",
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        race = Race(bench, sizes, folder)
        with bench.running(steps_of(sizes)):
            run_flink(race)
            run_on_spark(race)
        bench.finish()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
