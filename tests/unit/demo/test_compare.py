from __future__ import annotations

from pathlib import Path

from headrace.demo.bursts import Burst
from headrace.demo.compare import Verdict, judge
from headrace.demo.plot import draw, hopping_starts
from headrace.model.ticks import MINUTE, SECOND, Tick

# The paper's Figure 1: the first payment late in its minute, the fifth early in the fifth minute after it.
FIGURE_1 = Burst("paced", "card-1", tuple(Tick(s * SECOND) for s in (50, 130, 200, 260, 330)), 500_00)
LATER = Burst("rapid", "card-2", tuple(Tick(s * SECOND) for s in (3_600, 3_610, 3_620, 3_630, 3_640)), 700_00)


def hopping_sights(burst: Burst) -> list[tuple[str, Tick, int]]:
    starts = [Tick(minute * MINUTE) for minute in range(-5, 80)]
    held = [(start, sum(start <= time < start + 5 * MINUTE for time in burst.times)) for start in starts]
    return [(burst.card, start, count) for start, count in held if count]


def test_hopping_windows_see_four_of_the_papers_five_payments() -> None:
    sliding = [(burst.card, burst.fifth, 5) for burst in (FIGURE_1, LATER)]
    hopping = [*hopping_sights(FIGURE_1), *hopping_sights(LATER)]
    first, second = judge([LATER, FIGURE_1], sliding, hopping)
    assert (first.burst, first.sliding, first.hopping) == (FIGURE_1, 5, 4)
    assert (first.caught_by_sliding, first.caught_by_hopping) == (True, False)
    assert (second.burst, second.sliding, second.hopping) == (LATER, 5, 5)
    assert (second.caught_by_sliding, second.caught_by_hopping) == (True, True)


def test_only_windows_that_hold_the_fifth_payment_count() -> None:
    full_but_elsewhere = (FIGURE_1.card, Tick(60 * MINUTE), 9)
    [verdict] = judge([FIGURE_1], [(FIGURE_1.card, FIGURE_1.fifth, 5)], [*hopping_sights(FIGURE_1), full_but_elsewhere])
    assert verdict.hopping == 4


def test_the_picture_shows_the_six_windows_of_the_paper() -> None:
    assert hopping_starts(FIGURE_1) == [minute * MINUTE for minute in range(6)]


def test_the_picture_is_a_png_of_a_size_for_a_repository(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "demo.png"
    draw([Verdict(FIGURE_1, 5, 4), Verdict(LATER, 5, 5)], picture)
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert 20_000 < len(content) < 200_000
