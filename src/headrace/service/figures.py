"""Counters and a histogram of latencies, in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.model.latencies import BOUNDS, Latencies


class Figures:
    """Of one stream."""

    def __init__(self) -> None:
        self.events = 0
        self.requests = 0
        self.missing = 0
        self._took = Latencies()
        self._lock = threading.Lock()

    def answered(self, events: int, seconds: float) -> None:
        with self._lock:
            self.events += events
            self.requests += 1
            self._took.add(seconds)

    def timed_out(self, events: int) -> None:
        with self._lock:
            self.missing += events

    def lines(self, stream: str) -> list[str]:
        with self._lock:
            label = f'stream="{stream}"'
            return [
                f"headrace_events_total{{{label}}} {self.events}",
                f"headrace_unanswered_events_total{{{label}}} {self.missing}",
                *_histogram("headrace_request_seconds", label, self._took.counts, self._took.total),
            ]


def _histogram(name: str, label: str, counts: Sequence[int], total: float) -> list[str]:
    found, seen = [], 0
    for bound, count in zip((*BOUNDS, "+Inf"), counts, strict=True):
        seen += count
        found.append(f'{name}_bucket{{{label},le="{bound}"}} {seen}')
    return [*found, f"{name}_sum{{{label}}} {total:.6f}", f"{name}_count{{{label}}} {seen}"]


def task_lines(stream: str, reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the tasks of a stream report."""
    found = []
    for task, report in sorted(reports.items()):
        label = f'stream="{stream}",task="{task}"'
        found.append(f"headrace_records_total{{{label}}} {report['records_in']}")
        for stage, said in report["stages"].items():
            if "counts" in said:
                found += _stage_lines(f'{label},stage="{stage}"', said)
    return found


def _stage_lines(label: str, said: Mapping[str, Any]) -> list[str]:
    """Of a stage of metrics in a task: a shard."""
    found = [f'headrace_status_total{{{label},status="{name}"}} {count}' for name, count in said["counts"].items()]
    found += _histogram("headrace_answer_seconds", label, said["took"]["counts"], said["took"]["total"])
    chunks = said["chunks"]
    found += [
        f"headrace_groups{{{label}}} {said['groups']}",
        f"headrace_remembered_events{{{label}}} {said['events']}",
        f'headrace_event_chunks{{{label},in="memory"}} {chunks["in_memory"]}',
        f'headrace_event_chunks{{{label},in="files"}} {chunks["in_files"]}',
        f"headrace_event_chunk_reads_total{{{label}}} {chunks['reads']}",
        f"headrace_event_chunk_misses_total{{{label}}} {chunks['misses']}",
    ]
    for part, size in said["bytes"].items():
        kind, _, metric = part.partition(" ")
        if kind == "metric":
            found.append(f'headrace_metric_state_bytes{{{label},metric="{metric}"}} {size}')
        else:
            found.append(f'headrace_state_bytes{{{label},part="{part}"}} {size}')
    return found
