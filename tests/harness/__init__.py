"""What tests and benchmarks share: processes to kill, hostile streams, and what must come out."""
