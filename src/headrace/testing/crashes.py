"""Scripted crashes: what happens right before or after a state file is written, in whatever process writes it.

```python
crashes = Crashes(tmp_path / "crashes")
with crashes.installed(spark):                   # or give `crashes.environment` to the processes of a cluster
    run(stream)                                  # once without crashes, to learn the points
    for point in crashes.points():
        crashes.clear()
        crashes.script(KILL_WORKER, at=point)    # once, however often the point is reached
        run(stream)
```

A point is "before" or "after" the write of a file; the part of its name that is random is a `*`, and equal points are
told apart by their number. Points are counted over all processes that share the folder.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER: Final = "HEADRACE_CRASHES"
"""The environment variable that names the folder of the script."""

KILL_WORKER: Final = "kill worker"
"""kill -9 of the Python process that writes."""
KILL_EXECUTOR: Final = "kill executor"
"""kill -9 of the JVM it works for. The Python process goes on until it notices, as it does in life."""
KILL_DRIVER: Final = "kill driver"
"""kill -9 of the processes that called `driver_is`."""
DISK_FULL: Final = "disk full"
"""No write succeeds from here on, until `free_space`."""

_RANDOM: Final = re.compile(r"^[0-9a-f-]{36}(?=/)|(?<=-)[0-9a-f]{16}(?=\.)")
"""The id of the query, and what makes a file's name its own."""


@dataclass(frozen=True)
class Point:
    """The `nth` time that a file of this name (a pattern) is about to be written, or has been written."""

    when: str
    name: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.when} {self.name} ({self.nth})"


class Crashes:
    """A folder with a script, the log of the points that were reached, and who the driver is."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        """What the processes that write state need to have in their environment."""
        return {"HEADRACE_ON_WRITE": f"{__name__}:{on_write.__name__}", FOLDER: str(self.folder)}

    @contextmanager
    def installed(self, spark: SparkSession) -> Iterator[None]:
        """Python workers of this session run by the script: new ones, for their environment is another one."""
        environment = spark.sparkContext.environment
        environment.update(self.environment)
        try:
            yield
        finally:
            for name in self.environment:
                environment.pop(name, None)

    def clear(self) -> None:
        """Forget the script and the log."""
        for path in self.folder.iterdir():
            path.unlink()

    def script(self, what: str, at: Point) -> None:
        number = len(list(self.folder.glob("action-*")))
        _write_whole(self.folder / f"action-{number:04d}.json", json.dumps({"what": what, **asdict(at)}))

    def fired(self) -> int:
        """How many actions of the script have happened."""
        return len(list(self.folder.glob("action-*.fired")))

    def pending(self) -> int:
        return len(list(self.folder.glob("action-*.json")))

    def points(self) -> list[Point]:
        """Every point that was reached, in order."""
        seen: Counter[tuple[str, str]] = Counter()
        found = []
        for when, name in _log(self.folder):
            pattern = _RANDOM.sub("*", name)
            seen[when, pattern] += 1
            found.append(Point(when, pattern, seen[when, pattern]))
        return found

    def driver_is(self, *pids: int) -> None:
        """The processes that are killed with the driver: its Python and its JVM."""
        _write_whole(self.folder / "driver", " ".join(map(str, pids)))

    def free_space(self) -> None:
        (self.folder / "full").unlink(missing_ok=True)


def on_write(when: str, name: str) -> None:
    """What `headrace.state.places` calls around every write."""
    place = os.environ.get(FOLDER)
    if place is None:
        return
    folder = Path(place)
    _reach(folder, when, name)
    if when == "before" and (folder / "full").exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


def _reach(folder: Path, when: str, name: str) -> None:
    """Write the point down, and do what is to happen at it. Each action is taken by one process, once."""
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(folder / "log", "a") as log:
            log.write(f"{when} {name}\n")
        reached = _log(folder)
        for path in sorted(folder.glob("action-*.json")):
            action = json.loads(path.read_text())
            # Not just the n-th: whoever outlives a crash may pass the next points, where nobody is left to kill.
            times = sum(_matches(action, *point) for point in reached)
            if _matches(action, when, name) and times >= action["nth"] and _can(action["what"], folder):
                path.rename(path.with_suffix(".fired"))
                _act(action["what"], folder)


def _matches(action: dict[str, Any], when: str, name: str) -> bool:
    return bool(when == action["when"] and fnmatchcase(name, action["name"]))


def _log(folder: Path) -> list[tuple[str, str]]:
    try:
        lines = (folder / "log").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(when, name) for when, _, name in (line.partition(" ") for line in lines)]


def _can(what: str, folder: Path) -> bool:
    if what == KILL_EXECUTOR:
        return _java_above(os.getpid()) is not None
    return what != KILL_DRIVER or (folder / "driver").exists()


def _act(what: str, folder: Path) -> None:
    if what == KILL_WORKER:
        _kill(os.getpid())
    elif what == KILL_EXECUTOR:
        _kill(_java_above(os.getpid()))
    elif what == KILL_DRIVER:
        driver = folder / "driver"
        pids = driver.read_text().split()
        driver.unlink()
        for pid in pids:
            _kill(int(pid))
    elif what == DISK_FULL:
        (folder / "full").touch()
    else:
        raise ValueError(f"a script of crashes does not know {what!r}")


def _kill(pid: int | None) -> None:
    with suppress(ProcessLookupError):
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


def _java_above(pid: int) -> int | None:
    """The nearest living ancestor that is a JVM: a Python worker's parent is the daemon, whose parent it is."""
    while pid > 1:
        said = subprocess.run(
            ["ps", "-o", "ppid=,stat=,comm=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        if not said.stdout.strip():
            return None
        parent, state, command = said.stdout.split(maxsplit=2)
        if command.strip().rpartition("/")[2] == "java":
            return None if state.startswith("Z") else pid
        pid = int(parent)
    return None


def _write_whole(path: Path, content: str) -> None:
    unfinished = path.with_suffix(".part")
    unfinished.write_text(content)
    unfinished.rename(path)
