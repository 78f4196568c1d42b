"""The files of a task's state: for each that has some, a whole content, and the changes after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

_MOST_FILES: Final = 20
_LARGE: Final = 8 << 20
_MOST_OF_LARGE: Final = 500
"""State that takes long to write whole is written whole less often."""


class Keeper(Protocol):
    """What has state in a task."""

    @property
    def changes_are_all(self) -> bool: ...

    def changes(self) -> bytes | None: ...

    def content(self) -> bytes: ...

    def restore(self, parts: Sequence[bytes]) -> None: ...


class StateFiles:
    """By the name of who keeps it: names and sizes, in their order."""

    def __init__(self) -> None:
        self.parts: dict[str, list[tuple[str, int]]] = {}
        self._is_anew = False

    def begin_anew(self) -> None:
        """Who wrote the files may let them go: the next snapshot names none of them."""
        self._is_anew = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for parts in self.parts.values() for name, _ in parts)

    def written(self, keepers: Mapping[str, Keeper], stamp: str) -> dict[str, bytes]:
        """The new files of a snapshot; their names begin with the stamp."""
        new: dict[str, bytes] = {}
        for name, keeper in keepers.items():
            changes = keeper.changes()
            if self._is_anew and (changes is not None or name in self.parts):
                changes, self.parts[name] = keeper.content(), []
            if changes is None:
                continue
            parts = self.parts.setdefault(name, [])
            since = sum(size for _, size in parts[1:]) + len(changes)
            most = _MOST_FILES if not parts or parts[0][1] < _LARGE else _MOST_OF_LARGE
            if keeper.changes_are_all:
                parts.clear()
            elif not parts or since >= parts[0][1] or len(parts) >= most:
                changes = changes if self._is_anew else keeper.content()
                parts.clear()
            parts.append((f"{stamp}-{name}", len(changes)))
            new[f"{stamp}-{name}"] = changes
        self._is_anew = False
        return new

    def restore(
        self, found: Mapping[str, Sequence[Any]], keepers: Mapping[str, Keeper], read: Callable[[str], bytes]
    ) -> None:
        self.parts = {name: [(file, size) for file, size in parts] for name, parts in found.items()}
        for name, parts in self.parts.items():
            keepers[name].restore([read(file) for file, _ in parts])
