from __future__ import annotations

from hypothesis import settings

from headrace.testing.spark import spark  # noqa: F401

# The first example of a test compiles or loads kernels: a deadline would measure that.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")
