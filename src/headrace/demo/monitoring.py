"""Monitoring of customers: what happens at them is held against rules, which change meanwhile; people are notified.

```
    customer events ──▶ watched ──────┬──▶ large ──┬──▶ notified, two tasks ──▶
    control events  ──▶ well-formed ──┴──▶ often ──┘
```

`headrace.demo.saas_events.Saas` makes events of both kinds, `monitoring` draws the rest. A customer has up to `SLOTS`
rules, two of them from the start (`standing`). A rule of the policy "size" is for single events that are large, and is
the matter of one join; one of the policy "often" is for events that come many within a time, and is the matter of the
other. Control events reach both joins, and add, change and remove rules; a rule that is added counts events that came
before it.

What is guaranteed. A join is a function of the order in which it takes events and controls, wherever that is cut into
batches, and reads no clock: so copies of it that take the same order give the same, and a restart gives the same again.
Each join has an order of its own. Events of customers whose rules do not change give the same notifications in every
order of events and controls. With `in_time` both joins take events and controls by `ts`, and where that is equal in the
order in which the sources were drawn: then no notification depends on chance, and events wait for the next control
event. In what order notifications come is up to chance always.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.demo.saas_events import (
    ACTIONS,
    CONTROLS,
    EVENTS,
    MOST_CUSTOMERS,
    MOST_EVENTS,
    MOST_NOTIFIED,
    POLICIES,
    SLOTS,
    WATCHED,
)
from headrace.flow import routing
from headrace.flow.builder import Flow, Stream
from headrace.flow.operators import Stage
from headrace.model.ticks import MILLISECOND, SECOND

Ints = npt.NDArray[np.int64]

_WATCHED, _ACTIONS, _POLICIES = pa.array(WATCHED), pa.array(ACTIONS), pa.array(POLICIES)
MESSAGES: Final = pa.schema(
    [*(EVENTS.field(name) for name in ("n", "ts", "customer", "kind", "user", "size"))]
    + [CONTROLS.field(name) for name in ("action", "rule", "policy", "threshold", "window_ms", "notify")]
)
"""Of both kinds, for the joins: an event has no `action`."""
MATCHES: Final = pa.schema(
    [MESSAGES.field(name) for name in ("n", "ts", "customer", "kind", "user", "rule", "policy")]
    + [("value", pa.int64()), ("limit", pa.int64()), ("notify", pa.int64())]
)
"""`value` is the size, or how many microseconds the last `limit` events took."""
NOTIFICATIONS: Final = pa.schema(
    [MESSAGES.field(name) for name in ("n", "ts", "customer", "rule", "policy")]
    + [("recipient", pa.string()), ("text", pa.string())]
)
"""`n` and `ts` are of the event that is the reason."""

# ----------------------------------------------------------------------- filters


def watched(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Customer events of kinds that a rule may be for, as messages."""
    is_watched = pc.and_(_is_among(batch, "kind", _WATCHED), _is_within(batch, "customer", 0, MOST_CUSTOMERS - 1))
    return _alike(batch.filter(pc.and_(is_watched, batch.column("size").is_valid())), EVENTS)


def well_formed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Control events that can be followed, as messages. What a removal says besides its rule does not matter."""
    is_known = _is_among(batch, "action", _ACTIONS)
    for name, last in (("customer", MOST_CUSTOMERS - 1), ("rule", SLOTS - 1)):
        is_known = pc.and_(is_known, _is_within(batch, name, 0, last))
    is_often = pc.equal(batch.column("policy"), "often")
    is_whole = pc.and_(_is_among(batch, "policy", _POLICIES), _is_among(batch, "kind", _WATCHED))
    for name, least, last in (("threshold", 1, 1 << 60), ("window_ms", 1, 1 << 40), ("notify", 0, MOST_NOTIFIED)):
        is_whole = pc.and_(is_whole, _is_within(batch, name, least, last))
    is_whole = pc.and_(is_whole, pc.or_(pc.invert(is_often), _is_within(batch, "threshold", 1, MOST_EVENTS)))
    is_removal = pc.equal(batch.column("action"), "remove")
    return _alike(batch.filter(pc.and_(is_known, pc.or_kleene(is_removal, is_whole))), CONTROLS)


def _is_among(batch: pa.RecordBatch, column: str, values: pa.Array) -> pa.Array:
    return pc.is_in(batch.column(column), value_set=values)


def _is_within(batch: pa.RecordBatch, column: str, least: int, last: int) -> pa.Array:
    values = batch.column(column)
    return pc.and_(pc.greater_equal(values, least), pc.less_equal(values, last))


def _alike(batch: pa.RecordBatch, own: pa.Schema) -> pa.RecordBatch:
    """With the columns of messages; those that it does not know are kept, for the order of the source."""
    columns = {
        field.name: batch.column(field.name) if field.name in own.names else pa.nulls(batch.num_rows, field.type)
        for field in MESSAGES
    }
    columns |= {name: batch.column(name) for name in batch.schema.names if name not in own.names}
    return pa.record_batch(columns)


# ------------------------------------------------------------------------- rules

_POLICY, _KIND, _THRESHOLD, _WINDOW, _NOTIFY = range(5)
_NO_RULE: Final = (-1, -1, 0, 0, 0)


def standing(customers: Ints) -> Ints:
    """The rules that customers have from the start: by customer and slot, five numbers each."""
    found: Ints = np.empty((len(customers), SLOTS, 5), np.int64)
    found[:] = _NO_RULE
    for slot, policy, threshold in ((0, "size", 10_000), (1, "often", 4)):
        found[:, slot, _POLICY] = POLICIES.index(policy)
        found[:, slot, _KIND] = (customers + slot) % len(WATCHED)
        found[:, slot, _THRESHOLD] = threshold
        found[:, slot, _WINDOW] = 5 * SECOND
        found[:, slot, _NOTIFY] = 1 + customers % 2
    return found


class Rules:
    """Those of all customers, as control events have them. A slot that is free is not changed, nor one added twice."""

    def __init__(self) -> None:
        self.table = standing(np.arange(0))

    def make_room(self, customers: int) -> int:
        """For customers up to this number; gives for how many there is room."""
        if customers > len(self.table):
            size = 1 << (customers - 1).bit_length()
            self.table = np.concatenate([self.table, standing(np.arange(len(self.table), size))])
        return len(self.table)

    def take(self, control: Mapping[str, Any]) -> None:
        """A control event that is well formed."""
        rule = self.table[control["customer"], control["rule"]]
        is_free = rule[_POLICY] < 0
        if control["action"] == "remove":
            rule[:] = _NO_RULE
        elif is_free == (control["action"] == "add"):
            rule[_POLICY], rule[_KIND] = POLICIES.index(control["policy"]), WATCHED.index(control["kind"])
            rule[_THRESHOLD], rule[_WINDOW] = control["threshold"], control["window_ms"] * MILLISECOND
            rule[_NOTIFY] = control["notify"]

    def matching(self, policy: int, customers: Ints, kinds: Ints) -> tuple[Ints, Ints, Ints]:
        """Of events: every row with each rule of the policy for its kind, in this order; the slot, and the rule."""
        own = self.table[customers]
        rows, slots = np.nonzero((own[:, :, _POLICY] == policy) & (own[:, :, _KIND] == kinds[:, None]))
        return rows, slots, own[rows, slots]


# ------------------------------------------------------------------------- joins


@dataclass(frozen=True)
class _Seen:
    """Columns of messages as numbers."""

    customers: Ints
    kinds: Ints
    sizes: Ints
    ticks: Ints

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> _Seen:
        kinds = pc.index_in(batch.column("kind"), value_set=_WATCHED)
        columns = [batch.column("customer"), kinds, batch.column("size"), batch.column("ts").cast(pa.int64())]
        plain = [column.fill_null(0) if column.null_count else column for column in columns]
        return cls(*(column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False) for column in plain))

    def part(self, start: int, stop: int) -> _Seen:
        each = slice(start, stop)
        return _Seen(self.customers[each], self.kinds[each], self.sizes[each], self.ticks[each])


class RuleJoin(Stage):
    """Joins events with the rules of their customers: a match for each rule that an event goes against.

    Events between two control events are joined together, and nothing is kept back.
    """

    policy: ClassVar[str]

    def __init__(self) -> None:
        self.rules = Rules()

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        if not batch.num_rows:
            return None
        seen, start, found = _Seen.of(batch), 0, []
        self._make_room(int(seen.customers.max()) + 1)
        controls = np.flatnonzero(batch.column("action").is_valid().to_numpy(zero_copy_only=False))
        for at in (*controls.tolist(), batch.num_rows):
            if at > start:
                rows, *others = self._matched(seen.part(start, at))
                found.append(np.stack([rows + start, *others]))
            if at < batch.num_rows:
                self.rules.take(batch.slice(at, 1).to_pylist()[0])
            start = at + 1
        return _matches(batch, self.policy, np.concatenate(found, axis=1)) if found else None

    def _matched(self, seen: _Seen) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """The row of each match, its slot, value, limit, and how many are to be notified."""
        rows, slots, rules = self.rules.matching(POLICIES.index(self.policy), seen.customers, seen.kinds)
        values, is_match = self._against(seen, rows, rules)
        kept = rules[is_match]
        return rows[is_match], slots[is_match], values[is_match], kept[:, _THRESHOLD], kept[:, _NOTIFY]

    @abstractmethod
    def _against(self, seen: _Seen, rows: Ints, rules: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Of each row with its rule: a value, and does the event go against the rule?"""

    def _make_room(self, customers: int) -> int:
        return self.rules.make_room(customers)

    def snapshot(self) -> Any:
        return {"rules": self.rules.table}

    def restore(self, state: Any) -> None:
        self.rules.table = state["rules"]


class Large(RuleJoin):
    """Events that are as large as a rule says, or larger."""

    policy = "size"

    def _against(self, seen: _Seen, rows: Ints, rules: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        sizes = seen.sizes[rows]
        return sizes, sizes >= rules[:, _THRESHOLD]


class Often(RuleJoin):
    """Events of a kind that complete as many of their customer, within the window of a rule, as it says."""

    policy = "often"

    def __init__(self) -> None:
        super().__init__()
        self._past: Ints = np.empty((0, MOST_EVENTS), np.int64)
        """Of each customer and kind, when the last events were, the newest first."""

    def _make_room(self, customers: int) -> int:
        wanted = super()._make_room(customers) * len(WATCHED)
        if wanted > len(self._past):
            # So long ago that no window reaches it.
            more = np.full((wanted - len(self._past), MOST_EVENTS), -(1 << 62), np.int64)
            self._past = np.concatenate([self._past, more])
        return wanted

    def _against(self, seen: _Seen, rows: Ints, rules: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        groups = seen.customers * len(WATCHED) + seen.kinds
        order = np.argsort(groups, kind="stable")
        ticks, own = seen.ticks[order], groups[order]
        begins = np.flatnonzero(np.concatenate([[True], own[1:] != own[:-1]]))
        counts = np.diff(np.append(begins, len(own)))
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        ranks = (np.arange(len(own)) - np.repeat(begins, counts))[places]
        # The first of those that a rule asks for is among these events, or before them.
        back = rules[:, _THRESHOLD] - 1
        before = back - ranks[rows]
        firsts = np.where(
            before <= 0, ticks[np.maximum(places[rows] - back, 0)], self._past[groups[rows], np.maximum(before - 1, 0)]
        )
        self._remember(own[begins], begins + counts, counts, ticks)
        spans = seen.ticks[rows] - firsts
        return spans, spans <= rules[:, _WINDOW]

    def _remember(self, groups: Ints, ends: Ints, counts: Ints, ticks: Ints) -> None:
        ages = np.arange(MOST_EVENTS)
        older = self._past[groups[:, None], np.maximum(ages - counts[:, None], 0)]
        newer = ticks[np.maximum(ends[:, None] - 1 - ages, 0)]
        self._past[groups] = np.where(ages < counts[:, None], newer, older)

    def snapshot(self) -> Any:
        return {**super().snapshot(), "past": self._past}

    def restore(self, state: Any) -> None:
        super().restore(state)
        self._past = state["past"]


def _matches(batch: pa.RecordBatch, policy: str, found: Ints) -> pa.RecordBatch | None:
    if not found.size:
        return None
    rows, slots, *values = (pa.array(each) for each in found)
    taken = batch.select(MATCHES.names[:5]).take(rows)
    return pa.RecordBatch.from_arrays([*taken.columns, slots, pa.repeat(policy, len(rows)), *values], schema=MATCHES)


# ----------------------------------------------------------------- notifications


def notified(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A notification for each person that a match is to be told to: none, or several."""
    counts = batch.column("notify").to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(batch.num_rows), counts)
    persons = pa.array(np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts))
    told = batch.take(pa.array(rows))
    recipient = _text("admin-", persons, "@customer-", told.column("customer"))
    text = _text(told.column("kind"), " by user ", told.column("user"), ": ", told.column("value"), " against ")
    columns = [told.column(name) for name in NOTIFICATIONS.names[:5]]
    return pa.RecordBatch.from_arrays([*columns, recipient, _text(text, told.column("limit"))], schema=NOTIFICATIONS)


def _text(*parts: str | pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*(p if isinstance(p, str) else p.cast(pa.string()) for p in parts), "")


def monitoring(
    flow: Flow, events: Stream, controls: Stream, tasks: int = 2, *, in_time: bool = False, apart: bool = True
) -> Stream:
    """Notifications (`NOTIFICATIONS`) of events and controls as `Saas` makes them, by two joins and `tasks` tasks.

    `in_time`  joins take events and controls in the order of the `ts` of their sources, which must have that column
    `apart`    filters are tasks of their own; else they run with what is before them
    """
    route = routing.rebalance() if apart else None
    streams = [
        flow.stage("watched", watched, events, route=route),
        flow.stage("well-formed", well_formed, controls, route=route),
    ]
    streams = [stream.ordered(by="ts") for stream in streams] if in_time else streams
    joins = [
        flow.stage(join.__name__.lower(), join, *streams, parallelism=1, schema=MATCHES) for join in (Large, Often)
    ]
    return flow.stage("notified", notified, *joins, parallelism=tasks, route=routing.key("customer"))
