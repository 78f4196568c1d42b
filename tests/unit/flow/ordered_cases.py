"""Flows that are ordered: shared by the tests of their plans and of their tasks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.flow.builder import Flow, Stream
from headrace.flow.plan import Plan, make_plan
from headrace.testing.flows import numbers


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def anew(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"n": batch.column("n")})


def ignored(batch: pa.RecordBatch) -> None:
    return None


class Keeps(hr.Stage):
    def on_batch(self, batch: pa.RecordBatch) -> Any:
        return batch


class Passes(Keeps):
    order = "columns"


def drawn(*stages: tuple[str, int], records: int = 100, source: Any = None) -> tuple[Flow, Stream]:
    flow = Flow("f")
    stream = flow.source("s", source or hr.generate(numbers, records))
    for name, parallelism in stages:
        stream = flow.stage(name, same, stream, parallelism=parallelism, route=hr.rebalance())
    return flow, stream


def plan_of(*stages: tuple[str, int], parallelism: int = 1) -> Plan:
    flow, stream = drawn(*stages)
    flow.sink("out", stream.ordered(), hr.callback(ignored), parallelism=parallelism)
    return make_plan(flow.graph())
