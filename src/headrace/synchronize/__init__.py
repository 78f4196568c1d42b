"""Parallel execution with the results of the sequential program: dependence, fork and join."""
