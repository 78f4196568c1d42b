"""The shape of a bench: steps with progress, figures measured in this run, ratios against targets, three outputs.

    bench = Bench("measure_batch", "Sliding windows on a batch", targets=[Target("over_duckdb", at_least=0.7)])
    with bench.running(steps=7):
        seconds = bench.time("Headrace", action)
        bench.figure("Headrace", "4 M rows", rows / seconds, EVENTS_A_SECOND)
        bench.ratio("over_duckdb", ...)
    bench.finish()

`finish` prints the table, and writes `results/NAME.json` and `results/NAME.png` beside this file.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.support.plot import draw

EVENTS_A_SECOND: Final = "events/s"
MEGABYTES: Final = "MB"
RESULTS: Final = Path(__file__).resolve().parent / "results"

_PACKAGES: Final = ("headrace", "pyspark", "pyarrow", "numpy", "numba", "duckdb")
_BUSY_PERCENT: Final = 15.0
STOLEN_PERCENT: Final = 2.0
"""From there on latencies are those of the host, too."""


def is_quick() -> bool:
    """QUICK=1 in the environment: small sizes, done in under a minute."""
    return os.environ.get("QUICK", "") not in ("", "0")


def stolen_percent(before: Any, after: Any) -> float:
    """Of the cores' time between two psutil.cpu_times(), that of other machines of this one's host."""
    stolen = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
    return float(100 * stolen / max(1e-9, sum(after) - sum(before)))


@dataclass(frozen=True)
class Figure:
    """One thing measured: `value` in `unit`."""

    system: str
    figure: str
    value: float
    unit: str


@dataclass(frozen=True)
class Target:
    """What a ratio should reach; give one of the two."""

    ratio: str
    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, value: float) -> bool:
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"


@dataclass(frozen=True)
class Chart:
    """Lines over one pair of axes, which may be logarithmic."""

    title: str
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False


class Bench:
    """Collects what a run measures. Nothing gets into the outputs that was not given to it in this run."""

    def __init__(
        self,
        name: str,
        title: str,
        *,
        targets: Sequence[Target] = (),
        quick: bool | None = None,
        results: Path = RESULTS,
        console: Console | None = None,
    ):
        self.name = name
        self.title = title
        self.quick = is_quick() if quick is None else quick
        self.figures: list[Figure] = []
        self.ratios: dict[str, float] = {}
        self.notes: list[str] = []
        self._settings: dict[str, object] = {}
        self._timings: list[dict[str, object]] = []
        self._curves: dict[Chart, dict[str, list[tuple[float, float]]]] = {}
        self._targets = {target.ratio: target for target in targets}
        self._results = results
        self._console = console or Console()
        self._machine: dict[str, object] = {}
        self._progress: Progress | None = None

    # ----------------------------------------------------------------- measure

    @contextmanager
    def running(self, steps: int) -> Iterator[None]:
        """Show progress over so many calls of `step` and `time`; the machine is looked at before the first."""
        mode = " [yellow](QUICK=1: small sizes, figures are not comparable with a full run)[/]" if self.quick else ""
        self._console.print(f"[bold]{self.name}[/]: {self.title}{mode}")
        self._machine = machine_facts()
        busy = float(str(self._machine["busy_percent_before"]))
        if busy > _BUSY_PERCENT:
            self.note(f"The machine was not idle: {busy:.0f} % of its cores were busy before the run.")
        columns = (
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        )  # fmt: skip
        before = psutil.cpu_times()
        with Progress(*columns, console=self._console) as progress:
            self._progress = progress
            progress.add_task("", total=steps)
            yield
        self._progress = None
        self._note_stolen(before, psutil.cpu_times())

    def _note_stolen(self, before: Any, after: Any) -> None:
        """A virtual machine may have to wait for the cores that it shows."""
        share = stolen_percent(before, after)
        self._machine["stolen_percent"] = round(share, 1)
        if share > STOLEN_PERCENT:
            self.note(
                f"For {share:.0f} % of the time, cores that were wanted were with other machines of this one's host: "
                "latencies are those of the host, too."
            )

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A step of the progress bar."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], description=what)
        yield
        if self._progress is not None:
            self._progress.advance(self._progress.task_ids[0])

    def time(self, what: str, action: Callable[[], object]) -> float:
        """Seconds that the action takes, on the wall clock; every timing is kept in the JSON."""
        with self.step(what):
            start = time.perf_counter()
            action()
            seconds = time.perf_counter() - start
        self.timed(what, seconds)
        return seconds

    def timed(self, what: str, seconds: float) -> None:
        """Keep a time that another process of this run measured."""
        self._timings.append({"what": what, "seconds": round(seconds, 3)})
        self.say(f"{what}: {seconds:.2f} s")

    def race(self, what: str, rounds: int, racers: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        """The best time of each; they take turns, so that a busy minute of the machine hits all alike."""
        best = dict.fromkeys(racers, float("inf"))
        for number in range(1, rounds + 1):
            for name, action in racers.items():
                best[name] = min(best[name], self.time(f"{name}, {what}, run {number} of {rounds}", action))
        return best

    def figure(self, system: str, figure: str, value: float, unit: str) -> None:
        self.figures.append(Figure(system, figure, value, unit))

    def curve(self, chart: Chart, line: str, points: Sequence[tuple[float, float]]) -> None:
        """A line of a chart, which is drawn below the bars."""
        self._curves.setdefault(chart, {})[line] = [(_rounded(x), _rounded(y)) for x, y in points]

    def ratio(self, name: str, value: float) -> None:
        self.ratios[name] = value

    def set(self, **settings: object) -> None:
        """What the run was made with: sizes, options, how often it was timed."""
        self._settings.update(settings)

    def note(self, text: str) -> None:
        """Something a reader of the figures must know."""
        self.notes.append(text)
        self.say(f"[yellow]{text}[/]")

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False)

    # ------------------------------------------------------------------- write

    def finish(self) -> dict[str, Any]:
        """Print the tables, write the JSON and the PNG; gives what was written."""
        self._console.print(self._figure_table())
        if self.ratios:
            self._console.print(self._ratio_table())
        report = self.report()
        self._results.mkdir(parents=True, exist_ok=True)
        (self._results / f"{self.name}.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        draw(report, self._results / f"{self.name}.png")
        folder = f"{self._results.parent.name}/{self._results.name}"
        self._console.print(f"Written: {folder}/{self.name}.json and {folder}/{self.name}.png")
        return report

    def report(self) -> dict[str, Any]:
        """What the JSON holds."""
        return {
            "name": self.name,
            "title": self.title,
            "quick": self.quick,
            "machine": self._machine,
            "settings": self._settings,
            "notes": self.notes,
            "figures": [{**asdict(f), "value": _rounded(f.value)} for f in self.figures],
            "ratios": {name: _rounded(value) for name, value in self.ratios.items()},
            "targets": {name: self._verdict(name) for name in self.ratios if name in self._targets},
            "charts": [{**asdict(chart), "lines": lines} for chart, lines in self._curves.items()],
            "timings": self._timings,
        }

    def _verdict(self, name: str) -> dict[str, object]:
        target = self._targets[name]
        return {"target": str(target), "met": target.is_met(self.ratios[name])}

    def _figure_table(self) -> Table:
        table = Table(title=self.title)
        table.add_column("system")
        table.add_column("figure")
        table.add_column("value", justify="right")
        table.add_column("unit")
        for figure in self.figures:
            table.add_row(figure.system, figure.figure, pretty(figure.value), figure.unit)
        return table

    def _ratio_table(self) -> Table:
        table = Table(title="Ratios (targets are meant for a full run)" if self.quick else "Ratios")
        table.add_column("ratio")
        table.add_column("value", justify="right")
        table.add_column("target", justify="right")
        table.add_column("")
        for name, value in self.ratios.items():
            target = self._targets.get(name)
            met = "" if target is None else "[green]met[/]" if target.is_met(value) else "[red]not met[/]"
            table.add_row(name, f"{value:.3g}" if value < 100 else f"{value:,.0f}", str(target or ""), met)
        return table


def pretty(value: float) -> str:
    """Three digits that matter: 1,234,000 for 1234321.7, and 0.123 for 0.12345."""
    if abs(value) >= 100:
        digits = len(str(int(abs(value)))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def _rounded(value: float) -> float:
    """Six digits: more would be noise."""
    return float(f"{value:.6g}")


def machine_facts() -> dict[str, object]:
    """What a reader needs in order to judge the figures; nothing that names the machine."""
    return {
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.system(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
        "busy_percent_before": psutil.cpu_percent(interval=1.0),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
