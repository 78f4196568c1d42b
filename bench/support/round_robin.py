"""RR-N, the workload of the trAcker paper: in a virtual cluster, and as fast as it goes on Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from bench.support.punctuations import Inject, Ints, PassOn, ints, is_punctuation, to_target
from bench.support.virtual_cluster import VirtualCluster
from bench.support.virtual_costs import Costs
from headrace.flow.builder import Stream
from headrace.flow.io import Feed, Opening, Source, SplitReader
from headrace.model.frames import Frame, Kind
from headrace.track.terms import Told

Floats = npt.NDArray[np.float64]
System = Literal["none", "punctuations", "tracked", "counted"]

OUT: Final = "out"
"""The sink of RR-N; of punctuations, each task gets one of them for each substream, behind its records."""
NOTICES: Final = "notices"
"""The sink of notifications, where they come by a way of their own."""
_ENDED: Final = pa.schema([("substream", pa.int64())])


@dataclass(frozen=True)
class Items(Source):
    """At a steady rate, and each knows its substream from the first: who tracks them is told so by the source."""

    rr: RoundRobin

    schema = pa.schema([("n", pa.int64()), ("substream", pa.int64()), ("last", pa.bool_()), ("made_us", pa.int64())])

    def open(self, opening: Opening, position: Any) -> SplitReader:
        return _ItemReader(self.rr, hr.rate(self.rr.rate, self.rr.records).open(opening, position))


class _ItemReader(SplitReader):
    def __init__(self, rr: RoundRobin, numbers: SplitReader):
        self._rr, self._numbers = rr, numbers

    def poll(self, most_records: int) -> Feed | None:
        feed = self._numbers.poll(most_records)
        return feed if feed is None or feed.batch is None else replace(feed, batch=self._rr.made(feed.batch))

    def due_s(self) -> float:
        return self._numbers.due_s()


def service_in(queue: str, frame: Frame) -> tuple[str, int]:
    """What of a frame is there only for tracking: punctuations, one for each task that one is sent to; what tasks tell
    the tracker; what it tells them, "forgotten" where they are to forget. That all is over is not counted."""
    if frame.kind == Kind.REPORT:
        return "reports", frame.count
    names = frame.batch.schema.names if frame.batch is not None else ()
    if "kind" in names:
        return "punctuations", int(is_punctuation(frame.batch).sum())
    if "told" not in names:
        return "", 0
    told = set(ints(frame.batch, "told").tolist())
    what = "forgotten" if told == {Told.GONE} else "notices"
    return (what, frame.count) if told != {Told.OVER} else ("", 0)


@dataclass(frozen=True)
class RoundRobin:
    """RR-N: `steps` that pass records on, each to the next task in turn, one task a worker and step."""

    system: System
    steps: int = 30
    workers: int = 15
    granularity: int = 10
    records: int = 1000
    rate: float = 100.0
    aligned: bool = False
    as_records: bool = False
    """What is tracked tells a sink of its own, instead of the tasks of the last step."""

    @property
    def is_tracked(self) -> bool:
        return self.system in ("tracked", "counted")

    @property
    def substreams(self) -> int:
        return -(-self.records // self.granularity)

    @property
    def punctuations(self) -> int:
        """How many it takes."""
        return self.substreams * (self.workers + (self.steps - 1) * self.workers**2)

    def made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records of its source, from what `hr.rate` gives."""
        numbers = ints(batch, "n")
        is_last = (numbers % self.granularity == self.granularity - 1) | (numbers == self.records - 1)
        made_us = batch.column("ts").cast(pa.int64())
        columns = {"n": numbers, "substream": numbers // self.granularity, "last": is_last, "made_us": made_us}
        return pa.record_batch(columns)

    def flow(self, name: str = "rr") -> hr.Flow:
        flow = hr.Flow(name)
        last = self.begun(flow)
        if self.system == "punctuations":
            last = flow._stage("inject", Inject(self.workers), (last,), 1, None, None, {})
        for step in range(1, self.steps + 1):
            last = self._step(flow, last, step)
        flow.sink(OUT, last, hr.callback(self.came))
        if self.is_tracked:
            told = flow.ends("ends", self._tracked(last)) if self.as_records else last.side(NOTICES)
            flow.sink(NOTICES, told, hr.callback(self.ended))
        return flow

    def begun(self, flow: hr.Flow) -> Stream:
        """Its source."""
        return flow.source("items", Items(self))

    def step(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What a step does, but for the last one where it is told of ends."""
        return batch

    def came(self, batch: pa.RecordBatch) -> None:
        """What its sink does with records, and with punctuations."""

    def ended(self, batch: pa.RecordBatch) -> None:
        """What the sink of notices does with them."""

    def _tracked(self, last: Stream) -> Stream:
        return last.tracked(by="substream", ends=hr.marker("last"))

    def _step(self, flow: hr.Flow, last: Stream, step: int) -> Stream:
        name, width, in_turn = f"step-{step}", self.workers, hr.rebalance()
        if self.is_tracked and not self.as_records and step == self.steps:
            told, sides = self._tracked(last), {NOTICES: _ENDED}
            return flow.stage(name, _Informed, told, parallelism=width, route=in_turn, sides=sides)
        if self.system != "punctuations":
            is_counted = self.system == "counted"
            return flow.stage(name, self.step, last, parallelism=width, route=in_turn, one_to_one=is_counted)
        passes = PassOn(1 if step == 1 else self.workers, self.workers if step < self.steps else 0, self.aligned)
        return flow._stage(name, passes, (last,), self.workers, hr.custom(to_target), None, {})

    def run(self, costs: Costs, **options: Any) -> VirtualCluster:
        """On a virtual cluster; all records came, and each task of the last step had each notification, once."""
        cluster = VirtualCluster(self.flow().graph(), self.workers, costs, service=service_in, **options)
        cluster.run()
        numbers = np.concatenate([ints(batch, "n") for _, batch in records_of(cluster)])
        assert np.array_equal(np.sort(numbers), np.arange(self.records)), "records are missing, or came twice"
        if self.system != "none":
            told = sorted((task, one) for _, task, found in notices_of(cluster) for one in found.tolist())
            told_tasks = 1 if self.is_tracked and self.as_records else self.workers
            wanted = [(task, one) for task in range(told_tasks) for one in range(self.substreams)]
            assert told == wanted, "notifications are missing, or came twice"
        return cluster

    def notification_ms(self, cluster: VirtualCluster) -> Floats:
        """From when the source had sent the last record of a substream until a task was told; for each of both."""
        emitted = np.full(self.records, np.nan)
        for given in cluster.fed:
            emitted[ints(given.batch, "n")] = given.at_s
        lasts = np.minimum(np.arange(1, self.substreams + 1) * self.granularity, self.records) - 1
        return self._told_ms(cluster, emitted[lasts])

    def after_records_ms(self, cluster: VirtualCluster) -> Floats:
        """From when the last of its records had come to the last step until a task was told."""
        came = np.zeros(self.substreams)
        for at_s, batch in records_of(cluster):
            np.maximum.at(came, ints(batch, "substream"), at_s)
        return self._told_ms(cluster, came)

    def _told_ms(self, cluster: VirtualCluster, since_s: Floats) -> Floats:
        return np.sort(np.concatenate([at_s - since_s[ended] for at_s, _, ended in notices_of(cluster)])) * 1e3

    def record_ms(self, cluster: VirtualCluster) -> Floats:
        """From when a record was due until it had passed the last step, by number. Record n is due when n + 1 are."""
        found = np.zeros(self.records)
        for at_s, batch in records_of(cluster):
            numbers = ints(batch, "n")
            found[numbers] = at_s - (numbers + 1) / self.rate
        return found * 1e3


class _Informed(hr.Stage):
    """The last step of what is tracked: records go on, and so does the end of each substream."""

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def on_ended(self, substream: int) -> Any:
        return {NOTICES: pa.record_batch([pa.array([substream])], schema=_ENDED)}


def records_of(cluster: VirtualCluster) -> list[tuple[float, pa.RecordBatch]]:
    """What the last step gave, and when."""
    return [(given.at_s, _of_kind(given.batch, False)) for given in cluster.delivered if given.node == OUT]


def notices_of(cluster: VirtualCluster) -> list[tuple[float, int, Ints]]:
    """When which task behind the last step was told of which substreams."""
    found = [(each, each.batch) for each in cluster.delivered if each.node == NOTICES]
    found += [(each, _of_kind(each.batch, True)) for each in cluster.delivered if each.node == OUT]
    told = [(given, ints(batch, "substream")) for given, batch in found if batch.num_rows]
    return [(given.at_s, int(given.task.rpartition(".")[2]), substreams) for given, substreams in told]


def _of_kind(batch: pa.RecordBatch, wanted: bool) -> pa.RecordBatch:
    if "kind" not in batch.schema.names:
        return batch.slice(0, 0) if wanted else batch
    return batch.filter(pa.array(is_punctuation(batch) == wanted))


# ------------------------------------------------------------------------ on Spark


@dataclass(frozen=True)
class Bulk(RoundRobin):
    """As fast as it goes, on Spark; what came and what ended is written down."""

    folder: str = ""
    sines: int = 0

    def begun(self, flow: hr.Flow) -> Stream:
        return flow.source("items", hr.generate(self.numbered, self.records))

    def numbered(self, first: int, count: int) -> pa.RecordBatch:
        if first == 0 and count:
            (Path(self.folder) / "began").write_text(str(time.time_ns()))
        numbers: Ints = np.arange(first, first + count, dtype=np.int64)
        is_last = (numbers % self.granularity == self.granularity - 1) | (numbers == self.records - 1)
        return pa.record_batch({"n": numbers, "substream": numbers // self.granularity, "last": is_last})

    def step(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = ints(batch, "n").astype(np.float64) if self.sines else np.zeros(0)
        for _ in range(self.sines):
            np.sin(values, out=values)
        return batch

    def came(self, batch: pa.RecordBatch) -> None:
        numbers = ints(batch, "n")
        row = np.array([time.time_ns(), len(numbers), numbers.sum(), (numbers * numbers).sum()], np.int64)
        with (Path(self.folder) / "came").open("ab") as out:
            out.write(row.tobytes())

    def ended(self, batch: pa.RecordBatch) -> None:
        with (Path(self.folder) / "ended").open("ab") as out:
            out.write(ints(batch, "substream").tobytes())
        (Path(self.folder) / "told").write_text(str(time.time_ns()))

    def records_a_second(self, spark: Any) -> float:
        """From the first record made until all had come, and all ends were told. Raises RuntimeError if not so."""
        self.flow().start(spark, self.folder, workers=self.workers).wait()
        folder, numbers = Path(self.folder), np.arange(self.records)
        began, came = int((folder / "began").read_text()), np.fromfile(folder / "came", np.int64).reshape(-1, 4)
        if came[:, 1:].sum(axis=0).tolist() != [len(numbers), numbers.sum(), (numbers * numbers).sum()]:
            raise RuntimeError(f"{came[:, 1].sum():,} records came of {self.records:,}, or others")
        last = int(came[:, 0].max())
        if self.is_tracked:
            told = np.fromfile(folder / "ended", np.int64)
            if not np.array_equal(np.sort(told), np.arange(self.substreams)):
                raise RuntimeError(f"{len(told):,} ends were told, of {self.substreams:,} substreams")
            last = max(last, int((folder / "told").read_text()))
        return self.records / (last - began) * 1e9
