"""A gang: the tasks of one barrier stage, each with a line to every other one.

Over these they talk, once they have met. What comes is bytes: nothing is unpickled.
"""

from __future__ import annotations

from headrace.errors import EnvironmentProblem
from headrace.spark.lines import BYE, Lines, Said
from headrace.spark.meeting import Roll, meet


class Gang:
    """This task among its likes."""

    def __init__(self, roll: Roll, word: bytes = b""):
        self.task, self.size = roll.task, roll.size
        self._gone: set[int] = set()
        lines, self.words = meet(roll, word)
        """What each of all had to say when they met."""
        self._lines = Lines(lines)

    def say(self, to: int, *contents: bytes) -> None:
        self._lines.say(to, *contents)

    def hear(self, wait_s: float) -> Said | None:
        """The next that somebody said; None where nobody says anything for so long. Raises when a member is lost."""
        while True:
            said = self._next(wait_s)
            if said is None or said.content != BYE:
                return said

    def _next(self, wait_s: float) -> Said | None:
        """As `hear`, with good-byes."""
        said = self._lines.hear(wait_s)
        if said is None:
            return None
        if said.content is None:
            raise EnvironmentProblem(f"task {said.sender} has gone away; Spark starts all tasks of the stage again")
        if said.content == BYE:
            self._gone.add(said.sender)
        return said

    def leave(self) -> None:
        """Say good-bye, and wait until all have: then nothing that was said is lost."""
        for other in range(self.size):
            if other != self.task:
                self.say(other, BYE)
        while len(self._gone) < self.size - 1:
            self._next(1.0)
        self.close()

    def close(self) -> None:
        self._lines.close()
