from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import OrderBroken, StateDamaged, StateError, StateMismatch
from headrace.state.places import place_of
from headrace.synchronize.codec import Codec
from headrace.synchronize.versions import Version, Versions, below, check_rising, newest_of

from .tree_cases import Shop, Typed

_EVENT, _BEAT = np.array([False]), np.array([True])
_MOST = (1 << 63) - 1
_WAITING = pa.table({"time": [5, 6], "kind": ["click", "order"]})


def _versions(folder: Path) -> Versions:
    return Versions(place_of(str(folder)), "query", "Typed", Codec(Typed()))


def _saved(folder: Path, batch: int, tasks: int, state: Any = None, **newest: int) -> Versions:
    """As `tasks` tasks do it; the first has the state, and the others events that wait."""
    versions = _versions(folder)
    for task in range(tasks):
        waiting = _WAITING.slice(task - 1, 1) if 0 < task < 3 else pa.table({})
        versions.save(batch, task, tasks, task == 0, state if task == 0 else None, newest, waiting)
    return versions


def _files(folder: Path, batch: int) -> Path:
    return folder / "query" / "synchronize-Typed" / f"{batch:012d}"


def test_the_first_batch_starts_from_the_first_state(tmp_path: Path) -> None:
    assert _versions(tmp_path).load(0, Shop(0, 0)) == Version(Shop(0, 0))


@pytest.mark.parametrize("tasks", [1, 2, 3, 12])
def test_a_batch_starts_from_what_the_one_before_left(tmp_path: Path, tasks: int) -> None:
    found = _saved(tmp_path, 4, tasks, Shop(3, 9), a=7, b=8).load(5, None)
    assert found.state == Shop(3, 9)
    assert found.newest == {"a": 7, "b": 8}
    rows = [row for table in found.waiting for row in table.to_pylist()]
    assert rows == _WAITING.to_pylist()[: max(0, tasks - 1)]


def test_a_state_may_be_none(tmp_path: Path) -> None:
    assert _saved(tmp_path, 0, 2, None).load(1, Shop(0, 0)).state is None


def test_a_batch_that_runs_again_starts_from_the_same(tmp_path: Path) -> None:
    _saved(tmp_path, 0, 2, Shop(1, 0))
    versions = _saved(tmp_path, 1, 2, Shop(2, 0))
    assert versions.load(1, None).state == Shop(1, 0)
    versions = _saved(tmp_path, 1, 2, Shop(2, 0))
    assert versions.load(2, None).state == Shop(2, 0)


def test_a_batch_that_ran_with_other_tasks_and_did_not_end(tmp_path: Path) -> None:
    """Two of four had written when all died; then three ran."""
    versions = _saved(tmp_path, 0, 4, Shop(9, 9))
    for task in (1, 2):
        (_files(tmp_path, 0) / f"{task}-of-4").unlink()
    _saved(tmp_path, 0, 3, Shop(1, 1))
    found = versions.load(1, None)
    assert found.state == Shop(1, 1)
    assert sum(table.num_rows for table in found.waiting) == 2, "of the three, and of nobody else"


@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1), (2, 12), (12, 2)])
def test_a_batch_that_ran_again_left_what_it_made_then(tmp_path: Path, first: int, then: int) -> None:
    """All had written, and the sink failed; then a program that was mended ran in other tasks."""
    _saved(tmp_path, 0, first, Shop(1, 1), a=7)
    found = _saved(tmp_path, 0, then, Shop(2, 2), a=5).load(1, None)
    assert (found.state, found.newest) == (Shop(2, 2), {"a": 5})
    assert sum(table.num_rows for table in found.waiting) == min(2, then - 1)


def test_of_two_that_are_whole_all_take_the_same(tmp_path: Path) -> None:
    _saved(tmp_path, 0, 10, Shop(1, 1))
    versions = _saved(tmp_path, 0, 9, Shop(1, 1))
    assert sum(table.num_rows for table in versions.load(1, None).waiting) == 2


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    versions = _saved(tmp_path, 0, 2, Shop(1, 1))
    for name in (".1-of-2.part-77", "1-of-2.crc", "notes", "x-of-y"):
        (_files(tmp_path, 0) / name).write_bytes(b"")
    assert versions.load(1, None).state == Shop(1, 1)


def test_two_inputs_of_one_query_do_not_share_their_state(tmp_path: Path) -> None:
    def versions(run: str, one: str) -> Versions:
        return Versions(place_of(str(tmp_path)), "query", "Typed", Codec(Typed()), (run, one))

    def save(of: Versions, batch: int, tasks: int = 1) -> None:
        of.save(batch, 0, tasks, True, Shop(1, 1), {}, pa.table({}))

    a, b = versions("first", "a"), versions("first", "b")
    save(a, 0)
    save(a, 0)  # its stage has run again
    for tasks in (1, 2):
        with pytest.raises(StateError, match=r"Typed runs more than once in one query.*give each a state= of its own"):
            save(b, 0, tasks)
    with pytest.raises(StateError, match="Typed runs more than once"):
        b.load(1, None)
    again = versions("second", "c")
    assert again.load(1, None).state == Shop(1, 1), "the query was started again"
    save(again, 0)
    assert _versions(tmp_path).load(1, None).state == Shop(1, 1)


# ----------------------------------------------------------------------- damage


def test_a_task_whose_file_is_missing(tmp_path: Path) -> None:
    versions = _saved(tmp_path, 6, 3, Shop(1, 1))
    (_files(tmp_path, 6) / "2-of-3").unlink()
    with pytest.raises(StateDamaged, match=r"000000000006.*the state after batch 6 is not all there"):
        versions.load(7, None)


def test_a_batch_of_which_nothing_is_there(tmp_path: Path) -> None:
    with pytest.raises(StateDamaged, match="the state after batch 6 is not all there"):
        _versions(tmp_path).load(7, None)


@pytest.mark.parametrize("task", [0, 1])
def test_every_byte_of_a_file_counts(tmp_path: Path, task: int) -> None:
    versions = _saved(tmp_path, 0, 2, Shop(1, 1), a=3)
    file = _files(tmp_path, 0) / f"{task}-of-2"
    right = file.read_bytes()
    for at in range(0, len(right), 1 if len(right) < 200 else 7):
        file.write_bytes(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :])
        with pytest.raises(StateDamaged, match=f"{task}-of-2"):
            versions.load(1, None)
        file.write_bytes(right[:at])
        with pytest.raises(StateDamaged, match=f"{task}-of-2"):
            versions.load(1, None)


def test_no_task_has_the_state(tmp_path: Path) -> None:
    versions = _versions(tmp_path)
    versions.save(0, 0, 1, False, None, {}, pa.table({}))
    with pytest.raises(StateMismatch, match="no task has the program's state"):
        versions.load(1, None)


def test_a_state_of_a_type_that_is_gone(tmp_path: Path) -> None:
    _saved(tmp_path, 0, 1, Shop(1, 1))

    class Typed2(Typed):
        def init(self) -> Any:
            return 0

        apart = together = None

    Typed2.__name__ = "Typed"
    versions = Versions(place_of(str(tmp_path)), "query", "Typed", Codec(Typed2()))
    with pytest.raises(StateMismatch, match="program Typed: a state that it kept does not fit its types of states"):
        versions.load(1, None)


def test_old_versions_are_deleted(tmp_path: Path) -> None:
    for batch in range(15):
        _saved(tmp_path, batch, 1, Shop(batch, 0))
    kept = sorted(int(path.name) for path in _files(tmp_path, 0).parent.iterdir())
    assert kept == list(range(4, 15))


# ------------------------------------------------------------------------ times


def test_how_far_each_stream_has_come() -> None:
    times, is_beat = np.array([4, 9, 2, 9]), np.array([False, True, False, False])
    assert newest_of(times, is_beat, ["a", "a", "b", "a"]) == {"a": 10, "b": 2}
    assert newest_of(times, is_beat, [None] * 4) == {"None": 10}


def test_an_event_that_is_late_is_named() -> None:
    times = np.array([5, 7, 4])
    check_rising("P", times, np.zeros(3, bool), ["a", "b", "c"], {"a": 5, "b": 7}, pa.int64())
    with pytest.raises(OrderBroken) as raised:
        check_rising("P", times, np.zeros(3, bool), ["a", "b", "c"], {"a": 5, "b": 7, "c": 6}, pa.int64())
    assert str(raised.value).startswith(
        "program P, stream c: it is out of order: an event of time 4 comes when all before 6 had come in an earlier "
        "batch"
    )
    with pytest.raises(OrderBroken, match="program P, the stream: "):
        check_rising("P", times, np.zeros(3, bool), [None] * 3, {"None": 5}, pa.int64())


def test_times_are_told_as_their_column_has_them() -> None:
    for type, told in (
        (pa.timestamp("us", "UTC"), "1970-01-01 00:00:05.000000 comes when all before 1970-01-01 00:00:06.000000"),
        (pa.timestamp("us"), "1970-01-01 00:00:05.000000 comes"),
        (pa.date32(), "an event of time 5000000 comes"),  # no calendar has that day
        (pa.int64(), "an event of time 5000000 comes when all before 6000000"),
    ):
        with pytest.raises(OrderBroken, match=told):
            check_rising("P", np.array([5_000_000]), _EVENT, ["a"], {"a": 6_000_000}, type)


def test_an_event_behind_the_heartbeat_of_its_time_is_late() -> None:
    reached = newest_of(np.array([5]), np.array([True]), ["a"])
    with pytest.raises(OrderBroken):
        check_rising("P", np.array([5]), _EVENT, ["a"], reached, pa.int64())
    check_rising("P", np.array([6]), _EVENT, ["a"], reached, pa.int64())


def test_a_heartbeat_that_is_behind_says_nothing() -> None:
    check_rising("P", np.array([5, 4]), np.array([True, True]), ["a", "a"], {"a": 6}, pa.int64())
    with pytest.raises(OrderBroken, match="an event of time 4 comes when all before 6"):
        check_rising("P", np.array([5, 4]), np.array([True, False]), ["a", "a"], {"a": 6}, pa.int64())


def test_after_a_heartbeat_of_the_last_time_all_has_come(tmp_path: Path) -> None:
    reached = newest_of(np.array([_MOST]), _BEAT, ["a"])
    saved = _saved(tmp_path, 0, 1, Shop(1, 1), **reached).load(1, None)
    assert below(np.array([-5, _MOST]), saved.newest["a"]).all()
    assert below(np.array([4, _MOST]), newest_of(np.array([_MOST]), _EVENT, ["a"])["a"]).tolist() == [True, False]
    check_rising("P", np.array([_MOST]), _BEAT, ["a"], saved.newest, pa.int64())
    with pytest.raises(OrderBroken):
        check_rising("P", np.array([_MOST]), _EVENT, ["a"], saved.newest, pa.int64())
