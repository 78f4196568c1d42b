"""Gangs of threads, with real sockets."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from headrace.errors import EnvironmentProblem
from headrace.spark import gang as module
from headrace.spark.gang import Gang
from headrace.spark.lines import Lines, Said

_HERE = "127.0.0.1"
_SECRET = b"s" * 32
_LONG_S = 20.0


class _Meeting:
    """Where members say their places, as `BarrierTaskContext.allGather` does."""

    def __init__(self, size: int, before_last: Callable[[list[str]], None] = lambda places: None):
        """`before_last`: what happens before the last member calls the others."""
        self._barrier = threading.Barrier(size, timeout=_LONG_S)
        self.places = [""] * size
        self._before_last = before_last

    def of(self, task: int) -> Callable[[str], Sequence[str]]:
        def meet(place: str) -> Sequence[str]:
            self.places[task] = place
            self._barrier.wait()
            if task == len(self.places) - 1:
                self._before_last(self.places)
            return self.places

        return meet


def _started(size: int, meeting: _Meeting, secrets: dict[int, bytes] | None = None) -> list[Future[Gang]]:
    pool = ThreadPoolExecutor(size)
    known = secrets or {}
    made = [pool.submit(Gang, t, size, known.get(t, _SECRET), meeting.of(t), _HERE) for t in range(size)]
    pool.shutdown(wait=False)
    return made


@pytest.fixture
def gangs() -> Iterator[Callable[[int], list[Gang]]]:
    with ExitStack() as stack:

        def make(size: int) -> list[Gang]:
            made = [each.result(_LONG_S) for each in _started(size, _Meeting(size))]
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
    def meet(place: str) -> Sequence[str]:
        raise AssertionError("nobody to meet")

    gang = Gang(0, 1, _SECRET, meet)
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


# -------------------------------------------------------------------- strangers


def test_one_with_another_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MEET_S", 1.0)
    one, two = _started(2, _Meeting(2), {1: b"t" * 32})
    with pytest.raises(
        EnvironmentProblem, match=r"task 1 cannot talk to task 0 at 127\.0\.0\.1:\d+ \(the line was clo"
    ):
        two.result(_LONG_S)
    with pytest.raises(EnvironmentProblem, match="task 1 did not call within 1 s; workers must reach each other"):
        one.result(_LONG_S)


def test_one_that_answers_without_the_secret_is_not_believed() -> None:
    """The place of task 0 was taken by somebody else, who takes the call and answers anything."""
    with socket.create_server((_HERE, 0)) as listener:

        def answer() -> None:
            line, _ = listener.accept()
            line.sendall(bytes(32))
            module._read(line, module._HELLO.size)
            line.sendall(bytes(32))

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(EnvironmentProblem, match="is not task 0 of this run: it does not know its secret"):
            Gang(1, 2, _SECRET, lambda place: [f"{_HERE} {listener.getsockname()[1]}", place], _HERE)


def test_a_place_where_nobody_listens() -> None:
    with socket.create_server((_HERE, 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EnvironmentProblem, match=rf"task 1 cannot talk to task 0 at 127\.0\.0\.1:{port} \("):
        Gang(1, 2, _SECRET, lambda place: [f"{_HERE} {port}", place], _HERE)


def test_strangers_who_say_nothing_or_nonsense_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come first, more of them than there is patience for one after the other."""
    monkeypatch.setattr(module, "_MEET_S", 10.0)
    with ExitStack() as stack:

        def disturb(places: list[str]) -> None:
            port = int(places[0].rsplit(" ", 1)[1])
            for number in range(12):
                stranger = stack.enter_context(socket.create_connection((_HERE, port), timeout=_LONG_S))
                if number % 3 == 1:
                    stranger.sendall(bytes(module._HELLO.size))
                elif number % 3 == 2:
                    stranger.close()

        made = [each.result(_LONG_S) for each in _started(2, _Meeting(2, disturb))]
        for gang in made:
            stack.callback(gang.close)
        made[1].say(0, b"here")
        assert _heard(made[0], 1) == [Said(1, b"here")]


def test_a_proof_is_of_one_call_only() -> None:
    """Neither of another task, nor of the other end, nor of another run."""
    gang = Gang(0, 1, _SECRET, lambda place: [place])
    nonce = bytes(32)
    proofs = {
        gang._proof(role, caller, answerer, nonce)
        for role in (b"call", b"answer") for caller in (1, 2) for answerer in (0, 1)
    }  # fmt: skip
    assert len(proofs) == 8
    assert gang._proof(b"call", 1, 0, nonce) != gang._proof(b"call", 1, 0, b"\1" * 32)
    other = Gang(0, 1, b"t" * 32, lambda place: [place])
    assert gang._proof(b"call", 1, 0, nonce) != other._proof(b"call", 1, 0, nonce)
