"""A standalone Spark cluster on this machine, out of what the pip package of pyspark brings along.

```python
with standalone_cluster(tmp_path, workers=2, environment=crashes.environment) as master:
    ...                                    # spark.master = master; one core a worker
```

It listens on the loopback address only, on free ports, and leaves no process behind.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyspark

from headrace.spark.session import java_version

HOST: Final = "127.0.0.1"
_MARK: Final = "HEADRACE_CLUSTER"
_START_SECONDS: Final = 120
_STOP_SECONDS: Final = 20


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of the master, when all workers have told it that they are there."""
    java_version()
    folder.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex
    everywhere = {**_environment(folder), **(environment or {}), _MARK: mark}
    started: list[subprocess.Popen[bytes]] = []
    try:
        address = f"spark://{HOST}:{(port := free_port())}"
        args = ["--host", HOST, "--port", str(port), "--webui-port", str(free_port())]
        started.append(_start("org.apache.spark.deploy.master.Master", args, folder / "master.log", everywhere))
        _wait_for("I have been elected leader", folder / "master.log", started[-1])
        for number in range(workers):
            log, work = folder / f"worker-{number}.log", folder / f"work-{number}"
            args = ["--host", HOST, "--webui-port", str(free_port()), "-c", "1", "-m", "1g", "-d", str(work), address]
            started.append(_start("org.apache.spark.deploy.worker.Worker", args, log, everywhere))
        for number in range(workers):
            _wait_for("Successfully registered with master", folder / f"worker-{number}.log", started[1 + number])
        yield address
    finally:
        _stop(started, mark)


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def _environment(folder: Path) -> dict[str, str]:
    home = str(Path(pyspark.__file__).parent)
    conf = folder / "conf"
    conf.mkdir(exist_ok=True)
    return {
        **os.environ,
        "SPARK_HOME": home,
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_PUBLIC_DNS": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        # An executor that is killed again and again is started again and again.
        "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def _start(name: str, args: list[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    spark_class = str(Path(environment["SPARK_HOME"]) / "bin" / "spark-class")
    with open(log, "wb") as out:
        return subprocess.Popen(
            ["bash", spark_class, name, *args],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )


def _wait_for(line: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while line not in (said := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the cluster did not start; {log.name} ends with:\n{said[-3000:]}")
        time.sleep(0.1)


def _stop(started: list[subprocess.Popen[bytes]], mark: str) -> None:
    """Ask first: a worker that is asked ends its executors. Then end whatever has the mark of this cluster."""
    for process in reversed(started):
        process.terminate()
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in started:
        process.wait()


def marked(mark: str) -> list[int]:
    """The processes that were started by a cluster, or by what it started, and are still there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{_MARK}={mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found
