"""Attacks on the mark: each takes a model and returns a new one, and the one given is unchanged.

A model is a whole :class:`sigil.models.Model` or a pair (client half, server half); what comes back is of the
same kind. :class:`NoiseInjection`, :class:`Starve` and :class:`Combine`, the exceptions, act during training,
as client observers.
"""

from sigil.attacks.combine import Combine
from sigil.attacks.dodge import dodge
from sigil.attacks.erase import erase
from sigil.attacks.extract import extract
from sigil.attacks.finetune import finetune
from sigil.attacks.launder import launder
from sigil.attacks.noise import NoiseInjection
from sigil.attacks.orthogonalise import orthogonalise
from sigil.attacks.overwrite import overwrite
from sigil.attacks.permute import permute
from sigil.attacks.prune import prune
from sigil.attacks.quantize import quantize
from sigil.attacks.read import read
from sigil.attacks.reverse import reverse
from sigil.attacks.starve import Starve
from sigil.attacks.subspace import Subspace, estimate, overlap, subspace
from sigil.attacks.target import Measurement, measure
from sigil.attacks.training import BEST, Tuning, share

__all__ = [
    "BEST",
    "Combine",
    "Measurement",
    "NoiseInjection",
    "Starve",
    "Subspace",
    "Tuning",
    "dodge",
    "erase",
    "estimate",
    "extract",
    "finetune",
    "launder",
    "measure",
    "orthogonalise",
    "overlap",
    "overwrite",
    "permute",
    "prune",
    "quantize",
    "read",
    "reverse",
    "share",
    "subspace",
]
