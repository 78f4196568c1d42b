"""The driver of a flow as a process of its own, which can be killed: runs `three_stages` into a folder.

`python -m headrace.testing.flow_process MASTER FOLDER RECORDS [KAFKA]`
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from headrace.flow.kafka_ends import kafka_queues
from headrace.spark.session import local_session
from headrace.testing.flows import three_stages

_LOOK_S: Final = 0.1
_GONE_S: Final = 30.0


class FlowProcess:
    """A driver, its JVM and its workers."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process

    def look(self) -> dict[str, Any] | None:
        """What it says next of the job; None when it says nothing any more."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        return None

    def kill(self) -> None:
        """`kill -9`, and wait until the JVM and the workers have noticed."""
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        while self.look() is not None:
            pass
        return self._process.wait()


@contextmanager
def flow_process(master: str, folder: Path, records: int, kafka: str = "") -> Iterator[FlowProcess]:
    """Running; ended at the end."""
    command = [sys.executable, "-m", __name__, master, str(folder), str(records), kafka]
    with open(folder / "driver.log", "a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    try:
        yield FlowProcess(process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(master: str, folder: Path, records: int, kafka: str) -> None:
    conf = {} if master.startswith("local") else _cluster_conf()
    spark = local_session("headrace flow", spark__master=master, **conf)
    queues = kafka_queues(kafka, "process-") if kafka else None
    job = three_stages(folder / "out", records).start(spark, folder / "at", queues=queues, commit_s=0.3)
    while not job.wait(_LOOK_S):
        print(json.dumps(job.status()), flush=True)  # noqa: T201
    print(json.dumps(job.status()), flush=True)  # noqa: T201
    spark.stop()


def _cluster_conf() -> dict[str, str]:
    return {
        "spark__executor__memory": "512m",
        "spark__executor__cores": "1",
        "spark__cores__max": "2",
        "spark__driver__memory": "512m",
    }


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "")
