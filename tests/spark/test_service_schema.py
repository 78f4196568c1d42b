"""Whatever the OpenAPI page allows, and much that it does not, is answered without an error of the server's own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from pyspark.sql import SparkSession

from headrace.queues.log import LogQueues
from headrace.service.app import make_app
from headrace.service.registry import Registry
from headrace.service.streams import read_streams
from headrace.testing.flows import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TEXT = """
CREATE STREAM payments (txn STRING ID, ts TIMESTAMP TIME, card STRING, amount DOUBLE);
SELECT sum(amount) AS spent, count(*) AS n FROM payments GROUP BY card OVER sliding 5 minutes
"""


def test_no_request_is_an_error_of_the_server(spark: SparkSession, tmp_path: Path) -> None:
    registry = Registry(spark, str(tmp_path), LogQueues(tmp_path / "queues"))
    registry.start(read_streams(TEXT))
    until(lambda: registry.engine("payments").is_ready)
    seen: Counter[int] = Counter()
    try:
        api = schemathesis.openapi.from_asgi("/openapi.json", make_app(registry, timeout_s=20.0))
        found: Any
        for found in api.get_all_operations():
            _try(found.ok(), seen)
    finally:
        registry.close()
    assert max(seen) < 500, seen
    assert {200, 404, 422} <= set(seen), seen


def _try(operation: Any, seen: Counter[int]) -> None:
    @given(operation.as_strategy())
    @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def ask(case: Any) -> None:
        if "name" in (case.path_parameters or {}) and case.method == "POST":
            case.path_parameters["name"] = "payments"
        answer = case.call()
        seen[answer.status_code] += 1
        assert answer.status_code < 500, f"{case.method} {case.formatted_path}: {answer.text}"

    ask()
