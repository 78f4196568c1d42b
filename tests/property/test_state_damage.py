"""Every bit of the files that say what a state is, flipped, and every length they can be cut to: all are noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import StateDamaged
from headrace.measure.recorded import Recorded, check_recorded, last_record, record
from headrace.state.places import LocalPlace
from headrace.state.store import ShardVersion, StageStore, StoredPart

RECORDED = Recorded(
    shards=16,
    partitioner=("card",),
    time="ts",
    id="txn",
    arrival=None,
    policy={"late": "accept", "closure": 600_000_000, "keep": None, "dedup": 600_000_000},
    metrics={"n": "count(*) by card over sliding 5m", "spent": "sum(amount) of double by card over sliding 5m"},
    columns={"card": "string", "amount": "double"},
)


def damaged(content: bytes) -> Iterator[bytes]:
    for length in range(len(content)):
        yield content[:length]
        yield content[:length] + bytes(len(content) - length)
    for at in range(len(content)):
        for bit in range(8):
            yield content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


def assert_all_noticed(path: Path, read: Callable[[], object]) -> None:
    whole, said = path.read_bytes(), read()
    unnoticed = []
    for content in damaged(whole):
        path.write_bytes(content)
        try:
            if read() != said:
                unnoticed.append((content, "it is taken for another one"))
        except StateDamaged as error:
            if path.name not in str(error):
                unnoticed.append((content, str(error)))
        except Exception as error:
            unnoticed.append((content, repr(error)))
    assert not unnoticed, f"{len(unnoticed)}, the first is {unnoticed[0]}"


@pytest.mark.parametrize("what", ["record", "manifest"])
def test_no_damage_to_what_names_the_state_goes_unnoticed(tmp_path: Path, what: str) -> None:
    store = StageStore(LocalPlace(str(tmp_path)), "query/by-card")
    if what == "record":
        record(store, 0, RECORDED)
        [path] = tmp_path.rglob("*.json")
        assert_all_noticed(path, lambda: last_record(store, 1))
    else:
        version = ShardVersion("a1", (StoredPart("f.state", 0, 12, 99),), ("clock",), (), {"counts": {"ok": 3}})
        store.commit(0, 0, 1, {3: version}, {})
        [path] = tmp_path.rglob("*.manifest")
        assert_all_noticed(path, lambda: store.versions(0, 0, 1))


def test_metrics_that_were_added_do_not_begin_again_when_their_record_is_lost(tmp_path: Path) -> None:
    store = StageStore(LocalPlace(str(tmp_path)), "query/by-card")
    recorded = replace(RECORDED, added=frozenset(RECORDED.metrics))
    assert check_recorded(store, 4, recorded)
    store.commit(4, 0, 1, {3: ShardVersion("a1", (), (), (), {})}, {})
    [path] = tmp_path.rglob("*.json")
    path.unlink()
    with pytest.raises(StateDamaged):
        check_recorded(store, 5, recorded)
