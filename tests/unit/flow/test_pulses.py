"""The pulse of a flow: who makes the next beat, who goes on when nobody does, and what becomes of two makers."""

from __future__ import annotations

from headrace.flow.effects import Append, Effect
from headrace.flow.pulses import BEATS, Pulse
from headrace.model import frames
from headrace.queues.protocol import Entry

_PERIOD_S = 0.1


class _Log:
    """The log of beats, and workers that read it to its end."""

    def __init__(self, workers: int = 2):
        self.pulses = [self.worker(number) for number in range(workers)]
        self.frames: list[bytes] = []
        self.now = 100.0

    def worker(self, number: int) -> Pulse:
        return Pulse("f.beats", number, lambda: [f"inbox {number}"], _PERIOD_S)

    def reads(self, pulse: Pulse) -> list[Effect]:
        since = pulse.position
        entries = [Entry("f.beats", frame, since + at + 1) for at, frame in enumerate(self.frames[since:])]
        return pulse.take(entries)

    def step(self, seconds: float, *awake: int) -> list[tuple[int, int]]:
        """Time goes on, in small steps, for those that are awake; gives who made which beat."""
        made = []
        for _ in range(round(seconds / 0.01)):
            self.now += 0.01
            for number in awake:
                for effect in self.pulses[number].tick(self.now):
                    assert isinstance(effect, Append)
                    self.frames += effect.frames
                    made.append((number, _beat(effect)))
            for number in awake:
                self.reads(self.pulses[number])
        return made


def _beat(effect: Effect) -> int:
    assert isinstance(effect, Append)
    (content,) = effect.frames
    message = frames.decode(content).message
    assert message is not None
    return int(message["beat"])


def _said(beat: int, by: int, position: int) -> Entry:
    return Entry("f.beats", frames.encode(frames.control(0, 0, {"beat": beat, "by": by})), position)


# ------------------------------------------------------------------- who makes


def test_one_worker_begins_after_two_periods_and_goes_on_every_period() -> None:
    log = _Log()
    assert log.step(0.19, 0, 1) == []
    made = log.step(1.0, 0, 1)
    assert {worker for worker, _ in made} == {0}, "the others hear it"
    assert [beat for _, beat in made] == list(range(1, len(made) + 1))
    assert 9 <= len(made) <= 10


def test_another_worker_goes_on_where_nobody_does_for_two_periods() -> None:
    log = _Log(3)
    before = log.step(0.5, 0, 1, 2)
    while not log.step(0.01, 0, 1, 2):
        pass
    assert log.step(0.24, 1, 2) == [], "not before two periods, and half a period for each number"
    after = log.step(0.5, 1, 2)
    assert {worker for worker, _ in after} == {1}
    assert after[0][1] == before[-1][1] + 2, "no number is left out"


def test_one_that_comes_back_leaves_it_to_who_makes_them_now() -> None:
    log = _Log()
    log.step(0.5, 0, 1)
    log.step(0.6, 1)
    last = log.pulses[1].last
    back = log.step(1.0, 0, 1)
    assert [beat for worker, beat in back if worker == 1] == list(range(last + 1, log.pulses[1].last + 1))
    assert [beat for worker, beat in back if worker == 0 and beat > last] == [], "at most one that counts no more"
    assert log.pulses[0].last == log.pulses[1].last


def test_of_two_beats_of_one_number_the_first_counts() -> None:
    pulse = _Log().worker(0)
    assert len(pulse.take([_said(1, 1, 1)])) == 1
    assert pulse.take([_said(1, 2, 2)]) == []
    assert (pulse.last, pulse.position) == (1, 2), "but it was read"
    pulse.tick(0.0)
    assert pulse.tick(0.15) == [], "the maker is worker 1, and has two periods"


def test_a_beat_that_does_not_come_back_is_made_again_after_a_while() -> None:
    log = _Log(1)
    (pulse,) = log.pulses
    made = [at for at in range(300) for _ in pulse.tick(at / 100)]
    assert made == [20, 120, 220], "after ten periods"
    assert pulse.last == 0


# ---------------------------------------------------------------------- inboxes


def test_beats_are_passed_on_to_all_inboxes_the_last_for_all_before() -> None:
    pulse = Pulse("f.beats", 0, lambda: ["a", "b"], _PERIOD_S)
    effects = pulse.take([_said(1, 0, 1), _said(2, 0, 2), _said(3, 0, 3)])
    assert [effect.queue for effect in effects if isinstance(effect, Append)] == ["a", "b"]
    assert [_beat(effect) for effect in effects] == [3, 3]
    assert all(frames.decode(effect.frames[0]).channel == BEATS for effect in effects if isinstance(effect, Append))


def test_a_worker_without_tasks_at_sources_keeps_the_pulse_all_the_same() -> None:
    pulse = Pulse("f.beats", 0, list, _PERIOD_S)
    assert pulse.take([_said(4, 1, 1)]) == []
    assert (pulse.last, pulse.position) == (4, 1)


# ------------------------------------------------------------------------ clocks


def test_a_clock_that_goes_back_begins_anew() -> None:
    log = _Log(1)
    before = log.step(0.5, 0)
    log.now -= 50.0
    after = log.step(0.5, 0)
    assert [beat for _, beat in after] == list(range(before[-1][1] + 1, before[-1][1] + 1 + len(after)))
    assert len(after) >= 3


def test_a_clock_that_jumps_forward_makes_one_beat_and_no_more() -> None:
    log = _Log()
    before = log.step(0.5, 0, 1)
    log.now += 1000.0
    made = log.step(0.01, 0, 1)
    assert sorted(made) == [(0, before[-1][1] + 1), (1, before[-1][1] + 1)], "both think that nobody does"
    later = log.step(1.0, 0, 1)
    assert {worker for worker, _ in later} == {0}, "the first one counts, and goes on"


# --------------------------------------------------------------- restart, pause


def test_one_that_starts_again_goes_on_after_what_its_tasks_have_had() -> None:
    pulse = _Log().worker(0)
    pulse.last = 41
    pulse.tick(0.0)
    assert pulse.take([_said(40, 1, 7)]) == [], "that was before"
    assert [_beat(effect) for effect in pulse.tick(0.25)] == [42]


def test_one_that_knows_less_than_the_log_is_not_heard() -> None:
    """A worker whose tasks have no beats in their commits begins with the first number: for the others that is old."""
    log = _Log()
    log.step(1.0, 0)
    last = log.pulses[0].last
    log.pulses[1] = log.worker(1)
    log.pulses[1].position = len(log.frames)
    log.step(0.3, 1)
    assert log.reads(log.pulses[0]) == []
    assert log.pulses[0].last == last
    log.step(0.5, 0, 1)
    assert log.pulses[0].last == log.pulses[1].last > last


def test_some_beats_after_all_sources_have_paused_there_are_no_more() -> None:
    log = _Log()
    log.step(0.5, 0, 1)
    last = log.pulses[0].last
    for pulse in log.pulses:
        pulse.stop_soon()
    made = log.step(2.0, 0, 1)
    assert [beat for _, beat in made] == [last + 1, last + 2, last + 3], "what sources gave last is carried on"
    log.pulses[0].stop_soon()
    assert log.step(1.0, 0, 1) == [], "however often it is said"


def test_what_others_make_is_passed_on_in_a_pause_too() -> None:
    log = _Log()
    log.step(0.5, 0, 1)
    log.pulses[0].stop_soon()
    log.step(1.5, 0)
    log.frames.append(frames.encode(frames.control(0, 0, {"beat": log.pulses[0].last + 1, "by": 1})))
    assert len(log.reads(log.pulses[0])) == 1
