"""How numbers, dates and timestamps look as text. The patterns are read by Python's `re` and by Arrow's RE2 alike."""

from __future__ import annotations

from typing import Final

_YEAR: Final = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR: Final = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE: Final = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_CLOCK: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?"
_ZONE: Final = r"(?:Z|[+-](?:0[0-9]|1[0-4]):?[0-5][0-9])"

DATE_PATTERN: Final = rf"^{_DATE}$"
"""A real day of the years 1 to 9999, as 2024-02-29."""

TIMESTAMP_PATTERN: Final = rf"^{_DATE}(?:[ T]{_CLOCK}{_ZONE}?)?$"
"""A day, and maybe a time with up to 6 digits of a second and an offset from UTC."""

ZONED_PATTERN: Final = rf"[0-9]{_ZONE}$"
INTEGER_PATTERN: Final = r"^[+-]?[0-9]{1,19}$"
DECIMAL_PATTERN: Final = r"^[+-]?(?:[0-9]{1,38}(?:\.[0-9]{0,38})?|\.[0-9]{1,38})(?:[eE][+-]?[0-9]{1,2})?$"
DOUBLE_PATTERN: Final = r"^[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"
