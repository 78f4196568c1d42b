"""A disk that is full: a file system of its own, as large as you like, where mounting is allowed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PIECES = (1 << 20, 4096)


class SmallDisk:
    """A folder on a disk that `fill` leaves no byte of, and `free` makes usable again."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        with open(self._ballast, "wb", buffering=0) as ballast:
            for size in _PIECES:
                with suppress(OSError):
                    while ballast.write(bytes(size)):
                        pass

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(folder: Path, size: str = "16m") -> Iterator[SmallDisk | None]:
    """A disk in memory, mounted at the folder; None where this process may not mount."""
    folder.mkdir(parents=True)
    try:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield SmallDisk(folder) if mounted else None
    finally:
        if mounted:
            # Lazily: a worker that is about to end may still have a file open.
            subprocess.run(["umount", "-l", str(folder)], check=True)
