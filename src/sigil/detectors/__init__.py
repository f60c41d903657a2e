"""Detectors: what a suspicious client can tell from the gradients that a server returns."""

from sigil.detectors.detector import Detector
from sigil.detectors.local import local_gradients, local_gradients_of_run
from sigil.detectors.pictures import draw
from sigil.detectors.scrutinizer import GradientScrutinizer
from sigil.detectors.splitguard import SplitGuard
from sigil.detectors.splitout import SplitOut

__all__ = [
    "Detector",
    "GradientScrutinizer",
    "SplitGuard",
    "SplitOut",
    "draw",
    "local_gradients",
    "local_gradients_of_run",
]
