"""How far this process has come in what it is at: for one who wants to know whether it moves at all."""

from __future__ import annotations


class Progress:
    """Counts calls of functions of the user, whatever they do."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


PROGRESS = Progress()
