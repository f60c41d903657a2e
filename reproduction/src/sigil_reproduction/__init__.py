"""Every table and figure of the paper, one file each, by one command: `sigil reproduce`."""
