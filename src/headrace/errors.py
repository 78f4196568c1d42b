"""Every exception Headrace raises on purpose.

HeadraceError
├── QueryError              the metric text is wrong: line, column, caret, hint
│   ├── ParseError          it does not read as the metric language
│   └── BindError           it reads, but names or types do not fit the data
├── DefinitionError         the arguments around the text are wrong (time, id, arrival, stream)
├── InputError              the data that came in cannot be used (missing file, empty file, format)
├── MeasureError            something went wrong while measuring
│   └── MetricOverflow      an exact integer or decimal result does not fit its type
├── StateError              the state a stream keeps between batches
│   ├── StateDamaged        a file of it is missing, torn or changed: which, and what to do
│   └── StateMismatch       it belongs to other metrics, another layout or a newer Headrace
├── FlowError               a flow cannot be run as it is drawn, or stopped
│   ├── StageFailed         a function of the user raised: stage, record, line
│   └── CopiesDiffer        copies of a task do not send the same: which record, what each has
├── QueueError              what moves between tasks
│   ├── QueueDamaged        a queue has lost or changed frames
│   ├── QueueUnreachable    a broker does not answer: which, what was tried, for how long
│   ├── OrderBroken         records of a data path are out of order
│   ├── SubstreamBroken     a substream is not what it was said to be: it goes on after its end, or comes of nothing
│   └── FrameDamaged        bytes that are not a frame
├── ProgramError            a program to be run in parallel is not as it should be, or its events are not
│   ├── PlanError           a plan of its workers is not valid: which workers, which tags
│   └── ProgramInconsistent in parallel it would not give what it gives sequentially: which rule, a short story
├── RequestRefused          a request to the front end: with the status of HTTP that says so
└── EnvironmentProblem      Java, Python or Spark on this machine cannot run it

Each keeps its fields and can be pickled: errors cross process borders on Spark.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A place in a text: 1-based line and column, and how many characters it covers."""

    line: int
    column: int
    length: int = 1


NOWHERE = Span(0, 0, 0)


class HeadraceError(Exception):
    """The root of the tree: catch this to catch everything Headrace raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(kind: type[HeadraceError], args: tuple[object, ...], fields: dict[str, object]) -> HeadraceError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class QueryError(HeadraceError):
    """The metric text is wrong; the message shows the line and a caret below the place."""

    def __init__(self, problem: str, text: str, at: Span, hint: str | None = None):
        self.problem = problem
        self.at = at
        self.hint = hint
        self.excerpt = _excerpt(text, at)
        super().__init__(self._message())

    def _message(self) -> str:
        where = f"line {self.at.line}, column {self.at.column}: " if self.at.line else ""
        lines = [f"{where}{self.problem}"]
        if self.excerpt:
            lines.append(self.excerpt)
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


_EXCERPT_WIDTH = 100


def _excerpt(text: str, at: Span) -> str:
    """The line of the error and a caret below it, cut to a width a terminal can show."""
    lines = text.split("\n")
    if not 1 <= at.line <= len(lines):
        return ""
    line = lines[at.line - 1].rstrip("\r")
    start = max(0, at.column - 1 - _EXCERPT_WIDTH // 2)
    # A tab counts as one column, so it must take one column on the screen as well.
    shown = line[start : start + _EXCERPT_WIDTH].replace("\t", " ")
    caret = at.column - 1 - start
    width = max(1, min(at.length, len(shown) - caret))
    return f"  {shown}\n  {' ' * caret}{'^' * width}"


class ParseError(QueryError):
    """The text does not read as the metric language."""


class BindError(QueryError):
    """The text reads, but a name or a type does not fit the data."""


class DefinitionError(HeadraceError):
    """The arguments around the text are wrong: time, id, arrival, stream."""


class InputError(HeadraceError):
    """The data that came in cannot be used."""


class MeasureError(HeadraceError):
    """Something went wrong while measuring."""


class MetricOverflow(MeasureError):
    """An exact result does not fit its type. Integers never wrap."""

    def __init__(self, metric: str, type_name: str):
        self.metric = metric
        self.type_name = type_name
        super().__init__(
            f"metric {metric}: the exact result does not fit {type_name}; cast the argument to a wider type, "
            f"for example sum(cast(x as decimal(38, 0)))"
        )


class StateError(HeadraceError):
    """The state that a stream keeps between batches cannot be used."""


class StateDamaged(StateError):
    """A state file is missing, torn or changed."""

    def __init__(self, path: str, problem: str):
        self.path = path
        self.problem = problem
        super().__init__(
            f"state file {path}: {problem}; restore it from a copy, or start the query anew with another state location"
        )


class StateMismatch(StateError):
    """The state belongs to other metrics, or another layout."""


class FlowError(HeadraceError):
    """A flow cannot be run as it is drawn, or has stopped."""


class StageFailed(FlowError):
    """A function of the user raised."""

    def __init__(self, stage: str, problem: str, record: str, place: str):
        self.stage = stage
        self.problem = problem
        self.record = record
        self.place = place
        super().__init__(f"stage {stage}: {problem}\n  at     {place}\n  record {record}")


class CopiesDiffer(FlowError):
    """Copies of a task do not send the same records under the same numbers."""

    def __init__(self, task: str, to: str, number: int, one: object, other: object):
        self.task, self.to, self.number = task, to, number
        super().__init__(
            f"copies of {task} do not agree: record {number} of what they send to {to} is {one} in one and {other} in "
            f"another; a stage in it is not a function of its records alone (a clock, chance, the order of a set): "
            f"find it with headrace.testing.determinism.check_deterministic"
        )


class QueueError(HeadraceError):
    """What moves between tasks cannot be read or written."""


class QueueDamaged(QueueError):
    """A queue has lost or changed frames."""

    def __init__(self, queue: str, problem: str):
        self.queue = queue
        self.problem = problem
        super().__init__(f"queue {queue}: {problem}")


class QueueUnreachable(QueueError):
    """A broker does not answer."""


class OrderBroken(QueueError):
    """Records came along a data path in an order that a path cannot have."""

    def __init__(self, path: str, problem: str):
        self.path, self.problem = path, problem
        super().__init__(
            f"{path}: it is out of order: {problem}; a stage before it changes the order of its records, or its source "
            f"does"
        )


class SubstreamBroken(QueueError):
    """A substream is not what it was said to be. `place` is a task or a stage."""

    def __init__(self, place: str, problem: str):
        self.place, self.problem = place, problem
        super().__init__(f"{place}: {problem}")


class FrameDamaged(QueueError):
    """Bytes that are not a frame."""

    def __init__(self, problem: str):
        self.problem = problem
        super().__init__(f"a frame is damaged: {problem}")


class ProgramError(HeadraceError):
    """A program that cannot be run in parallel as it is written, or events that do not fit it."""

    def __init__(self, program: str, problem: str):
        self.program, self.problem = program, problem
        super().__init__(f"program {program}: {problem}")


class PlanError(ProgramError):
    """A plan whose workers would not give the results of the sequential program."""


class ProgramInconsistent(ProgramError):
    """A program that breaks a rule of `check`. `story` is a counterexample of so many `events`, `hint` what to do."""

    def __init__(self, program: str, rule: str, broken: str, story: str, hint: str, events: int, seed: int):
        self.rule, self.story, self.hint = rule, story, hint
        self.events, self.seed = events, seed
        super().__init__(program, f"it breaks the rule {rule}:\n{broken}\n\n{story}\n\n{hint}")


class RequestRefused(HeadraceError):
    """A request that is not answered, and why; `retry_after_s` is when it may be."""

    def __init__(self, problem: str, status: int = 422, retry_after_s: float | None = None):
        self.status, self.retry_after_s = status, retry_after_s
        super().__init__(problem)


class EnvironmentProblem(HeadraceError):
    """Java, Python or Spark on this machine cannot run Headrace."""
