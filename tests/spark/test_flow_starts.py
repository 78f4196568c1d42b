"""What is refused before a flow starts, and what becomes of it when its session ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

_GONE = """
import sys
import headrace as hr
from headrace.spark.session import local_session
from headrace.testing.flows import until

how, place = sys.argv[1:]
spark = local_session("gone", cores=2)
flow = hr.Flow("endless")
flow.sink("out", flow.source("numbers", hr.rate(1000)), hr.callback(lambda batch: None))
job = flow.start(spark, place)
until(lambda: any(task["records_in"] for task in job.status()["tasks"].values()))
if how == "stop":
    spark.stop()
else:
    spark.sparkContext._gateway.proc.kill()
for ask in (job.wait, job.stop):
    try:
        print("over" if ask(timeout_s=60) else "not over")
    except hr.FlowError as error:
        print(error)
print(job.status()["state"])
"""


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_flow_whose_session_is_gone_is_over_and_says_so(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _GONE, how, str(tmp_path / "at")]
    said = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    gone = "flow endless: the Spark session was stopped while it ran; start the flow again: it goes on where it was"
    assert said.stdout.splitlines() == [gone, gone, "failed"], said.stderr[-2000:]
