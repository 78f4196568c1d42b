"""The agent by hand: the paper's tables, promises of all kinds, orders, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import SubstreamBroken
from headrace.track import agent_state, sums
from headrace.track.agent import Agent
from headrace.track.local import NO_TIME, NOTHING, Said
from headrace.track.reports import TaskSaid, report_of
from headrace.track.terms import Mode, Point, Told, Tracking

H, Q, Z = 11, 12, 13
NAMES = {H: "h", Q: "q", Z: "z"}


def tracking(mode: Mode = Mode.MARKER, groups: int = 1, **more: Any) -> Tracking:
    points = more.pop("points", (Point("last", tuple(range(groups))),))
    return Tracking(groups, points, ("source", "middle", "last"), (0,), pa.string(), mode, **more)


def says(producer: int, step: int, rows: dict[int, tuple[int, ...]], **more: Any) -> TaskSaid:
    """Words of substreams, as of a step; a row changed at that very step unless `at` says so."""
    count = len(rows)
    promised = more.get("promised", ())
    values = np.array(list(rows.values()), np.uint64).reshape(count, -1 if count else 1).view(np.int64)
    words = np.column_stack([
        np.array(list(rows), np.uint64).view(np.int64),
        np.full(count, more.get("at", step), np.int64),
        np.full(count, more.get("since", step - 1), np.int64),
        np.full(count, more.get("coarse", NO_TIME), np.int64),
        np.array([each in promised for each in rows], np.int64),
        values,
    ])  # fmt: skip
    said = Said(words, {each: NAMES[each] for each in rows} if producer == 0 else {})
    return TaskSaid(
        producer, step, said, more.get("below", NOTHING), more.get("clock", NOTHING), more.get("over", False)
    )


def tell(agent: Agent, *tasks: TaskSaid) -> list[tuple[str, Any]]:
    report = report_of(tasks, agent.tracking.groups, agent.tracking.label)
    told = agent.take(report)
    return [(each.told.name, name) for each in told for name in each.names if each.told != Told.GONE]


def test_the_paper_s_tokens_5_5_12_12_are_zero() -> None:
    agent = Agent(tracking())
    assert tell(agent, says(0, 1, {H: (5,)}, promised=[H])) == []
    assert tell(agent, says(1, 1, {H: (5 ^ 12,)})) == []
    assert tell(agent, says(2, 1, {H: (12,)})) == [("ENDED", "h")]


def test_segments_end_one_after_the_other_as_in_table_4() -> None:
    """h and z are through A and B; q has something in B: 110."""
    points = (Point("after A", (0,)), Point("after B", (0, 1)))
    agent = Agent(tracking(groups=2, points=points))
    told = tell(agent, says(0, 3, {H: (5, 0), Q: (3, 0), Z: (9, 0)}, promised=[H, Q, Z]))
    assert told == []
    told = tell(agent, says(1, 3, {H: (5, 12), Q: (3, 6), Z: (9, 7)}))
    assert told == [("ENDED", "h"), ("ENDED", "q"), ("ENDED", "z")], "all of A is through"
    told = tell(agent, says(2, 3, {H: (0, 12), Z: (0, 7)}))
    assert told == [("ENDED", "h"), ("ENDED", "z")]
    assert agent.why(Q) == "some of it is on the way to after B, or held before it (it was seen by source, middle)"


def test_what_waits_for_an_earlier_one_as_in_table_5() -> None:
    """h began at 5 and is empty, q began at 4 and is not, z began at 1."""
    agent, told = Agent(tracking(consistent=True)), []
    for word, coarse in ((H, 5), (Q, 4), (Z, 1)):
        words, clock = {H: 0, Q: 6, Z: 0}, 5 if word == Z else 1
        told += tell(agent, says(0, 10 - coarse, {word: (words[word],)}, promised=[word], coarse=coarse, clock=clock))
    assert told == [("ENDED", "z")]
    assert tell(agent, says(0, 20, {}, clock=9)) == []
    assert agent.why(H).startswith("it waits for those that began before it")
    assert tell(agent, says(2, 1, {Q: (6,)})) == [("ENDED", "q"), ("ENDED", "h")]


def test_what_an_earlier_life_of_a_source_says_late_comes_in_no_earlier_order() -> None:
    """Ends were told by what the source had said since: that nothing earlier would come."""
    agent = Agent(tracking(groups=2, points=(Point("first", (0,)), Point("last", (0, 1))), consistent=True))
    assert tell(agent, says(0, 1, {H: (0, 7)}, promised=[H], coarse=2, clock=6)) == [("ENDED", "h")]
    assert tell(agent, says(0, 3, {Q: (0, 0)}, promised=[Q], coarse=1, clock=1)) == []
    assert tell(agent, says(0, 4, {Q: (0, 0)}, promised=[Q], coarse=1, clock=9)) == [("ENDED", "q")]
    assert tell(agent, says(2, 1, {H: (0, 7)})) == [("ENDED", "h"), ("ENDED", "q")]


def test_nothing_ends_before_it_is_promised() -> None:
    agent = Agent(tracking())
    assert tell(agent, says(0, 1, {H: (5,)}), says(2, 1, {H: (5,)})) == []
    assert "its end is not promised by source" in agent.why(H)
    assert agent.waits_for() == ["source"]
    assert tell(agent, says(0, 2, {H: (5,)}, promised=[H])) == [("ENDED", "h")]


def test_a_report_that_comes_again_changes_nothing() -> None:
    agent = Agent(tracking())
    first = says(0, 1, {H: (5,)}, promised=[H])
    tell(agent, first)
    tell(agent, says(0, 4, {H: (5 ^ 9,)}, promised=[H]))
    assert tell(agent, first) == [], "it is older than the last one"
    assert tell(agent, says(2, 2, {H: (5,)})) == [], "9 is still on its way"
    assert tell(agent, says(2, 3, {H: (5 ^ 9,)})) == [("ENDED", "h")]


def test_a_later_report_of_something_old_is_left_aside() -> None:
    """A task that starts again folds other records into a report: what is not newer was said."""
    agent = Agent(tracking())
    tell(agent, says(0, 5, {H: (5,)}, promised=[H]))
    assert tell(agent, says(2, 5, {H: (5,)})) == [("ENDED", "h")]
    assert tell(agent, says(2, 8, {H: (5,)}, at=5, since=4)) == []
    assert tell(agent, says(2, 9, {H: (5,)}, at=9, since=3)) == [], "it may be the same, in a longer run"


def ended_and_not_remembered(monkeypatch: pytest.MonkeyPatch, **more: Any) -> Agent:
    """h has ended, and so many others have since that this is not remembered."""
    monkeypatch.setattr(sums, "REMEMBERED", 1)
    agent = Agent(tracking(**more))
    tell(agent, says(0, 5, {H: (5,)}, promised=[H]), says(2, 5, {H: (5,)}))
    assert tell(agent, says(0, 6, {Q: (0,)}, promised=[Q])) == [("ENDED", "q")]
    return agent


def test_what_is_said_again_of_what_ended_long_ago_is_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others went on while its task was down: taken for new, it would never end, and so the flow would not."""
    agent = ended_and_not_remembered(monkeypatch)
    assert tell(agent, says(2, 9, {H: (5,)}, at=9, since=3)) == [], "its last step is of a longer run"
    assert tell(agent, says(0, 8, {H: (5,)}, at=8, since=4, promised=[H])) == []
    assert len(agent.sums) == 0
    assert tell(agent, says(0, 9, {}, over=True)) == [("OVER", None)]


def test_what_began_within_a_run_is_new_where_the_step_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a source that labels only beside it, and that had said something in the middle of that run."""
    agent = ended_and_not_remembered(monkeypatch, inexact=frozenset([0]))
    tell(agent, says(0, 8, {Z: (5,)}, at=8, since=4, promised=[Z]))
    assert tell(agent, says(2, 8, {Z: (5,)})) == [("ENDED", "z")]


def test_a_record_after_the_end_is_refused() -> None:
    agent = Agent(tracking())
    tell(agent, says(0, 5, {H: (5,)}, promised=[H]), says(2, 5, {H: (5,)}))
    with pytest.raises(SubstreamBroken, match="source: a record of substream 'h' came after the end of it was told"):
        tell(agent, says(0, 6, {H: (7,)}))


def test_rising_labels_end_those_below() -> None:
    labels = {H: 1, Q: 2, Z: 3}
    point = Point("last", (0,), is_firm=True)
    agent = Agent(Tracking(1, (point,), ("source", "last"), (0,), pa.int64(), Mode.RISING, consistent=True))

    def said(word: int, step: int) -> TaskSaid:
        found = says(0, step, {word: (word,)}, below=labels[word])
        return replace(found, said=replace(found.said, names={word: labels[word]}))

    for step, word in enumerate((H, Q), 1):
        report = report_of([said(word, step)], 1, pa.int64())
        told = agent.take(report)
    assert [(each.told, each.tick) for each in told] == []
    told = agent.take(report_of([says(1, 1, {H: (H,)})], 1, pa.int64()))
    assert [(each.told.name, each.tick) for each in told] == [("ENDED", 0), ("UP_TO", 2)]


def test_without_promises_a_substream_may_end_again_and_again() -> None:
    agent = Agent(tracking(Mode.WHENEVER))
    tell(agent, says(0, 1, {H: (5,)}))
    assert tell(agent, says(2, 1, {H: (5,)})) == [("ENDED", "h")]
    assert tell(agent, says(0, 2, {H: (5 ^ 8,)})) == []
    assert tell(agent, says(2, 2, {H: (5 ^ 8,)})) == [("ENDED", "h")]


def test_each_source_promises_for_itself() -> None:
    both = Tracking(1, (Point("last", (0,)),), ("a", "b", "last"), (0, 1), pa.string(), Mode.EACH_MARKER)
    agent = Agent(both)
    tell(agent, says(0, 1, {H: (5,)}, promised=[H]), says(2, 1, {H: (5,)}))
    assert "not promised by b" in agent.why(H)
    assert tell(agent, says(1, 1, {}, over=True)) == [("ENDED", "h")], "a source that is over has promised all"


def test_what_is_restored_goes_on_as_it_would_have() -> None:
    agent = Agent(tracking(consistent=True))
    tell(agent, says(0, 2, {H: (5,), Q: (9,)}, promised=[Q], coarse=3, clock=4))
    tell(agent, says(2, 1, {Q: (9,)}))
    other = Agent(agent.tracking)
    agent_state.load(other, agent_state.dump(agent))
    for each in (agent, other):
        assert tell(each, says(0, 3, {H: (5,)}, promised=[H], clock=9)) == []
        assert tell(each, says(2, 2, {H: (5,)})) == [("ENDED", "h"), ("ENDED", "q")]


def test_over_is_said_once_when_all_is_told() -> None:
    agent = Agent(tracking(Mode.AT_THE_END))
    assert tell(agent, says(0, 1, {H: (5,)}, over=True)) == []
    assert tell(agent, says(2, 1, {H: (5,)})) == [("ENDED", "h"), ("OVER", None)]
    assert tell(agent, says(2, 2, {})) == []
