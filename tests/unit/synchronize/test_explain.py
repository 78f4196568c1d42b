from __future__ import annotations

from headrace.demo.programs import KeyCounters
from headrace.synchronize.explain import explain
from headrace.synchronize.optimize import by_rate, sequential
from headrace.synchronize.plan import make_plan
from headrace.synchronize.tags import guessed_rates, tag_space

from .tree_cases import paper


def test_a_tree_for_people() -> None:
    space = paper()
    assert explain(make_plan(space, by_rate(space, 3), 2)).splitlines() == [
        "program KeyCounters: 3 leaves of 5 workers in 2 tasks",
        "└─ w0, task 0: joins and forks",
        "   ├─ w1, task 1: updates with reset(1)@E1 (15), increment(1)@E1 (100)",
        "   └─ w2, task 0: joins for reset(2)@E0 (10)",
        "      ├─ w3, task 1: updates with increment(2)@E2 (200)",
        "      └─ w4, task 0: updates with increment(2)@E3 (300)",
        "of 100 events: 9.6 messages between workers, 4.8 of them between tasks; the busiest task takes 50.4 events; "
        "a state for the root goes 4 steps",
    ]


def test_one_worker() -> None:
    space = paper()
    lines = explain(make_plan(space, sequential(space))).splitlines()
    assert lines[0] == "program KeyCounters: 1 leaf of 1 worker in 1 task"
    assert lines[-1].startswith("of 100 events: 0 messages between workers")


def test_many_tags_are_not_all_shown() -> None:
    space = tag_space(KeyCounters(), guessed_rates(KeyCounters(), 2), 1)
    text = explain(make_plan(space, by_rate(space, 1)))
    assert "reset(bucket 0) (0.015625), increment(bucket 0) (15.625)" in text
    assert ", and 123 more" in text
    assert "…" in explain(make_plan(space, by_rate(space, 1)), "mermaid")


def test_a_drawing() -> None:
    space = paper()
    assert explain(make_plan(space, by_rate(space, 3), 2), "mermaid").splitlines() == [
        "flowchart TD",
        '  w0["w0, task 0"]',
        "  w0 --> w1",
        "  w0 --> w2",
        '  w1["w1, task 1<br>reset(1)@E1<br>increment(1)@E1"]',
        '  w2["w2, task 0<br>reset(2)@E0"]',
        "  w2 --> w3",
        "  w2 --> w4",
        '  w3["w3, task 1<br>increment(2)@E2"]',
        '  w4["w4, task 0<br>increment(2)@E3"]',
    ]


def test_no_rates_at_all() -> None:
    space = tag_space(KeyCounters(), [(("reset", 1), None, 0.0), (("reset", 2), None, 0.0)], 2)
    assert "of 100 events: 0 messages" in explain(make_plan(space, by_rate(space, 2)))
