"""Substreams through rows of queries, in a small world that knows the truth: never too early, twice or lost."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import FlowError, StateMismatch
from headrace.track.link_records import restore, snapshot
from headrace.track.link_words import why
from headrace.track.links import (
    AskEnds,
    Committed,
    Done,
    Effect,
    Ends,
    LinkAgent,
    Looked,
    Read,
    Seen,
    Stimulus,
    Told,
)

from .link_world import Tracker, World, a_step, names, until_nothing_happens


@given(st.integers(0, 1 << 32), st.integers(1, 4), st.integers(1, 500))
@settings(max_examples=300)
def test_done_is_never_said_too_early_and_in_the_end_of_all_once(seed: int, links: int, steps: int) -> None:
    world = World(Random(seed), links)
    tracker = Tracker(world)
    for _ in range(steps):
        a_step(world, tracker)
    until_nothing_happens(world, tracker)
    assert sorted(tracker.told) == sorted(world.closed)
    assert tracker.agent.done_count == len(tracker.told)
    begun = {name for topic in world.topics for log in topic for name, _ in log}
    assert set(tracker.agent.open) == begun - world.closed
    notices = (tracker.agent.strangers, tracker.agent.late, tracker.agent.after_end)
    assert [notice.count for notice in notices] == [0, 0, 0]


@given(st.integers(0, 1 << 32), st.integers(1, 4), st.integers(1, 500))
@settings(max_examples=100)
def test_what_tasks_write_after_their_batch_is_waited_for_once_it_is_seen(seed: int, links: int, steps: int) -> None:
    world = World(Random(seed), links)
    tracker = Tracker(world, zombies=True)
    for _ in range(steps):
        a_step(world, tracker)
    until_nothing_happens(world, tracker)
    assert sorted(tracker.told) == sorted(world.closed)


# ------------------------------------------------------------------ one by one


def agent_of(links: int, remembered: int = 100) -> LinkAgent:
    return LinkAgent(names(links), [{0: 0, 1: 0} for _ in range(links)], remembered)


def at(**positions: tuple[int, int]) -> Looked:
    """Commits of queries: q1=(3, 4) is query 1 at 3 in partition 0 and at 4 in partition 1."""
    return Looked({int(name[1:]) - 1: Committed("id", {0: a, 1: b}) for name, (a, b) in positions.items()})


def read(ends: dict[int, tuple[int, int]], *rows: tuple[int, int, str, int, int]) -> Read:
    return Read({link: {0: a, 1: b} for link, (a, b) in ends.items()}, [Seen(*row) for row in rows])


def through(agent: LinkAgent, *stimuli: Stimulus) -> list[Effect]:
    return [effect for stimulus in stimuli for effect in agent.on(stimulus)]


def test_one_query_has_done_it_when_it_has_committed_behind_the_marker() -> None:
    agent = agent_of(1)
    assert agent.on(read({0: (0, 6)}, (0, 1, "x", 5, 5))) == []
    assert agent.on(at(q1=(0, 5))) == []
    assert agent.on(at(q1=(0, 6))) == [Done(("x",))]


def test_ends_are_asked_for_after_the_commit_and_read_before_the_next_query_counts() -> None:
    agent = agent_of(2)
    assert through(agent, read({0: (6, 0), 1: (2, 0)}, (0, 0, "x", 5, 5), (1, 0, "x", 1, -1))) == []
    assert agent.on(at(q1=(6, 0), q2=(2, 0))) == [AskEnds((1,))]
    assert agent.on(Ends({1: {0: 4, 1: 1}})) == []
    assert agent.on(at(q2=(4, 1))) == []
    assert agent.on(read({1: (4, 0)}, (1, 0, "x", 3, -1))) == []
    assert agent.on(read({1: (4, 1)})) == [Done(("x",))]


def test_one_that_is_filtered_away_is_done_at_once_further_down() -> None:
    agent = agent_of(4)
    through(agent, read({0: (1, 0)}, (0, 0, "x", 0, 0)))
    assert agent.on(at(q1=(1, 0))) == [AskEnds((1,))]
    assert agent.on(Ends({1: {0: 0, 1: 0}})) == [Done(("x",))]


def test_the_promise_is_waited_for() -> None:
    agent = agent_of(1)
    assert through(agent, read({0: (3, 0)}, (0, 0, "x", 2, -1)), at(q1=(3, 0))) == []
    assert why(agent, "x") == "x: its end is not promised: no record with ends= was seen of it on topic t0"
    assert agent.on(read({0: (4, 0)}, (0, 0, "x", 3, 3))) == []
    assert agent.on(at(q1=(4, 0))) == [Done(("x",))]


@pytest.mark.parametrize("known", [{0: 3, 1: 4}, {0: 3}])
def test_a_query_that_goes_back_is_named(known: dict[int, int]) -> None:
    agent = agent_of(2)
    agent.on(at(q1=(3, 4), q2=(9, 5)))
    with pytest.raises(FlowError, match=r"query 2 \(checkpoint /c1\) has gone back from offset 5 to \d on topic t1"):
        agent.on(Looked({0: Committed("id", {0: 9, 1: 9}), 1: Committed("id", {**known, 0: 9})}))
    assert agent.committed[0] == Committed("id", {0: 3, 1: 4}), "nothing has changed"
    with pytest.raises(FlowError, match=r"query 1 \(checkpoint /c0\) is another one than before.* another folder"):
        agent.on(Looked({0: Committed("new", {0: 9, 1: 9})}))


def test_why() -> None:
    agent = agent_of(3)
    assert why(agent, "x") == "x: nothing of it was seen"
    agent.on(read({0: (6, 0)}, (0, 0, "x", 5, 5)))
    waits = "x: promised; it waits for query 1 (checkpoint /c0)"
    assert why(agent, "x") == f"{waits}, which has not started yet: no batch is committed there"
    agent.on(at(q1=(4, 9)))
    on = "on topic t0, partition 0"
    assert why(agent, "x") == f"{waits} {on}: the last record has offset 5, and those before 4 are done"
    agent.on(at(q1=(6, 9)))
    assert why(agent, "x") == "x: promised; query 1 has done it; the end of topic t1 is about to be asked for"
    agent.on(Ends({1: {0: 0, 1: 7}}))
    ledger = "the ledger has yet to read topic t1, partition 1 up to offset 7, and is at 0"
    assert why(agent, "x") == f"x: promised; query 1 has done it; {ledger}"
    through(agent, read({1: (0, 7)}, (1, 1, "x", 6, -1)), at(q2=(0, 7)))
    assert why(agent, "x").startswith("x: promised; queries 1 to 2 have done it; the end of topic t2")
    agent.on(Ends({2: {0: 0, 1: 0}}))
    assert why(agent, "x") == "x: done"
    agent.on(read({2: (4, 0)}, (2, 0, "x", 3, -1)))
    assert why(agent, "x") == "x: done; but topic t2, partition 0, offset 3, came after it was done"


def test_one_that_begins_on_a_later_link_is_named_when_the_first_is_read() -> None:
    agent = agent_of(2)
    agent.on(read({1: (2, 0)}, (1, 0, "x", 0, -1), (1, 0, "y", 1, -1)))
    assert "seen on topic t1 only so far; the ledger has not read all of t0" in why(agent, "x")
    assert agent.on(Looked({})) == [AskEnds((0,))]
    agent.on(Ends({0: {0: 3, 1: 0}}))
    assert (agent.strangers.count, set(agent.open)) == (0, {"x", "y"})
    agent.on(read({0: (3, 0)}, (0, 0, "y", 2, -1)))
    assert (agent.strangers.count, set(agent.open)) == (1, {"y"})
    assert why(agent, "x").startswith("x: seen on topic t1, and never on t0: it was made of records of no substream")


def test_records_after_the_marker_are_named_and_waited_for() -> None:
    agent = agent_of(2)
    agent.on(read({0: (4, 0)}, (0, 0, "x", 3, 1)))
    assert agent.after_end.why == {"x": "topic t0, partition 0, offset 3, comes after its marker"}
    assert agent.on(at(q1=(3, 0))) == []
    assert agent.on(at(q1=(4, 0))) == [AskEnds((1,))]
    agent.on(read({0: (4, 9)}, (0, 1, "x", 8, -1)))
    agent.on(Ends({1: {0: 0, 1: 0}}))
    assert agent.on(at(q1=(4, 8))) == []
    assert through(agent, at(q1=(4, 9)), Ends({1: {0: 0, 1: 0}})) == [AskEnds((1,)), Done(("x",))]


def test_one_that_was_set_back_waits_for_the_ends_that_were_asked_for_after_it() -> None:
    agent = agent_of(2)
    agent.on(read({0: (1, 0)}, (0, 0, "x", 0, 0)))
    through(agent, at(q1=(1, 0)), Ends({1: {0: 4, 1: 0}}))
    agent.on(read({0: (3, 0)}, (0, 0, "x", 2, -1)))
    assert through(agent, at(q1=(3, 0)), Ends({1: {0: 9, 1: 0}})) == [AskEnds((1,))]
    assert agent.on(read({1: (4, 0)})) == []
    assert agent.on(read({1: (9, 0)})) == [Done(("x",))]


def test_one_that_is_missing_on_a_link_but_not_on_the_next_is_waited_for() -> None:
    agent = agent_of(3)
    agent.on(read({0: (1, 0), 2: (5, 0)}, (0, 0, "x", 0, 0), (2, 0, "x", 4, -1)))
    assert through(agent, at(q1=(1, 0)), Ends({1: {0: 0, 1: 0}})) == [AskEnds((1,))]
    assert agent.on(Looked({})) == [AskEnds((2,))]
    assert agent.on(Ends({2: {0: 5, 1: 0}})) == []
    assert agent.on(at(q3=(5, 0))) == [Done(("x",))]


def close(agent: LinkAgent, first: int, count: int) -> None:
    rows = [(0, 0, f"x{n}", n, n) for n in range(first, first + count)]
    through(agent, read({0: (first + count, 0)}, *rows), at(q1=(first + count, 0)))


def test_memory_of_done_ones_is_bounded_but_not_before_they_are_told_to_one_who_asks() -> None:
    agent = agent_of(1, remembered=3)
    close(agent, 0, 5)
    assert (list(agent.done), list(agent.untold), agent.done_count) == (["x2", "x3", "x4"], ["x2", "x3", "x4"], 5)
    assert why(agent, "x0").endswith("or it is one of the 2 that were done before the last 3")
    agent.on(Told(0))
    close(agent, 5, 4)
    assert list(agent.untold) == [f"x{n}" for n in range(2, 9)]
    agent.on(Told(5))
    assert (list(agent.done), list(agent.untold)) == (["x6", "x7", "x8"], ["x7", "x8"])


def test_a_tracker_of_other_topics_or_of_a_newer_headrace_is_refused() -> None:
    kept: dict[str, Any] = json.loads(json.dumps(snapshot(agent_of(2))))
    with pytest.raises(StateMismatch, match=r"here is of the topics t0, t1, and the links are of t0; give the same"):
        restore(kept, names(1), "here", 10)
    with pytest.raises(StateMismatch, match="format 2, and this Headrace knows formats up to 1; upgrade"):
        restore({**kept, "format": 2}, names(2), "here", 10)


def test_a_tracker_of_other_names_is_refused() -> None:
    """Of those that were seen by their old names nothing more would ever come."""
    links = [replace(each, by="CAST(key AS STRING)") for each in names(2)]
    kept: dict[str, Any] = json.loads(json.dumps(snapshot(LinkAgent(links, [{}, {}]))))
    restore(kept, links, "here", 10)
    other = [links[0], replace(links[1], by="hex(key)")]
    with pytest.raises(StateMismatch, match=r"topic t1 by CAST\(key AS STRING\), and the link by hex\(key\); give the"):
        restore(kept, other, "here", 10)
