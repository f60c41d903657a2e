"""Keys: from 32 secret bytes and a public statement to M, b, probes, shares and initial weights."""
