"""Not public. What demonstrations and tests use in place of the world: a time-stamping authority."""
