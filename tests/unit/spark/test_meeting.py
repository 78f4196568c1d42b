"""How members of gangs find each other, with real sockets; and who is not let in."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.spark.rolls import HERE, OTHER_SECRET, Secret, nobody, roll

from headrace.errors import EnvironmentProblem
from headrace.spark import meeting as module
from headrace.spark.meeting import Roll, meet, roll_call

_LONG_S = 20.0
_Met = tuple[dict[int, socket.socket], list[bytes]]


class _Gathering:
    """Where members say their places, as `BarrierTaskContext.allGather` does."""

    def __init__(self, size: int, before_last: Callable[[list[str]], None] = lambda places: None):
        """`before_last`: what happens before the last member calls the others."""
        self._barrier = threading.Barrier(size, timeout=_LONG_S)
        self.places = [""] * size
        self._before_last = before_last

    def of(self, task: int) -> Callable[[str], Sequence[str]]:
        def gather(place: str) -> Sequence[str]:
            self.places[task] = place
            self._barrier.wait()
            if task == len(self.places) - 1:
                self._before_last(self.places)
            return self.places

        return gather


def _started(rolls: Sequence[Roll]) -> list[Future[_Met]]:
    pool = ThreadPoolExecutor(len(rolls))
    made = [pool.submit(meet, each, f"word of {each.task}".encode()) for each in rolls]
    pool.shutdown(wait=False)
    return made


def _check_all_met(rolls: Sequence[Roll]) -> None:
    """All heard the words of all, and their lines are to whom they say."""
    size = len(rolls)
    with ExitStack() as stack:
        met = [each.result(_LONG_S) for each in _started(rolls)]
        for lines, words in met:
            assert words == [f"word of {task}".encode() for task in range(size)]
            for line in lines.values():
                stack.enter_context(line)
        for task, (lines, _) in enumerate(met):
            assert sorted(lines) == [other for other in range(size) if other != task]
            for other, line in lines.items():
                line.sendall(bytes([task, other]))
        for task, (lines, _) in enumerate(met):
            for other, line in lines.items():
                assert line.recv(2) == bytes([other, task])


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_closed", module._Closed())


# ----------------------------------------------------------------- without Spark


@pytest.mark.parametrize("size", [2, 3, 8])
def test_they_find_each_other_without_asking(size: int) -> None:
    _check_all_met([roll(task, size) for task in range(size)])


def test_one_that_comes_later_is_waited_for() -> None:
    early, late = roll(0, 2), roll(1, 2)
    (first,) = _started([early])
    time.sleep(0.5)
    (second,) = _started([late])
    for met in (first, second):
        lines, words = met.result(_LONG_S)
        assert words == [b"word of 0", b"word of 1"]
        for line in lines.values():
            line.close()


def test_where_a_port_is_taken_the_next_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """By somebody who takes calls and says nothing, and by somebody who says nonsense."""
    monkeypatch.setattr(module, "_HANDSHAKE_S", 0.2)
    with ExitStack() as stack:
        silent, loud, *_ = module._ports(roll(0, 2), 0)
        stack.enter_context(socket.create_server((HERE, silent)))
        listener = stack.enter_context(socket.create_server((HERE, loud)))

        def talk() -> None:
            while True:
                try:
                    line, _ = listener.accept()
                except OSError:
                    return
                with line:
                    line.sendall(bytes(module._NONCE))
                    line.recv(module._HELLO.size)
                    line.sendall(bytes(module._PROOF))

        threading.Thread(target=talk, daemon=True).start()
        _check_all_met([roll(task, 2) for task in range(2)])


def test_a_task_of_an_earlier_start_is_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for one that was lost; those that were started again do not meet it."""
    monkeypatch.setattr(module, "DERIVED_S", 2.0)
    monkeypatch.setattr(module, "MEET_S", 0.2)
    (forgotten,) = _started([roll(0, 2, _Gathering(1).of(0), start="1")])
    _check_all_met([roll(task, 2, start="2") for task in range(2)])
    with pytest.raises(EnvironmentProblem, match="task 1 did not call"):
        forgotten.result(_LONG_S)


def test_a_host_that_is_known_by_a_name() -> None:
    _check_all_met([Roll(task, 2, Secret.own, ["localhost"] * 2, nobody, "1") for task in range(2)])


def test_no_two_starts_and_no_two_tasks_have_the_same_ports() -> None:
    ports = {
        tuple(module._ports(roll(task, 2, start=start, secret=secret), task))
        for task in (0, 1) for start in ("1", "2") for secret in (Secret.own, OTHER_SECRET)
    }  # fmt: skip
    assert len(ports) == 8
    assert all(len(set(each)) > 1 and set(each) <= set(module._PORTS) for each in ports)


def test_spark_says_who_there_is() -> None:
    context = SimpleNamespace(
        partitionId=lambda: 1, stageId=lambda: 7, taskAttemptId=lambda: 42, allGather=nobody,
        getTaskInfos=lambda: [SimpleNamespace(address=each) for each in ("host-a:4000", "[fe80::1]:4001")],
    )  # fmt: skip
    found = roll_call(cast(Any, context), 2, Secret.own)
    assert (found.task, found.size, found.hosts, found.start) == (1, 2, ["host-a", "fe80::1"], "7 41")
    with pytest.raises(EnvironmentProblem, match="Spark started 2 of 3 tasks again"):
        roll_call(cast(Any, context), 3, Secret.own)


# ----------------------------------------------------------------- through Spark


@pytest.fixture
def unknown_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DERIVED_S", 0.0)


@pytest.mark.usefixtures("unknown_ports")
@pytest.mark.parametrize("size", [2, 3, 8])
def test_where_ports_come_to_nothing_they_ask_spark(size: int) -> None:
    gathering = _Gathering(size)
    _check_all_met([roll(task, size, gathering.of(task)) for task in range(size)])


def test_ports_that_came_to_nothing_are_not_tried_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query starts a gang with each micro-batch: it does not wait each time for ports that are closed."""
    tried: list[int] = []
    monkeypatch.setattr(module, "_derived", lambda roll, word: tried.append(roll.task))

    def met() -> list[int]:
        gathering = _Gathering(2)
        _check_all_met([roll(task, 2, gathering.of(task)) for task in range(2)])
        return sorted(tried)

    assert met() == [0, 1]
    assert met() == [0, 1]
    monkeypatch.setattr(module._closed, "until", time.monotonic())
    assert met() == [0, 0, 1, 1]


def test_where_one_misses_a_line_all_ask_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Task 2 is of no start that others know: two that have met each other do not go on without it."""
    monkeypatch.setattr(module, "DERIVED_S", 0.5)
    gathering = _Gathering(3)
    _check_all_met([roll(task, 3, gathering.of(task), start="2" if task == 2 else "1") for task in range(3)])


def test_where_one_gives_up_when_the_others_have_all_lines_all_ask_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its lines, and says no word."""
    words = module._words
    calls: list[int] = []

    def says_nothing_at_first(roll: Roll, lines: Any, word: bytes) -> list[bytes]:
        calls.append(roll.task)
        if roll.task == 1 and calls.count(1) == 1:
            raise ConnectionError("gone")
        return words(roll, lines, word)

    monkeypatch.setattr(module, "_words", says_nothing_at_first)
    gathering = _Gathering(3)
    _check_all_met([roll(task, 3, gathering.of(task)) for task in range(3)])
    assert sorted(calls) == [0, 0, 1, 1, 2, 2]


@pytest.mark.usefixtures("unknown_ports")
def test_one_with_another_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEET_S", 1.0)
    gathering = _Gathering(2)
    one, two = _started([roll(0, 2, gathering.of(0)), roll(1, 2, gathering.of(1), secret=OTHER_SECRET)])
    with pytest.raises(EnvironmentProblem, match=r"task 1 cannot talk to task 0 at [\d.]+:\d+ \(the line was clo"):
        two.result(_LONG_S)
    with pytest.raises(EnvironmentProblem, match="task 1 did not call within 1 s; workers must reach each other"):
        one.result(_LONG_S)


@pytest.mark.usefixtures("unknown_ports")
def test_one_that_answers_without_the_secret_is_not_believed() -> None:
    """The place of task 0 was taken by somebody else, who takes the call and answers anything."""
    with socket.create_server((HERE, 0)) as listener:

        def answer() -> None:
            line, _ = listener.accept()
            line.sendall(bytes(32))
            module._read(line, module._HELLO.size)
            line.sendall(bytes(32))

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(EnvironmentProblem, match="is not task 0 of this run: it does not know its secret"):
            meet(roll(1, 2, lambda place: [f"{HERE} {listener.getsockname()[1]}", place]))


@pytest.mark.usefixtures("unknown_ports")
def test_a_place_where_nobody_listens() -> None:
    with socket.create_server((HERE, 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EnvironmentProblem, match=rf"task 1 cannot talk to task 0 at 127\.0\.0\.1:{port} \("):
        meet(roll(1, 2, lambda place: [f"{HERE} {port}", place]))


@pytest.mark.usefixtures("unknown_ports")
def test_strangers_who_say_nothing_or_nonsense_hold_up_nobody() -> None:
    """They come first, more of them than there is patience for one after the other."""
    with ExitStack() as stack:

        def disturb(places: list[str]) -> None:
            host, port = places[0].rsplit(" ", 1)
            for number in range(12):
                stranger = stack.enter_context(socket.create_connection((host, int(port)), timeout=_LONG_S))
                if number % 3 == 1:
                    stranger.sendall(bytes(module._HELLO.size))
                elif number % 3 == 2:
                    stranger.close()

        gathering = _Gathering(2, disturb)
        start = time.monotonic()
        _check_all_met([roll(task, 2, gathering.of(task)) for task in range(2)])
        assert time.monotonic() - start < module._HANDSHAKE_S


def test_a_proof_is_of_one_call_only() -> None:
    """Neither of another task, nor of the other end, nor of another run or start."""
    own, nonce = roll(0, 1), bytes(32)
    proofs = {
        own.proof(role, caller, answerer, nonce)
        for role in (b"call", b"answer") for caller in (1, 2) for answerer in (0, 1)
    }  # fmt: skip
    assert len(proofs) == 8
    proof = own.proof(b"call", 1, 0, nonce)
    assert proof != own.proof(b"call", 1, 0, b"\1" * 32)
    assert proof != roll(0, 1, secret=OTHER_SECRET).proof(b"call", 1, 0, nonce)
    assert proof != roll(0, 1, start="2").proof(b"call", 1, 0, nonce)
