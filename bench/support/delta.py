"""What must travel before a copy can start somewhere: the files of its commit that are not there yet.

A file is written once and never changed, so one of the same name and size is the same. One that is there in another
size was cut short on its way, and travels again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_UNITS: Final = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3))


@dataclass(frozen=True)
class Delta:
    """The files that must travel, by name, and how much they are. Made again while they come, it says how far it is."""

    files: tuple[str, ...]
    bytes: int
    already_bytes: int
    already_files: int = 0

    @property
    def is_done(self) -> bool:
        return not self.files

    @property
    def done(self) -> float:
        """From 0 to 1, by bytes."""
        total = self.bytes + self.already_bytes
        if self.is_done or not total:
            return float(self.is_done)
        return self.already_bytes / total

    def __str__(self) -> str:
        total = len(self.files) + self.already_files
        size = self.bytes + self.already_bytes
        if not total:
            return "nothing: there are no files"
        if self.is_done:
            return f"nothing: {'the file is' if total == 1 else f'all {total:,} files are'} there, {_sized(size, size)}"
        return f"{len(self.files):,} of {total:,} {'file' if total == 1 else 'files'}, {_sized(self.bytes, size)}"


def delta(wanted: Mapping[str, int], present: Mapping[str, int]) -> Delta:
    """From the sizes of the files that a commit names, and of those that a place has."""
    there = {name for name, size in wanted.items() if present.get(name) == size}
    missing = tuple(sorted(wanted.keys() - there))
    return Delta(missing, sum(wanted[name] for name in missing), sum(wanted[name] for name in there), len(there))


def _sized(part: int, whole: int) -> str:
    """Both in the unit of the whole: 1.2 of 310 MB."""
    unit, scale = next(((unit, scale) for unit, scale in _UNITS if whole >= 0.9995 * scale), ("bytes", 1))
    if part == whole:
        return f"{_short(whole / scale)} {unit}"
    return f"{_short(part / scale)} of {_short(whole / scale)} {unit}"


def _short(value: float) -> str:
    if 0 < value < 0.05:
        return "under 0.1"
    return (f"{value:,.0f}" if value >= 100 else f"{value:.1f}").removesuffix(".0")
