"""The picture of a bench: every rate that it measured, as bars on one logarithmic axis."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

_OURS: Final = "#0f766e"
_THEIRS: Final = "#a8a29e"
_INK: Final = "#292524"
_SOFT: Final = "#78716c"
_BAR_INCHES: Final = 0.42
_HEAD_INCHES: Final = 1.9


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Bars for the unit that most figures have; nothing is drawn twice, nothing that is not in the report."""
    units = [figure["unit"] for figure in report["figures"]]
    unit = max(dict.fromkeys(units), key=units.count, default="")
    bars = [figure for figure in report["figures"] if figure["unit"] == unit and figure["value"] > 0]
    height = _HEAD_INCHES + _BAR_INCHES * max(1, len(bars))
    picture = Figure(figsize=(11, height), dpi=110, facecolor="white")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    values = [bar["value"] for bar in bars]
    colours = [_OURS if "headrace" in bar["system"].lower() else _THEIRS for bar in bars]
    labels = [f"{bar['system']}, {bar['figure']}" for bar in bars]
    axes.barh(range(len(bars)), values, color=colours, height=0.68)
    axes.set_yticks(range(len(bars)), labels, fontsize=10, color=_INK)
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
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    title = report["title"] + (" (QUICK run: small sizes)" if report["quick"] else "")
    ratios = ",  ".join(f"{name} {value:.3g}" for name, value in report["ratios"].items())
    picture.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold", color=_INK)
    axes.set_title(ratios, loc="right", fontsize=9.5, color=_SOFT)
    picture.tight_layout()
    picture.savefig(path)


def short(value: float) -> str:
    """1.23 M, 45.6 K, 789: for labels."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"
