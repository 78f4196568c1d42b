"""Commits of several copies of a task: any can go on from those of another, and none loses what others need."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import StateDamaged
from headrace.flow.builder import Flow
from headrace.flow.effects import Snapshot
from headrace.flow.manifests import FlowStore, way_of
from headrace.flow.plan import Plan, make_plan

from .coordinator_script import ignored, make

_FIRST, _SECOND = "k.0", "k.0~1"


@pytest.fixture
def store(tmp_path: Path) -> FlowStore:
    return FlowStore(str(tmp_path), "f")


def _values(records: int = 0, position: int = 0, **values: Any) -> dict[str, Any]:
    return {"finished": False, "source_ended": False, "records_in": records, "position": position, **values}


def _commit(
    store: FlowStore, task: str, epoch: int, version: int, records: int, files: tuple[str, ...] = (), **more: Any
) -> None:
    """With new files of the names that begin with its own stamp."""
    new = {name: name.encode() for name in files if name.startswith(_stamp(epoch, version))}
    values = _values(records, records, by=task)
    snapshot = Snapshot(task, epoch, version, values, new, files, more.pop("kept", ()))
    store.commit(snapshot, {"out": f"{task} {version}"}, **more)


def _stamp(epoch: int, version: int) -> str:
    return f"{epoch:012d}-{version:08d}"


def _restored(store: FlowStore, task: str = _FIRST) -> tuple[str, int, int]:
    found = store.restore(task)
    assert found is not None
    return found.values["by"], found.version, found.values["records_in"]


def _manifests(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "f" / "tasks" / "k.0").glob("*.manifest"))


def _files(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "f" / "tasks" / "k.0" / "files").iterdir()}


def _damage(tmp_path: Path, name: str) -> None:
    path = tmp_path / "f" / "tasks" / "k.0" / name
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


# -------------------------------------------------------------------- furthest


@pytest.mark.parametrize("task", [_FIRST, _SECOND, "k.0~7"])
def test_any_copy_goes_on_from_the_commit_that_has_come_furthest(store: FlowStore, task: str) -> None:
    _commit(store, _FIRST, 1, 8, 100)
    _commit(store, _SECOND, 2, 3, 120)
    assert _restored(store, task) == (_SECOND, 3, 120)
    _commit(store, _FIRST, 1, 9, 130)
    assert _restored(store, task) == (_FIRST, 9, 130)


def test_of_one_copy_the_newest_counts_even_where_an_older_one_is_further(store: FlowStore) -> None:
    """One that was replaced and does not know it goes on writing, and nobody reads that."""
    _commit(store, _SECOND, 2, 1, 50)
    _commit(store, _SECOND, 5, 1, 40)
    _commit(store, _FIRST, 1, 1, 10)
    assert _restored(store) == (_SECOND, 1, 40)


def test_copies_share_a_folder_and_name_their_commits(store: FlowStore, tmp_path: Path) -> None:
    _commit(store, _FIRST, 1, 2, 1)
    _commit(store, _SECOND, 1, 2, 1)
    assert _manifests(tmp_path) == [f"{_stamp(1, 2)}.manifest", f"{_stamp(1, 2)}~1.manifest"]
    assert store.restore("k.1") is None


def test_what_the_furthest_commit_says_can_be_looked_at_without_its_files(store: FlowStore, tmp_path: Path) -> None:
    assert store.committed(_SECOND) is None
    name = f"{_stamp(2, 1)}-{_SECOND}-k"
    _commit(store, _FIRST, 1, 1, 100)
    _commit(store, _SECOND, 2, 1, 120, (name,))
    (tmp_path / "f" / "tasks" / "k.0" / "files" / name).unlink()
    for task in (_FIRST, _SECOND):
        found = store.committed(task)
        assert found is not None
        assert (found["values"]["records_in"], found["sinks"]) == (120, {"out": f"{_SECOND} 1"})


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (_values(5, 9), _values(6, 1)),
        (_values(5, 8), _values(5, 9)),
        (_values(5, 9), _values(5, 9, source_ended=True)),
        (_values(6, 9), _values(5, 1, finished=True)),
        (_values(agreed={"senders": {"a": [3, 9]}, "log": None}), _values(agreed={"senders": {"a": [4, 0]}})),
        (
            _values(agreed={"senders": {"a": [3, 9]}, "log": {"position": 4}}),
            _values(agreed={"senders": {"a": [3, 9]}, "log": {"position": 5}}),
        ),
        (
            _values(0, 2, merging={"senders": {"a": [3], "b": [1]}}),
            _values(0, 2, merging={"senders": {"a": [3], "b": [2]}}),
        ),
    ],
    ids=["records", "position", "source", "finished", "senders", "log", "merging"],
)
def test_how_far_a_commit_has_come(less: dict[str, Any], more: dict[str, Any]) -> None:
    assert way_of(less) < way_of(more)


# --------------------------------------------------------------------- damaged


def test_where_the_furthest_is_damaged_the_next_is_that_of_the_other_copy(store: FlowStore, tmp_path: Path) -> None:
    for version in (1, 2, 3):
        _commit(store, _SECOND, 2, version, 100 + version)
    _commit(store, _FIRST, 1, 9, 102)
    _damage(tmp_path, f"{_stamp(2, 3)}~1.manifest")
    assert _restored(store)[2] == 102
    _damage(tmp_path, f"{_stamp(1, 9)}.manifest")
    assert _restored(store) == (_SECOND, 2, 102)
    _damage(tmp_path, f"{_stamp(2, 2)}~1.manifest")
    assert _restored(store) == (_SECOND, 1, 101)


def test_a_file_that_is_gone_leads_to_the_other_copy(store: FlowStore, tmp_path: Path) -> None:
    name = f"{_stamp(2, 1)}-{_SECOND}-k"
    _commit(store, _FIRST, 1, 1, 90)
    _commit(store, _SECOND, 2, 1, 100, (name,))
    assert _restored(store) == (_SECOND, 1, 100)
    (tmp_path / "f" / "tasks" / "k.0" / "files" / name).unlink()
    assert _restored(store) == (_FIRST, 1, 90)


def test_where_the_commits_of_all_copies_are_damaged_nothing_begins_anew(store: FlowStore, tmp_path: Path) -> None:
    _commit(store, _FIRST, 1, 1, 90)
    _commit(store, _SECOND, 2, 1, 100)
    for name in _manifests(tmp_path):
        _damage(tmp_path, name)
    for look in (store.restore, store.committed):
        with pytest.raises(StateDamaged, match=r"000000000001-00000001\.manifest"):
            look(_SECOND)


# ------------------------------------------------------------------ collection


def test_a_collection_leaves_what_the_commits_of_other_copies_name(store: FlowStore, tmp_path: Path) -> None:
    """The second copy went on from a commit of the first one, and still names its files."""
    shared, kept, old = (f"{_stamp(1, version)}-{_FIRST}-k" for version in (1, 2, 3))
    _commit(store, _FIRST, 1, 1, 1, (shared,))
    _commit(store, _FIRST, 1, 2, 2, (shared, kept))
    _commit(store, _SECOND, 2, 3, 2, (shared,), kept=(kept,))
    for version in range(3, 33):
        _commit(store, _FIRST, 1, version, version, (f"{_stamp(1, version)}-{_FIRST}-k",))
    assert {shared, kept} <= _files(tmp_path)
    assert old not in _files(tmp_path)
    for version in range(4, 8):
        _commit(store, _SECOND, 2, version, version)
    for version in range(33, 49):
        _commit(store, _FIRST, 1, version, version)
    assert not {shared, kept} & _files(tmp_path), "nobody names them any more"


def test_a_collection_leaves_the_files_and_commits_of_other_copies(store: FlowStore, tmp_path: Path) -> None:
    """One may be about to write the commit that names them."""
    folder = tmp_path / "f" / "tasks" / "k.0" / "files"
    folder.mkdir(parents=True)
    others = {f"{_stamp(1, 1)}-{_SECOND}-k", f"{_stamp(1, 1)}-0123456789abcdef~1.kept"}
    own = {f"{_stamp(1, 1)}-{_FIRST}-k", f"{_stamp(1, 1)}-0123456789abcdef.kept"}
    for name in others | own:
        (folder / name).write_bytes(b"")
    for version in range(1, 6):
        _commit(store, _SECOND, 2, version, version)
    for version in range(1, 33):
        _commit(store, _FIRST, 3, version, version)
    assert _files(tmp_path) == others
    assert sum(name.endswith("~1.manifest") for name in _manifests(tmp_path)) == 5
    assert len(_manifests(tmp_path)) == 8


def test_a_damaged_commit_of_another_copy_puts_a_collection_off(store: FlowStore, tmp_path: Path) -> None:
    own = f"{_stamp(1, 1)}-{_FIRST}-k"
    _commit(store, _FIRST, 1, 1, 1, (own,))
    _commit(store, _SECOND, 2, 1, 1, (own,))
    _damage(tmp_path, f"{_stamp(2, 1)}~1.manifest")
    for version in range(2, 33):
        _commit(store, _FIRST, 1, version, version)
    assert own in _files(tmp_path), "which files it names nobody knows"


def test_files_that_stages_write_tell_their_copy(store: FlowStore, tmp_path: Path) -> None:
    names = [store.files(task, 4).write(b"content") for task in (_FIRST, _SECOND)]
    assert [name.endswith("~1.kept") for name in names] == [False, True]
    assert set(names) == _files(tmp_path)
    assert store.files(_FIRST, 9).read(names[1], 3, 2) == b"te", "any copy reads them"


# --------------------------------------------------------------------- moments


def _plan() -> Plan:
    flow = Flow("f")
    flow.sink("k", flow.source("s", hr.generate(make, 10)), hr.callback(ignored), route=hr.rebalance())
    return make_plan(flow.graph())


class _Queues:
    """That go down between two runs."""

    def __init__(self) -> None:
        self.life = "one"

    def incarnation(self) -> str:
        return self.life

    def bounds(self, queue: str) -> tuple[int, int]:
        return 0, 1000


@pytest.mark.parametrize("last", [_FIRST, _SECOND])
@pytest.mark.parametrize("how", ["noted", "committed"])
def test_the_last_moment_of_a_task_is_that_of_any_copy(store: FlowStore, last: str, how: str) -> None:
    queues: Any = _Queues()
    store.begin_run(_plan(), queues)
    for task in (_FIRST, _SECOND):
        moment = 900 if task == last else 300
        _commit(store, task, 1, 1, 10, moment=moment if how == "committed" else 100, incarnation="one")
        store.note_moment(task, moment if how == "noted" else 100, "one")
    store.note_moment("k.0~2", 5000, "another life of the queues")
    queues.life = "two"
    _, _, (loss,) = store.begin_run(_plan(), queues)
    assert loss.moments["f.in.k.0"] == 900


# ----------------------------------------------------------------------- sweeps


def test_a_damaged_commit_does_not_keep_a_worker_from_going_on(store: FlowStore, tmp_path: Path) -> None:
    for version in (1, 2, 3):
        _commit(store, _FIRST, 1, version, version)
    _damage(tmp_path, _manifests(tmp_path)[-1])
    found = FlowStore(str(tmp_path), "f").restore(_SECOND, holds=True)
    assert found is not None
    assert found.version == 2


def test_commits_that_are_collected_while_a_copy_looks_do_not_stop_it(
    store: FlowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in range(1, 16):
        _commit(store, _FIRST, 1, version, version)
    silent = FlowStore(str(tmp_path), "f")
    read, late = silent._place.read, [True]

    def read_late(name: str, *more: int) -> bytes:
        if name.endswith(".manifest") and late:
            late.pop()
            for version in range(16, 33):
                _commit(store, _FIRST, 1, version, version)  # the 16th and the 32nd collect what is old
        return read(name, *more)

    monkeypatch.setattr(silent._place, "read", read_late)
    silent.hold(_SECOND, ())
    assert not late
    assert len(_manifests(tmp_path)) < 15


def test_files_of_a_copy_that_commits_while_another_one_collects_are_kept(
    store: FlowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets go of what it held once its commit names it: whoever looks at commits first would see neither."""
    file = f"{_stamp(1, 1)}-state"
    _commit(store, _FIRST, 1, 1, 1, (file,))
    second = FlowStore(str(tmp_path), "f")
    second.hold(_SECOND, (file,))
    for version in range(2, 16):
        _commit(store, _FIRST, 1, version, version)
    listed = store._place.files
    between: list[bool] = [True]

    def files(folder: str) -> dict[str, int]:
        found = listed(folder)
        if between and not folder.endswith("files") and "_collect" in {each.function for each in inspect.stack()}:
            between.pop()
            _commit(second, _SECOND, 2, 1, 1, (file,))
        return found

    monkeypatch.setattr(store._place, "files", files)
    _commit(store, _FIRST, 1, 16, 16)
    assert not between
    assert file in _files(tmp_path)
