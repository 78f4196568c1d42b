"""Segments of queues and manifests of flows that have gone bad, by the hundred thousand: found out, never believed.

`python -m headrace.testing.fuzz_files --seed 1 --segments 100000 --manifests 1000000`
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyarrow as pa

from headrace.errors import QueueError, StateDamaged
from headrace.model import frames
from headrace.queues.log import LogQueues
from headrace.state.sealed import seal_record, unseal_record

_QUEUE: Final = "fuzzed"
_FRAMES: Final = 12


def mutated(rng: random.Random, content: bytes) -> bytes:
    """Flipped, cut, zeroed or spliced; never the same."""
    while True:
        changed = bytearray(content)
        at = rng.randrange(len(changed))
        length = rng.randint(1, min(64, len(changed) - at))
        match rng.randrange(5):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                changed[at : at + length] = bytes(length)
            case 3:
                start = rng.randrange(len(changed))
                changed[at : at + length] = changed[start : start + length].ljust(length, b"\0")
            case _:
                changed[at : at + length] = rng.randbytes(length)
        if changed != content:
            return bytes(changed)


def fuzz_segments(seed: int, count: int) -> int:
    """How many segments were refused. Raises AssertionError where a reader gives a frame that nobody wrote."""
    rng, refused = random.Random(seed), 0
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        queues = LogQueues(folder, "never")
        queues.create([_QUEUE])
        with queues.writer() as writer:
            for number in range(_FRAMES):
                batch = pa.record_batch({"n": list(range(number, number + 3)), "text": [f"event {number}"] * 3})
                writer.append(_QUEUE, [frames.encode(frames.data(1, 3 * number, batch))])
        segment = next((Path(folder) / _QUEUE).glob("*.seg"))
        whole = segment.read_bytes()
        written = _read(queues)
        for number in range(count):
            segment.write_bytes(mutated(rng, whole))
            try:
                found = _read(queues)
            except QueueError:
                refused += 1
                continue
            assert found == written, f"seed {seed}, number {number}: other frames than were written"
        segment.write_bytes(whole)
        assert _read(queues) == written
    return refused


def _read(queues: LogQueues) -> list[bytes]:
    found: list[bytes] = []
    with queues.reader("fuzz", {_QUEUE: 0}) as reader:
        while entries := reader.poll([_QUEUE], 0):
            found += [bytes(entry.frame) for entry in entries]
    return found


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def fuzz_manifests(seed: int, count: int) -> int:
    """How many were refused. Raises AssertionError where one that was changed is read as something else."""
    rng, refused = random.Random(seed), 0
    record = {"format": 1, "values": {"position": 4711, "next": {"3": 17}, "sent": {"5": 12}}, "files": ["a", "b"]}
    content = seal_record(record)
    for number in range(count):
        try:
            found = unseal_record(mutated(rng, content), "manifest")
        except StateDamaged:
            refused += 1
        else:
            assert found == record, f"seed {seed}, number {number}: {found}"
    return refused


def _main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--manifests", type=int, default=1_000_000)
    given = parser.parse_args()
    segments = fuzz_segments(given.seed, given.segments)
    manifests = fuzz_manifests(given.seed, given.manifests)
    found = f"{segments} of {given.segments} segments and {manifests} of {given.manifests} manifests"
    print(f"refused {found}, believed none")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(_main())
