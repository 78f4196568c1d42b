"""A copy of a task that keeps silent: it does all that the task does, and keeps what it would send and show.

What the copy that speaks has committed is safe, and need not be kept. The rest is what a copy that takes over sends
first: some of it a second time, which those who receive it slice off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.flow.effects import Append, Deliver, Effect
from headrace.model import frames
from headrace.model.frames import Kind


@dataclass(frozen=True)
class _Kept:
    """`end` is the number after the last, on a channel or of a sink."""

    channel: int
    node: str
    end: int
    size_bytes: int
    effect: Append | Deliver


class Silence:
    """Of one copy. `outside`: the sinks of its channels to queues outside, which their sinks number."""

    def __init__(self, outside: Mapping[int, str]):
        self._outside = outside
        self._kept: list[_Kept] = []
        self.size_bytes = 0

    def keep(self, effects: Sequence[Effect]) -> None:
        """What it would send and show. How far it has come is not kept: it says that once it speaks."""
        for effect in effects:
            if isinstance(effect, Deliver):
                size = effect.batch.nbytes
                self._add(_Kept(-1, effect.node, effect.first + effect.batch.num_rows, size, effect))
            elif isinstance(effect, Append):
                for content in effect.frames:
                    kind, channel, end = frames.numbers_of(content)
                    if kind not in (Kind.HEARTBEAT, Kind.REPORT):
                        one = Append(effect.queue, [content])
                        self._add(_Kept(channel, self._outside.get(channel, ""), end, len(content), one))

    def _add(self, kept: _Kept) -> None:
        self._kept.append(kept)
        self.size_bytes += kept.size_bytes

    def forget(self, committed: Mapping[str, Any]) -> None:
        """What is in a commit of the task, which has these values."""
        sent, delivered = committed["sent"], committed["delivered"]
        self._kept = [
            each
            for each in self._kept
            if each.end > (delivered.get(each.node, 0) if each.node else sent.get(str(each.channel), 0))
        ]
        self.size_bytes = sum(each.size_bytes for each in self._kept)

    def break_it(self) -> list[Effect]:
        """All that is kept, in its order; nothing is kept any more."""
        found: list[Effect] = [each.effect for each in self._kept]
        self._kept, self.size_bytes = [], 0
        return found
