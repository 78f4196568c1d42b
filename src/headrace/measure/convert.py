"""Events that were remembered for other metrics, or with other types, read as the metrics of today need them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.language import format_expr
from headrace.language.nodes import Column
from headrace.measure.events import NUMBER_ROW, TIME_ROW, EventEncoder, EventLayout, Grouping
from headrace.measure.words import from_words, type_named
from headrace.model.jit import Ints


def convert(layouts: Sequence[EventLayout], events: Ints, encoder: EventEncoder) -> Ints:
    """The matrix of the encoder, from one of the first of these layouts, after which came the others.

    A column that was not kept then, or not ever since, is null in it.
    """
    batch = rows_of(layouts, events, encoder)
    return encoder.encode(batch, events[TIME_ROW], events[NUMBER_ROW])


def rows_of(layouts: Sequence[EventLayout], events: Ints, encoder: EventEncoder) -> pa.RecordBatch:
    """The rows that the events once were, as far as they were kept, with the columns that the encoder reads."""
    columns = {}
    for name, type in encoder.columns.items():
        found = _column(name, layouts[0], events, encoder) if has_column(layouts, name) else None
        columns[name] = pa.nulls(events.shape[1], type) if found is None else found.cast(type)
    return pa.record_batch(columns)


def has_column(layouts: Sequence[EventLayout], name: str) -> bool:
    """Was the column kept in all of these layouts? Events may have been written in any of them meanwhile."""
    return all(
        _argument(layout, name) is not None or any(name in columns for columns in layout.groupings)
        for layout in layouts
    )


def _column(name: str, old: EventLayout, events: Ints, encoder: EventEncoder) -> pa.Array | None:
    index = _argument(old, name)
    if index is not None:
        return from_words(old.argument(index, events), type_named(old.arguments[index][1]), encoder.texts)
    grouping = _grouping(old, name, encoder)
    if grouping is None:
        return None
    return grouping.column(name, events[old.slot_row(grouping.columns)], encoder.texts)


def _grouping(layout: EventLayout, name: str, encoder: EventEncoder) -> Grouping | None:
    """The keys of groups have values too. (Those in a database are not asked: there, layouts do not change.)"""
    for columns in layout.groupings:
        grouping = encoder.groupings.get(columns, encoder.former.get(columns))
        if name in columns and isinstance(grouping, Grouping):
            return grouping
    return None


def _argument(layout: EventLayout, name: str) -> int | None:
    arguments = [argument for argument, _ in layout.arguments]
    plain = format_expr(Column(name))
    return arguments.index(plain) if plain in arguments else None
