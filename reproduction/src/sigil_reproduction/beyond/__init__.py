"""Experiments that the paper does not have: detectors, attacks, and what the reduced scales hide."""
