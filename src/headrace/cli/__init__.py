"""The `headrace` command: one file a command, and what they share (`reading`, `output`, `progress`, `problems`)."""
