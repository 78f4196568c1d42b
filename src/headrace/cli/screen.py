"""The two places the command line writes to: answers on stdout, progress and problems on stderr."""

from __future__ import annotations

from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def size_text(size: int) -> str:
    """Bytes, as a person reads them."""
    amount, units = float(size), ("bytes", "KB", "MB", "GB", "TB")
    for unit in units:
        if amount < 1000 or unit == units[-1]:
            return f"{amount:,.0f} {unit}" if unit == "bytes" else f"{amount:,.1f} {unit}"
        amount /= 1000
    raise AssertionError
