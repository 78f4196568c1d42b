from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from headrace.measure.keys import BytesIndex
from headrace.measure.residents import StoredGrouping
from headrace.state.rocks import RocksGroups


def slots(grouping: StoredGrouping, cards: list[str | None], shops: list[int | None]) -> list[int]:
    batch = pa.record_batch({"card": pa.array(cards, pa.string()), "shop": pa.array(shops, pa.int32())})
    found: list[int] = grouping.slot_of(batch, BytesIndex()).tolist()
    return found


def test_equal_keys_have_equal_slots_in_every_batch(tmp_path: Path) -> None:
    with RocksGroups(tmp_path / "db") as database:
        grouping = StoredGrouping(("card", "shop"), 0, database)
        assert slots(grouping, ["a", None, "", "a", None], [1, 1, 1, None, 1]) == [1, 2, 3, 4, 2]
        # The strings of a batch are numbered anew in each: a null must not be taken for the first of them.
        assert slots(grouping, ["b", None, "", "a"], [1, 1, 1, 1]) == [5, 2, 3, 1]
        assert slots(grouping, [None], [1]) == [2]
        assert grouping.slots == 1 + 5


def test_all_rows_are_one_group_without_columns(tmp_path: Path) -> None:
    with RocksGroups(tmp_path / "db") as database:
        grouping = StoredGrouping((), 0, database)
        assert slots(grouping, ["a", None], [1, 2]) == [1, 1]
        assert grouping.slots == 2
