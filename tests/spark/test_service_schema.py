"""Whatever the OpenAPI page allows, and much that it does not, is answered without an error of the server's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession
from schemathesis.checks import not_a_server_error

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


@pytest.fixture(scope="module")
def api(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp("schema")
    registry = Registry(spark, str(folder), LogQueues(folder / "queues"))
    registry.start(read_streams(TEXT))
    until(lambda: registry.engine("payments").is_ready)
    yield schemathesis.openapi.from_asgi("/openapi.json", make_app(registry, timeout_s=20.0))
    registry.close()


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_is_an_error_of_the_server(case: Any) -> None:
    if "name" in (case.path_parameters or {}) and case.method == "POST":
        case.path_parameters["name"] = "payments"
    case.call_and_validate(checks=[not_a_server_error])
