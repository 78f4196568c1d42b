"""The programs of the paper on dependency-guided synchronization, each with data and an answer found another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headrace.demo.programs import event_windows, fraud, key_counters, outliers, page_views, smart_home
from headrace.demo.programs.event_windows import EventWindows
from headrace.demo.programs.fraud import Fraud
from headrace.demo.programs.key_counters import KeyCounters
from headrace.demo.programs.outliers import Outliers
from headrace.demo.programs.page_views import PageViews
from headrace.demo.programs.smart_home import SmartHome
from headrace.synchronize.program import Program

__all__ = ["PROGRAMS", "EventWindows", "Example", "Fraud", "KeyCounters", "Outliers", "PageViews", "SmartHome"]


@dataclass(frozen=True)
class Example:
    """A program, events for it, and what it must give for them (in any order)."""

    program: Callable[[], Program]
    generate: Callable[..., pa.Table]
    expected: Callable[[pa.Table], pa.Table]


PROGRAMS: Final = {
    "key_counters": Example(KeyCounters, key_counters.generate, key_counters.expected),
    "event_windows": Example(EventWindows, event_windows.generate, event_windows.expected),
    "page_views": Example(PageViews, page_views.generate, page_views.expected),
    "fraud": Example(Fraud, fraud.generate, fraud.expected),
    "outliers": Example(Outliers, outliers.generate, outliers.expected),
    "smart_home": Example(SmartHome, smart_home.generate, smart_home.expected),
}
