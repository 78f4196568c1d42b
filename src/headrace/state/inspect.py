"""What is in a state location: which queries and stages, what is damaged, what nobody needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.errors import StateError
from headrace.state.places import Place, place_of
from headrace.state.store import KEPT_BATCHES, StageStore


@dataclass(frozen=True)
class Damage:
    """A file that is not what was written, and what is wrong with it."""

    file: str
    problem: str


@dataclass(frozen=True)
class Collected:
    """What was deleted, or would be."""

    files: tuple[str, ...]
    size_bytes: int


def stages_of(location: str) -> list[StageStore]:
    """Every stage of every query. Raises StateError where there is no state at all."""
    place = place_of(location)
    found = [
        StageStore(place, f"{query}/{stage}")
        for query in place.folders("")
        for stage in place.folders(query)
        if place.folders(f"{query}/{stage}")
    ]
    if not found:
        raise StateError(f"there is no state at {location}; name the folder that was given as state=")
    return found


def verify_stage(store: StageStore) -> Iterator[Damage]:
    """Everything that any version names, read and compared with what was written."""
    seen: set[tuple[str, int, int]] = set()
    for batch in store.batches():
        folder = store.batch_folder(batch)
        for name in store.place.files(folder):
            if not name.endswith(".manifest"):
                continue
            try:
                versions = list(store.versions_in(f"{folder}/{name}").values())
            except StateError as error:
                yield Damage(f"{folder}/{name}", _problem(error))
                continue
            for version in versions:
                for part in (*version.parts, *version.files):
                    if (part.file, part.offset, part.crc) in seen:
                        continue
                    seen.add((part.file, part.offset, part.crc))
                    try:
                        store.read_part(part)
                    except StateError as error:
                        yield Damage(part.file, _problem(error))


def collect_stage(store: StageStore, kept: int = KEPT_BATCHES, *, dry: bool = False) -> Collected:
    """Delete what is older than the last `kept` batches, and what no version names."""
    batches = store.batches()
    if not batches:
        return Collected((), 0)
    sizes = {f"{store.folder}/files/{name}": size for name, size in store.place.files(f"{store.folder}/files").items()}
    gone = store.collect_now(batches[-1], kept, dry=dry)
    return Collected(tuple(gone), sum(sizes.get(name, 0) for name in gone))


def bytes_on_disk(place: Place, folder: str) -> int:
    """All files below a folder."""
    own = sum(place.files(folder).values())
    return own + sum(bytes_on_disk(place, f"{folder}/{name}") for name in place.folders(folder))


def _problem(error: StateError) -> str:
    return str(getattr(error, "problem", error))
