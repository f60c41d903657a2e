"""What demonstrations and tests stand in for the world with: a time-stamping authority."""
