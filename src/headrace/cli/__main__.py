"""`python -m headrace.cli` does what `headrace` does."""

from headrace.cli.app import run

run()
