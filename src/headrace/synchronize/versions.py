"""What a program keeps between micro-batches: its state, how far each stream has come, and events that wait.

A batch takes all events before the time that all streams have reached; what is later waits for the next one. So what a
batch takes depends on the events alone, not on how many tasks there are: a rerun takes the same, and so does one with
other tasks.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import OrderBroken, StateDamaged, StateMismatch
from headrace.state.places import Place
from headrace.state.sealed import seal, unseal
from headrace.synchronize.codec import Codec

_LENGTH: Final = struct.Struct("<I")
_KEPT: Final = 10
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
_NAME: Final = re.compile(r"[0-9]+-of-[0-9]+")


@dataclass
class Version:
    """After a batch."""

    state: Any
    newest: dict[str, int] = field(default_factory=dict)
    """For each stream the time that it has reached."""
    waiting: list[pa.Table] = field(default_factory=list)


class Versions:
    """Of one program in one query: `QUERY/synchronize-PROGRAM/BATCH/TASK-of-TASKS`."""

    def __init__(self, place: Place, query: str, program: str, codec: Codec):
        self._place, self._codec = place, codec
        self._folder = f"{query}/synchronize-{program}"

    def load(self, batch: int, first: Any) -> Version:
        """What a batch starts from. Raises StateDamaged where it is not all there."""
        if batch == 0:
            return Version(first)
        folder = f"{self._folder}/{batch - 1:012d}"
        names = set(self._place.files(folder))
        tasks = {int(name.rsplit("-of-", 1)[1]) for name in names if _NAME.fullmatch(name)}
        # A batch that ran twice, with other tasks, left the same twice: all must take the same of the two.
        whole = sorted(n for n in tasks if all(f"{task}-of-{n}" in names for task in range(n)))
        if not whole:
            self._check_name(batch)
            raise StateDamaged(self._place.path_of(folder), f"the state after batch {batch - 1} is not all there")
        found = Version(None)
        has_state = False
        for task in range(whole[0]):
            path = f"{folder}/{task}-of-{whole[0]}"
            header, waiting = self._read(path)
            found.newest.update(header["newest"])
            found.waiting += [waiting] if waiting is not None else []
            if header["state"] is not None:
                found.state, has_state = self._codec.loads(header["state"].encode()), True
        if not has_state:
            raise StateMismatch(f"{self._place.path_of(folder)}: no task has the state of the program")
        return found

    def _check_name(self, batch: int) -> None:
        """Raises StateMismatch where the query has the state of a program of another name."""
        query, own = self._folder.split("/")
        others = [name for name in self._place.folders(query) if name.startswith("synchronize-") and name != own]
        if others and not self._place.folders(self._folder):
            raise StateMismatch(
                f"{self._place.path_of(query)}: before batch {batch} the query ran {', '.join(others)}, not {own}; a "
                f"program keeps its name, or starts anew with another checkpoint"
            )

    def _read(self, path: str) -> tuple[dict[str, Any], pa.Table | None]:
        content = unseal(self._place.read(path), self._place.path_of(path))
        (size,) = _LENGTH.unpack_from(content)
        header = json.loads(content[_LENGTH.size : _LENGTH.size + size])
        events = content[_LENGTH.size + size :]
        return header, pa.ipc.open_stream(events).read_all() if events else None

    def save(
        self, batch: int, task: int, tasks: int, has_state: bool, state: Any, newest: Mapping[str, int],
        waiting: pa.Table,
    ) -> None:  # fmt: skip
        """What one task has to say of the version after a batch."""
        values = {"newest": dict(newest), "state": self._codec.dumps(state).decode() if has_state else None}
        header = json.dumps(values).encode()
        sink = pa.BufferOutputStream()
        if waiting.num_rows:
            with pa.ipc.new_stream(sink, waiting.schema) as writer:
                writer.write_table(waiting)
        content = _LENGTH.pack(len(header)) + header + sink.getvalue().to_pybytes()
        self._place.write(f"{self._folder}/{batch:012d}/{task}-of-{tasks}", seal(content))
        if task == 0:
            self._collect(batch)

    def _collect(self, batch: int) -> None:
        for name in self._place.folders(self._folder):
            if name.isdigit() and int(name) < batch - _KEPT:
                self._place.delete_folder(f"{self._folder}/{name}")


# ------------------------------------------------------------------------ times


def newest_of(times: np.ndarray[Any, Any], is_beat: Any, streams: Sequence[Any]) -> dict[str, int]:
    """The time that each stream has reached with these rows; a heartbeat is behind all events of its time, and one of
    the last time that there is behind everything."""
    found: dict[str, int] = {}
    names = _names(streams)
    for name in dict.fromkeys(names.tolist()):
        own = names == name
        last = times[own].max()
        found[name] = int(last) + bool((is_beat & own & (times == last)).any())
    return found


def below(times: np.ndarray[Any, Any], time: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of them are before a time, which may be behind all that fit into 64 bits."""
    if time > _MOST:
        return np.ones(len(times), np.bool_)
    found: np.ndarray[Any, np.dtype[np.bool_]] = times < time
    return found


def check_rising(
    program: str, times: np.ndarray[Any, Any], is_beat: Any, streams: Sequence[Any], newest: Mapping[str, int]
) -> None:
    """Raises OrderBroken for an event that is older than its stream was after the batch before. A heartbeat that is
    says nothing new."""
    names = _names(streams)
    is_late = np.zeros(len(times), np.bool_)
    for name in dict.fromkeys(names.tolist()):
        is_late |= (names == name) & below(times, newest.get(name, _LEAST))
    late = np.flatnonzero(is_late & ~is_beat)
    if len(late):
        at = int(late[0])
        where = "the stream" if streams[at] is None else f"stream {streams[at]}"
        raise OrderBroken(
            f"program {program}, {where}",
            f"an event of time {int(times[at])} comes when all before {newest[names[at]]} had come in an earlier batch",
        )


def _names(streams: Sequence[Any]) -> np.ndarray[Any, Any]:
    return np.array([str(each) for each in streams], object)
