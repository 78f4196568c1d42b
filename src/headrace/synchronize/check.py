"""`check`: does a program give, run in parallel, what it gives sequentially? Tried on a sample of its events.

```python
print(hr.check(KeyCounters(), events, tag=("kind", "key")))
```

Each rule is tried on states that are reached by random runs of the sample and random forks, small ones first. All of
it comes from a seed: the same check finds the same. What is found is made as small as it can be, and told as a story.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import ProgramError, ProgramInconsistent
from headrace.model.failures import RAISED, shown, stage_failed
from headrace.synchronize.cases import (
    LARGEST,
    Case,
    draw_batches,
    draw_fork_join,
    draw_independence,
    draw_join_update,
    draw_plain_state,
    judged,
    smaller,
)
from headrace.synchronize.guarded import Bench, Breach, Calls
from headrace.synchronize.hidden import Shared
from headrace.synchronize.inputs import check_outputs
from headrace.synchronize.plan import handles_kind
from headrace.synchronize.program import Program, Tag, kind_of, pairs_of
from headrace.synchronize.samples import Sample, read_events, tag_columns
from headrace.synchronize.stories import RULES, sentences, told
from headrace.synchronize.tags import check_tags, tag_text
from headrace.synchronize.whole_runs import draw_whole_run

ROUNDS: Final = 300
_DRAWS_A_CASE: Final = 4
"""Not all draws make a case: there may be no two sides, or no event left."""
_SHRINKING: Final = 600
_MOST_COMPARED: Final = 120
"""Tags of which each is asked about each."""
_KINDS_NAMED: Final = 5

Draw = Callable[[Random, Sample, int], Case | None]
_DRAWS: Final[dict[str, Draw]] = {
    "plain state": draw_plain_state,
    "independence": draw_independence,
    "fork-join": draw_fork_join,
    "join-update": draw_join_update,
    "batches": draw_batches,
    "whole runs": draw_whole_run,
}
_OF_EACH_CALL: Final = ("purity", "hidden state")


@dataclass(frozen=True)
class Checked:
    """What was tried, with nothing found. `print` shows it."""

    program: str
    events: int
    tags: int
    seed: int
    tried: dict[str, int] = field(default_factory=dict)
    """For each rule, how often."""
    notes: tuple[str, ...] = ()
    """What could not be tried, and why."""

    def rows(self) -> list[tuple[str, int, str]]:
        """For each rule: its name, how often it was tried, and what it asks for."""
        return [(name, count, RULES[name].short) for name, count in self.tried.items()]

    def __str__(self) -> str:
        lines = [f"program {self.program}: consistent on {self.events} events with {self.tags} tags, seed {self.seed}"]
        lines += [f"  {name:<13} {count:>6,}  {short}" for name, count, short in self.rows()]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def check(
    program: Program | type[Program],
    events: pa.Table | pa.RecordBatch | Sequence[dict[str, Any]] | None = None,
    *,
    tag: str | Sequence[str] | None = None,
    time: str | None = None,
    seed: int = 0,
    rounds: int = ROUNDS,
    tolerance: float = 0.0,
) -> Checked:
    """Try a program on a sample of its events, against the rules that make parallel runs equal to the sequential one.

    `events` are a table, a record batch, a list of dicts, or none where the program has a method `examples()` of dicts.
    `tag` is the column that has an event's tag, or several; without it, `program.tag`. With `time`, no event is tried
    after a later one that it would come before on the same worker. `tolerance` is how much floats may differ, relative
    to their size.

    Raises ProgramInconsistent with the rule that is broken and the smallest story found; StageFailed where a function
    of the program raises; ProgramError where program and events do not fit each other.
    """
    program = _made(program)
    shared = Shared(program)
    _try_start(program)
    rng = Random(seed)
    given, columns = read_events(program, events), tag_columns(program, tag)
    check_tags(program, len(columns), program.tags or (), "tags")
    sample = Sample(program, given, columns, rng, time)
    bench = Bench(program, sample, tolerance)
    tried = {"depends": _check_depends(program, [*sample.all_tags, *(program.tags or ())])}
    tried["types"] = _check_handles(program, sample)
    calls = 0
    for rule, draw in _DRAWS.items():
        if rule != "batches" or program.is_columnar:
            cases = list(_cases(rng, sample, draw, rounds))
            tried[rule] = len(cases)
            calls += sum(_try(bench, case, seed) for case in cases)
    _check_shared(bench, shared, rng, seed)
    tried |= dict.fromkeys(_OF_EACH_CALL, calls)
    order = [name for name in RULES if name in tried]
    return Checked(
        program.name,
        len(sample.events),
        len(sample.tags),
        seed,
        {name: tried[name] for name in order},
        tuple(_notes(bench)),
    )


def _made(program: Program | type[Program]) -> Program:
    made: Any = program
    if isinstance(program, type) and issubclass(program, Program):
        try:
            made = program()
        except TypeError as error:
            problem = f"it cannot be made without arguments, so give check one that is made: {error}"
            raise ProgramError(program.__name__, problem) from error
    if not isinstance(made, Program):
        raise ProgramError(type(made).__name__, "it is no program; make it a subclass of hr.Program")
    if not isinstance(getattr(made, "outputs", None), pa.Schema):
        raise ProgramError(made.name, "it does not say what it gives; write outputs = pa.schema([...])")
    if not hasattr(made, "depends"):
        raise ProgramError(made.name, "it does not say which events depend on each other; write depends")
    check_outputs(made)
    return made


def _try_start(program: Program) -> None:
    try:
        program.init()
    except RAISED as error:
        raise stage_failed(f"{program.name}.init", error, "none") from error


# ------------------------------------------------------------------ random cases


def _cases(rng: Random, sample: Sample, draw: Draw, rounds: int) -> Iterator[Case]:
    """Small ones first: what is found with a few events is found at once, and told in a few lines."""
    found = 0
    for _ in range(_DRAWS_A_CASE * rounds):
        case = draw(rng, sample, 1 + LARGEST * found // rounds) if found < rounds else None
        if case is not None:
            found += 1
            yield case


def _try(bench: Bench, case: Case, seed: int) -> int:
    """How many calls of the program were looked at."""
    calls = Calls(bench)
    breach = judged(case, calls)
    if breach is None:
        return calls.made
    breach = _shrunk(bench, case, breach)
    if breach.failure is not None:
        raise breach.failure
    raise _broken(bench.program, breach.rule, breach.story, breach.events, seed)


def _shrunk(bench: Bench, case: Case, breach: Breach) -> Breach:
    """The same rule broken by less. One that does not show again stays as it was seen."""
    left = _SHRINKING
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in smaller(case, bench.sample):
            left -= 1
            found = judged(candidate, Calls(bench))
            if found is not None and (found.rule, found.within) == (breach.rule, breach.within):
                case, breach, is_smaller = candidate, found, True
                break
            if left <= 0:
                return breach
    return breach


def _check_shared(bench: Bench, shared: Shared, rng: Random, seed: int) -> None:
    """Where something outside of the program's states has changed, what came before must make no difference."""
    changed = shared.changed()
    if not changed:
        return
    reason = f"{', '.join(changed)} remembers what came before"
    made, after = list(bench.made.values()), Shared(bench.program)
    try:
        for order in (made[::-1], rng.sample(made, len(made))):
            shared.put_back()
            calls = Calls(bench)
            for each in order:
                calls.again(each, reason)
    except Breach as breach:
        # Otherwise another check would begin with what this one has left behind, and find nothing.
        after = shared
        raise _broken(bench.program, breach.rule, breach.lines, 1, seed) from None
    finally:
        after.put_back()


# ---------------------------------------------------------------- tags and types


def _check_depends(program: Program, tags: list[Tag]) -> int:
    """How many pairs of tags were asked about."""
    table = program.table
    if table is not None:
        return len(table)
    tags = list(dict.fromkeys(tags))[:_MOST_COMPARED]
    for number, a in enumerate(tags):
        for b in tags[: number + 1]:
            answers = [_depends(program, *pair) for pair in ((a, b), (b, a))]
            strange = [answer for answer in answers if not isinstance(answer, bool | np.bool_)]
            if strange or answers[0] != answers[1]:
                asked = [f"depends({tag_text(x)}, {tag_text(y)})" for x, y in ((a, b), (b, a))]
                story = [("", f"{call} is {answer!r}") for call, answer in zip(asked, answers, strict=True)]
                raise _broken(program, "depends", story[:1] if a == b else story)
    return len(tags) * (len(tags) + 1) // 2


def _depends(program: Program, a: Tag, b: Tag) -> Any:
    try:
        return program.depends(a, b)
    except RAISED as error:
        raise stage_failed(f"{program.name}.depends", error, f"{tag_text(a)} and {tag_text(b)}") from error


def _check_handles(program: Program, sample: Sample) -> int:
    kinds: dict[type, None] = {sample.root.kind: None}
    for pair in pairs_of(program):
        kinds |= {kind: None for kind in (pair.whole, pair.left, pair.right) if kind is not None}
    for kind in kinds:
        for tag in sample.tags:
            try:
                answer = program.handles(kind, tag)
            except RAISED as error:
                record = f"{kind.__name__} and {tag_text(tag)}"
                raise stage_failed(f"{program.name}.handles", error, record) from error
            if kind is sample.root.kind and not answer:
                said = f"handles({kind.__name__}, {tag_text(tag)}) is {shown(answer)}"
                raise _broken(program, "types", [("", f"{said}, and {kind.__name__} is the initial state")])
            _check_bucket(program, kind, tag, answer)
    return len(kinds) * len(sample.tags)


def _check_bucket(program: Program, state: type, tag: Tag, answer: bool) -> None:
    """Where keys share buckets, plans know the kind of a tag alone."""
    if program.table is None or program.tags is not None or not isinstance(tag, tuple) or len(tag) < 2:
        return
    of_kind = handles_kind(program, state, tag[0])
    if bool(of_kind) != bool(answer):
        told = [(f"{tag_text(tag)}", answer), (f"({tag[0]!r},)", of_kind)]
        story = [("", f"handles({state.__name__}, {asked}) is {shown(said)}") for asked, said in told]
        raise _broken(program, "types", [*story, ("", "and keys share buckets: it is asked about kinds alone")])


def _broken(
    program: Program, rule: str, story: list[tuple[str, str]], events: int = 0, seed: int = 0
) -> ProgramInconsistent:
    words = RULES[rule]
    return ProgramInconsistent(
        program.name, rule, sentences(words.broken), told(story), sentences(words.mend), events, seed
    )


# ------------------------------------------------------------------------- notes


def _notes(bench: Bench) -> Iterator[str]:
    """What a person should know of a check that found nothing."""
    sample, program = bench.sample, bench.program
    if sample.heartbeats:
        yield f"rows without a tag are heartbeats: {sample.heartbeats} left out"
    if not sample.pairs:
        yield "it has no fork and no join, so it runs sequentially"
    for pair in sample.pairs:
        if not bench.forked[pair.fork]:
            yield f"{pair.fork} was never called: no state of its type was reached"
    silent = [number for number in range(len(sample.tags)) if number not in sample.has_events]
    if silent:
        yield f"the sample has no event with the tag {sample.tags_text(silent)}"
    if len(sample.all_tags) > len(sample.has_events):
        yield f"{len(sample.has_events)} of {len(sample.all_tags)} tags were tried{_kinds_left_out(sample)}"
    kinds = {kind_of(tag) for tag in [*sample.all_tags, *(program.tags or ())]}
    named = [kind for key, others in (program.table or {}).items() for kind in (key, *others)]
    unknown = [str(kind) for kind in dict.fromkeys(named) if kind not in kinds]
    if unknown:
        yield f"depends speaks of {', '.join(unknown)}, and no event has that tag"
    if bench.has_floats and not bench.tolerance:
        yield "states have floats: with other values, sums may differ in their last digits"


def _kinds_left_out(sample: Sample) -> str:
    tried = {kind_of(sample.tags[number]) for number in sample.has_events}
    left = [str(kind) for kind in dict.fromkeys(map(kind_of, sample.all_tags)) if kind not in tried]
    more = f" and {len(left) - _KINDS_NAMED} more" if len(left) > _KINDS_NAMED else ""
    return f", and nothing of the kind {', '.join(left[:_KINDS_NAMED])}{more}" if left else ""
