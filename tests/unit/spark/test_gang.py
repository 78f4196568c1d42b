"""Gangs of threads, with real sockets."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from tests.unit.spark.rolls import roll

from headrace.errors import EnvironmentProblem
from headrace.spark.gang import Gang
from headrace.spark.lines import Lines, Said

_LONG_S = 20.0


@pytest.fixture
def gangs() -> Iterator[Callable[[int], list[Gang]]]:
    with ExitStack() as stack:

        def make(size: int) -> list[Gang]:
            made = _together(*[lambda task=task: Gang(roll(task, size)) for task in range(size)])
            for gang in made:
                stack.callback(gang.close)
            return made

        yield make


def _heard(gang: Gang, count: int) -> list[Said]:
    found = [gang.hear(_LONG_S) for _ in range(count)]
    return [said for said in found if said is not None]


def _together(*calls: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result(_LONG_S) for each in [pool.submit(call) for call in calls]]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_each_can_talk_to_every_other_one(gangs: Callable[[int], list[Gang]], size: int) -> None:
    members = gangs(size)
    for gang in members:
        for other in range(size):
            if other != gang.task:
                gang.say(other, f"{gang.task} to {other}".encode(), b"and more")
    for gang in members:
        said = _heard(gang, 2 * (size - 1))
        for other in range(size):
            own = [each.content for each in said if each.sender == other]
            assert own == ([] if other == gang.task else [f"{other} to {gang.task}".encode(), b"and more"])


def test_one_alone_meets_nobody() -> None:
    gang = Gang(roll(0, 1), b"own")
    assert gang.words == [b"own"]
    assert gang.hear(0) is None
    gang.leave()


def test_nothing_said_is_nothing_heard(gangs: Callable[[int], list[Gang]]) -> None:
    one, _ = gangs(2)
    assert one.hear(0) is None
    assert one.hear(0.01) is None


@pytest.mark.parametrize("size", [2, 3])
def test_big_messages_both_ways_do_not_wait_for_each_other(gangs: Callable[[int], list[Gang]], size: int) -> None:
    """Far more than any buffer of a socket, in a circle, and nobody wants to hear before all of its own is said."""
    members = gangs(size)
    big = bytes(range(256)) * (32 << 10)

    def talk(gang: Gang) -> list[bytes | None]:
        gang.say((gang.task + 1) % size, big, b"and", big)
        return [said.content for said in _heard(gang, 3)]

    for heard in _together(*[lambda gang=gang: talk(gang) for gang in members]):
        assert heard == [big, b"and", big]


def test_one_that_waits_to_write_hears_of_one_that_goes_away(gangs: Callable[[int], list[Gang]]) -> None:
    """It says more than the other ever reads."""
    one, two = gangs(2)
    before, big = threading.Event(), bytes(64 << 20)

    def go() -> None:
        before.wait(_LONG_S)
        two.close()

    def talk() -> None:
        before.set()
        one.say(1, big)
        one.hear(_LONG_S)

    with pytest.raises(EnvironmentProblem, match="task 1 has gone away"):
        _together(go, talk)


def test_one_that_said_good_bye_hears_what_is_said_to_it_until_all_have(gangs: Callable[[int], list[Gang]]) -> None:
    """Also where it is far more than any buffer of a socket."""
    one, two = gangs(2)
    left, big = threading.Event(), bytes(8 << 20)

    def leave() -> None:
        one.leave()
        left.set()

    thread = threading.Thread(target=leave, daemon=True)
    thread.start()
    assert two.hear(0.05) is None
    two.say(0, big)
    assert not left.is_set()
    two.leave()
    thread.join(_LONG_S)
    assert left.is_set()


def test_a_message_in_pieces_is_heard_when_it_is_whole() -> None:
    """However the bytes of the line are cut."""
    contents = [b"a", bytes(1000), b"last"]
    stream = b"".join(struct.pack("<I", len(content)) + content for content in contents)
    for size in (1, 3, 4, 5, 1004, len(stream)):
        near, far = socket.socketpair()
        lines, heard = Lines({7: near}), list[Said]()
        for start in range(0, len(stream), size):
            far.sendall(stream[start : start + size])
            while (said := lines.hear(0)) is not None:
                heard.append(said)
        assert heard == [Said(7, content) for content in contents]
        assert lines.hear(0.001) is None
        far.close()
        assert lines.hear(_LONG_S) == Said(7, None)
        lines.close()


def test_who_leaves_waits_for_the_others_and_loses_nothing(gangs: Callable[[int], list[Gang]]) -> None:
    one, two, three = gangs(3)
    one.say(1, b"x" * 100_000)
    left = threading.Event()

    def leave() -> None:
        one.leave()
        left.set()

    thread = threading.Thread(target=leave, daemon=True)
    thread.start()
    assert [len(said.content or b"") for said in _heard(two, 1)] == [100_000]
    assert not left.is_set()
    _together(two.leave, three.leave)
    thread.join(_LONG_S)
    assert left.is_set()


def test_a_member_that_goes_away_is_noticed_by_all(gangs: Callable[[int], list[Gang]]) -> None:
    members = gangs(3)
    members[1].close()
    for task in (0, 2):
        with pytest.raises(EnvironmentProblem, match="task 1 has gone away; Spark starts all tasks"):
            members[task].hear(_LONG_S)


def test_a_member_that_dies_while_others_leave(gangs: Callable[[int], list[Gang]]) -> None:
    one, two = gangs(2)
    two.say(0, b"last words")
    two.close()
    with pytest.raises(EnvironmentProblem, match="task 1 has gone away"):
        one.leave()


def test_talking_to_one_that_is_gone(gangs: Callable[[int], list[Gang]]) -> None:
    one, two = gangs(2)
    two.close()
    for _ in range(50):
        one.say(1, bytes(1 << 16))
    with pytest.raises(EnvironmentProblem, match="task 1 has gone away"):
        one.hear(_LONG_S)
