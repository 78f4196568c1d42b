"""Ways in which a file goes bad: torn, truncated, emptied, a bit flipped, missing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.state.places import LocalPlace
from headrace.state.store import StageStore

Damage = Callable[[Path, random.Random], None]


def torn(path: Path, dice: random.Random) -> None:
    """The end was never written: the length is right, and there are zeros."""
    content = path.read_bytes()
    kept = dice.randrange(len(content))
    path.write_bytes(content[:kept] + bytes(len(content) - kept))


def truncated(path: Path, dice: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: dice.randrange(1, len(content))])


def emptied(path: Path, dice: random.Random) -> None:
    path.write_bytes(b"")


def flipped(path: Path, dice: random.Random) -> None:
    """One bit is another one."""
    content = bytearray(path.read_bytes())
    content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    path.write_bytes(content)


def missing(path: Path, dice: random.Random) -> None:
    path.unlink()


DAMAGES: Final[tuple[Damage, ...]] = (torn, truncated, emptied, flipped, missing)


def files_in_use(state: Path) -> dict[str, list[Path]]:
    """The files that a query goes on from, by kind: `.json`, `.manifest`, `.state`, `.events`."""
    place = LocalPlace(str(state))
    found: dict[str, list[Path]] = {".json": sorted(state.rglob("definitions/*.json"))}
    for query in place.folders(""):
        for stage in place.folders(query):
            store = StageStore(place, f"{query}/{stage}")
            batch = max(store.batches())
            manifests = sorted((state / store.batch_folder(batch)).glob("*.manifest"))
            found.setdefault(".manifest", []).extend(manifests)
            for version in store.all_shards(batch).values():
                for part in (*version.parts, *version.files):
                    path = state / part.file
                    if path not in found.setdefault(path.suffix, []):
                        found[path.suffix].append(path)
    return found
