"""Events that came late for chunks that are in files already: kept beside them, and merged when a chunk is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headrace.measure.chunks import Chunk
from headrace.measure.events import TIME_ROW
from headrace.model.jit import Ints
from headrace.state.tables import AppendOnly, Tables


class LateEvents:
    """The events in the order in which they came, each with the serial number of its chunk."""

    def __init__(self, rows: int):
        self._events: Ints = np.zeros((rows, 0), np.int64)
        self._chunk: Ints = np.zeros(0, np.int64)
        self._generation = 0
        """How often events were taken out, or read anew: what is written once stays as long as none is."""

    def __len__(self) -> int:
        return len(self._chunk)

    @property
    def chunks(self) -> list[int]:
        """The serial numbers of chunks that have late events."""
        found: list[int] = np.unique(self._chunk).tolist()
        return found

    def add(self, chunk: Chunk, late: Ints) -> None:
        self._events = np.concatenate([self._events, late], axis=1)
        self._chunk = np.concatenate([self._chunk, np.full(late.shape[1], chunk.serial)])
        chunk.add_late(late[TIME_ROW])

    def of(self, chunk: Chunk) -> Ints:
        return self._events[:, self._chunk == chunk.serial]

    def take_out(self, serials: list[int]) -> None:
        """The events of these chunks are somewhere else now, or nowhere."""
        gone = np.isin(self._chunk, serials)
        if gone.any():
            self._events, self._chunk = self._events[:, ~gone], self._chunk[~gone]
            self._generation += 1

    def dump(self) -> Tables:
        return {
            "generation": np.array([self._generation], np.int64),
            f"events.{self._generation}": AppendOnly(self._events.T),
            f"chunk.{self._generation}": AppendOnly(self._chunk),
        }

    def restore(self, tables: Mapping[str, Any], chunks: Mapping[int, Chunk], current: Callable[[Ints], Ints]) -> None:
        """`current` reads events as they were kept."""
        self._generation = int(tables["generation"][0])
        kept = np.ascontiguousarray(tables[f"events.{self._generation}"].T)
        self._events, self._chunk = current(kept), tables[f"chunk.{self._generation}"]
        self._generation += self._events is not kept
        for serial in self.chunks:
            chunks[serial].add_late(self._events[TIME_ROW, self._chunk == serial])
