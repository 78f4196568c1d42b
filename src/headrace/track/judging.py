"""The inner loop of an agent: reports into sums, one after the other, and what has ended after each of them.

Arrays go in tuples, as `Sums.arrays` and `Ended.arrays` give them. All that comes out depends on the reports alone, and
not on how many there are at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.model.jit import kernel
from headrace.track.local import ALL, NO_TIME
from headrace.track.reports import AT, COARSE, ID, PRODUCER, PROMISED, SINCE, VALUES
from headrace.track.rows import find, leave, row_for
from headrace.track.tokens import mixed

_PRODUCER = np.uint64(0xD6E8FEB86659FD93)
_NOTHING = np.uint64(0)
_EACH_MARKER, _RISING, _WHENEVER, _MARKER = 2, 3, 4, 1  # terms.Mode

# What a call says of itself: `results`.
TOUCHED, BROKEN, OPENED, REPORTS, ENDED, GONE, NEXT, OVER = range(8)
# The columns of numbers behind those of OPEN_COLUMNS.
PAIRS, TICK, HAS_TICK, RANKED = 7, 8, 9, 10


@kernel
def pair_of(word: Any, producer: Any) -> Any:
    """The key of what a task says of a substream."""
    found = mixed(word ^ mixed(np.uint64(producer) + _PRODUCER))
    return found if found else _PRODUCER


@kernel
def take_reports(
    bounds: Any, report: Any, sources: Any, opened: Any, pairs: Any, ended: Any, points: Any, counted: Any,
    setting: Any, touched: Any, out: Any, results: Any,
) -> None:  # fmt: skip
    """From the report `results[NEXT]` on, until there is something to do for Python, or no more of them."""
    mode, judges, all_told, room = setting[0], setting[1], setting[2], setting[3]
    known, said, is_source, _ = sources
    rows_said = report[0]
    count = 0
    for flag in is_source:
        count += flag
    while results[NEXT] < len(bounds) - 1:
        low, high = bounds[results[NEXT]], bounds[results[NEXT] + 1]
        results[NEXT] += 1
        results[REPORTS] += 1
        results[TOUCHED] = 0
        _take_rows(low, high, report, sources, opened, pairs, ended, counted, touched, results)
        if results[BROKEN] >= 0:
            return
        was_over, was_below = _heard(said, is_source)
        for r in range(low, high):
            if rows_said[r, ID] == 0:
                _hear(said, is_source, rows_said[r])
        over, below = _heard(said, is_source)
        results[OVER] = over == count
        if mode == _RISING:
            is_for_all = below > was_below
        else:
            is_for_all = mode != _WHENEVER and over > was_over and (over == count or mode == _EACH_MARKER)
        rows = _live(opened) if is_for_all else touched[: results[TOUCHED]]
        _promise(rows, mode, over, count, below, said, is_source, opened, pairs)
        for r in range(low, high):
            if rows_said[r, ID] == 0:
                task = rows_said[r, PRODUCER]
                known[task] = max(known[task], rows_said[r, AT])
        if judges:
            _judge(rows, mode, all_told, opened, pairs, ended, points, out, results)
        if not judges or results[GONE] >= room or over == count:
            return


@kernel
def _take_rows(
    low: Any, high: Any, report: Any, sources: Any, opened: Any, pairs: Any, ended: Any, counted: Any, touched: Any,
    results: Any,
) -> None:  # fmt: skip
    rows_said, ticks, is_named = report
    known, heard, _, is_exact = sources
    slots, ids, free, counts, sums, numbers = opened
    pair_slots, pair_ids, pair_free, pair_counts, said, of = pairs
    for r in range(low, high):
        task, word, at, coarse = (
            rows_said[r, PRODUCER],
            np.uint64(rows_said[r, ID]),
            rows_said[r, AT],
            rows_said[r, COARSE],
        )
        if word == _NOTHING or at <= known[task]:
            continue
        if find(ended[0], ended[1], word) >= 0:
            # Where it is not certain that this is newer than the last report, it is taken for the same.
            if rows_said[r, SINCE] >= known[task] and results[BROKEN] < 0:
                results[BROKEN] = r
            continue
        if is_exact[task] and rows_said[r, SINCE] < known[task] and find(slots, ids, word) < 0:
            # It was told of before the last report, and has ended: so many have since that it is not remembered.
            continue
        row = row_for(slots, ids, free, counts, word)
        if row < 0:
            row = ~row
            sums[row, :] = _NOTHING
            numbers[row, :] = 0
            numbers[row, 0] = NO_TIME
            numbers[row, 1] = results[OPENED]
            results[OPENED] += 1
        pair = row_for(pair_slots, pair_ids, pair_free, pair_counts, pair_of(word, task))
        if pair < 0:
            pair = ~pair
            said[pair, :] = _NOTHING
            of[pair, 0], of[pair, 1], of[pair, 2], of[pair, 3] = np.int64(word), task, 0, numbers[row, PAIRS]
            numbers[row, PAIRS] = pair + 1
        if of[pair, 2] == 1 and not rows_said[r, PROMISED] and results[BROKEN] < 0:
            # Its source had closed it, and knows nothing of that any more: it has begun anew.
            results[BROKEN] = r
            continue
        for group in range(len(counted)):
            value = np.uint64(rows_said[r, VALUES + group])
            if counted[group]:
                sums[row, group] += value - said[pair, group]
            else:
                sums[row, group] ^= said[pair, group] ^ value
            said[pair, group] = value
        if rows_said[r, PROMISED] and of[pair, 2] == 0:
            of[pair, 2] = 1
            numbers[row, 2] += 1
        if coarse != NO_TIME and numbers[row, 5] == 0:
            numbers[row, 5] = at
        # A source that has said that nothing earlier will come: this is of an earlier life of it, heard of late.
        numbers[row, 0] = min(numbers[row, 0], max(coarse, heard[task, 1]))
        if is_named[r]:
            numbers[row, TICK], numbers[row, HAS_TICK] = ticks[r], 1
        if numbers[row, 6] != results[REPORTS]:
            numbers[row, 6] = results[REPORTS]
            touched[results[TOUCHED]] = row
            results[TOUCHED] += 1


# --------------------------------------------------------------------- promises


@kernel
def _heard(said: Any, is_source: Any) -> Any:
    """How many sources are over, and what all of them have promised."""
    over, below = 0, ALL
    for number in range(len(is_source)):
        if is_source[number]:
            if said[number, 2]:
                over += 1
            else:
                below = min(below, said[number, 0])
    return over, below


@kernel
def _hear(said: Any, is_source: Any, row: Any) -> None:
    number = row[PRODUCER]
    if is_source[number]:
        said[number, 0] = max(said[number, 0], row[SINCE])
        said[number, 1] = max(said[number, 1], row[COARSE])
        said[number, 2] |= row[PROMISED]


@kernel
def _live(opened: Any) -> Any:
    return np.flatnonzero(opened[1][: opened[3][0]])


@kernel
def _promise(
    rows: Any, mode: Any, over: Any, count: Any, below: Any, said: Any, is_source: Any, opened: Any, pairs: Any
) -> None:
    """Which of the rows are to have no more."""
    ids, numbers = opened[1], opened[5]
    for row in rows:
        if mode == _RISING:
            is_promised = numbers[row, HAS_TICK] == 1 and (numbers[row, TICK] < below or below == ALL)
        elif mode == _WHENEVER or over == count:
            is_promised = True
        elif mode == _MARKER:
            is_promised = numbers[row, 2] > 0
        else:
            is_promised = mode == _EACH_MARKER and _promises(ids[row], numbers[row, 2], said, is_source, pairs) >= count
        if is_promised:
            numbers[row, 4] = 1


@kernel
def _promises(word: Any, found: Any, said: Any, is_source: Any, pairs: Any) -> Any:
    """With those of sources that are over, and have not promised it by itself."""
    for number in range(len(is_source)):
        if is_source[number] and said[number, 2]:
            pair = find(pairs[0], pairs[1], pair_of(word, number))
            if pair < 0 or pairs[5][pair, 2] == 0:
                found += 1
    return found


# ------------------------------------------------------------------------ judge


@kernel
def is_empty(row: Any, point: Any, sums: Any, points: Any) -> Any:
    """Is nothing on the way to the point?"""
    found = True
    for group in range(sums.shape[1]):
        found &= not points[point, group] or sums[row, group] == _NOTHING
    return found


@kernel
def _judge(
    rows: Any, mode: Any, all_told: Any, opened: Any, pairs: Any, ended: Any, points: Any, out: Any, results: Any
) -> None:
    """What has ended at which points, in the order in which it began; what has at all of them is forgotten."""
    ids, sums, numbers = opened[1], opened[4], opened[5]
    out_points, out_ids, out_gone = out
    # By the order in which substreams were opened: row numbers are another thing after a restart.
    rows = rows[np.argsort(numbers[rows, 1])]
    for point in range(len(points)):
        for row in rows:
            is_told = (numbers[row, 3] >> point) & 1
            if numbers[row, 4] == 1 and not is_told and is_empty(row, point, sums, points):
                out_points[results[ENDED]], out_ids[results[ENDED]] = point, ids[row]
                results[ENDED] += 1
                if mode != _WHENEVER:
                    numbers[row, 3] |= 1 << point
    if mode == _WHENEVER:
        return
    for row in rows:
        if numbers[row, 3] == all_told:
            out_gone[results[GONE]] = ids[row]
            results[GONE] += 1
            forget(row, opened, pairs, ended)


@kernel
def forget(row: Any, opened: Any, pairs: Any, ended: Any) -> None:
    """An open substream has ended for all: only that it has is remembered, until others have."""
    slots, ids, free, counts, sums, numbers = opened
    pair_slots, pair_ids, pair_free, pair_counts, said, of = pairs
    pair = numbers[row, PAIRS] - 1
    while pair >= 0:
        following = of[pair, 3] - 1
        leave(pair_slots, pair_ids, pair_free, pair_counts, pair_ids[pair])
        said[pair, :] = _NOTHING
        of[pair, :] = 0
        pair = following
    word = ids[row]
    leave(slots, ids, free, counts, word)
    sums[row, :] = _NOTHING
    numbers[row, :] = 0
    remember(word, ended)


@kernel
def remember(word: Any, ended: Any) -> None:
    """In a ring, from which the oldest one leaves."""
    slots, ids, free, counts, ring, place = ended
    size = len(ring)
    if place[1] == size:
        leave(slots, ids, free, counts, ring[place[0]])
        place[0] = (place[0] + 1) % size
        place[1] -= 1
    row_for(slots, ids, free, counts, word)
    ring[(place[0] + place[1]) % size] = word
    place[1] += 1


@kernel
def forget_all(rows: Any, opened: Any, pairs: Any, ended: Any) -> None:
    for row in rows:
        forget(row, opened, pairs, ended)


@kernel
def remember_all(words: Any, ended: Any) -> None:
    for word in words:
        remember(word, ended)
