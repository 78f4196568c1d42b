"""The driver of a stream as a process of its own, which can be killed: runs the small stream of `crash_checks`.

`python -m headrace.testing.stream_process MASTER FOLDER CRASHES`
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from headrace.spark.session import local_session
from headrace.testing.crash_checks import SETTINGS, TASKS, TEXT, small_chunks
from headrace.testing.crashes import Crashes
from headrace.testing.streams import FolderStream

_TIMEOUT_SECONDS: Final = 600
_SHOWN_ERROR: Final = 4000


def run_in_process(master: str, folder: Path, crashes: Crashes) -> int:
    """Answer all that has arrived in the folder of a small stream; gives the exit code, -9 if it was killed."""
    command = [sys.executable, "-m", __name__, master, str(folder), str(crashes.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    if done.returncode > 0 and crashes.fired() == 0:
        raise RuntimeError(f"the stream failed before anything was done to it:\n{done.stderr[-_SHOWN_ERROR:]}")
    if done.returncode > 0:
        sys.stderr.write(done.stderr[-_SHOWN_ERROR:])
    return done.returncode


def cluster_session(master: str, crashes: Crashes) -> SparkSession:
    """A session that goes on when its executors do not."""
    conf = {
        "spark__executor__memory": "512m",
        "spark__executor__cores": "1",
        "spark__cores__max": "2",
        "spark__driver__memory": "512m",
        "spark__task__maxFailures": "100",
        "spark__stage__maxConsecutiveAttempts": "100",
        "spark__sql__shuffle__partitions": "2",
        **{f"spark__executorEnv__{name}": value for name, value in crashes.environment.items()},
    }
    # `local_session` says "local": the last one to speak is heard.
    return local_session("headrace chaos", spark__master=master, **conf)


def main(master: str, folder: Path, crashes: Crashes) -> None:
    spark = cluster_session(master, crashes)
    gateway: Any = spark.sparkContext._gateway
    crashes.driver_is(os.getpid(), gateway.proc.pid)
    with small_chunks():
        FolderStream(spark, folder, TEXT, **SETTINGS).run_tasks(TASKS)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Crashes(Path(sys.argv[3])))
