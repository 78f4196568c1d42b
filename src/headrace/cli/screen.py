"""The two places the command line writes to: answers on stdout, progress and problems on stderr."""

from __future__ import annotations

from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
