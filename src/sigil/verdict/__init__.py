"""Not public but for what `sigil` names: what is read in a suspect with a key, what it proves, its words."""
