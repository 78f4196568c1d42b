"""The picture of the demo: one burst that every hopping window cuts in two, and how many were caught."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from headrace.demo.bursts import HOP, WINDOW, Burst
from headrace.demo.compare import LIMIT, Verdict
from headrace.model.ticks import MINUTE, SECOND, Tick

_SEEN: Final = "#0f766e"
_MISSED: Final = "#c2410c"
_PALE: Final = "#e7e5e4"
_INK: Final = "#292524"
_SOFT: Final = "#78716c"


def draw(verdicts: Sequence[Verdict], path: Path) -> None:
    """Write the picture as a PNG. The burst shown is the one that hopping misses most plainly."""
    shown = max((v.burst for v in verdicts if not v.caught_by_hopping), key=_margin)
    figure = Figure(figsize=(12, 5.2), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[3.5, 1])
    _draw_timeline(left, shown)
    _draw_score(right, verdicts)
    figure.subplots_adjust(left=0.015, right=0.985, top=0.80, bottom=0.10, wspace=0.08)
    figure.text(0.018, 0.935, _headline(shown), fontsize=15, fontweight="bold", color=_INK)
    rule = (
        "Rule: more than 4 payments of one card within 5 minutes: block. Windows that hop by a minute cannot apply it."
    )
    figure.text(0.018, 0.885, rule, fontsize=10.5, color=_SOFT)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def hopping_starts(burst: Burst) -> list[Tick]:
    """The six windows around a missed burst: from the last one that holds its first payment on."""
    first = burst.times[0] // HOP * HOP
    return [Tick(first + HOP * step) for step in range(6)]


def _margin(burst: Burst) -> int:
    """How far the first and the fifth payment lie from the edge of the minute that parts them."""
    return min(HOP - burst.times[0] % HOP, burst.fifth % HOP)


def _headline(burst: Burst) -> str:
    span = (burst.fifth - burst.times[0]) // SECOND
    return f"Five payments within {span // 60} min {span % 60:02d} s, and no hopping window holds all five"


def _draw_timeline(axes: Axes, burst: Burst) -> None:
    starts = hopping_starts(burst)
    axes.set_xlim(-1.6, 12.7)
    axes.set_ylim(5.7, -2.9)
    _bar(axes, -1.25, burst.fifth - WINDOW + 1, burst, "sliding", "#b5e3de", _SEEN)
    for row, start in enumerate(starts):
        _bar(axes, row, start, burst, f"hop {row + 1}", _PALE, _MISSED)
    for number, time in enumerate(burst.times, start=1):
        at = _minutes(time, burst)
        axes.plot([at, at], [-2.3, 5.4], color=_INK, linewidth=0.6, linestyle=(0, (1, 3)), zorder=3)
        axes.plot(at, -2.3, "o", markersize=16, color=_INK, zorder=4)
        axes.text(at, -2.3, str(number), color="white", ha="center", va="center_baseline", fontsize=9, zorder=5)
    axes.text(-0.2, -2.3, burst.card, ha="right", va="center", fontsize=9.5, color=_INK)
    axes.set_xticks(range(11), [_clock(starts[0] + MINUTE * step) for step in range(11)], fontsize=9, color=_SOFT)
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.grid(axis="x", color="#f0efee", zorder=0)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_PALE)


def _bar(axes: Axes, row: float, start: int, burst: Burst, name: str, fill: str, ink: str) -> None:
    """One window as a bar: full dots for the payments it holds, hollow ones for those it does not."""
    held = [start <= time < start + WINDOW for time in burst.times]
    left = _minutes(start, burst)
    axes.barh(row, WINDOW / MINUTE, left=left, height=0.62, color=fill, zorder=2)
    for time, inside in zip(burst.times, held, strict=True):
        face = ink if inside else "white"
        axes.plot(_minutes(time, burst), row, "o", markersize=7, color=ink, markerfacecolor=face, zorder=6)
    axes.text(-0.2, row, name, ha="right", va="center", fontsize=9.5, color=_INK)
    count = sum(held)
    words = f"{count} payment{'' if count == 1 else 's'}{'  →  block' if count > LIMIT else ''}"
    axes.text(10.2, row, words, va="center", fontsize=10.5, fontweight="bold", color=ink)


def _minutes(tick: int, burst: Burst) -> float:
    """Minutes since the minute of the first payment: the x axis."""
    return (tick - hopping_starts(burst)[0]) / MINUTE


def _draw_score(axes: Axes, verdicts: Sequence[Verdict]) -> None:
    total = len(verdicts)
    caught = (sum(v.caught_by_sliding for v in verdicts), sum(v.caught_by_hopping for v in verdicts))
    for place, (name, count) in enumerate(zip(("sliding\n5 minutes", "hopping\nby 1 minute"), caught, strict=True)):
        axes.bar(place, count, width=0.62, color=_SEEN)
        axes.bar(place, total - count, bottom=count, width=0.62, color=_MISSED)
        axes.text(place, count / 2, f"{count}\ncaught", ha="center", va="center", color="white", fontweight="bold")
        if count < total:
            middle = (count + total) / 2
            axes.text(
                place, middle, f"{total - count}\nmissed", ha="center", va="center", color="white", fontweight="bold"
            )
        axes.text(place, -total * 0.035, name, ha="center", va="top", fontsize=9.5, color=_INK)
    axes.set_title(f"{total} bursts in a day of payments", fontsize=10.5, color=_INK)
    axes.set_ylim(0, total)
    axes.axis("off")


def _clock(tick: int) -> str:
    return datetime.fromtimestamp(tick / SECOND, UTC).strftime("%H:%M")
