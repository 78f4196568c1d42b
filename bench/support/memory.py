"""How large the Python workers of a Spark session on this machine get."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final

import psutil

_PERIOD_SECONDS: Final = 0.03
_WORKER_MODULES: Final = ("pyspark.daemon", "pyspark.worker")


class WorkerMemory:
    """The largest resident set that any one Python worker had inside the `with`, looked at 30 times a second."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> WorkerMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def wait_for_a_look(self) -> None:
        """Until the workers have been looked at once more."""
        self._looked.clear()
        self._looked.wait()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._ended.wait(_PERIOD_SECONDS):
            self.peak_bytes = max(self.peak_bytes, largest_worker(me))
            self._looked.set()


def largest_worker(parent: psutil.Process) -> int:
    """Resident bytes of the largest Spark worker below the process; 0 if there is none."""
    return max((size_of_worker(child) for child in parent.children(recursive=True)), default=0)


def size_of_worker(process: psutil.Process) -> int:
    try:
        is_worker = any(word in _WORKER_MODULES for word in process.cmdline())
        return int(process.memory_info().rss) if is_worker else 0
    except psutil.Error:  # it has just ended
        return 0
