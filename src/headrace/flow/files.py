"""Where stages keep what is too large for their state: files that never change, and that the commits of a task name."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod

from headrace.errors import StateDamaged


class Files(ABC):
    """The files of one task."""

    version = 0
    """The last commit of the task: a file that the next ones do not name is not needed."""

    @abstractmethod
    def write(self, content: bytes) -> str:
        """A new file, on disk when this returns, and its name. From any thread."""

    @abstractmethod
    def read(self, name: str, offset: int, size: int) -> bytes:
        """A part of a file. From any thread. Raises StateDamaged where it is not there."""


class FilesInMemory(Files):
    """For tasks that nobody starts again, and for simulated disks."""

    def __init__(self, contents: dict[str, bytes] | None = None, prefix: str = ""):
        self._contents = contents if contents is not None else {}
        self._prefix = prefix
        self._numbers = itertools.count()

    def write(self, content: bytes) -> str:
        name = f"{self._prefix}{next(self._numbers)}"
        self._contents[name] = content
        return name

    def read(self, name: str, offset: int, size: int) -> bytes:
        if name not in self._contents:
            raise StateDamaged(name, "it is missing")
        return self._contents[name][offset : offset + size]
