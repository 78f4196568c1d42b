"""Jars from Maven coordinates, fetched by Spark's own resolver: nothing but pyspark and Java is needed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

from headrace.errors import EnvironmentProblem
from headrace.spark.session import java_version

_SECONDS: Final = 300
_NO_NETWORK: Final = re.compile(
    r"Host \S*(?:maven|apache)\S* not found|Connection refused|timed out|UnknownHost|Network is unreachable", re.I
)


class NotResolved(EnvironmentProblem):
    """The coordinates lead nowhere, or the network does."""

    def __init__(self, coordinate: str, reason: str, is_missing: bool = False):
        self.coordinate = coordinate
        self.reason = reason
        self.is_missing = is_missing
        """Maven was reached, and does not have it."""
        super().__init__(
            f"{coordinate} cannot be fetched from Maven: {reason}; once is enough, it is kept in {cache_folder()}"
        )


def cache_folder() -> Path:
    """Where fetched jars are kept: `HEADRACE_CACHE`, or the user's cache folder."""
    chosen = os.environ.get("HEADRACE_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def jars(folder: Path, coordinates: Sequence[str], excluded: Sequence[str] = ()) -> list[Path]:
    """The jars of the coordinates and of all they need. They are fetched if the folder is not there.

    Several processes may ask at once: the folder comes into being by a rename, with everything in it.
    """
    if not folder.exists():
        java_version()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder.parent) as room:
            _fetch(Path(room), coordinates, excluded)
            with suppress(OSError):  # another process was faster
                (Path(room) / "jars").rename(folder)
    return sorted(folder.glob("*.jar"))


def _fetch(room: Path, coordinates: Sequence[str], excluded: Sequence[str]) -> None:
    script, log = room / "nothing.py", room / "log"
    script.write_text("")
    home = Path(pyspark.__file__).parent
    command = ["bash", str(home / "bin" / "spark-submit"), "--master", "local[1]", "--packages", ",".join(coordinates)]
    command += ["--exclude-packages", ",".join(excluded)] if excluded else []
    command += ["--conf", f"spark.jars.ivy={room}", "--conf", "spark.ui.enabled=false", str(script)]
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    environment.pop("PYSPARK_SUBMIT_ARGS", None)
    code = _run(command, environment, log)
    if code != 0 or not list(room.glob("jars/*.jar")):
        raise _not_resolved(coordinates[0], log.read_text(errors="replace"), code)


def _run(command: list[str], environment: dict[str, str], log: Path) -> int | None:
    """The exit code, or None if it took too long. Nothing of it is left behind, however this ends."""
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return process.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _not_resolved(coordinate: str, said: str, code: int | None) -> NotResolved:
    if code is None:
        return NotResolved(coordinate, f"it took more than {_SECONDS} seconds; look at the network or the proxy")
    if _NO_NETWORK.search(re.sub(r".*spark-packages.*", "", said)):
        return NotResolved(coordinate, "the network does not lead to Maven Central; look at the network or the proxy")
    if missing := re.search(r"module not found: (\S+)", said):
        name = missing[1].replace("#", ":").replace(";", ":")
        return NotResolved(coordinate, f"Maven Central does not have {name}", is_missing=True)
    errors = [line.strip() for line in said.splitlines() if "Exception" in line or "rror" in line]
    return NotResolved(coordinate, f"spark-submit ended with {code}{': ' + errors[-1][:300] if errors else ''}")


def java() -> str:
    """The Java that Spark uses; raises where there is none or it is too old."""
    java_version()
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else str(shutil.which("java"))
