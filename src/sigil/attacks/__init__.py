"""Attacks on the mark: each takes a model and returns a new one, and the one given is unchanged.

A model is a whole :class:`sigil.models.Model` or a pair (client half, server half); what comes back is of the
same kind. :class:`NoiseInjection`, the exception, acts during training, as a client observer.
"""

from sigil.attacks.extract import extract
from sigil.attacks.finetune import finetune
from sigil.attacks.measurement import Measurement, measure
from sigil.attacks.noise import NoiseInjection
from sigil.attacks.overwrite import overwrite
from sigil.attacks.permute import permute
from sigil.attacks.prune import prune
from sigil.attacks.quantize import quantize
from sigil.attacks.subspace import Subspace, estimate, overlap, subspace
from sigil.attacks.training import share

__all__ = [
    "Measurement",
    "NoiseInjection",
    "Subspace",
    "estimate",
    "extract",
    "finetune",
    "measure",
    "overlap",
    "overwrite",
    "permute",
    "prune",
    "quantize",
    "share",
    "subspace",
]
