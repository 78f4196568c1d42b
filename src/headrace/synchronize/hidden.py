"""What all copies of a program share: values in its classes, and those that its functions name outside of themselves.

A value there may change while a program is tried: a cache does, and does no harm. So `Shared` puts all back as it was
at the beginning; then calls that were made can be made again, in another order, and must give the same.
"""

from __future__ import annotations

import copy
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import _lru_cache_wrapper, partial
from types import CodeType, FunctionType
from typing import Any, Final

from headrace.synchronize.equality import differences
from headrace.synchronize.program import Program

_HOLDERS: Final = (dict, list, set, deque)
_PLAIN: Final = (int, float, str, bytes, bool, type(None), tuple, frozenset)
_MOST_VALUES: Final = 10_000
"""What is larger was loaded, not remembered; and to copy it would take long."""


@dataclass(frozen=True)
class _Slot:
    """A name with its value, and how it gets another."""

    name: str
    value: Any
    content: Any
    """A copy of the value, as it was."""
    now: Callable[[], Any]
    put: Callable[[Any], None]

    @property
    def is_changed(self) -> bool:
        now = self.now()
        return now is not self.value or next(differences(self.content, now), None) is not None

    def put_back(self) -> None:
        if isinstance(self.value, _HOLDERS):
            self.value.clear()
            content = _copied(self.content, [_MOST_VALUES])
            more = self.value.extend if isinstance(self.value, list | deque) else self.value.update
            more(content)
        self.put(self.value)


class Shared:
    """Of one program, as it is now."""

    def __init__(self, program: Program):
        self._slots: list[_Slot] = []
        self._seen: set[int] = set()
        for kind in type(program).__mro__:
            if kind not in Program.__mro__:
                self._look_at_class(kind)

    def changed(self) -> list[str]:
        """The names of what is not as it was."""
        return list(dict.fromkeys(slot.name for slot in self._slots if slot.is_changed))

    def put_back(self) -> None:
        for slot in self._slots:
            if slot.is_changed:
                slot.put_back()

    # -------------------------------------------------------------------- look

    def _look_at_class(self, kind: type) -> None:
        if id(kind) in self._seen:
            return
        self._seen.add(id(kind))
        for name, value in list(vars(kind).items()):
            function = _function_of(value)
            if function is not None:
                self._look_at_function(function)
            elif not name.startswith("__"):
                put = partial(setattr, kind, name)
                self._keep(f"{kind.__name__}.{name}", value, partial(getattr, kind, name, None), put)

    def _look_at_function(self, function: FunctionType) -> None:
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        for value in [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]:
            name = f"a default of {function.__name__}"
            self._keep(name, value, partial(_same, value), partial(_same, value))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._keep(name, _content_of(cell), partial(_content_of, cell), partial(setattr, cell, "cell_contents"))
        namespace = function.__globals__
        for name in dict.fromkeys(_names_in(function.__code__)):
            self._look_at_global(namespace, name)

    def _look_at_global(self, namespace: dict[str, Any], name: str) -> None:
        value = namespace.get(name)
        function = _function_of(value)
        if isinstance(value, type):
            # What is imported is not looked through.
            if value.__module__ == namespace.get("__name__"):
                self._look_at_class(value)
        elif function is not None:
            if function.__module__ == namespace.get("__name__"):
                self._look_at_function(function)
        elif name in namespace:
            self._keep(name, value, partial(namespace.get, name), partial(namespace.__setitem__, name))

    def _keep(self, name: str, value: Any, now: Callable[[], Any], put: Callable[[Any], None]) -> None:
        if not (isinstance(value, _HOLDERS) or type(value) in _PLAIN):
            return
        try:
            self._slots.append(_Slot(name, value, _copied(value, [_MOST_VALUES]), now, put))
        except _TooLargeError:
            return


class _TooLargeError(Exception):
    """More values than are copied; or a value that contains itself."""


def _copied(value: Any, room: list[int]) -> Any:
    """What holds values is copied, and what it holds; all else is as it is."""
    room[0] -= 1
    if room[0] < 0:
        raise _TooLargeError
    if isinstance(value, dict):
        pairs = copy.copy(value)
        pairs.update({key: _copied(each, room) for key, each in value.items()})
        return pairs
    if isinstance(value, list | deque):
        values = copy.copy(value)
        for at, each in enumerate(value):
            values[at] = _copied(each, room)
        return values
    if isinstance(value, set):
        room[0] -= len(value)
        return copy.copy(value)
    return tuple(_copied(each, room) for each in value) if type(value) is tuple else value


def _function_of(value: Any) -> FunctionType | None:
    """Behind properties, class methods and wrappers. No attribute of anything else is asked for: that may cost."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if isinstance(value, FunctionType | _lru_cache_wrapper):
        value = inspect.unwrap(value)
    return value if isinstance(value, FunctionType) else None


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names_in(part)


def _same(value: Any, _: Any = None) -> Any:
    """A default is what it is: only what it holds may change."""
    return value


def _content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty as yet
        return ...
