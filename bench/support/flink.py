"""Flink beside Headrace: a virtualenv of its own, made on the first run, and the job that runs in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from bench.support.systems import CORES

PACKAGE: Final = "apache-flink>=2.2,<2.3"
PYTHONS: Final = ("3.11", "3.12", "3.10")
"""Those that PyFlink 2.2 runs on, the best known first."""

JVM: Final = "-Xmx8g"
SETTINGS: Final[dict[str, str]] = {
    "parallelism.default": str(CORES),
    "state.backend.type": "hashmap",
    "pipeline.object-reuse": "true",
}
WATERMARK: Final = "ts"
FOLDER: Final = Path(__file__).resolve().parents[2] / ".venv-flink"

_JOB: Final = Path(__file__).with_name("flink_job.py")
_INSTALL_SECONDS: Final = 600
_SHOWN_ERROR: Final = 3000
_CSV: Final = (
    "{'txn': 'BIGINT', 'ms': 'BIGINT', 'card': 'VARCHAR', 'merchant': 'VARCHAR', 'amount': 'DOUBLE', "
    "'spent': 'DOUBLE', 'n': 'BIGINT'}"
)


class FlinkUnavailable(Exception):
    """There is no Flink here, and why."""


class FlinkFailed(Exception):
    """The job ended with an error."""


@dataclass(frozen=True)
class FlinkRuns:
    """What the job said: seconds of each run, submit to finished, and the peak of its JVM where it is known."""

    seconds: tuple[float, ...]
    jvm_peak_bytes: int | None


def install(folder: Path = FOLDER) -> Path:
    """The Python that has PyFlink; makes its virtualenv where there is none. Raises FlinkUnavailable."""
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if done.exists() and done.read_text() == PACKAGE:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        raise FlinkUnavailable("there is no uv beside this Python to install it with")
    make_virtualenv(uv, folder)
    problem = _problem_of([uv, "pip", "install", "--quiet", "--python", python, PACKAGE])
    if problem is not None:
        shutil.rmtree(folder, ignore_errors=True)
        raise FlinkUnavailable(f"{PACKAGE} cannot be installed: {problem}")
    done.write_text(PACKAGE)
    return python


def make_virtualenv(uv: Path, folder: Path) -> None:
    """With the first Python of those that Flink supports which is on the machine, or which uv can fetch."""
    problem: str | None = None
    for version in PYTHONS:
        problem = _problem_of([uv, "venv", "--quiet", "--python", version, folder])
        if problem is None:
            return
    raise FlinkUnavailable(f"no Python that it runs on ({', '.join(PYTHONS)}): {problem}")


def version(python: Path) -> str:
    """The version of Flink that is installed."""
    code = "import importlib.metadata as m; print(m.version('apache-flink'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def write_input(source: Path, folder: Path, rows: int) -> None:
    """The first rows of a Parquet file as CSV, one file for each reader, which have the rows in turn.

    With halves of the span instead, one reader would fill the state with events that no watermark reaches for long.
    """
    folder.mkdir(parents=True)
    with duckdb.connect() as connection:
        for part in range(CORES):
            connection.execute(
                f"""
                COPY (SELECT txn, epoch_ms(ts) AS ms, card, merchant, amount FROM read_parquet('{source}')
                      WHERE txn <= {rows} AND txn % {CORES} = {part} ORDER BY txn)
                TO '{folder}/part-{part}.csv' (FORMAT csv, HEADER false)
                """
            )


def run(python: Path, runs: Sequence[tuple[Path, Path]]) -> FlinkRuns:
    """The job on every (source, target), one after the other in one JVM, whose start is not timed."""
    asked = {
        "runs": [[str(source), str(target)] for source, target in runs],
        "settings": SETTINGS,
        "watermark": WATERMARK,
    }
    environment = {**os.environ, "JVM_ARGS": JVM}
    done = subprocess.run(
        [python, _JOB, json.dumps(asked)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise FlinkFailed(done.stderr[-_SHOWN_ERROR:])
    said = json.loads(done.stdout.strip().splitlines()[-1])
    return FlinkRuns(tuple(said["seconds"]), said["jvm_peak_bytes"])


def to_parquet(answers: Path, target: Path) -> None:
    """Flink's CSV for `largest_difference`."""
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT * FROM read_csv('{answers}/part-*', header = false, columns = {_CSV})) "
            f"TO '{target}' (FORMAT parquet)"
        )


def _problem_of(command: Sequence[str | Path]) -> str | None:
    """None if the command did what it should, else the last thing it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {_INSTALL_SECONDS} s"
    if done.returncode == 0:
        return None
    return next(iter(reversed(done.stderr.strip().splitlines())), f"exit code {done.returncode}")
