"""An assignment for people: its table, and the sentences about what is not as it was asked for."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

_WIDTH: Final = 110
_SHOWN: Final = 24
"""Copies of a worker in the table; a terminal has no room for thousands."""
_NAMED: Final = 3
_ROUNDING: Final = 1e-6
ACTIVE, REPLICA = "●", "○"

Row = tuple[int | str, str, float, float, Sequence[tuple[str, bool]]]
"""Worker, host, load, budget, and its copies: is each the active one?"""


class _Share(Protocol):
    @property
    def worker(self) -> int | str: ...
    @property
    def host(self) -> str: ...
    @property
    def load(self) -> float: ...
    @property
    def budget(self) -> float: ...


def table(rows: Sequence[Row], notes: Sequence[str]) -> str:
    cells = [("worker", "host", "load", "budget")]
    cells += [(str(worker), host, number(load), number(budget)) for worker, host, load, budget, _ in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    lines: list[str] = []
    for at, (worker, host, load, budget) in enumerate(cells):
        head = f"{worker:{widths[0]}}  {host:{widths[1]}}  {load:>{widths[2]}}  {budget:>{widths[3]}}  "
        lines += _beside(head, _marked(rows[at - 1][4]) if at else [f"copies ({ACTIVE} active, {REPLICA} replica)"])
    return "\n".join([*lines, *(f"note: {note}" for note in notes)])


def _marked(copies: Sequence[tuple[str, bool]]) -> list[str]:
    shown = [f"{ACTIVE if is_active else REPLICA} {name}" for name, is_active in copies[:_SHOWN]]
    if len(copies) > _SHOWN:
        shown.append(f"and {len(copies) - _SHOWN:,} more")
    return shown or ["nothing"]


def _beside(head: str, words: Sequence[str]) -> Iterator[str]:
    """Words in lines; no word is torn from its mark."""
    bound = "  ".join(word.replace(" ", "\0") for word in words)
    wrapped = textwrap.wrap(bound, max(40, _WIDTH - len(head)), break_long_words=False, break_on_hyphens=False)
    for at, line in enumerate(wrapped):
        yield ((" " * len(head) if at else head) + line.replace("\0", " ")).rstrip()


def number(value: float) -> str:
    """12, 12.5, 0.03: no more digits than tell something."""
    text = f"{value:,.1f}" if value >= 1 else f"{value:.2g}"
    return text.removesuffix(".0")


# -------------------------------------------------------------------- notes


def no_worker(tasks: int) -> Iterator[str]:
    if tasks:
        yield f"{_counted(tasks, 'task')} cannot run: there is no worker; start one"


def too_few_places(asked: Sequence[int], places: int, kind: str) -> Iterator[str]:
    elsewhere = ", best on another host" if kind == "worker" else ""
    for count in sorted({each for each in asked if each > places}):
        tasks, one = asked.count(count), places == 1
        yield (
            f"{'1 task asks' if tasks == 1 else f'{tasks:,} tasks ask'} for {count} copies, and there "
            f"{'is' if one else 'are'} {_counted(places, kind)}: {places} of {'them' if tasks == 1 else 'each'} "
            f"{'runs' if one else 'run'}; add {_counted(count - places, kind)}{elsewhere}, "
            f"or ask for {_counted(places, 'copy', 'copies')}"
        )


def one_machine(host: str, workers: int, asked: Iterable[int], by_worker: bool) -> Iterator[str]:
    if by_worker and workers > 1 and max(asked, default=1) > 1:
        yield (
            f"all {workers} workers are on host {host}: copies of a task run in different workers, but if the machine "
            "is lost, all copies are; add a worker on another host"
        )


def uneven(shares: Sequence[_Share], even: Sequence[float], kind: str) -> Iterator[str]:
    """A worker carries more than the budget it would have if a task could run anywhere."""
    above = [
        (share, plain)
        for share, plain in zip(shares, even, strict=True)
        if share.load > plain * (1 + _ROUNDING) and share.budget > plain * (1 + _ROUNDING)
    ]
    if above:
        worst, plain = max(above, key=lambda each: each[0].load / each[1])
        where = _listed(sorted({share.host if kind == "host" else str(share.worker) for share, _ in above}), kind)
        yield (
            f"{'1 worker carries' if len(above) == 1 else f'{len(above)} workers carry'} more than an even budget "
            f"(worker {worst.worker}: {number(worst.load)}, even would be {number(plain)}): no task runs twice on one "
            f"{kind}, so others cannot take it; add {'workers' if kind == 'host' else 'capacity'} on {where}"
        )


def overfull(shares: Sequence[_Share]) -> Iterator[str]:
    for share in shares[:_NAMED]:
        yield (
            f"worker {share.worker} carries {number(share.load)}, above its budget of {number(share.budget)}: nothing "
            "of it fits elsewhere; add a worker, or split its heaviest task"
        )


def _listed(names: Sequence[Any], kind: str) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{kind}{'' if len(names) == 1 else 's'} {', '.join(names[:_NAMED])}{more}"


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
