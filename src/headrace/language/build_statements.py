"""From the grammar's items, windows and statements to nodes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from lark import Token, v_args

from headrace.errors import ParseError, Span
from headrace.language.build_expressions import ExpressionBuilder, unquote
from headrace.language.built import Built, Name, cover, span
from headrace.language.durations import LONGEST, Duration, Part, read_parts, read_text
from headrace.language.nodes import (
    Column,
    Infinite,
    Item,
    LastEvents,
    Sliding,
    Statement,
    Tumbling,
    Window,
)
from headrace.model.ticks import MICROSECOND, Ticks

MOST_EVENTS: Final = 2**31 - 1


@dataclass(frozen=True)
class _Events:
    """The length of a count window."""

    count: int
    at: Span


class _Over(NamedTuple):
    """An `OVER (…)` of the SQL form."""

    partition: tuple[Column, ...]
    order_by: Column
    window: Window
    at: Span


class _Bound(NamedTuple):
    """One end of a frame, that much before the current row. `before` is None for unbounded."""

    kind: str
    before: int | None
    at: Span


class _Frame(NamedTuple):
    unit: str
    start: _Bound
    end: _Bound
    at: Span


class _SelectItem(NamedTuple):
    item: Item
    over: _Over | None


@v_args(inline=True)
class StatementBuilder(ExpressionBuilder):
    """One method a rule, like its base; `start` gives the statements of the whole text."""

    def start(self, *statements: tuple[Statement, ...] | None) -> tuple[Statement, ...]:
        return tuple(statement for group in statements if group for statement in group)

    def statement(
        self,
        select: Token,
        items: tuple[_SelectItem, ...],
        stream: str,
        where: Built | None,
        group: tuple[Column, ...] | None,
        window: Window | None,
    ) -> tuple[Statement, ...]:
        filter_, at = where.expr if where else None, span(select)
        if any(item.over for item in items):
            _refuse_mixed_forms(items, group, window)
            return tuple(
                Statement(run, stream, filter_, over.partition, over.window, over.order_by, at)
                for over, run in _runs(items)
            )
        if window is None:
            problem = "every metric needs a window: add OVER sliding 5 minutes"
            raise ParseError(problem, "", at, "or tumbling 1 hour, infinite, sliding 100 events")
        return (Statement(tuple(item.item for item in items), stream, filter_, group or (), window, None, at),)

    def items(self, *items: _SelectItem) -> tuple[_SelectItem, ...]:
        return items

    def stream(self, *names: Name) -> str:
        return ".".join(name.text for name in names)

    def where(self, condition: Built) -> Built:
        return condition

    def group(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        return columns

    def over(self, word: Token, window: Window) -> Window:
        return window

    def columns(self, *columns: Built) -> tuple[Column, ...]:
        return tuple(column.expr for column in columns if isinstance(column.expr, Column))

    # ----------------------------------------------------------------- items

    def item(self, function: Token, args: tuple[Built, ...], over: _Over | None, name: Name | None) -> _SelectItem:
        word, exprs = str(function), tuple(arg.expr for arg in args)
        if isinstance(args, _Distinct):
            if word.lower() != "count":
                hint = "only count does: count(DISTINCT x)"
                raise ParseError(f"{word} does not take DISTINCT", "", span(function), hint)
            word = "countDistinct"
        return _SelectItem(Item(word, exprs, name.text if name else None, span(function)), over)

    def star(self, star: Token) -> tuple[Built, ...]:
        return ()

    def distinct(self, word: Token, arg: Built) -> _Distinct:
        return _Distinct((arg,))

    def bare_column(self, name: Name, over: _Over | None, alias: Name | None) -> _SelectItem:
        hint = f"write an aggregation such as last({name.text}); all columns of the stream are kept anyway"
        raise ParseError("a SELECT lists aggregations, not columns", "", name.at, hint)

    def bare_star(self, star: Token) -> _SelectItem:
        hint = "write an aggregation such as count(*); all columns of the stream are kept anyway"
        raise ParseError("a SELECT lists aggregations, not *", "", span(star), hint)

    # --------------------------------------------------- windows, short form

    def sliding(self, word: Token, length: Duration | _Events, delay: Duration | None) -> Window:
        if isinstance(length, _Events):
            if delay is not None:
                raise ParseError("a window of events cannot be delayed", "", delay.at, "delay a window of time")
            return LastEvents(length.count, cover(span(word), length.at))
        return Sliding(_width(length), _delay(delay), _window_span(word, length, delay))

    def tumbling(self, word: Token, length: Duration | _Events, delay: Duration | None) -> Window:
        if isinstance(length, _Events):
            hint = "write sliding 100 events, or tumbling 1 hour"
            raise ParseError("a tumbling window has a length of time", "", length.at, hint)
        return Tumbling(_width(length), _delay(delay), _window_span(word, length, delay))

    def infinite(self, word: Token, delay: Duration | None) -> Window:
        return Infinite(_delay(delay), cover(span(word), delay.at) if delay else span(word))

    def events(self, quantity: Token, word: Token) -> _Events:
        count = _checked_count(_whole(quantity, "events"), span(quantity))
        return _Events(count, cover(span(quantity), span(word)))

    def delay(self, duration: Duration) -> Duration:
        return duration

    def duration(self, minus: Token | None, *parts: Part) -> Duration:
        at = cover(span(minus) if minus else parts[0].at, parts[-1].at)
        return read_parts(parts, at, negative=minus is not None)

    def part(self, quantity: Token, unit: Token) -> Part:
        return Part(str(quantity), str(unit), cover(span(quantity), span(unit)))

    # ----------------------------------------------------- windows, SQL form

    def frame_over(
        self,
        word: Token,
        partition: tuple[Column, ...] | None,
        order: tuple[Column, ...] | None,
        frame: _Frame | None,
    ) -> _Over:
        if order is None:
            hint = "OVER (PARTITION BY card ORDER BY ts RANGE BETWEEN INTERVAL 5 MINUTES PRECEDING AND CURRENT ROW)"
            raise ParseError("OVER (…) needs ORDER BY the time column", "", span(word), hint)
        if len(order) > 1:
            raise ParseError("ORDER BY takes one column: the time", "", order[1].at)
        window = frame_window(frame) if frame else Infinite(at=span(word))
        return _Over(partition or (), order[0], window, span(word))

    def partition(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        return columns

    def order(self, word: Token, *columns: Column) -> tuple[Column, ...]:
        return columns

    def sort(self, column: Built, direction: Token | None = None) -> Column:
        if direction is not None and direction.type == "DESC":
            raise ParseError("ORDER BY must go up: events are measured in the order of time", "", span(direction))
        assert isinstance(column.expr, Column)
        return column.expr

    def frame_unit(self, word: Token) -> Token:
        return word

    def frame_from(self, unit: Token, start: _Bound) -> _Frame:
        return _Frame(unit.type, start, _Bound("current", 0, start.at), span(unit))

    def frame_between(self, unit: Token, start: _Bound, end: _Bound) -> _Frame:
        return _Frame(unit.type, start, end, span(unit))

    def unbounded(self, word: Token, preceding: Token) -> _Bound:
        return _Bound("unbounded", None, cover(span(word), span(preceding)))

    def current(self, word: Token) -> _Bound:
        return _Bound("current", 0, span(word))

    def rows_before(self, quantity: Token, preceding: Token) -> _Bound:
        return _Bound("rows", _whole(quantity, "rows"), cover(span(quantity), span(preceding)))

    def time_before(self, length: Duration, preceding: Token) -> _Bound:
        if length.ticks < 0:
            raise ParseError("an interval before the current row cannot be negative", "", length.at)
        return _Bound("time", length.ticks, length.at)

    def following(self, first: Token | Duration, following: Token) -> _Bound:
        hint = "end the frame at CURRENT ROW"
        raise ParseError("a metric cannot see events that follow", "", span(following), hint)

    def interval_text(self, word: Token, text: Token, unit: Token | None) -> Duration:
        at = cover(span(word), span(unit or text))
        return read_text(f"{unquote(text)} {unit}" if unit else unquote(text), at)

    def interval_words(self, word: Token, duration: Duration) -> Duration:
        return Duration(duration.ticks, cover(span(word), duration.at))


class _Distinct(tuple[Built, ...]):
    """The one argument of `count(DISTINCT x)`."""


def frame_window(frame: _Frame) -> Window:
    """The window that a frame of the SQL form means."""
    unit, start, end, at = frame
    if unit == "GROUPS":
        raise ParseError("GROUPS frames are not part of the metric language", "", at, "use RANGE or ROWS")
    if end.kind == "unbounded":
        raise ParseError("a frame cannot end at UNBOUNDED PRECEDING", "", end.at, "end it at CURRENT ROW")
    return _rows_window(start, end, at) if unit == "ROWS" else _range_window(start, end, at)


def _range_window(start: _Bound, end: _Bound, at: Span) -> Window:
    for bound in (start, end):
        if bound.kind == "rows":
            hint = "write RANGE BETWEEN INTERVAL 5 MINUTES PRECEDING AND CURRENT ROW"
            raise ParseError("RANGE over time needs an interval with a unit", "", bound.at, hint)
    delay = Duration(end.before or 0, end.at)
    if start.before is None:
        return Infinite(_delay(delay), at)
    if start.before < delay.ticks:
        raise ParseError("the frame ends before it starts", "", start.at, "put the longer interval first")
    # RANGE is closed at its old edge, our windows are open there: one tick more takes that edge in.
    closed = Duration(start.before - delay.ticks + MICROSECOND, start.at)
    return Sliding(_width(closed), _delay(delay), at)


def _rows_window(start: _Bound, end: _Bound, at: Span) -> Window:
    if start.kind == "time" or end.kind == "time":
        place = (start if start.kind == "time" else end).at
        raise ParseError("ROWS counts rows, not time", "", place, "use RANGE for an interval of time")
    if start.before is None:
        hint = "write RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
        raise ParseError("ROWS needs a number of rows", "", start.at, hint)
    if end.before:
        raise ParseError("a window of events cannot be delayed", "", end.at, "end the frame at CURRENT ROW")
    return LastEvents(_checked_count(start.before + 1, start.at), at)


def _width(length: Duration) -> Ticks:
    if length.ticks <= 0:
        raise ParseError("a window must be longer than nothing", "", length.at, "write a length such as 5 minutes")
    if length.ticks > LONGEST:
        raise ParseError("the window is longer than 10,000 years", "", length.at, "write infinite")
    return Ticks(length.ticks)


def _delay(length: Duration | None) -> Ticks:
    if length is None:
        return Ticks(0)
    if length.ticks < 0:
        raise ParseError("a delay cannot be negative", "", length.at)
    if length.ticks > LONGEST:
        raise ParseError("the delay is longer than 10,000 years", "", length.at)
    return Ticks(length.ticks)


def _whole(token: Token, what: str) -> int:
    if not token.isdecimal():
        raise ParseError(f"a number of {what} is a whole number", "", span(token))
    digits = token.lstrip("0") or "0"
    return int(digits) if len(digits) <= 18 else MOST_EVENTS + 1


def _checked_count(count: int, at: Span) -> int:
    if count < 1:
        raise ParseError("a window must hold at least 1 event", "", at)
    if count > MOST_EVENTS:
        raise ParseError(f"a window holds at most {MOST_EVENTS:,} events", "", at, "write infinite")
    return count


def _window_span(word: Token, length: Duration, delay: Duration | None) -> Span:
    return cover(span(word), delay.at if delay else length.at)


def _refuse_mixed_forms(
    items: tuple[_SelectItem, ...], group: tuple[Column, ...] | None, window: Window | None
) -> None:
    if group is not None:
        raise ParseError("GROUP BY does not go with OVER (…)", "", group[0].at, "use PARTITION BY inside OVER (…)")
    if window is not None:
        raise ParseError("a SELECT with OVER (…) takes no second OVER at its end", "", window.at)
    bare = next((item for item in items if item.over is None), None)
    if bare is not None:
        hint = "give each aggregation its OVER (…), or write them in two SELECTs"
        raise ParseError(f"{bare.item.function} has no OVER (…), though others have", "", bare.item.at, hint)


def _runs(items: tuple[_SelectItem, ...]) -> list[tuple[_Over, tuple[Item, ...]]]:
    """Neighbours with equal windows become one statement, so columns come out in the order of the text."""
    runs = []
    for _, members in groupby(items, key=lambda item: item.over and item.over[:3]):
        run = list(members)
        if run[0].over is not None:
            runs.append((run[0].over, tuple(member.item for member in run)))
    return runs
