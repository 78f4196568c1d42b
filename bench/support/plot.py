"""The picture of a bench: every rate that it measured, as bars on one logarithmic axis, and its charts below."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, NullFormatter

_OURS: Final = "#0f766e"
_THEIRS: Final = "#a8a29e"
_INK: Final = "#292524"
_SOFT: Final = "#78716c"
_BAR_INCHES: Final = 0.42
_HEAD_INCHES: Final = 1.9
_CHART_INCHES: Final = 3.9
_NAME_INCHES: Final = 0.19
_MOST_MARKS: Final = 60
_TITLE_LETTERS: Final = 54
_MOST_RATIOS: Final = 12
_RATIO_LETTERS: Final = 100
_STYLES: Final = ("-", "--")
_LINES: Final = ("#a8a29e", "#b45309", "#1d4ed8", "#be185d", "#4d7c0f", "#7e22ce")


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Bars for the unit that most figures have; nothing is drawn twice, nothing that is not in the report."""
    units = [figure["unit"] for figure in report["figures"]]
    unit = max(dict.fromkeys(units), key=units.count, default="")
    bars = [figure for figure in report["figures"] if figure["unit"] == unit and figure["value"] > 0]
    charts = report.get("charts", [])
    rows = [charts[start : start + 2] for start in range(0, len(charts), 2)]
    heights = [_HEAD_INCHES + _BAR_INCHES * max(1, len(bars)), *map(_row_inches, rows)]
    picture = Figure(
        figsize=(11, sum(heights)), dpi=110, facecolor="white", layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.1)
    )
    FigureCanvasAgg(picture)
    # Each row is laid out for itself: long names of bars do not push charts aside.
    top, *below = picture.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).flat
    axes = top.subplots()
    for part, row in zip(below, rows, strict=True):
        for each, chart in zip(part.subplots(1, len(row), squeeze=False).flat, row, strict=True):
            _draw_chart(each, chart)
    values = [bar["value"] for bar in bars]
    colours = [_OURS if "headrace" in bar["system"].lower() else _THEIRS for bar in bars]
    labels = [f"{bar['system']}, {bar['figure']}" for bar in bars]
    axes.barh(range(len(bars)), values, color=colours, height=0.68)
    axes.set_yticks(range(len(bars)), labels, fontsize=10, color=_INK)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    if values:
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 3, max(values) * 4)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    for row, value in enumerate(values):
        axes.text(value * 1.08, row, short(value), va="center", fontsize=10, fontweight="bold", color=_INK)
    axes.set_xlabel(f"{unit} (logarithmic)", fontsize=9.5, color=_SOFT)
    axes.tick_params(axis="x", colors=_SOFT, labelsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    title = report["title"] + (" (QUICK run: small sizes)" if report["quick"] else "")
    # Those that have targets, where there are many.
    shown = report["ratios"] if len(report["ratios"]) <= _MOST_RATIOS else report["targets"]
    ratios = ",  ".join(f"{name} {report['ratios'][name]:.3g}" for name in shown)
    top.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold", color=_INK)
    axes.set_title(textwrap.fill(ratios, _RATIO_LETTERS), loc="right", fontsize=9.5, color=_SOFT)
    picture.savefig(path)


def _row_inches(charts: Sequence[Mapping[str, Any]]) -> float:
    """A chart, and below it the names of its lines."""
    return _CHART_INCHES + _NAME_INCHES * max(len(chart["lines"]) for chart in charts)


def _draw_chart(axes: Any, chart: Mapping[str, Any]) -> None:
    others = itertools.cycle(itertools.product(_STYLES, _LINES))
    is_drawn = False
    for name, points in chart["lines"].items():
        # One line of ours stands out; where there are several, each has a colour.
        ours = "headrace" in name.lower() and not is_drawn
        is_drawn = is_drawn or ours
        style, colour = ("-", _OURS) if ours else next(others)
        axes.plot(
            *zip(*points, strict=True),
            style,
            label=name,
            color=colour,
            linewidth=2.2 if ours else 1.4,
            marker="o" if len(points) <= _MOST_MARKS else None,
            markersize=3.5,
        )
    if chart["log_x"]:
        axes.set_xscale("log")
    if chart["log_y"]:
        axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axis.set_minor_formatter(NullFormatter())
    axes.set_title(
        textwrap.fill(chart["title"], _TITLE_LETTERS), loc="left", fontsize=10.5, fontweight="bold", color=_INK
    )
    axes.set_xlabel(chart["x"], fontsize=9.5, color=_SOFT)
    axes.set_ylabel(chart["y"], fontsize=9.5, color=_SOFT)
    axes.tick_params(colors=_SOFT, labelsize=9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8.5, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.16), borderaxespad=0)


def short(value: float) -> str:
    """1.23 M, 45.6 K, 789: for labels."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"
