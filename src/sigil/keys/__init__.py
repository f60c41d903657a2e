"""Not public but for `sigil.Key`: from a secret seed and a statement to M, b, probes and initial weights."""
