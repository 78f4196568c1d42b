"""Events that were remembered for other metrics, or with other types, read as the metrics of today need them."""

from __future__ import annotations

import pyarrow as pa

from headrace.language import format_expr
from headrace.language.nodes import Column
from headrace.measure.events import NUMBER_ROW, TIME_ROW, EventEncoder, EventLayout
from headrace.measure.jit import Ints
from headrace.measure.words import from_words, type_named


def convert(old: EventLayout, events: Ints, encoder: EventEncoder) -> Ints:
    """The matrix of the encoder, from one of an older layout. A column that was not kept then is null in it."""
    batch = rows_of(old, events, encoder)
    return encoder.encode(batch, events[TIME_ROW], events[NUMBER_ROW])


def rows_of(old: EventLayout, events: Ints, encoder: EventEncoder) -> pa.RecordBatch:
    """The rows that the events once were, as far as they were kept, with the columns that the encoder reads."""
    columns = {}
    for name, type in encoder.columns.items():
        found = _column(name, old, events, encoder)
        columns[name] = pa.nulls(events.shape[1], type) if found is None else found.cast(type)
    return pa.record_batch(columns)


def has_column(layout: EventLayout, name: str, encoder: EventEncoder) -> bool:
    """Was the column kept in this layout?"""
    return _argument(layout, name) is not None or any(
        name in grouping and grouping in encoder.groupings for grouping in layout.groupings
    )


def _column(name: str, old: EventLayout, events: Ints, encoder: EventEncoder) -> pa.Array | None:
    index = _argument(old, name)
    if index is not None:
        return from_words(old.argument(index, events), type_named(old.arguments[index][1]), encoder.texts)
    for grouping in old.groupings:
        if name in grouping and grouping in encoder.groupings:
            return encoder.groupings[grouping].column(name, events[old.slot_row(grouping)], encoder.texts)
    return None


def _argument(layout: EventLayout, name: str) -> int | None:
    arguments = [argument for argument, _ in layout.arguments]
    plain = format_expr(Column(name))
    return arguments.index(plain) if plain in arguments else None
