"""The order of events of one time does not depend on what is known of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.demo.programs import KeyCounters
from headrace.synchronize.ranks import Ranks, known_rank, stream_text
from headrace.synchronize.tags import OTHER, Bucket, bucket_of, guessed_rates, in_tag_order

TAGS = st.tuples(st.one_of(st.none(), st.sampled_from("abcdé")), st.one_of(st.none(), st.integers(0, 5)))


def _by_null_first(tag: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in tag]


def _ranks(known: list[Any], streams: tuple[str, ...] = ()) -> Ranks:
    ordered = in_tag_order([*((tag, None, 1.0) for tag in known), (OTHER, None, 0.0)])
    return Ranks(tuple(tag for tag, _, _ in ordered if tag != OTHER), streams)


@given(st.lists(TAGS, unique=True), st.lists(TAGS, unique=True))
def test_ranks_rise_with_tags_whatever_is_known(known: list[Any], tags: list[Any]) -> None:
    ranks = _ranks(known)
    ordered = sorted([*tags, *known], key=_by_null_first)
    found = [ranks.of(tag) for tag in ordered]
    assert found == sorted(found)
    assert {ranks.of(tag) for tag in known} == {known_rank(at) for at in range(len(known))}
    assert not {ranks.of(tag) for tag in set(tags) - set(known)} & {ranks.of(tag) for tag in known}


def test_unknown_kinds_are_between_the_buckets_of_known_ones() -> None:
    ranks = _ranks([tag for tag, _, _ in guessed_rates(KeyCounters(), 2) if tag != OTHER])
    before, between, behind = (ranks.of((kind, 7)) for kind in ("a", "k", "z"))
    assert before < ranks.of(("increment", 1)) < between < ranks.of(("reset", 1)) < behind
    at = list(ranks.known).index(Bucket("reset", bucket_of(("reset", 1))))
    assert ranks.of(("reset", 1)) == known_rank(at)


def test_streams_come_before_tags_and_one_that_is_gone_before_all() -> None:
    ranks = _ranks(["a", "b"], ("x", "w"))
    assert ranks.of(("z",), "gone") < ranks.of(("b",), "x") < ranks.of(("a",), "w")
    columns = [pa.array(["b", "a", "a", "z"])]
    rows = ranks.of_rows(columns, ["x", "w", "w", "gone"]).tolist()
    assert rows == [ranks.of(("b",), "x"), *[ranks.of(("a",), "w")] * 2, ranks.of(("z",), "gone")]
    assert _ranks(["a", "b"]).of_rows(columns, None).tolist() == [3, 1, 1, 4]


@pytest.mark.parametrize(("stream", "text"), [(True, "true"), (False, "false"), (7, "7"), ("True", "True")])
def test_streams_are_written_as_spark_does(stream: Any, text: str) -> None:
    assert stream_text(stream) == text
