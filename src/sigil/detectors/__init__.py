"""Detectors: what a suspicious client can tell from the gradients that a server returns."""

from sigil.detectors.detector import Detector
from sigil.detectors.pictures import draw
from sigil.detectors.scrutinizer import GradientScrutinizer
from sigil.detectors.splitguard import SplitGuard
from sigil.detectors.splitout import SplitOut, local_gradients, local_gradients_of_run

__all__ = [
    "Detector",
    "GradientScrutinizer",
    "SplitGuard",
    "SplitOut",
    "draw",
    "local_gradients",
    "local_gradients_of_run",
]
