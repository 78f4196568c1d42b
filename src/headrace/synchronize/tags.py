"""Implementation tags: which events there are, of which stream, how many; and where each belongs.

An implementation tag is a tag of one stream. Where a tag is independent of itself, its events may be shared out to
several *parts*, which are streams of their own. Keys that are too many to be listed are in *buckets*, by their hash.
What nobody has heard of before is *other*: it depends on everything.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import ProgramError
from headrace.synchronize.program import Program, Tag, kind_of

Ints = npt.NDArray[np.int64]
BUCKETS: Final = 64
_MOST_KNOWN: Final = 1 << 16
"""How many tags are remembered with their places. Keys may be without end."""


@dataclass(frozen=True)
class Bucket:
    """All tags of a kind whose keys have one hash."""

    kind: Any
    number: int

    def __str__(self) -> str:
        return f"{self.kind}(bucket {self.number})"


@dataclass(frozen=True)
class Other:
    """All tags that are not known."""

    def __str__(self) -> str:
        return "other"


OTHER: Final = Other()


@dataclass(frozen=True)
class ImplementationTag:
    """Events of one tag and one stream, or of one part of them. `rate` is in any unit, but the same for all."""

    tag: Tag | Bucket | Other
    stream: Any = None
    part: int = 0
    parts: int = 1
    rate: float = 1.0

    def __str__(self) -> str:
        shown = tag_text(self.tag)
        where = "" if self.stream is None else f"@{self.stream}"
        return f"{shown}{where}" if self.parts == 1 else f"{shown}{where}/{self.part}"


def tag_text(tag: Any) -> str:
    """As people write it: reset(17)."""
    if isinstance(tag, tuple) and len(tag) > 1:
        return f"{tag[0]}({', '.join(map(str, tag[1:]))})"
    return str(tag[0] if isinstance(tag, tuple) and tag else tag)


def bucket_of(tag: Tag) -> int:
    """Of the key: all values of the tag but the first, as texts."""
    text = "\x00".join(map(str, tag[1:] if isinstance(tag, tuple) else ()))
    return zlib.crc32(text.encode()) % BUCKETS


def _number_of(tag: Any) -> int:
    """Of the bucket that a tag is in."""
    return tag.number if isinstance(tag, Bucket) else bucket_of(tag)


def _kind_alone(tag: Any) -> Tag:
    return (tag.kind if isinstance(tag, Bucket) else kind_of(tag),)


@dataclass(frozen=True)
class TagSpace:
    """All implementation tags of a run, and which of them depend on each other."""

    program: Program
    entries: tuple[ImplementationTag, ...]
    _index: dict[tuple[Any, Any], int] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for number, entry in enumerate(self.entries):
            if entry.part == 0:
                self._index[entry.tag, entry.stream] = number

    @cached_property
    def dependence(self) -> npt.NDArray[np.bool_]:
        """A matrix: does the order of two events with these implementation tags matter?"""
        # Parts and streams of a tag are alike: each is asked about once.
        tags = list(dict.fromkeys(entry.tag for entry in self.entries))
        places = {tag: at for at, tag in enumerate(tags)}
        asked = np.zeros((len(tags), len(tags)), np.bool_)
        for a, one in enumerate(tags):
            for b, two in enumerate(tags[: a + 1]):
                asked[a, b] = asked[b, a] = self._dependent(one, two)
        at = np.array([places[entry.tag] for entry in self.entries], np.int64)
        return asked[np.ix_(at, at)]

    def _dependent(self, a: Any, b: Any) -> bool:
        if isinstance(a, Other) or isinstance(b, Other):
            return True
        if isinstance(a, Bucket) or isinstance(b, Bucket):
            if isinstance(a, Bucket) and isinstance(b, Bucket) and a.number != b.number:
                return False
            is_one = _number_of(a) == _number_of(b)
            return is_one and self.program.dependent(_kind_alone(a), _kind_alone(b))
        return self.program.dependent(a, b)

    def base_of(self, tag: Tag, stream: Any) -> int:
        """The number of the first part. Raises ProgramError for a tag that there should not be."""
        found = self._index.get((tag, stream))
        if found is None:
            found = self._index.get((tag, None))
        if found is None and isinstance(tag, tuple):
            bucket = Bucket(kind_of(tag), bucket_of(tag))
            found = self._index.get((bucket, stream), self._index.get((bucket, None)))
        if found is None:
            found = self._index.get((OTHER, None))
        if found is None:
            known = ", ".join(dict.fromkeys(tag_text(entry.tag) for entry in self.entries))
            raise ProgramError(
                self.program.name, f"an event has the tag {tag_text(tag)}, and there are only {known}; add it to tags"
            )
        if len(self._index) < _MOST_KNOWN:
            self._index[tag, stream] = found
        return found

    def numbers_of(self, columns: Sequence[pa.Array], streams: pa.Array | None, spread: Ints) -> Ints:
        """The implementation tag of each row; `spread` says which part of it, if it has several."""
        codes, values = codes_of([*columns, *([] if streams is None else [streams])])
        bases = np.empty(len(values), np.int64)
        for number, value in enumerate(values):
            own, stream = (value, None) if streams is None else (value[:-1], value[-1])
            bases[number] = self.base_of(own[0] if len(columns) == 1 else own, stream)
        parts = np.array([self.entries[base].parts for base in bases.tolist()], np.int64)
        return bases[codes] + spread % parts[codes]

    def covers(self, numbers: frozenset[int]) -> Any:
        """The predicate of some implementation tags: may an event with this tag be one of theirs?"""
        known: dict[Tag, bool] = {}

        def predicate(tag: Tag) -> bool:
            found = known.get(tag)
            if found is None:
                found = any(number in numbers for base in self._bases(tag) for number in self._parts(base))
                if len(known) < _MOST_KNOWN:
                    known[tag] = found
            return found

        return predicate

    def _bases(self, tag: Tag) -> list[int]:
        """Of all streams."""
        wanted = {tag, Bucket(kind_of(tag), bucket_of(tag))} if isinstance(tag, tuple) and len(tag) > 1 else {tag}
        found = [n for n, entry in enumerate(self.entries) if entry.part == 0 and entry.tag in wanted]
        return found or [n for n, entry in enumerate(self.entries) if entry.tag == OTHER]

    def _parts(self, base: int) -> range:
        return range(base, base + self.entries[base].parts)


def codes_of(columns: Sequence[pa.Array]) -> tuple[Ints, list[tuple[Any, ...]]]:
    """Which of the different rows each row is, and those."""
    codes: Ints = np.zeros(len(columns[0]), np.int64)
    known: list[list[Any]] = []
    for column in columns:
        plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        encoded = plain.dictionary_encode(null_encoding="encode")
        words = encoded.dictionary.to_pylist()
        codes = codes * max(1, len(words)) + encoded.indices.to_numpy(zero_copy_only=False)
        known.append(words)
    if len(columns) == 1:
        return codes, [(word,) for word in known[0]]
    found = pa.array(codes).dictionary_encode()
    rows = []
    for code in found.dictionary.to_pylist():
        row: list[Any] = []
        for words in reversed(known):
            code, at = divmod(code, len(words))
            row.append(words[at])
        rows.append(tuple(reversed(row)))
    return found.indices.to_numpy().astype(np.int64), rows


# ---------------------------------------------------------------------- making


def tag_space(
    program: Program, rates: Sequence[tuple[Tag | Bucket | Other, Any, float]], parallelism: int, is_cut: bool = True
) -> TagSpace:
    """Of tags with their streams and rates. `is_cut`: may a tag that is independent of itself be shared out?"""
    if not rates:
        raise ProgramError(program.name, "there are no tags; give it tags=, or rates=")
    total = sum(rate for _, _, rate in rates) or 1.0
    entries: list[ImplementationTag] = []
    lone = TagSpace(program, tuple(ImplementationTag(tag, stream) for tag, stream, _ in rates))
    for number, (tag, stream, rate) in enumerate(rates):
        parts = 1
        if is_cut and not lone.dependence[number, number]:
            # As many as its share of the work is worth, and one more where that is not a whole number.
            parts = max(1, int(np.ceil(parallelism * rate / total - 1e-9)))
        entries += [ImplementationTag(tag, stream, part, parts, rate / parts) for part in range(parts)]
    return TagSpace(program, tuple(entries))


_RARE: Final = 1.0
_FREQUENT: Final = 1000.0


def guessed_rates(program: Program, columns: int) -> list[tuple[Tag | Bucket | Other, Any, float]]:
    """Where nothing is known of the events: what depends on itself is taken to be rare, as barriers are."""
    table, tags = program.table, program.tags

    def rate(kind: Any) -> float:
        return _RARE if program.dependent(kind, kind) else _FREQUENT

    if tags is not None:
        return [(tag, None, rate(tag)) for tag in tags]
    if table is None:
        raise ProgramError(
            program.name,
            "its tags are not known; list them (tags = [...] in the program, or rates={tag: events a second}), or say "
            "depends as a table",
        )
    kinds = list(dict.fromkeys(kind for key, others in table.items() for kind in (key, *others)))
    if columns == 1:
        return [*((kind, None, rate(kind)) for kind in kinds), (OTHER, None, 0.0)]
    buckets = [(Bucket(kind, n), None, rate((kind,)) / BUCKETS) for n in range(BUCKETS) for kind in kinds]
    return [*buckets, (OTHER, None, 0.0)]


def said_rates(
    program: Program, columns: int, rates: Mapping[Any, float] | None
) -> list[tuple[Tag | Bucket | Other, Any, float]]:
    """What was said of rates, or else what can be guessed. What is in no list is other, unless the program has one.

    Raises ProgramError for tags that are not of so many columns, and for rates that are none.
    """
    check_tags(program, columns, program.tags or (), "tags")
    if rates is None:
        return guessed_rates(program, columns)
    if not isinstance(rates, Mapping):
        raise ProgramError(program.name, f"rates={rates!r}; use a dict of tags and how often they come")
    check_tags(program, columns, rates, "rates=")
    known: list[Any] = [(tag, None, _rate_of(program, tag, rate)) for tag, rate in rates.items()]
    if program.tags is None:
        return [*known, (OTHER, None, 0.0)]
    strange = next((tag for tag in rates if tag not in program.tags), None)
    if strange is not None:
        listed = ", ".join(map(tag_text, program.tags))
        raise ProgramError(
            program.name, f"rates= has the tag {tag_text(strange)}, and its tags are {listed}; add it to them"
        )
    return [*known, *((tag, None, 0.0) for tag in program.tags if tag not in rates)]


def check_tags(program: Program, columns: int, tags: Iterable[Any], where: str) -> None:
    """Raises ProgramError for a tag that is not of so many columns: a value for one, a tuple for several; for one that
    is there twice; and for one that no event can have."""
    if isinstance(tags, str | bytes) or not isinstance(tags, Iterable):
        raise ProgramError(program.name, f'{where} is {tags!r}; list them, such as ["sale", "close"]')
    tags = list(tags)
    _check_shape(program, columns, tags, where)
    seen: set[Any] = set()
    for tag in tags:
        if any(value != value for value in values_of(tag) if isinstance(value, float)):
            raise ProgramError(
                program.name, f"{where} has {tag!r}, and what is not a number equals no tag; use another"
            )
        try:
            is_twice = tag in seen
            seen.add(tag)
        except TypeError:
            raise ProgramError(program.name, f"{where} has {tag!r}; a tag is made of plain values") from None
        if is_twice:
            raise ProgramError(program.name, f"{where} has {tag_text(tag)} twice; leave one of them out")


def _check_shape(program: Program, columns: int, tags: Sequence[Any], where: str) -> None:
    for tag in tags:
        if columns == 1 and not isinstance(tag, tuple | list):
            continue
        if columns > 1 and isinstance(tag, tuple) and len(tag) == columns:
            continue
        wanted = "the value of the one column of tag=" if columns == 1 else f"a tuple, of the {columns} columns of tag="
        raise ProgramError(program.name, f"{where} has {tag!r}; a tag is {wanted}")


def _rate_of(program: Program, tag: Any, rate: Any) -> float:
    is_number = isinstance(rate, int | float | np.number) and not isinstance(rate, bool)
    if not is_number or not 0 <= rate < math.inf:
        raise ProgramError(program.name, f"rates= has {rate!r} for {tag_text(tag)}; a rate is a number from 0 on")
    return float(rate)


def values_of(tag: Any) -> tuple[Any, ...]:
    """Of its columns; of a bucket its kind and number."""
    if isinstance(tag, Bucket):
        return tag.kind, tag.number
    return tag if isinstance(tag, tuple) else (tag,)


def order_key(values: Sequence[Any]) -> tuple[tuple[bool, Any], ...]:
    """By which Python sorts tags as Spark does: nulls come first."""
    return tuple((value is not None, value) for value in values)


def in_tag_order(
    known: Sequence[tuple[Tag | Bucket | Other, Any, float]],
) -> list[tuple[Tag | Bucket | Other, Any, float]]:
    """As Spark sorts the values of tags: numbers as numbers, texts as texts; what is other comes last."""
    own = [n for n, each in enumerate(known) if not isinstance(each[0], Other)]
    try:
        own.sort(key=lambda n: order_key(values_of(known[n][0])))
    except TypeError:
        own.sort(key=lambda n: tag_text(known[n][0]))
    return [*(known[n] for n in own), *(each for each in known if isinstance(each[0], Other))]
