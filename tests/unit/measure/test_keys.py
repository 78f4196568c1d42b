from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.measure.keys import BytesIndex, RowIndex, compare_codes


@given(st.lists(st.lists(st.tuples(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)), max_size=40), max_size=5))
def test_rows_get_codes_in_the_order_they_first_come(batches: list[list[tuple[int, int]]]) -> None:
    index = RowIndex(2)
    seen: dict[tuple[int, int], int] = {}
    for batch in batches:
        codes = index.intern(np.array(batch, np.int64).reshape(-1, 2))
        assert codes.tolist() == [seen.setdefault(row, len(seen)) for row in batch]
    assert [tuple(row) for row in index.keys.tolist()] == list(seen)


@given(st.lists(st.lists(st.binary(max_size=5), max_size=40), max_size=5))
def test_strings_get_codes_in_the_order_they_first_come(batches: list[list[bytes]]) -> None:
    index = BytesIndex()
    seen: dict[bytes, int] = {}
    for batch in batches:
        ends = np.cumsum([len(item) for item in batch], dtype=np.int64)
        starts = ends - np.array([len(item) for item in batch], np.int64)
        codes = index.intern(starts, ends, np.frombuffer(b"".join(batch), np.uint8))
        assert codes.tolist() == [seen.setdefault(item, len(seen)) for item in batch]
    for item, code in seen.items():
        assert bytes(index.arena[index.offsets[code] : index.offsets[code + 1]]) == item
    for a, code_a in seen.items():
        for b, code_b in seen.items():
            assert compare_codes(code_a, code_b, True, index.offsets, index.arena) == (a > b) - (a < b)


def test_many_rows_grow_the_table() -> None:
    index = RowIndex(1)
    rows = np.arange(100_000, dtype=np.int64).reshape(-1, 1)
    assert (index.intern(rows) == rows[:, 0]).all()
    assert (index.intern(rows[::-1]) == rows[::-1, 0]).all()
    assert len(index) == 100_000
