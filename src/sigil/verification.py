"""Verification: read a key's mark in a suspect model, and say how sure it is that it is there.

Up to four tests are made (:mod:`sigil.readings`, :mod:`sigil.origin`): the mark read on noise, on real
inputs, once more with the channels put back in order, and the origin of the weights. The verdict takes the
best reading of the mark and multiplies its p-value by everything that could have been chosen:

======================  ====================================================================================
factor                  for
======================  ====================================================================================
4                       the tests that the rules allow, made or not
``tries``               keys and suspects that were tried
``cuts``                places where the suspect could be cut, if the key does not state one; at most 64
2^``allowance_log2``    keys that could have been drawn before this one: 80 for a plain key, 24 stamped
======================  ====================================================================================

Noise probes and the part of the inputs that is used follow from the key. Choosing them, their number,
another cut or a level above 3e-7 is left to research: the report is then an experiment and nothing is ever
owned by it.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import torch
from cryptography.x509 import Certificate
from torch import Tensor, nn

from sigil import origin
from sigil.alignment import Alignment, Reference, align, check_channels, open_reference
from sigil.arguments import as_key, check_suspect
from sigil.data.inputs import LEAST_INPUTS, Array, Inputs, Normalisation, open_inputs, parse_normalisation
from sigil.errors import ConfigError, ShapeError
from sigil.key import Key
from sigil.key_length import PLAIN_ALLOWANCE_LOG2
from sigil.models import Model, cut_points
from sigil.probing import Suspect, batch_size_for, input_shape_of, module_of, noise
from sigil.readings import Reading, Source, read
from sigil.report import ALPHA, TESTS, Report, best_of
from sigil.seal import Root, read_roots

MOST_CUTS: Final = 64
INPUTS_READ: Final = LEAST_INPUTS


def read_mark(
    suspect: Suspect,
    key: Key,
    inputs: Inputs | Array | Tensor | None = None,
    *,
    input_shape: Sequence[int] | None = None,
    probes: int | None = None,
    batch_size: int = 64,
) -> tuple[Reading, ...]:
    """Read the mark on noise and, if there are any, on inputs, without a verdict: for watching a training.

    `probes` may be fewer than the key's, the first of which are taken then.
    """
    shape = input_shape_of(suspect, input_shape or key.fields.input_shape)
    count = key.fields.probes if probes is None else probes
    examiner = _Examiner(suspect, key, shape, count, None, batch_size_for(shape, batch_size))
    readings = [examiner.on_noise()]
    if inputs is not None:
        examiner.take(open_inputs(inputs, shape=shape), None)
        readings.append(examiner.on_inputs())
    return tuple(readings)


def verify(
    suspect: Callable[[Tensor], Tensor] | str | os.PathLike[str],
    key: Key | str | os.PathLike[str],
    inputs: Inputs | Array | Tensor | str | os.PathLike[str] | None = None,
    *,
    inputs_from: Literal["judge", "defendant"] | None = None,
    normalisation: Normalisation | None = None,
    input_shape: Sequence[int] | None = None,
    probes: int | None = None,
    seed: int | None = None,
    alpha: float | None = None,
    tries: int = 1,
    register: int | None = None,
    roots: Sequence[Certificate] | str | os.PathLike[str] | None = None,
    batch_size: int = 64,
    reference: Reference | Model | str | os.PathLike[str] | None = None,
) -> Report:
    """Say whether ``suspect`` carries the mark of ``key``, and how sure that is.

    ``suspect`` is the model up to the cut: a file, an opened :class:`sigil.suspect.Suspect` or an
    ``nn.Module``; any other callable from a float batch ``(n, *input_shape)`` to activations ``(n,
    *key.shape)`` is an experiment. A module stays where it is and as it is: it runs on its own device and
    in its own dtype, in evaluation mode and without gradients, and gets the training flag of every
    submodule back. The random states of torch, numpy and Python are the same before and after.

    The mark is read on noise, which follows from the key, and on ``inputs`` if there are any: a tensor or
    array ``(n, *input_shape)``, a folder of pictures, a file or the name of a data set
    (:func:`sigil.data.inputs.open_inputs`), of which the key draws 256. They count if the key's statement
    names their digest or if somebody without the key chose them (``inputs_from``). 8-bit images are
    normalised by ``normalisation``, else as the key states.

    A stamped key's smaller allowance holds under a root that the examiner trusts: ``roots``, a PEM file or
    certificates. Without it the key counts as a plain one.

    ``tries`` is the number of keys and suspects that were tried in all. ``register`` replaces the allowance
    for drawn keys by the number of statements in a closed register that the judge counted. ``input_shape``
    may be left out when the key or the suspect knows it.

    ``reference`` puts the channels of a reordered and rescaled copy back in order by what the server
    recorded or by a model at the start of the training (or a file of either, or a run's directory); a key
    that drew the initial weights itself needs none. ``probes``, ``seed`` and ``alpha`` other than the key's
    are for research.
    """
    key = as_key(key)
    check_suspect(suspect)
    if isinstance(suspect, str | os.PathLike):
        from sigil.suspect import open_suspect

        suspect = open_suspect(
            suspect,
            architecture=key.fields.model,
            width=key.fields.width,
            classes=key.fields.classes,
            cut=key.fields.cut,
            input_shape=input_shape or key.fields.input_shape,
            activation_shape=key.shape,
        )
    level = float(key.fields.alpha) if alpha is None else alpha
    _check_settings(
        probes=probes, seed=seed, alpha=level, tries=tries, register=register, batch_size=batch_size
    )
    shape = input_shape_of(suspect, input_shape or key.fields.input_shape)
    batch_size = batch_size_for(shape, batch_size)
    reasons = _choices(suspect, key, shape=shape, probes=probes, seed=seed, alpha=level)
    examiner = _Examiner(suspect, key, shape, probes or key.fields.probes, seed, batch_size)

    readings = [examiner.on_noise()]
    if inputs is not None:
        opened = open_inputs(inputs, shape=shape, normalisation=normalisation)
        examiner.take(opened, inputs_from)
        readings.append(examiner.on_inputs())
    elif inputs_from is not None or normalisation is not None:
        raise ConfigError(
            "inputs_from or a normalisation was given, but there are no inputs that it could be about."
        )
    started = examiner.origin()
    readings += [] if started is None else [started]

    cuts = _cuts(suspect, key)
    correlations = 0
    level_log10 = math.log10(level)
    authority = _authority(key, roots)
    allowance = math.log2(register) if register is not None else _allowance(key, authority)
    price = math.log10(TESTS) + math.log10(tries) + math.log10(cuts) + allowance * math.log10(2)
    alignment = None
    # The third test is counted in any case, so that leaving it out where nothing is left to prove is no
    # choice.
    if reference is not None or best_of(readings).log10_p + price > level_log10:
        alignment, chosen = examiner.align(reference)
        if alignment is not None:
            correlations = int(not chosen and reference is not None)
            reasons += (
                ("the reference for the order of channels was brought by the claimant",) if chosen else ()
            )
            if alignment.believed:
                readings.append(
                    examiner.on_inputs(alignment) if inputs is not None else examiner.on_noise(alignment)
                )
    # Correlations that were recorded in training are a further thing that could have been chosen.
    price += math.log10(1 + correlations)

    best = best_of(readings)
    corrected = min(0.0, best.log10_p + price)
    descent = 0.0 if started is None else min(0.0, started.log10_p + price)
    sound = not reasons and level <= ALPHA
    return Report(
        owned=sound and best.counts and corrected <= level_log10,
        descends=sound and started is not None and descent <= level_log10,
        readings=tuple(readings),
        log10_p=corrected if best.counts or reasons else 0.0,
        log10_p_origin=descent,
        alpha=level,
        tries=tries * (1 + correlations),
        cuts=cuts,
        allowance_log2=allowance,
        bits=key.bits,
        commitment=key.commitment,
        owner=key.owner,
        kind=key.kind,
        threshold=best.threshold(10.0 ** (level_log10 - price)),
        register=register,
        authority=authority,
        seed=seed,
        alignment=alignment,
        reasons=reasons,
    )


class _Examiner:
    """One suspect, one key, and the inputs to ask with."""

    def __init__(
        self,
        suspect: Suspect,
        key: Key,
        shape: tuple[int, ...],
        probes: int,
        seed: int | None,
        batch_size: int,
    ) -> None:
        self.suspect, self.key, self.shape = suspect, key, shape
        self.probes, self.seed, self.batch_size = probes, seed, batch_size
        self.moments = parse_normalisation(key.fields.normalisation)
        self.inputs: Inputs | None = None
        self.source: Source = "claimant"

    def take(self, inputs: Inputs, given_by: Literal["judge", "defendant"] | None) -> None:
        """Keep the inputs, and who answers for their choice."""
        self.inputs = inputs
        if given_by is not None:
            self.source = given_by
        elif self.key.fields.inputs_digest == inputs.digest:
            self.source = "statement"

    def on_noise(self, alignment: Alignment | None = None) -> Reading:
        """The paper's question: standard normal noise."""
        return read(self.suspect, self.key, self._noise, kind="noise", count=self.probes, alignment=alignment)

    def on_inputs(self, alignment: Alignment | None = None) -> Reading:
        """Real inputs of the task, drawn by the key from those that were given."""
        inputs = self.inputs
        assert inputs is not None
        chosen = self.key.choose(min(INPUTS_READ, len(inputs)), len(inputs)).tolist()
        return read(
            self.suspect,
            self.key,
            lambda: inputs.batches(chosen, self.batch_size, normalisation=self.moments),
            kind="inputs",
            count=len(chosen),
            source=self.source,
            digest=inputs.digest,
            alignment=alignment,
        )

    def origin(self) -> Reading | None:
        """How many weights have the sign of their initial value, if the key draws initial weights."""
        module = module_of(self.suspect)
        if module is None or self.key.fields.initialiser is None:
            return None
        drawn = {
            f"{name}.weight": tuple(layer.weight.shape)
            for name, layer in module.named_modules()
            if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)
        }
        if not drawn:
            return None
        found = origin.compare(module.state_dict(), drawn, self.key.initial)
        return Reading(kind="origin", count=found.tested, wsr=found.share, log10_p=found.log10_p)

    def align(
        self, reference: Reference | Model | str | os.PathLike[str] | None
    ) -> tuple[Alignment | None, bool]:
        """The order of the channels, and whether the claimant chose what they were compared with.

        Only initial weights that the key itself drew were chosen by nobody; correlations were recorded in
        training, which counts as one more try.
        """
        module = module_of(self.suspect)
        if reference is None:
            if (
                self.key.fields.initialiser is None
                or not isinstance(module, Model)
                or len(self.key.shape) < 2
            ):
                return None, False
            start = copy.deepcopy(module)
            self.key.initialise(start)
            return align(self.suspect, start, None, input_shape=self.shape, batch_size=self.batch_size), False
        check_channels(self.key.shape)
        known = reference
        if isinstance(known, str | os.PathLike):
            # Only weights of a known architecture can be compared with initial ones, and images only serve to
            # compare activations.
            weights = self.inputs is None and isinstance(module, Model)
            known = open_reference(known, kind="initial weights" if weights else "correlations")
        if isinstance(known, Reference) and known.shape != self.key.shape:
            raise ShapeError(
                f"The reference was recorded at activations of shape {known.shape}, but the key was made for "
                f"{self.key.shape}: give the reference of the training that this key marked."
            )
        pictures = self._pictures() if isinstance(known, Reference) else None
        order = align(self.suspect, known, pictures, input_shape=self.shape, batch_size=self.batch_size)
        return order, not isinstance(known, Reference)

    def _pictures(self) -> Tensor | None:
        """Up to 2,000 of the inputs for comparing activations, drawn by the key."""
        if self.inputs is None:
            return None
        chosen = self.key.choose(min(2_000, len(self.inputs)), len(self.inputs), "inputs/alignment").tolist()
        return torch.cat(list(self.inputs.batches(chosen, self.batch_size, normalisation=self.moments)))

    def _noise(self) -> Iterator[Tensor]:
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        for start in range(0, self.probes, self.batch_size):
            stop = min(start + self.batch_size, self.probes)
            if generator is not None:
                yield noise(self.shape, stop - start, generator=generator)
            else:
                yield self.key.noise_probes(start, stop, self.shape)


def _authority(key: Key, roots: Sequence[Certificate] | str | os.PathLike[str] | None) -> Root | None:
    """The trusted root under which the key was stamped; None if nobody named one or the key is plain."""
    if roots is None:
        return None
    if key.stamp is None:
        raise ConfigError("roots were given, but the key is plain: it has no time stamp to check.")
    return key.stamp.check(read_roots(Path(roots)) if isinstance(roots, str | os.PathLike) else roots)


def _allowance(key: Key, authority: Root | None) -> float:
    """A stamp counts under a root that the examiner trusts: anybody can run an authority of their own."""
    return key.allowance_log2 if authority is not None else max(key.allowance_log2, PLAIN_ALLOWANCE_LOG2)


def _check_settings(
    *, probes: int | None, seed: int | None, alpha: float, tries: int, register: int | None, batch_size: int
) -> None:
    for name, value in (
        ("probes", probes),
        ("tries", tries),
        ("register", register),
        ("batch_size", batch_size),
    ):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}, but it must be at least 1.")
    if seed is not None and not 0 <= seed < 1 << 63:
        raise ConfigError(f"seed is {seed}, but it must lie between 0 and 2**63 - 1.")
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha is {alpha}, but it must lie between 0 and 1, such as {ALPHA:g}.")


def _choices(
    suspect: Suspect, key: Key, *, shape: tuple[int, ...], probes: int | None, seed: int | None, alpha: float
) -> tuple[str, ...]:
    """What was chosen that nobody may choose, in words."""
    stated = key.fields
    spec = getattr(module_of(suspect), "spec", None)
    found = [
        (seed is not None, "the seed of the noise was chosen"),
        (probes not in (None, stated.probes), f"the key asks for {stated.probes} probes and not {probes}"),
        (alpha > ALPHA, f"the level of {alpha:g} is not one of proof, which begins at {ALPHA:g}"),
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
    return tuple(words for chosen, words in found if chosen)


def _cuts(suspect: Suspect, key: Key) -> int:
    """At how many places the suspect could have been cut, if the key does not settle it."""
    module = module_of(suspect)
    spec = getattr(module, "spec", None)
    if spec is not None:
        return 1 if key.fields.cut == spec.cut else min(MOST_CUTS, len(cut_points(spec.name)))
    if module is not None:
        leaves = sum(1 for part in module.modules() if not any(part.children()))
        return max(1, min(MOST_CUTS, leaves))
    return MOST_CUTS
