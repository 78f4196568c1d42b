"""Queues of the embedded log with short segments, and a look at their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.queues.log import LogQueues
from headrace.queues.protocol import Reader
from headrace.testing.queue_contract import number_of

QUEUE = "q"


@pytest.fixture
def queues(tmp_path: Path) -> LogQueues:
    made = LogQueues(tmp_path / "root", fsync="never", segment_bytes=2000)
    made.create([QUEUE])
    return made


def folder(queues: LogQueues) -> Path:
    return queues.folder / QUEUE


def segments(queues: LogQueues) -> list[Path]:
    return sorted(folder(queues).glob("*.seg"))


def numbers(queues: LogQueues, position: int = 0) -> list[int]:
    """All that is there from a position on."""
    found: list[int] = []
    with queues.reader("all", {QUEUE: position}) as reader:
        while entries := reader.poll([QUEUE], 0):
            found += [number_of(entry) for entry in entries]
    return found


def drain(reader: Reader, into: list[bytes] | None = None) -> None:
    """Reads until there is nothing more."""
    while entries := reader.poll([QUEUE], 0):
        (into if into is not None else []).extend(bytes(entry.frame) for entry in entries)


def flip(path: Path, at: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    with path.open("r+b") as file:
        file.write(content)
