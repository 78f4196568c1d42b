"""`headrace demo`: a day of payments, thieves that try stolen cards, and which windows see them."""

from __future__ import annotations

import os
import sys
import time as clock
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Annotated, Final

import pyarrow.parquet as pq
import typer
from pyspark.sql import DataFrame, SparkSession
from rich import box
from rich.padding import Padding
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from headrace import Metrics
from headrace.cli import screen
from headrace.cli.options import Debug
from headrace.cli.session import spark_session
from headrace.demo import compare
from headrace.demo.bursts import KINDS, Burst
from headrace.demo.compare import METRICS, Verdict
from headrace.demo.payments import Day, make_day
from headrace.errors import EnvironmentProblem
from headrace.model.ticks import SECOND, Tick

_LISTED: Final = 8
"""How many of the missed bursts the table shows."""

_FOLDER: Final = Path("demo-output")


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the data and the picture go.")
    ] = _FOLDER,
    payments: Annotated[
        int, typer.Option(min=1_000, max=5_000_000, metavar="N", help="How many payments the day has.")
    ] = 200_000,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Another number, another day.")] = 2026,
    plot: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Where the picture goes. Default: demo.png in the folder.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Show the fraud that hopping windows miss and sliding windows catch.

    Makes a day of card payments with card testing hidden in it, computes
    exact metrics on Spark, compares them with Spark's own hopping windows,
    and draws a picture. Takes less than a minute.

    [dim]headrace demo
    headrace demo --seed 7 --payments 1000000[/dim]
    """
    if find_spec("matplotlib") is None:
        raise EnvironmentProblem("the demo draws with matplotlib, which is not installed: pip install 'headrace[demo]'")
    screen.out.print(Rule("Headrace: the fraud that hopping windows miss", style="cyan"))
    day = _make_payments(output / "payments.parquet", seed, payments)
    with spark_session("demo") as spark:
        verdicts = _run_both_windows(spark, day, output)
    picture = plot or output / "demo.png"
    _draw(verdicts, picture)
    _tell(verdicts)
    _say_what_next(picture, output)


def _make_payments(file: Path, seed: int, payments: int) -> Day:
    _headline(1, "A day of card payments")
    with _timed("making payments") as took:
        day = make_day(seed, payments)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(day.payments, file)
    _say(f"[bold]{day.payments.num_rows:,}[/] payments in {file} {took()}")
    _say(
        f"Hidden among them: [bold]{len(day.bursts)}[/] stolen cards. A thief tries the card with five small payments "
        "within five minutes; if nobody stops it, an expensive purchase follows."
    )
    return day


def _run_both_windows(spark: SparkSession, day: Day, output: Path) -> list[Verdict]:
    payments = spark.read.parquet(str(output.absolute() / "payments.parquet"))
    stolen = [burst.card for burst in day.bursts]
    scored = _slide(payments, output / "scored.parquet")
    windows = _hop(payments)
    with _timed("comparing"):
        verdicts = compare.judge(
            day.bursts, compare.sliding_sights(scored, stolen), compare.hopping_sights(windows, stolen)
        )
        sliding = compare.false_alarms(scored, "payments_5m", day.bursts)
        hopping = compare.false_alarms(windows, "payments", day.bursts)
    _say(f"[dim]False alarms on honest cards: {sliding} with sliding, {hopping} with hopping windows[/]")
    return verdicts


def _slide(payments: DataFrame, file: Path) -> DataFrame:
    _headline(2, "Exact metrics for every payment, over real sliding windows")
    text = Syntax(METRICS.strip(), "sql", theme="ansi_dark", background_color="default")
    screen.out.print(Padding(text, (0, 0, 0, 5)))
    with _timed("measuring on Spark") as took:
        scored = payments.transform(Metrics(METRICS, time="ts", id="txn").measure)
        scored.write.mode("overwrite").parquet(str(file.absolute()))
    _say(f"Every payment and its metrics are in {file} {took()}")
    return payments.sparkSession.read.parquet(str(file.absolute()))


def _hop(payments: DataFrame) -> DataFrame:
    _headline(3, "The usual way: Spark's window(ts, '5 minutes', '1 minute')")
    with _timed("counting hopping windows on Spark") as took:
        windows = compare.hopping_windows(payments).cache()
        count = windows.count()
    _say(f"{count:,} windows of 5 minutes, one starting every minute for every card {took()}")
    return windows


def _draw(verdicts: Sequence[Verdict], picture: Path) -> None:
    from headrace.demo.plot import draw  # matplotlib is an extra

    with _timed("drawing"):
        draw(verdicts, picture)


def _tell(verdicts: Sequence[Verdict]) -> None:
    _headline(4, "The rule: more than 4 payments of a card within 5 minutes → block")
    screen.out.print(Padding(_score_table(verdicts), (0, 0, 0, 3)))
    missed = [verdict for verdict in verdicts if not verdict.caught_by_hopping]
    listed = missed[:_LISTED]
    _say(f"[bold]The fraud that hopping windows miss[/] [dim]({len(listed)} of {len(missed)}, times in UTC)[/]")
    screen.out.print(Padding(_missed_table(listed), (0, 0, 0, 3)))
    loss = sum(verdict.burst.purchase_cents for verdict in missed) / 100
    _say(
        "Each of these cards paid five times within five minutes, but no window that starts on a full minute held all "
        f"five, and the thieves went on to buy for [bold red]€{loss:,.2f}[/]. "
        "The sliding window saw every one of them, at the fifth payment."
    )


def _score_table(verdicts: Sequence[Verdict]) -> Table:
    table = _plain_table("card testing", "")
    for title in ("sliding catches", "hopping catches"):
        table.add_column(title, justify="right")
    for kind, about in (*KINDS.items(), ("", "all")):
        of_kind = [v for v in verdicts if kind in ("", v.burst.kind)]
        sliding = sum(v.caught_by_sliding for v in of_kind)
        hopping = sum(v.caught_by_hopping for v in of_kind)
        style = "bold" if not kind else None
        table.add_row(kind, about, _score(sliding, of_kind), _score(hopping, of_kind), style=style)
    return table


def _plain_table(*titles: str) -> Table:
    """Narrow enough for a screen of 80 columns."""
    return Table(*titles, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def _score(caught: int, of: Sequence[Verdict]) -> Text:
    return Text(f"{caught} of {len(of)}", "green" if caught == len(of) else "red")


def _missed_table(missed: Sequence[Verdict]) -> Table:
    table = _plain_table("card", "its five payments")
    for title in ("within", "sliding", "hopping"):
        table.add_column(title, justify="right")
    for verdict in missed:
        burst = verdict.burst
        first, *others = (_clock(time) for time in burst.times)
        times = " ".join([first, *(time.partition(":")[2] for time in others)])
        table.add_row(burst.card, times, _span(burst), f"[green]{verdict.sliding}[/]", f"[red]{verdict.hopping}[/]")
    return table


def _say_what_next(picture: Path, output: Path) -> None:
    rules, data = output / "rules.sql", output / "payments.parquet"
    rules.write_text(METRICS)
    command = _command()
    screen.out.print(Rule(style="cyan"))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("the picture", f"[bold]{picture}[/]")
    table.add_row("try next", f"{command} explain {rules}")
    table.add_row("", f"{command} measure {rules} -i {data} -o {output / 'mine.csv'} --time ts --id txn")
    table.add_row("", f"{command} demo --seed 7")
    table.add_row("read on", "docs/tour.md")
    screen.out.print(Padding(table, (0, 0, 1, 0)))


def _command() -> str:
    """How the person can call us again: by name where that is on the path, else as we were called."""
    if which("headrace"):
        return "headrace"
    called = Path(sys.argv[0])
    return "python -m headrace.cli" if called.stem == "__main__" else os.path.relpath(called)


def _headline(number: int, title: str) -> None:
    screen.out.print(f"\n[bold cyan]{number}[/]  [bold]{title}[/]")


def _say(sentence: str) -> None:
    screen.out.print(Padding(sentence, (0, 2, 0, 3)))


@contextmanager
def _timed(what: str) -> Iterator[Callable[[], str]]:
    """A spinner while the body runs; afterwards the yielded function tells how long it took."""
    started = clock.monotonic()
    ended: list[float] = []
    with screen.err.status(what):
        yield lambda: f"[dim]({ended[0] - started:.1f} s)[/]"
    ended.append(clock.monotonic())


def _clock(tick: Tick) -> str:
    return datetime.fromtimestamp(tick / SECOND, UTC).strftime("%H:%M:%S")


def _span(burst: Burst) -> str:
    seconds = (burst.fifth - burst.times[0]) // SECOND
    return f"{seconds // 60}:{seconds % 60:02d} min"
