"""The `sigil` command: one file a command group."""
