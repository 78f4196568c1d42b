from __future__ import annotations

import headrace


def test_all_lists_what_is_there() -> None:
    public = {name for name, value in vars(headrace).items() if not name.startswith("_") and not is_room(value)}
    assert public == set(headrace.__all__)
    assert headrace.__all__ == sorted(headrace.__all__)


def is_room(value: object) -> bool:
    return type(value).__name__ == "module"


def test_every_error_is_a_headrace_error() -> None:
    errors = [getattr(headrace, name) for name in headrace.__all__ if isinstance(getattr(headrace, name), type)]
    raised = [error for error in errors if issubclass(error, Exception)]
    assert raised
    assert all(issubclass(error, headrace.HeadraceError) for error in raised)
