"""Flink beside Headrace over Kafka: the connector, and a job that answers every event until the bench has enough."""

from __future__ import annotations

import json
import os
import re
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
_END_SECONDS: Final = 10
_PAUSE_SECONDS: Final = 0.05
_SHOWN_LINES: Final = 20
_STACK: Final = re.compile(r"\s+(at \S+\(|\.\.\. \d+ more)")


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
            try:
                yield
            finally:
                _expect_alive(process, Path(folder))
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
        _expect_alive(process, folder)
        if time.monotonic() > deadline:
            raise FlinkFailed(f"not running after {_START_SECONDS} s: {_last_words(folder)}")
        time.sleep(_PAUSE_SECONDS)


def _expect_alive(process: subprocess.Popen[bytes], folder: Path) -> None:
    code = process.poll()
    if code is not None:
        raise FlinkFailed(f"the job has ended with {code}: {_last_words(folder)}")


def _last_words(folder: Path) -> str:
    """Its last lines but those of Java's stack, which has hundreds."""
    said = (folder / "stderr").read_text(errors="replace").splitlines()
    lines = [line for line in said if line.strip() and not _STACK.match(line)]
    return "\n".join(lines[-_SHOWN_LINES:]) or "it says nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    """With its JVM, which is not a child of this process: it is gone when nobody is left in the group."""
    assert process.stdin is not None
    process.stdin.close()
    deadline = time.monotonic() + _END_SECONDS
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(_PAUSE_SECONDS)
    process.wait()
