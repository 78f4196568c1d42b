"""Counters and a histogram of latencies, in the text format that Prometheus reads."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Mapping
from typing import Any, Final

_BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Figures:
    """Of one stream."""

    def __init__(self) -> None:
        self.events = 0
        self.requests = 0
        self.missing = 0
        self._sum = 0.0
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._lock = threading.Lock()

    def answered(self, events: int, seconds: float) -> None:
        with self._lock:
            self.events += events
            self.requests += 1
            self._sum += seconds
            self._buckets[bisect.bisect_left(_BOUNDS, seconds)] += 1

    def timed_out(self, events: int) -> None:
        with self._lock:
            self.missing += events

    def lines(self, stream: str) -> list[str]:
        with self._lock:
            label = f'{{stream="{stream}"}}'
            found = [
                f"headrace_events_total{label} {self.events}",
                f"headrace_unanswered_events_total{label} {self.missing}",
            ]
            total = 0
            for bound, count in zip((*_BOUNDS, "+Inf"), self._buckets, strict=True):
                total += count
                found.append(f'headrace_request_seconds_bucket{{stream="{stream}",le="{bound}"}} {total}')
            found.append(f"headrace_request_seconds_sum{label} {self._sum:.6f}")
            found.append(f"headrace_request_seconds_count{label} {total}")
            return found


def task_lines(stream: str, reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the tasks of a stream report."""
    found = []
    for task, report in sorted(reports.items()):
        label = f'{{stream="{stream}",task="{task}"}}'
        found.append(f"headrace_records_total{label} {report['records_in']}")
        for stage in report["stages"].values():
            for status, count in stage.get("counts", {}).items():
                found.append(f'headrace_status_total{{stream="{stream}",task="{task}",status="{status}"}} {count}')
    return found
