"""What cannot be sent to workers is named before one starts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.flow.builder import Flow
from headrace.spark.pickles import check_pickles


def _make(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": np.arange(first, first + count)})


def _with_lock(gives: Callable[..., Any]) -> Callable[..., Any]:
    lock = threading.Lock()

    def locked(*given: Any) -> Any:
        with lock:
            return gives(*given)

    return locked


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _flow(where: str) -> Flow:
    locked: Callable[[str, Callable[..., Any]], Any] = lambda at, f: _with_lock(f) if at == where else f  # noqa: E731
    flow = Flow("f")
    made = flow.source("numbers", hr.generate(locked("source numbers", _make), 10))
    route = hr.custom(locked("the route from numbers to stage same", lambda batch, tasks: np.zeros(batch.num_rows)))
    same = flow.stage("same", locked("stage same", _same), made, route=route)
    flow.sink("out", same, hr.callback(locked("sink out", lambda batch: None)))
    return flow


@pytest.mark.parametrize("where", ["source numbers", "the route from numbers to stage same", "stage same", "sink out"])
def test_what_cannot_be_sent_is_named(where: str) -> None:
    with pytest.raises(hr.FlowError) as refused:
        check_pickles(_flow(where).graph())
    assert str(refused.value) == (
        f"{where} cannot be sent to workers: TypeError: cannot pickle '_thread.lock' object; make what cannot be sent "
        f"where it is used, inside the function or in the __init__ of a class of hr.Stage"
    )


def test_what_can_be_sent_passes() -> None:
    check_pickles(_flow("nowhere").graph())
