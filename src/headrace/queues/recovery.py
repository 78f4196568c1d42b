"""What a queue is worth after the machine went down, or when its tail record is missing or bad.

After a start of the machine, what had not been synced may be there, in part or not at all: the frames from the synced
position on count up to the first bad one, as nothing after it was promised. A bad frame before the synced position is
damage, which its reader meets. Without a tail record nobody knows what was promised: all segments are read, and what is
cut off at the end must be no more than a torn frame.
"""

from __future__ import annotations

import os
from bisect import bisect_right

from headrace.errors import FrameDamaged, QueueError
from headrace.model.folders import sync_folder
from headrace.queues.segments import QueueFiles, checked_size
from headrace.queues.tail import boot_id


def recover(files: QueueFiles) -> None:
    """Makes the tail record right, if it is not. Under the lock."""
    record = files.record
    if record.is_foreign:
        raise QueueError(f"queues at {files.folder.parent}: queue {files.name} is of another version of Headrace")
    if not record.is_whole():
        _rebuild(files)
    elif record.boot != boot_id() and not record.is_deleted:
        _cut_unsynced(files)


def _cut_unsynced(files: QueueFiles) -> None:
    bases, synced = files.bases(), files.record.synced
    if not bases:
        if synced > files.record.start:
            raise files.missing(synced)
        _settle(files, files.record.start, synced, bases)
        return
    index = bisect_right(bases, synced) - 1
    if index < 0:
        raise files.missing(synced)
    size = files.path(bases[index]).stat().st_size
    if size < synced - bases[index]:
        raise files.damaged(bases[index], size, f"the file ends here, but {synced - bases[index]} bytes were synced")
    end, _ = _scan(files, bases[index:], synced)
    _settle(files, files.record.start, end, bases)


def _rebuild(files: QueueFiles) -> None:
    bases = files.bases()
    if not bases:
        # New. Nothing is promised before its first sync, and with all zeros it would come out the same again.
        files.record.renew(0, 0, 0, (files.folder / "sealed").exists())
        return
    end, problem = _scan(files, bases, bases[0])
    if end < bases[-1] or (problem and _frame_after(files, bases[-1], end)):
        base = bases[bisect_right(bases, end) - 1]
        raise files.damaged(base, end - base, problem or "the next segment does not begin here")
    _settle(files, bases[0], end, bases)


def _scan(files: QueueFiles, bases: list[int], position: int) -> tuple[int, str]:
    """The position of the first thing that is not a whole frame, and what is wrong with it (nothing at the end)."""
    for index, base in enumerate(bases):
        if position < base:
            return position, f"{base - position} bytes are missing before the next segment"
        after = bases[index + 1] if index + 1 < len(bases) else None
        # A segment that another one follows ends where that one begins, whatever a dead writer left behind it.
        content = _content(files, base)[: None if after is None else after - base]
        at, problem = position - base, ""
        while at < len(content) and not problem:
            try:
                at += checked_size(content, at)
            except FrameDamaged as error:
                problem = error.problem
        position = base + at
        if problem:
            return position, problem
    return position, ""


def _content(files: QueueFiles, base: int) -> memoryview:
    return memoryview(files.path(base).read_bytes())


def _frame_after(files: QueueFiles, base: int, position: int) -> bool:
    """Is there a whole frame further on in the segment? A torn end has none behind it."""
    content = _content(files, base)
    data = content.tobytes()
    at = data.find(b"HRF1", position - base + 1)
    while at >= 0:
        try:
            checked_size(content, at)
        except FrameDamaged:
            at = data.find(b"HRF1", at + 1)
        else:
            return True
    return False


def _settle(files: QueueFiles, start: int, end: int, bases: list[int]) -> None:
    """The queue ends here, and all of it is on disk before the record says so."""
    kept = [base for base in bases if base < end or base == bases[0]]
    for base in reversed(bases[len(kept) :]):
        files.path(base).unlink()
    base = kept[-1] if kept else end
    if kept:
        os.truncate(files.path(base), end - base)
    files.flush(0)
    sync_folder(files.folder)
    files.record.renew(start, end, base, (files.folder / "sealed").exists())
    files.sync_record()
