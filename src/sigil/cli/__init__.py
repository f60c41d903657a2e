"""Not public. The `sigil` command: one file per command group."""
