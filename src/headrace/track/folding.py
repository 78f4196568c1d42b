"""The inner loop of tracking: notes of records, folded into the rows of their substreams."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.model.jit import kernel
from headrace.track.rows import row_for
from headrace.track.tokens import mixed, token

# The numbers of `local.Note`.
_COUNTED = -2  # local.COUNTED
_ONE_LESS = np.uint64(0xFFFFFFFFFFFFFFFF)
_RECEIVED, _SENT, _OPENED, _OPENED_LATER, _HELD, _RELEASED, _LATER = range(7)


@kernel
def _stepped(kind: Any, row: Any, step: Any, start: Any, stop: Any, anywhere: Any, numbers: Any, flags: Any) -> Any:
    """When a row changed last, and what is wrong with it. Records of a run end at step `stop`."""
    broken = 0
    if kind == _SENT and not anywhere and numbers[row, 3] == 0:
        # What was given in this run may be sent, and came of it.
        return 1 if numbers[row, 0] <= start else 0
    # Several stages beside a source may tell apart: within a run, the last record may be told before the others.
    is_later = kind == _OPENED or (kind == _OPENED_LATER and numbers[row, 0] <= start)
    if is_later and flags[row, 0] == 1:
        broken = 2
    if kind == _RELEASED and numbers[row, 3] == 0:
        return 3
    is_exact = kind in (_RECEIVED, _OPENED)
    numbers[row, 0] = step if is_exact else stop
    # What a run makes of a record, it makes after that record came.
    numbers[row, 1] = max(numbers[row, 1], step - 1 if is_exact else start)
    return broken


@kernel
def _is_strange(kind: Any, forgets: Any, anywhere: Any) -> Any:
    """Is a substream held of which nothing has come? Only sources may."""
    return np.int64(kind == _HELD and not forgets and not anywhere)


@kernel
def _held(row: Any, more: Any, word: Any, group: Any, values: Any, numbers: Any) -> None:
    """Once more or once less: a token is out while it is held at all."""
    before = numbers[row, 3]
    numbers[row, 3] = before + more
    if (before == 0) != (numbers[row, 3] == 0):
        values[row, group] ^= word


@kernel
def fold_pieces(
    pieces: Any, wanted: Any, tokens: Any, ends: Any, slots: Any, ids: Any, free: Any, counts: Any,
    values: Any, numbers: Any, flags: Any, setting: Any, due: Any, born: Any, results: Any,
) -> None:  # fmt: skip
    """`results`: how many rows are newly due, how many substreams began here, what is broken, and where."""
    hold_group, holds_all, salt, coarse, anywhere = setting[0], setting[1], setting[2], setting[3], setting[4]
    forgets = setting[5]
    # Records of one substream often follow one another.
    place, last, row = 0, np.uint64(0), np.int64(-1)
    for p in range(len(pieces)):
        kind, channel, first = pieces[p, 0], pieces[p, 1], pieces[p, 2]
        count, group, start, stop = pieces[p, 3], pieces[p, 4], pieces[p, 5], pieces[p, 6]
        # At a source a substream may begin with a record that a stage keeps; anywhere, with one that is sent.
        begins = kind in (_OPENED, _OPENED_LATER) or (forgets and kind == _HELD) or (anywhere and kind == _SENT)
        for i in range(count):
            at = place + i
            word = wanted[at]
            if word == np.uint64(0):
                continue
            if word != last:
                last = word
                row = row_for(slots, ids, free, counts, word)
            is_new = row < 0
            if is_new:
                row = ~row
                values[row, :] = np.uint64(0)
                numbers[row, :] = 0
                numbers[row, 2] = coarse
                flags[row, :] = np.uint8(0)
                born[results[1]] = at
                results[1] += np.int64(begins)
            broken = _stepped(kind, row, stop - count + i + 1, start, stop, anywhere, numbers, flags)
            broken = max(broken, is_new * _is_strange(kind, forgets, anywhere))
            leaves = kind == _OPENED and channel == _COUNTED
            if leaves:
                broken = max(broken, _stepped(_SENT, row, stop, start, stop, anywhere, numbers, flags))
            if (kind == _HELD) or (kind == _RELEASED and not broken):
                _held(row, 1 if kind == _HELD else -1, mixed(word ^ np.uint64(salt)), hold_group, values, numbers)
            elif (kind in (_RECEIVED, _LATER)) and holds_all and numbers[row, 3] == 0:
                _held(row, 1, mixed(word ^ np.uint64(salt)), hold_group, values, numbers)
            if kind in (_OPENED, _OPENED_LATER):
                if ends[at]:
                    flags[row, 0] = np.uint8(1)
                numbers[row, 2] = min(numbers[row, 2], coarse)
            if leaves or kind in (_RECEIVED, _SENT, _LATER):
                if channel == _COUNTED:
                    is_sent = kind in (_SENT, _OPENED)
                    values[row, group] += np.uint64(1) if is_sent else _ONE_LESS
                else:
                    values[row, group] ^= token(channel, first + i) if channel >= 0 else tokens[at]
            if flags[row, 1] == 0:
                flags[row, 1] = np.uint8(1)
                due[results[0]] = row
                results[0] += 1
            flags[row, 2] = np.uint8(1)
            if broken and results[2] == 0:
                results[2] = broken
                results[3] = at
        place += count


@kernel
def say_rows(due: Any, ids: Any, values: Any, numbers: Any, flags: Any, words: Any) -> Any:
    """The rows that are to be reported, each once, as `local.Said` has them; they are to be so no more."""
    count = 0
    for row in due:
        if flags[row, 1] == 1:
            flags[row, 1] = np.uint8(0)
            words[count, 0] = np.int64(ids[row])
            words[count, 1:4] = numbers[row, :3]
            words[count, 4] = flags[row, 0]
            for group in range(values.shape[1]):
                words[count, 5 + group] = np.int64(values[row, group])
            count += 1
    return count
