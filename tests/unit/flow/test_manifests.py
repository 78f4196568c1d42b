"""What a flow keeps between its runs."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import FlowError, StateDamaged, StateMismatch
from headrace.flow.builder import Flow
from headrace.flow.effects import Snapshot
from headrace.flow.manifests import FlowStore
from headrace.flow.plan import Plan, make_plan
from headrace.flow.sinks import Callback
from headrace.flow.task import Task
from headrace.model import frames
from headrace.queues.log import LogQueues
from headrace.queues.protocol import Entry
from headrace.state.sealed import seal_record, unseal_record

_NUMBERS = pa.schema([("n", pa.int64())])


def _make(first: int, count: int) -> pa.RecordBatch:
    return _batch(*range(first, first + count))


def _batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=_NUMBERS)


def _ignored(batch: pa.RecordBatch) -> None:
    return None


def _plan(parallelism: int = 1, route: Any = None, name: str = "k") -> Plan:
    flow = Flow("f")
    numbers = flow.source("s", hr.generate(_make, 10))
    count = flow.keyed(
        name,
        lambda state, record: ((state or 0) + 1, {"n": (state or 0) + 1}),
        numbers,
        by="n",
        parallelism=parallelism,
    )
    flow.sink("out", count, hr.callback(_ignored), route=route)
    return make_plan(flow.graph())


@pytest.fixture
def store(tmp_path: Path) -> FlowStore:
    return FlowStore(str(tmp_path), "f")


def _snapshot(
    epoch: int, version: int, files: tuple[str, ...] = (), new: dict[str, bytes] | None = None, task: str = "k.0"
) -> Snapshot:
    return Snapshot(task, epoch, version, {"position": epoch * 1000 + version}, new or {}, files)


def _manifests(tmp_path: Path, task: str = "k.0") -> list[Path]:
    return sorted((tmp_path / "f" / "tasks" / task).glob("*.manifest"))


def _position(store: FlowStore) -> int:
    found = store.restore("k.0")
    assert found is not None
    return int(found.values["position"])


def _damage(path: Path, how: str = "flip") -> None:
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[-3] ^= 1
    path.write_bytes(b"" if how == "empty" else bytes(content[:-2]) if how == "torn" else bytes(content))


# --------------------------------------------------------------------- commits


def _begun(store: FlowStore, plan: Plan) -> tuple[int, int]:
    store.check(plan)
    queues = LogQueues(f"{store.location}-queues")
    queues.create(plan.queues)
    run, began_us, losses = store.begin_run(plan, queues)
    assert losses == ()
    return run, began_us


def test_nothing_is_restored_where_nothing_was_committed(store: FlowStore) -> None:
    assert store.restore("k.0") is None


def test_what_was_committed_is_restored(store: FlowStore) -> None:
    store.commit(_snapshot(1, 1, ("a",), {"a": b"\x00state\n"}), {"out": {"rows": [1]}})
    store.commit(_snapshot(1, 2, ("a", "b"), {"b": b""}), {"out": None})
    store.commit(_snapshot(1, 9, task="k.1"), {})
    found = store.restore("k.0")
    assert found is not None
    assert (found.version, found.values, found.sinks) == (2, {"position": 1002}, {"out": None})
    assert (found.read("a"), found.read("b")) == (b"\x00state\n", b"")


def test_a_newer_epoch_wins_over_a_higher_version(store: FlowStore) -> None:
    store.commit(_snapshot(1, 50), {})
    store.commit(_snapshot(2, 3), {})
    store.commit(_snapshot(1, 51), {})  # of one that does not know that it was replaced
    assert _position(store) == 2003
    store.commit(_snapshot(10, 1), {})
    assert _position(store) == 10_001
    store.commit(_snapshot(1_000_002, 1), {})
    assert _position(store) == 1_000_002_001


@pytest.mark.parametrize("how", ["flip", "torn", "empty"])
def test_a_damaged_commit_falls_back_to_the_one_before(store: FlowStore, tmp_path: Path, how: str) -> None:
    for version in (1, 2, 3):
        store.commit(_snapshot(1, version), {})
    _damage(_manifests(tmp_path)[-1], how)
    assert _position(store) == 1002
    _damage(_manifests(tmp_path)[-2], how)
    assert _position(store) == 1001


@pytest.mark.parametrize("how", ["flip", "torn", "empty", "gone"])
def test_a_damaged_file_makes_the_commit_a_damaged_one(store: FlowStore, tmp_path: Path, how: str) -> None:
    store.commit(_snapshot(1, 1, ("a",), {"a": b"first state"}), {})
    store.commit(_snapshot(1, 2, ("a", "b"), {"b": b"second state"}), {})
    file = tmp_path / "f" / "tasks" / "k.0" / "files" / "b"
    if how == "gone":
        file.unlink()
    else:
        _damage(file, how)
    assert _position(store) == 1001


def test_where_all_is_damaged_nothing_begins_anew(store: FlowStore, tmp_path: Path) -> None:
    for version in (1, 2, 3):
        store.commit(_snapshot(1, version), {})
    for path in _manifests(tmp_path):
        _damage(path)
    with pytest.raises(StateDamaged, match=r"000000000001-00000003\.manifest"):
        store.restore("k.0")


def test_no_host_remembers_files_of_a_flow_that_was_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs begin again, and so do the names of files."""
    hosts = []
    for host in ("driver", "worker"):
        monkeypatch.setenv("HEADRACE_STATE_CACHE", str(tmp_path / host))
        hosts.append(FlowStore(f"local://{tmp_path}/state", "f"))
    driver, worker = hosts
    name = "000001000001-00000001-k.0-k"
    worker.commit(_snapshot(1_000_001, 1, (name,), {name: b"of the first life"}), {})
    driver.delete()
    driver.commit(_snapshot(1_000_001, 1, (name,), {name: b"of the second life"}), {})
    found = worker.restore("k.0")
    assert found is not None
    assert found.read(name) == b"of the second life"


# ------------------------------------------------------------------ collection


def test_a_hundred_commits_of_a_growing_state(store: FlowStore, tmp_path: Path) -> None:
    """A real task, started again now and then: at the end all is there, and old files are not."""
    plan, rng = _plan(), random.Random(3)
    task, epoch, version = Task(plan, plan.tasks["k.0"]), 1, 0
    counts: dict[int, int] = {}
    most = 0
    for number in range(100):
        key = rng.randrange(number // 2 + 1)
        counts[key] = counts.get(key, 0) + 1
        task.take([Entry("inbox", frames.encode(frames.data(0, number, _batch(key))), number + 1)])
        version += 1
        store.commit(task.snapshot(epoch, version), {})
        most = max(most, len(list((tmp_path / "f" / "tasks" / "k.0" / "files").iterdir())))
        if rng.random() < 0.1:
            found = store.restore("k.0")
            assert found is not None
            task, epoch, version = Task(plan, plan.tasks["k.0"]), epoch + 1, found.version
            task.restore(found.values, found.read)
    found = store.restore("k.0")
    assert found is not None
    last = Task(plan, plan.tasks["k.0"])
    last.restore(found.values, found.read)
    assert last.position == 100
    (deliver,) = last.take([Entry("inbox", frames.encode(frames.data(0, 100, _batch(*sorted(counts)))), 101)])
    assert [r["n"] for r in deliver.batch.to_pylist()] == [counts[key] + 1 for key in sorted(counts)]  # type: ignore[union-attr]
    assert len(_manifests(tmp_path)) <= 3 + 16
    assert most <= 3 * 20 + 16


def test_each_of_the_commits_that_are_kept_can_be_restored(store: FlowStore, tmp_path: Path) -> None:
    plan = _plan()
    task = Task(plan, plan.tasks["k.0"])
    for number in range(64):
        task.take([Entry("inbox", frames.encode(frames.data(0, number, _batch(number))), number + 1)])
        store.commit(task.snapshot(1, number + 1), {})
    assert len(_manifests(tmp_path)) == 3
    for back in range(3):
        assert _position_of(store) == 64 - back
        _damage(_manifests(tmp_path)[2 - back])


def _position_of(store: FlowStore) -> int:
    found = store.restore("k.0")
    assert found is not None
    plan = _plan()
    task = Task(plan, plan.tasks["k.0"])
    task.restore(found.values, found.read)
    return task.position


def test_files_of_a_commit_that_is_being_written_are_not_collected(store: FlowStore, tmp_path: Path) -> None:
    """A copy that was replaced, at work still, and its successor: neither takes what the other one needs."""
    name = "000000000009-00000001-k.0-k"
    (tmp_path / "f" / "tasks" / "k.0" / "files").mkdir(parents=True)
    (tmp_path / "f" / "tasks" / "k.0" / "files" / name).write_bytes(b"of a newer epoch, whose manifest comes next")
    for version in range(1, 33):
        store.commit(_snapshot(8, version), {})
    assert (tmp_path / "f" / "tasks" / "k.0" / "files" / name).exists()


def test_a_damaged_commit_does_not_stop_the_collection(store: FlowStore, tmp_path: Path) -> None:
    for version in range(1, 16):
        store.commit(_snapshot(1, version), {})
    _damage(_manifests(tmp_path)[-1])
    store.commit(_snapshot(1, 16), {})
    assert _position(store) == 1016


# ------------------------------------------------------------------------ runs


def test_runs_are_numbered_and_the_beginning_is_kept(store: FlowStore) -> None:
    first, began_us = _begun(store, _plan())
    assert first == 1
    assert began_us > 1_700_000_000_000_000
    assert [_begun(store, _plan()) for _ in range(2)] == [(2, began_us), (3, began_us)]


def _driver(store: FlowStore, before: Any) -> int | str:
    """The number of its run, or what it was told. It does something after it has chosen a number."""
    losses = store._losses
    store._losses = lambda *arguments: (before(), losses(*arguments))[1]  # type: ignore[method-assign]
    queues = LogQueues(f"{store.location.removeprefix('memory:/')}-queues")
    queues.create(_plan().queues)
    try:
        return store.begin_run(_plan(), queues)[0]
    except FlowError as error:
        return str(error)


@pytest.fixture(params=["path", "memory"])
def shared(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADRACE_STATE_CACHE", str(tmp_path / "cache"))
    return str(tmp_path / "state") if request.param == "path" else f"memory:/{tmp_path}/state"


_REFUSED = "flow f is being started by somebody else at this very moment"


def test_of_two_drivers_the_one_that_takes_a_run_first_has_it(shared: str) -> None:
    one, other = FlowStore(shared, "f"), FlowStore(shared, "f")
    found: list[int | str] = []
    late = _driver(one, lambda: found.append(_driver(other, lambda: None)))
    assert [*found, late] == [1, _REFUSED]


def test_of_many_drivers_one_has_a_run(tmp_path: Path) -> None:
    drivers = 8
    together = threading.Barrier(drivers, timeout=30)
    with ThreadPoolExecutor(drivers) as pool:
        for run in (1, 2, 3):
            futures = [pool.submit(_driver, FlowStore(str(tmp_path), "f"), together.wait) for _ in range(drivers)]
            assert Counter(future.result() for future in futures) == {run: 1, _REFUSED: drivers - 1}


def test_drivers_that_begin_together_agree_on_when_the_flow_began(shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of sinks are named by it."""
    one, other = FlowStore(shared, "f"), FlowStore(shared, "f")
    began: list[int] = []
    files, looks = one._place.files, iter([True])

    def look(folder: str) -> dict[str, int]:
        found = files(folder)
        if next(looks, False):
            began.append(other.check(_plan()))
        return found

    monkeypatch.setattr(one._place, "files", look)
    began.append(one.check(_plan()))
    began.append(other.check(_plan()))
    assert len(set(began)) == 1


def test_how_sources_and_sinks_were_is_asked_for_once(store: FlowStore, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([{"0": 7}, {"0": 9}])
    monkeypatch.setattr(Callback, "beginning", lambda sink: next(looks))
    for _ in range(2):
        store.check(_plan())
        assert store.beginnings()["out"] == {"0": 7}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (_plan(parallelism=2), r"k was k \+ out, parallelism 1, and is k \+ out, parallelism 2"),
        (_plan(route=hr.rebalance()), r"k was k \+ out, parallelism 1, and is k, parallelism 1"),
        (_plan(name="other"), r"k was k \+ out, parallelism 1, and is not there"),
    ],
    ids=["parallelism", "route", "name"],
)
def test_state_of_another_layout_is_refused(store: FlowStore, tmp_path: Path, plan: Plan, message: str) -> None:
    _begun(store, _plan())
    with pytest.raises(
        FlowError,
        match=f"flow f at {tmp_path} was laid out otherwise: {message}; draw it as it was, or give it another name",
    ):
        _begun(store, plan)
    assert _begun(store, _plan())[0] == 2


def test_state_of_another_order_of_stages_is_refused(store: FlowStore) -> None:
    def drawn(names: str) -> Plan:
        flow = Flow("f")
        numbers = flow.source("s", hr.generate(_make, 10))
        for name in names:
            flow.sink(name, numbers, hr.callback(_ignored), route=hr.rebalance())
        return make_plan(flow.graph())

    _begun(store, drawn("ab"))
    with pytest.raises(FlowError, match="the order of drawing was s -> a, s -> b, and is s -> b, s -> a"):
        _begun(store, drawn("ba"))


def _tracked(**how: Any) -> Plan:
    flow = Flow("f")
    stream = flow.source("s", hr.generate(_make, 10)).tracked(**{"by": "n", **how})
    flow.sink("out", stream, hr.callback(_ignored), parallelism=2, route=hr.rebalance())
    return make_plan(flow.graph())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"ends": hr.rising()}, r"by n \(int64\), ended with the sources, and is by n \(int64\), ended by higher ones"),
        ({"by": hr.windows("n", 1)}, r"and is by Windows\(column='n', size_us=1000000\) \(int64\)"),
        ({"by": lambda batch: batch["n"].cast(pa.int32())}, r"and is by <lambda> \(int32\)"),
    ],
)
def test_state_of_what_was_tracked_otherwise_is_refused(store: FlowStore, how: dict[str, Any], message: str) -> None:
    store.check(_tracked())
    with pytest.raises(FlowError, match=f"was laid out otherwise: what is tracked was .*{message}"):
        store.check(_tracked(**how))
    store.check(_tracked())


def test_how_far_labels_fall_back_may_change(store: FlowStore) -> None:
    store.check(_tracked(ends=hr.rising()))
    store.check(_tracked(ends=hr.rising(slack=5)))


def test_what_is_tracked_is_not_asked_of_flows_that_did_not_write_it(store: FlowStore, tmp_path: Path) -> None:
    store.check(_tracked())
    path = tmp_path / "f" / "flow"
    record = unseal_record(path.read_bytes(), "flow")
    del record["layout"]["what is tracked"]
    path.write_bytes(seal_record(record))
    store.check(_tracked(ends=hr.rising()))


def test_a_newer_format_is_refused(store: FlowStore, tmp_path: Path) -> None:
    _begun(store, _plan())
    path = tmp_path / "f" / "flow"
    path.write_bytes(seal_record({**unseal_record(path.read_bytes(), ""), "format": 99}))
    with pytest.raises(StateMismatch, match="has format 99, and this Headrace knows formats up to 1; upgrade Headrace"):
        _begun(store, _plan())


def test_a_damaged_description_is_named(store: FlowStore, tmp_path: Path) -> None:
    _begun(store, _plan())
    _damage(tmp_path / "f" / "flow")
    with pytest.raises(StateDamaged, match="f/flow"):
        _begun(store, _plan())
