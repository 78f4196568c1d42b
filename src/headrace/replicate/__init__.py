"""A crash that nobody notices: copies of tasks, how they agree on an order, and where they run."""
