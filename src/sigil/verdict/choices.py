"""What the person who runs a verification could have chosen: refused, called an experiment, or counted.

A p-value holds if nothing that it rests on was picked to suit the result. What the key states or derives is
nobody's choice; what the key leaves open is counted; any other choice makes the verification an experiment.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography.x509 import Certificate
from torch import nn

from sigil import models
from sigil.alignment import LAYERS
from sigil.data.inputs import Inputs, Normalisation, parse_normalisation
from sigil.errors import ConfigError
from sigil.keys.key import Key
from sigil.keys.seal import Root, read_roots
from sigil.keys.statement import KeyFields
from sigil.models import cut_points
from sigil.probing import Suspect, module_of
from sigil.rules import ALPHA, MOST_CUTS, PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2, Price


def chosen(
    suspect: Suspect, key: Key, *, shape: tuple[int, ...], probes: int | None, seed: int | None, alpha: float
) -> tuple[str, ...]:
    """What was chosen that nobody may choose, in words."""
    stated = key.fields
    spec = getattr(module_of(suspect), "spec", None)
    choices = [
        (seed is not None, "the seed of the noise was chosen"),
        (probes not in (None, stated.probes), f"the key asks for {stated.probes} probes and not {probes}"),
        (alpha > ALPHA, f"the level of {alpha:g} is not one of proof, which begins at {ALPHA:g}"),
        (
            float(stated.alpha) < alpha <= ALPHA,
            f"the key states the level {stated.alpha}, and a milder one of {alpha:g} was chosen",
        ),
        (
            stated.input_shape is not None and stated.input_shape != shape,
            f"the key states inputs of shape {stated.input_shape} and not {shape}",
        ),
        (
            stated.cut is not None and spec is not None and spec.cut not in (None, stated.cut),
            f"the key states the cut {stated.cut}, not the one that was used",
        ),
        (
            stated.model is not None and spec is not None and spec.name != stated.model,
            f"the key states the model {stated.model}, not the one that was opened",
        ),
        (
            not isinstance(suspect, nn.Module) and not hasattr(suspect, "sha256"),
            "the suspect is a function, of which nobody knows what it does",
        ),
        (key.awaits_seal, "the key is not sealed yet"),
    ]
    return tuple(words for true, words in choices if true)


def chosen_normalisation(
    used: Inputs, given: Normalisation | None, key: Key, *, fixed: bool
) -> tuple[str, ...]:
    """What is wrong with the normalisation of the inputs that are `used`, in words.

    Inputs are `fixed` if the key's statement names them. Their normalisation must be settled as well, or
    the claimant could look for one that suits: images have the stated one, numbers are taken as they are.
    Somebody else who gives inputs says how they are normalised, unless the key does.
    """
    stated = parse_normalisation(key.fields.normalisation)
    if fixed and used.is_image and stated is None:
        return ("the key states its inputs and not their normalisation",)
    if fixed and not used.is_image and used.normalisation is not None:
        return ("the key states inputs that are taken as they are, and they were normalised",)
    if (
        given is not None
        and stated is not None
        and [[*part] for part in given] != [[*part] for part in stated]
    ):
        return ("the key states another normalisation than the one that was given",)
    return ()


def count_cuts(suspect: Suspect, key: Key) -> int:
    """At how many places and with how many shapes of input a suspect could be read, if the key does not say.

    A key that leaves the shape of inputs open counts as the most, 64, since many shapes give the same shape
    of activations. What the statement alone leaves open is counted in any case (:func:`least_cuts`), since
    who checks a record knows no more.
    """
    module = module_of(suspect)
    spec = getattr(module, "spec", None)
    if spec is not None:
        return cuts_of_model(spec.name, spec.cut, key)
    if module is None or key.fields.input_shape is None:
        return MOST_CUTS
    leaves = sum(1 for part in module.modules() if not any(part.children()))
    return max(least_cuts(key.fields), min(MOST_CUTS, leaves))


def cuts_of_model(architecture: str, cut: str | None, key: Key) -> int:
    """The same of one of Sigil's own models."""
    if key.fields.input_shape is None:
        return MOST_CUTS
    points = 1 if cut is not None and key.fields.cut == cut else len(cut_points(architecture))
    return max(least_cuts(key.fields), min(MOST_CUTS, points))


def least_cuts(stated: KeyFields) -> int:
    """How many cuts and shapes of input a statement leaves open at least, whatever file was examined."""
    if stated.input_shape is None:
        return MOST_CUTS
    if stated.cut is not None or (stated.model or "").startswith(LAYERS):
        return 1
    if stated.model is None:
        return min(len(cut_points(name)) for name in models.names())
    return len(cut_points(stated.model)) if stated.model in models.names() else MOST_CUTS


def trusted_root(key: Key, roots: Sequence[Certificate] | str | os.PathLike[str] | None) -> Root | None:
    """The trusted root under which the key was stamped; None if nobody named one or the key is plain."""
    if roots is None:
        return None
    if key.stamp is None:
        raise ConfigError("roots were given, but the key is plain: it has no time stamp to check.")
    if isinstance(roots, str | os.PathLike):
        return key.stamp.check(read_roots(Path(roots)))
    if not isinstance(roots, list | tuple) or not all(isinstance(root, Certificate) for root in roots):
        raise ConfigError("roots must be certificates, or the path of a PEM file that holds some.")
    return key.stamp.check(roots)


def price(
    key: Key,
    *,
    cuts: int,
    tries: int = 1,
    trusted: bool = True,
    register: int | None = None,
) -> Price:
    """What a verdict with this key multiplies p by.

    A stamp counts if it is `trusted`, under a root that the examiner named: anybody can run an authority of
    their own. `register` is the number of statements that a judge counted.
    """
    allowance: float = key.allowance_log2 if trusted else PLAIN_ALLOWANCE_LOG2
    return Price(allowance if register is None else math.log2(register), cuts=cuts, tries=tries)


def price_of_key(key: Key) -> Price:
    """What a verdict multiplies p by at least, as far as the key alone says, and its stamp if it waits."""
    allowance = STAMPED_ALLOWANCE_LOG2 if key.awaits_seal else key.allowance_log2
    return Price(allowance, cuts=least_cuts(key.fields))
