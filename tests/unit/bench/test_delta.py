"""What must travel, and how it is told."""

from __future__ import annotations

import pickle

import pytest
from bench.support.delta import Delta, delta
from hypothesis import given
from hypothesis import strategies as st

FILES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 5_000_000), max_size=8)


def test_files_that_are_there_stay_where_they_are() -> None:
    found = delta({"old": 100, "new": 20, "torn": 7}, {"old": 100, "torn": 3, "of an older commit": 50})
    assert found == Delta(files=("new", "torn"), bytes=27, already_bytes=100, already_files=1)
    assert not found.is_done
    assert found.done == 100 / 127


@pytest.mark.parametrize(
    ("wanted", "present", "text"),
    [
        ({f"f{at:02}": 7_720_000 for at in range(40)} | {"z": 1_200_000}, 40, "1 of 41 files, 1.2 of 310 MB"),
        ({"a": 900, "b": 3}, 1, "1 of 2 files, 3 of 903 bytes"),
        ({"a": 900, "b": 3}, 0, "2 of 2 files, 903 bytes"),
        ({"a": 900, "b": 3}, 2, "nothing: all 2 files are there, 903 bytes"),
        ({"a": 2_500}, 1, "nothing: the file is there, 2.5 KB"),
        ({"a": 2_500}, 0, "1 of 1 file, 2.5 KB"),
        ({"a": 5_000_000_000, "b": 1}, 1, "1 of 2 files, under 0.1 of 5 GB"),
        ({"a": 999_999, "b": 0}, 1, "1 of 2 files, 0 of 1 MB"),
        ({f"{at}": 10**10 for at in range(2_000)}, 0, "2,000 of 2,000 files, 20 TB"),
        ({}, 0, "nothing: there are no files"),
    ],
)
def test_as_text(wanted: dict[str, int], present: int, text: str) -> None:
    assert str(delta(wanted, dict([*wanted.items()][:present]))) == text


def test_how_far_it_is() -> None:
    assert delta({}, {}).done == 1.0
    assert delta({"empty": 0}, {}).done == 0.0
    assert delta({"empty": 0}, {"empty": 0}).done == 1.0
    assert delta({"empty": 0, "a": 4, "b": 12}, {"a": 4}).done == 0.25


@given(FILES, FILES)
def test_what_travels_and_what_is_there_make_the_commit(wanted: dict[str, int], present: dict[str, int]) -> None:
    found = delta(wanted, present)
    assert found.bytes + found.already_bytes == sum(wanted.values())
    assert len(found.files) + found.already_files == len(wanted)
    after = present | {name: wanted[name] for name in found.files}
    assert all(after[name] == size for name, size in wanted.items())
    assert delta(wanted, after).is_done
    assert pickle.loads(pickle.dumps(found)) == found


@given(FILES, FILES)
def test_every_file_that_comes_is_progress(wanted: dict[str, int], present: dict[str, int]) -> None:
    first = was = delta(wanted, present)
    for name in first.files:
        present = present | {name: wanted[name]}
        found = delta(wanted, present)
        assert len(found.files) == len(was.files) - 1
        assert was.done <= found.done <= 1.0
        was = found
    assert was.done == 1.0
