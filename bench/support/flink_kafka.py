"""Flink beside Headrace over Kafka: the connector, and a job that answers every event until the bench has enough."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bench.support.flink import JVM, WATERMARK, FlinkFailed, FlinkUnavailable, install
from bench.support.systems import CORES
from headrace.errors import EnvironmentProblem
from headrace.spark import maven

CONNECTOR: Final = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
SETTINGS: Final[dict[str, str]] = {
    "parallelism.default": str(CORES),
    "state.backend.type": "hashmap",
    "pipeline.auto-watermark-interval": "1 ms",
    "table.exec.source.idle-timeout": "1 s",
    "execution.buffer-timeout.interval": "0 ms",
}
"""For the lowest latency. Without the idle timeout, a reader that has no partition would hold all watermarks back."""
PRODUCER: Final[dict[str, str]] = {"linger.ms": "0"}
RATE_SETTINGS: Final[dict[str, str]] = {
    **SETTINGS,
    "execution.buffer-timeout.interval": "1 ms",
    "pipeline.object-reuse": "true",
}
"""For the highest rate."""
RATE_PRODUCER: Final[dict[str, str]] = {"linger.ms": "2"}

_JOB: Final = Path(__file__).with_name("flink_kafka_job.py")
_START_SECONDS: Final = 120
_PAUSE_SECONDS: Final = 0.05
_SHOWN_LINES: Final = 20


def connector_jars() -> list[Path]:
    """Flink's connector for Kafka, which is fetched once. Raises FlinkUnavailable."""
    try:
        return maven.jars(maven.cache_folder() / "flink-kafka" / CONNECTOR.rpartition(":")[2], [CONNECTOR])
    except EnvironmentProblem as problem:
        raise FlinkUnavailable(str(problem)) from problem


@contextmanager
def flink_over(
    servers: str, topic_in: str, topic_out: str, window_minutes: int, *, tuned_for_rate: bool = False
) -> Iterator[None]:
    """While it is open, every event of a topic is answered in the other one; all tasks run when it is entered.

    Both topics must be there. Raises FlinkUnavailable, or FlinkFailed if the job has ended by itself meanwhile.
    """
    asked = {
        "servers": servers,
        "topic_in": topic_in,
        "topic_out": topic_out,
        "jars": [str(jar) for jar in connector_jars()],
        "window_minutes": window_minutes,
        "settings": RATE_SETTINGS if tuned_for_rate else SETTINGS,
        "producer": RATE_PRODUCER if tuned_for_rate else PRODUCER,
        "watermark": WATERMARK,
    }
    python = install()
    # A job that is killed leaves its files behind: they all go into a folder that does not stay.
    with tempfile.TemporaryDirectory(prefix="flink-", ignore_cleanup_errors=True) as folder:
        process = _start(python, asked, Path(folder))
        try:
            _wait_until_running(process, Path(folder))
            yield
            if process.poll() is not None:
                raise FlinkFailed(_last_words(process, Path(folder)))
        finally:
            _end(process)


def _start(python: Path, asked: dict[str, object], folder: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "JVM_ARGS": f"{JVM} -Djava.io.tmpdir={folder}",
        "TMPDIR": str(folder),
        "FLINK_LOG_DIR": str(folder),
    }
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        return subprocess.Popen(
            [python, _JOB, json.dumps(asked)],
            env=environment,
            stdin=subprocess.PIPE,  # it ends with this process, however this one ends
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def _wait_until_running(process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while "RUNNING" not in (folder / "stdout").read_text(errors="replace").splitlines():
        if process.poll() is not None:
            raise FlinkFailed(_last_words(process, folder))
        if time.monotonic() > deadline:
            raise FlinkFailed(f"not running after {_START_SECONDS} s: {_last_words(process, folder)}")
        time.sleep(_PAUSE_SECONDS)


def _last_words(process: subprocess.Popen[bytes], folder: Path) -> str:
    lines = (folder / "stderr").read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
    return "\n".join(lines) or f"exit code {process.poll()}, and nothing said"


def _end(process: subprocess.Popen[bytes]) -> None:
    """The JVM too, which is a child of the job."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
