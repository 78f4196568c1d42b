"""The `headrace` command: one file a command, and what they share (`files`, `progress`, `problems`)."""
