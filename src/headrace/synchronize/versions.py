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

from headrace.errors import OrderBroken, StateDamaged, StateError, StateMismatch
from headrace.state.places import Place
from headrace.state.sealed import seal, unseal
from headrace.synchronize.codec import Codec
from headrace.synchronize.inputs import time_text

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

    def __init__(self, place: Place, query: str, program: str, codec: Codec, run: tuple[str, str] | None = None):
        """`run`: which start of the query this is, and for which of its inputs."""
        self._place, self._program, self._codec, self._run = place, program, codec, run
        self._folder = f"{query}/synchronize-{program}"

    def load(self, batch: int, first: Any) -> Version:
        """What a batch starts from. Raises StateDamaged where it is not all there."""
        if batch == 0:
            return Version(first)
        paths = self._parts(batch - 1)
        if not paths:
            self._check_name(batch)
            folder = self._place.path_of(self._folder_of(batch - 1))
            raise StateDamaged(
                folder,
                f"the state after batch {batch - 1} is not all there (where foreachBatch does nothing with rows, "
                f"none is written: let it take those of every batch)",
            )
        found = Version(None)
        has_state = False
        for path in paths:
            header, waiting = self._read(path)
            self._check_run(header)
            found.newest.update(header["newest"])
            found.waiting += [waiting] if waiting is not None else []
            if header["state"] is not None:
                found.state, has_state = self._codec.loads(header["state"].encode()), True
        if not has_state:
            raise StateMismatch(f"{self._place.path_of(self._folder_of(batch - 1))}: no task has the program's state")
        return found

    def last(self) -> int:
        """The last batch after which all is there; -1 where there is none."""
        return next((batch for batch in reversed(self._batches()) if self._parts(batch)), -1)

    def oldest(self) -> int:
        """The first batch that is kept; -1 where there is none."""
        return next(iter(self._batches()), -1)

    def since(self, batch: int, newest: Mapping[str, int]) -> dict[str, int]:
        """For each stream the batch since which it has been where it is, as far as batches are kept."""
        found = dict.fromkeys(newest, batch)
        left = set(newest)
        for earlier in (each for each in reversed(self._batches()) if each < batch and left):
            was = dict[str, int]()
            for path in self._parts(earlier):
                was.update(self._read(path)[0]["newest"])
            left = {name for name in left if was.get(name) == newest[name]}
            found |= dict.fromkeys(left, earlier)
        return found

    def _batches(self) -> list[int]:
        return sorted(int(name) for name in self._place.folders(self._folder) if name.isdigit())

    def _folder_of(self, batch: int) -> str:
        return f"{self._folder}/{batch:012d}"

    def _parts(self, batch: int) -> list[str]:
        """The files of a batch, one of each task; none where one is missing."""
        names = set(self._place.files(self._folder_of(batch)))
        tasks = {int(name.rsplit("-of-", 1)[1]) for name in names if _NAME.fullmatch(name)}
        # Where a batch that ran twice, with other tasks, has left two, all must take the same of the two.
        whole = sorted(n for n in tasks if all(f"{task}-of-{n}" in names for task in range(n)))
        return [f"{self._folder_of(batch)}/{task}-of-{whole[0]}" for task in range(whole[0])] if whole else []

    def _check_name(self, batch: int) -> None:
        """Raises StateMismatch where the query has the state of a program of another name."""
        query, own = self._folder.split("/")
        others = [name for name in self._place.folders(query) if name.startswith("synchronize-") and name != own]
        if others and not self._place.folders(self._folder):
            raise StateMismatch(
                f"{self._place.path_of(query)}: before batch {batch} the query ran {', '.join(others)}, not {own}; a "
                f"program keeps its name, or starts anew with another checkpoint"
            )

    def _check_run(self, header: Mapping[str, Any]) -> None:
        """Raises StateError for what another input of this query has left: each would go on from the other's state."""
        run, one = self._run or (None, None)
        was, other = header.get("run") or (None, None)
        if run is not None and run == was and one != other:
            raise StateError(
                f"{self._place.path_of(self._folder)}: {self._program} runs more than once in one query, and all of "
                f"them would keep their state here; give each a state= of its own, or put the inputs together before"
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
        values: dict[str, Any] = {
            "newest": dict(newest),
            "state": self._codec.dumps(state).decode() if has_state else None,
        }
        if self._run is not None:
            values["run"] = self._run
        header = json.dumps(values).encode()
        sink = pa.BufferOutputStream()
        if waiting.num_rows:
            with pa.ipc.new_stream(sink, waiting.schema) as writer:
                writer.write_table(waiting)
        content = _LENGTH.pack(len(header)) + header + sink.getvalue().to_pybytes()
        for path in self._parts(batch) if task == 0 else ():
            self._check_run(self._read(path)[0])
        self._place.write(f"{self._folder_of(batch)}/{task}-of-{tasks}", seal(content))
        if task == 0:
            self._forget_others(batch, tasks)
            self._collect(batch)

    def _forget_others(self, batch: int, tasks: int) -> None:
        """What other tasks left of a batch that did not end: the program, or its streams, may have changed since."""
        folder = self._folder_of(batch)
        for name in self._place.files(folder):
            if _NAME.fullmatch(name) and not name.endswith(f"-of-{tasks}"):
                self._place.delete(f"{folder}/{name}")

    def _collect(self, batch: int) -> None:
        for earlier in self._batches():
            if earlier < batch - _KEPT:
                self._place.delete_folder(self._folder_of(earlier))


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
    program: str, times: np.ndarray[Any, Any], is_beat: Any, streams: Sequence[Any], newest: Mapping[str, int],
    type: pa.DataType,
) -> None:  # fmt: skip
    """Raises OrderBroken for an event that is older than its stream was after the batch before. A heartbeat that is
    says nothing new. `type` is that of the column of times."""
    names = _names(streams)
    is_late = np.zeros(len(times), np.bool_)
    for name in dict.fromkeys(names.tolist()):
        is_late |= (names == name) & below(times, newest.get(name, _LEAST))
    late = np.flatnonzero(is_late & ~is_beat)
    if len(late):
        at = int(late[0])
        where = "the stream" if streams[at] is None else f"stream {streams[at]}"
        time, before = time_text(int(times[at]), type), time_text(newest[names[at]], type)
        raise OrderBroken(
            f"program {program}, {where}",
            f"an event of time {time} comes when all before {before} had come in an earlier batch",
        )


def _names(streams: Sequence[Any]) -> np.ndarray[Any, Any]:
    return np.array([str(each) for each in streams], object)
