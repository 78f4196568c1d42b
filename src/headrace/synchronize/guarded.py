"""A program's functions, called so that it shows whether they keep their word; what was called is kept as a story."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace.errors import FlowError, HeadraceError, ProgramError
from headrace.model.failures import RAISED, shown, stage_failed
from headrace.synchronize.codec import Codec
from headrace.synchronize.equality import Difference, differences, has_floats, row_differences
from headrace.synchronize.program import Program
from headrace.synchronize.running import rows_to_batch
from headrace.synchronize.samples import Fork, Sample

Line = tuple[str, str]
"""Of a story: a word that says what was done, and the rest."""
Rows = list[tuple[Any, ...]]
MOST_MADE_AGAIN: Final = 400
_UNCHANGING: Final = (int, str, float, bool, type(None))


class Breach(Exception):
    """A rule that a program breaks; `lines` is how that showed. With a `failure`, one of its functions raised that."""

    def __init__(self, rule: str, lines: Sequence[Line] = (), failure: Exception | None = None, within: str = ""):
        super().__init__(rule)
        self.rule, self.lines, self.failure = rule, list(lines), failure
        self.within = within
        """The rule that was tried, where that is another one."""
        self.story: list[Line] = []
        self.events = 0
        """How many events the story has."""


class Unfit(Exception):
    """A case that is none: an event where it cannot come, sides that are not independent."""


@dataclass(frozen=True)
class Made:
    """A call that was made, and what it gave."""

    method: str
    shape: str
    arguments: tuple[Any, ...]
    told: str
    result: Any


@dataclass
class Bench:
    """What cases are tried on."""

    program: Program
    sample: Sample
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        self.veteran = self.copied()
        """It sees all calls of all cases, and must not show it."""
        self.codec = Codec(self.program)
        self.has_floats = False
        self.forked: Counter[str] = Counter()
        self.made: dict[tuple[str, str], Made] = {}
        """The first call of each method with each event."""

    def copied(self) -> Program:
        """As it was given. One that cannot be copied is used as it is."""
        try:
            return copy.deepcopy(self.program)
        except Exception:
            return self.program


class Calls:
    """Those of one case, on a fresh copy of the program. Each raises Breach, and adds a line to the story."""

    def __init__(self, bench: Bench):
        self.bench, self.sample = bench, bench.sample
        self.story: list[Line] = []
        self.events = 0
        """How many the story has."""
        self.made = 0
        """How many calls."""
        self._program = bench.copied()

    # ------------------------------------------------------------------- calls

    def start(self) -> Any:
        state = self._call("init", "state", (), ())
        self.say("start", shown(state))
        return state

    def update(self, state: Any, event: int, label: str = "update", counts: bool = True) -> tuple[Any, Rows]:
        told = self.sample.text_of(event)
        self.events += counts
        arguments = (state, self.sample.events[event])
        after, given = self._call("update", "update", arguments, ("the state", "the event"), told)
        self.say(label, f"{told} → {shown(after)}{_gives(given)}")
        if self.sample.is_typed:
            self._expect_kind("update", after, type(state))
        if len(given) > 1:
            self._expect_order(arguments, given, told)
        return after, given

    def fork(self, fork: Fork, state: Any) -> tuple[Any, Any]:
        sides = self.sample.tags_text(fork.left), self.sample.tags_text(fork.right)
        told = f"left takes {sides[0]}; right takes {sides[1]}"
        predicates = self.sample.predicate(fork.left), self.sample.predicate(fork.right)
        left, right = self._call(fork.pair.fork, "pair", (state, *predicates), ("the state", "", ""), told)
        self.say(fork.pair.fork, f"{told} → left {shown(left)}; right {shown(right)}")
        for value, kind in ((left, fork.pair.left), (right, fork.pair.right)):
            self._expect_kind(fork.pair.fork, value, kind)
        self.bench.forked[fork.pair.fork] += 1
        return left, right

    def join(self, fork: Fork, left: Any, right: Any, label: str = "") -> Any:
        method = fork.pair.join
        whole = self._call(method, "state", (left, right), ("the left state", "the right state"))
        self.say(label or method, f"→ {shown(whole)}")
        self._expect_kind(method, whole, fork.pair.whole)
        return whole

    def update_batch(self, state: Any, events: Sequence[int]) -> tuple[Any, list[dict[str, Any]]]:
        batch = self.sample.batch.take(pa.array(list(events), pa.int64()))
        told = "; ".join(map(self.sample.text_of, events))
        state, given = self._call("update_batch", "batch", (state, batch), ("the state", ""), told)
        self.say("batch", f"{told} → {shown(state)}{_gives(given)}")
        return state, given

    def updated(self, state: Any, events: Iterable[int], label: str = "update") -> tuple[Any, Rows]:
        """After several events, and what they gave."""
        given: Rows = []
        for event in events:
            state, rows = self.update(state, event, label)
            given += rows
        return state, given

    def rows_as_written(self, rows: Rows) -> list[dict[str, Any]]:
        """As they are once they are in the columns of the outputs."""
        return [] if not rows else list(rows_to_batch(self._program, list(rows)).to_pylist())

    def say(self, word: str, rest: str) -> None:
        self.story.append((word, rest))

    # ------------------------------------------------------------ expectations

    def expect(self, rule: str, ways: tuple[str, str], states: tuple[Any, Any], rows: tuple[Any, Any]) -> None:
        """Two ways to the same: their states and their rows must be equal."""
        tolerance = self.bench.tolerance
        found = [*differences(*states, tolerance), *row_differences(*rows, tolerance)]
        if not found:
            return
        lines = [(way, f"{shown(state)}{_gives(given)}") for way, state, given in zip(ways, states, rows, strict=True)]
        is_drift = all(each.is_drift for each in found)
        lines += [("differ", str(found[0]))] if found[0].at else []
        raise Breach("float drift" if is_drift else rule, lines, within=rule)

    def expect_plain(self, state: Any) -> None:
        codec = self.bench.codec
        self.bench.has_floats |= has_floats(state)
        try:
            back = codec.loads(codec.dumps(state))
        except FlowError as error:
            problem = str(error).partition("cannot be kept: ")[2].partition("; use ")[0] or str(error)
            raise Breach("plain state", [("but", problem)]) from None
        found = next(differences(state, back), None)
        if found is not None:
            lines = [("sent", shown(state)), ("received", shown(back)), ("differ", str(found))]
            raise Breach("plain state", [*lines, *_no_equal(found)])

    def _expect_order(self, arguments: tuple[Any, Any], given: Rows, told: str) -> None:
        """In a flow a worker that starts again must give the same rows in the same order."""
        codec = self.bench.codec
        try:
            kept = codec.loads(codec.dumps(arguments[0]))
        except FlowError:
            return  # that is another rule
        _, other = self._result(self._program, "update", "update", (kept, arguments[1]), told)
        if [repr(row) for row in other] != [repr(row) for row in given] and not any(row_differences(given, other)):
            lines = [("once", _gives(given)), ("again", _gives(other))]
            problem = "rows come in another order from a state that was kept and read again: sort what a set gives"
            raise Breach("hidden state", [*lines, ("but", problem)])

    def _expect_kind(self, method: str, value: Any, kind: type | None) -> None:
        if kind is not None and not isinstance(value, kind):
            raise Breach("types", [("but", f"{method} gave a {type(value).__name__}, and not a {kind.__name__}")])

    # ------------------------------------------------------------------ guards

    def _call(self, method: str, shape: str, arguments: tuple[Any, ...], names: tuple[str, ...], told: str = "") -> Any:
        """`names`: of the arguments; those without are not looked at. `shape`: of what the method gives."""
        self.made += 1
        before = self._copied(arguments)
        asked = [(method, told)] if told else []
        result = self._result(self._program, method, shape, arguments, told)
        for name, was, now in zip(names, before, arguments, strict=True):
            found = next(differences(was, now), None) if name else None
            if found is not None:
                _check_equals_itself(now)
                lines = [*asked, ("before", shown(was)), ("after", shown(now))]
                raise Breach("purity", [*lines, ("but", f"{method} changed {name} that it was given")])
        for program, when in ((self._program, "again"), (self.bench.veteran, "later")):
            other = self._result(program, method, shape, arguments, told)
            found = _first_difference(shape, result, other)
            if found is not None:
                _check_equals_itself(result[0] if shape in ("update", "batch") else result)
                lines = [*asked, ("once", _told(shape, result)), (when, _told(shape, other))]
                raise Breach("hidden state", [*lines, ("but", f"{method} was given the same both times")])
        if len(self.bench.made) < MOST_MADE_AGAIN:
            self.bench.made.setdefault((method, told), Made(method, shape, before, told, result))
        return result

    def again(self, made: Made, reason: str) -> None:
        """The same call after others than before. Raises Breach where it gives something else."""
        try:
            found = self._result(self._program, made.method, made.shape, self._copied(made.arguments), made.told)
        except (Breach, HeadraceError):
            return  # not all that is shared may have been put back: no reason to doubt the program
        if _first_difference(made.shape, made.result, found) is not None:
            lines = [(made.method, made.told), ("once", _told(made.shape, made.result))]
            lines += [("later", f"{_told(made.shape, found)}, after other calls than before"), ("but", reason)]
            raise Breach("hidden state", lines)

    def _copied(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            return tuple(
                each if callable(each) or isinstance(each, pa.RecordBatch) else _copy(each) for each in arguments
            )
        except Exception as error:
            raise Breach("plain state", [("but", f"the state cannot be copied: {error}")]) from error

    def _result(self, program: Program, method: str, shape: str, arguments: tuple[Any, ...], told: str) -> Any:
        try:
            found = getattr(program, method)(*arguments)
            return found if shape == "state" else _pair(program, method, shape, found)
        except ProgramError:
            raise
        except RAISED as error:
            states = " and ".join(map(shown, arguments if shape == "state" else arguments[:1]))
            record = f"{told}; state {states}" if told else states or "none"
            failure = stage_failed(f"{program.name}.{method}", error, record)
            failure.__cause__ = error
            raise Breach("raises", failure=failure) from error


def _check_equals_itself(state: Any) -> None:
    """Raises Breach for one that does not equal a copy of it: nothing follows from a difference then."""
    found = next(differences(state, _copy(state)), None)
    if found is not None:
        lines = [("state", shown(state)), ("but", f"a copy of it does not equal it: {found}")]
        raise Breach("plain state", [*lines, *_no_equal(found)])


def _no_equal(found: Difference) -> list[Line]:
    """What looks the same and is not."""
    if found.one != found.other and "nan" not in f"{found.one} {found.other} {found.at}".lower():
        return []
    return [("but", "it does not equal itself: NaN, in a set or as a key, is like that; use None, or a text")]


def _copy(value: Any) -> Any:
    """Of plain values, ten times as fast as deepcopy; what cannot be pickled is copied by that."""
    if isinstance(value, tuple) and all(type(each) in _UNCHANGING for each in value):
        return value
    try:
        return pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception:
        return copy.deepcopy(value)


def _pair(program: Program, method: str, shape: str, found: Any) -> tuple[Any, Any]:
    """The two things that a method gives, the rows of an update as tuples or dicts."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        what = "(left, right)" if shape == "pair" else "(state, outputs)"
        raise ProgramError(program.name, f"{method} must give {what}, a pair, and gave {shown(found)}")
    if shape == "update":
        return found[0], [_row(program, row) for row in found[1] or ()]
    return found[0], _batch_rows(program, found[1]) if shape == "batch" else found[1]


def _row(program: Program, row: Any) -> tuple[Any, ...]:
    try:
        return tuple(row[name] for name in program.outputs.names) if isinstance(row, Mapping) else tuple(row)
    except (TypeError, KeyError):
        columns = ", ".join(program.outputs.names)
        raise ProgramError(
            program.name, f"update gave {shown(row)}, which is no row of its outputs, {columns}; give a list of tuples"
        ) from None


def _batch_rows(program: Program, given: Any) -> list[dict[str, Any]]:
    if given is None:
        return []
    if not isinstance(given, pa.RecordBatch) or given.schema.names != program.outputs.names:
        raise ProgramError(
            program.name, f"update_batch must give a record batch of {', '.join(program.outputs.names)}, or None"
        )
    return list(given.cast(program.outputs).to_pylist())


def _first_difference(shape: str, one: Any, other: Any) -> Difference | None:
    if shape in ("update", "batch"):
        return next(differences(one[0], other[0]), None) or next(row_differences(one[1], other[1]), None)
    return next(differences(one, other), None)


def _told(shape: str, result: Any) -> str:
    return f"{shown(result[0])}{_gives(result[1])}" if shape in ("update", "batch") else shown(result)


def _gives(rows: Sequence[Any]) -> str:
    if not rows:
        return ""
    told = [tuple(row.values()) if isinstance(row, Mapping) else row for row in rows]
    return f", gives {', '.join(map(shown, told))}"
