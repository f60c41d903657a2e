"""Verification: read a key's mark in a suspect model, and say how sure it is that it is there.

Up to four tests are made (:mod:`sigil.verdict.readings`, :mod:`sigil.origin`): the mark read on noise, on
real inputs, once more with the channels put back in order, and the origin of the weights. The verdict takes
the best reading of the mark and multiplies its p-value by everything that could have been chosen
(:mod:`sigil.rules`).

Noise probes and the part of the inputs that is used follow from the key. Choosing them, their number,
another cut or a level above 3e-7 is left to research: the report is then an experiment and nothing is ever
owned by it.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import torch
from cryptography.x509 import Certificate
from torch import Tensor, nn

from sigil.alignment import (
    Alignment,
    Reference,
    align,
    began_with_key,
    check_channels,
    fingerprint,
    open_reference,
)
from sigil.arguments import whole
from sigil.data.inputs import LEAST_INPUTS, Array, Inputs, Normalisation, open_inputs, parse_normalisation
from sigil.errors import AlignmentError, ConfigError, ShapeError, SigilError, SuspectError, shown
from sigil.keys.key import Key
from sigil.models import Model
from sigil.probing import Suspect, batch_size_for, module_of, noise
from sigil.rules import ALPHA, MOST_STATEMENTS, MOST_TRIES
from sigil.suspect import Suspect as OpenedSuspect
from sigil.suspect import open_suspect
from sigil.verdict import choices
from sigil.verdict.arguments import as_key, asked_shape, check_suspect
from sigil.verdict.descent import origin_of, own_start, start_of, stated_layers
from sigil.verdict.readings import read, unreadable
from sigil.verdict.report import (
    MAX_COUNT,
    AlignmentFacts,
    KeyFacts,
    Opened,
    Reading,
    Report,
    Software,
    Source,
    SuspectFacts,
    best_of,
    harmless,
    moment_text,
)

INPUTS_READ: Final = LEAST_INPUTS


def read_mark(
    suspect: Suspect,
    key: Key,
    inputs: Inputs | Array | Tensor | None = None,
    *,
    inputs_from: Literal["judge", "defendant"] | None = None,
    input_shape: Sequence[int] | None = None,
    probes: int | None = None,
    batch_size: int = 64,
) -> tuple[Reading, ...]:
    """Read the mark on noise and, if there are any, on inputs, without a verdict: for watching a training.

    `probes` may be fewer than the key's, the first of which are taken then.
    """
    examiner = _Examiner(suspect, key, inputs, inputs_from, input_shape, probes, None, batch_size)
    if examiner.chosen:
        examiner.source = "claimant"
    return examiner.readings()


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
    reference: Reference | nn.Module | str | os.PathLike[str] | None = None,
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

    A file that holds several models is read as each of them (:class:`sigil.suspect.Suspect`), and the report
    is that of the one that says most: ``entry`` names it. Each counts as a try.

    ``tries`` is the number of keys and suspects that were tried in all. ``register`` replaces the allowance
    for drawn keys by the number of statements in a closed register that the judge counted. ``input_shape``
    may be left out when the key or the suspect knows it, or when ``inputs`` are a tensor or array.

    ``reference`` puts the channels of a reordered and rescaled copy back in order by what the server
    recorded or by a model at the start of the training (or a file of either, or a run's directory); a key
    that drew the initial weights itself needs none, but for a module of one's own handed on without the names
    of its layers: then it is this module, of which the key states the layers
    (:func:`sigil.alignment.layers_of`). ``probes``, ``seed`` and ``alpha`` other than the key's
    are for research.
    """
    key = as_key(key)
    check_suspect(suspect)
    input_shape = None if input_shape is None else tuple(map(operator.index, input_shape))
    if isinstance(suspect, str | os.PathLike):
        suspect = open_suspect(suspect, key=key, input_shape=input_shape)
    if inputs is None and not (inputs_from is None and normalisation is None):
        raise ConfigError(
            "inputs_from or a normalisation was given, but there are no inputs that it could be about."
        )
    level: float = float(key.fields.alpha) if alpha is None else alpha
    if not 0 < level < 1:
        raise ConfigError(f"alpha is {shown(level)}, but it must lie between 0 and 1, such as {ALPHA:g}.")
    probes = None if probes is None else whole("probes", probes, least=1, most=MAX_COUNT)
    seed = None if seed is None else whole("seed", seed, most=2**63 - 1)
    register = None if register is None else whole("register", register, least=1, most=MOST_STATEMENTS)
    tries = whole("tries", tries, least=1, most=MOST_TRIES)
    batch_size = whole("batch_size", batch_size, least=1)
    entries: tuple[str, ...] = getattr(suspect, "entries", ("",))
    reports: list[Report] = []
    failures: list[SigilError] = []
    for one in suspect.each() if isinstance(suspect, OpenedSuspect) else (suspect,):
        try:
            examiner = _Examiner(
                one, key, inputs, inputs_from, input_shape, probes, seed, batch_size, normalisation
            )
            reports.append(
                examiner.report(
                    level=float(level),
                    opened=_asked(suspect),
                    tries=tries * len(entries),
                    register=register,
                    roots=roots,
                    reference=reference,
                )
            )
        except SigilError as error:
            failures.append(error)
        if reports and reports[-1].owned:
            break  # all are paid for, read or not
    if not reports:
        raise failures[0]
    # What says more comes first.
    return min(
        reports, key=lambda it: (not it.owned, not it.descends, it.best.log10_p_before, it.log10_p_origin)
    )


def _asked(suspect: Suspect) -> Opened:
    """What the caller said of a file to have it opened."""
    asked = suspect.asked if isinstance(suspect, OpenedSuspect) else {}
    said = {name: harmless(value) if isinstance(value, str) else value for name, value in asked.items()}
    return Opened.model_validate(said)


def _facts(suspect: Suspect, shape: tuple[int, ...], opened: Opened) -> SuspectFacts:
    """What is known of a suspect: from a file, a module, or a function of which nothing is known."""
    if isinstance(suspect, OpenedSuspect):
        return SuspectFacts(
            # With its folder: copies of a model lie in folders of their own, under one name.
            file=harmless(str(Path(*suspect.path.parts[-2:]))),
            sha256=suspect.sha256,
            kind=suspect.kind,
            description=harmless(suspect.description),
            input_shape=shape,
            opened=opened,
            entry=harmless(suspect.entry),
            entries=tuple(harmless(name) for name in suspect.entries),
            unread=min(suspect.unread, MAX_COUNT),
        )
    module = module_of(suspect)
    known = f", {module.spec}" if isinstance(module, Model) else ""
    return SuspectFacts(
        file=harmless(f"{type(module or suspect).__name__} in memory"),
        sha256=None if module is None else fingerprint(module),
        kind="function" if module is None else "module",
        description=harmless(f"{type(module or suspect).__qualname__}{known}"),
        input_shape=shape,
    )


class _Examiner:
    """One suspect, one key, and the inputs to ask with.

    ``source`` is who answers for the choice of the inputs; ``chosen`` says what of their normalisation was
    chosen that nobody may choose.
    """

    def __init__(
        self,
        suspect: Suspect,
        key: Key,
        inputs: Inputs | Array | Tensor | str | os.PathLike[str] | None,
        inputs_from: Literal["judge", "defendant"] | None,
        input_shape: Sequence[int] | None,
        probes: int | None,
        seed: int | None,
        batch_size: int,
        normalisation: Normalisation | None = None,
    ) -> None:
        self.suspect, self.key, self.seed = suspect, key, seed
        self.shape = asked_shape(suspect, key, inputs, input_shape)
        self.probes = key.fields.probes if probes is None else operator.index(probes)
        self.batch_size = batch_size_for(self.shape, batch_size)
        self.layers: nn.Module | None = None
        self.inputs: Inputs | None = None
        self.source: Source = "claimant"
        self.chosen: tuple[str, ...] = ()
        if inputs_from not in (None, "judge", "defendant"):
            raise ConfigError(
                f"inputs_from is {shown(inputs_from)}, but only the judge or the defendant can be it."
            )
        if inputs is None:
            return
        opened = open_inputs(inputs, shape=self.shape)
        given = normalisation or (None if opened.is_data_set else opened.normalisation)
        self.inputs = opened.normalised(given, otherwise=parse_normalisation(key.fields.normalisation))
        if inputs_from is not None:
            self.source = inputs_from
        elif key.fields.inputs_digest == opened.digest:
            self.source = "statement"
        self.chosen = choices.chosen_normalisation(self.inputs, given, key, fixed=self.source == "statement")

    def report(
        self,
        *,
        level: float,
        opened: Opened,
        tries: int,
        register: int | None,
        roots: Sequence[Certificate] | str | os.PathLike[str] | None,
        reference: Reference | nn.Module | str | os.PathLike[str] | None,
    ) -> Report:
        """All tests and the verdict; `opened` is what the examiner said to have the suspect opened."""
        suspect, key = self.suspect, self.key
        if isinstance(module_of(suspect), Model) and isinstance(reference, str | os.PathLike):
            # The key draws the weights that such a run began with; only correlations remain to be brought.
            reference = None if Path(reference).is_dir() and began_with_key(reference) else reference
        reasons = choices.chosen(
            suspect, key, shape=self.shape, probes=self.probes, seed=self.seed, alpha=level
        )
        if isinstance(reference, nn.Module) and not isinstance(reference, Model):
            # Only its names count: the key draws the weights.
            self.layers, reference = reference, None
            if stated_layers(self.layers, key, self.shape) is None:
                reasons += ("the key does not state the layers that the claimant brought",)
        else:
            self.layers = stated_layers(suspect, key, self.shape)
        reasons += self.chosen
        authority = choices.trusted_root(key, roots)

        aligned: Reading | None = None
        alignment: Alignment | None = None
        if reference is not None:
            alignment, brought = self.align(reference)
            # Inputs are asked before noise, on which a suspect may be made to fail for good.
            aligned = self.in_order(alignment) if self.source != "claimant" else None
            # Correlations that were recorded in training are a further thing that could have been chosen.
            tries *= 1 if brought else 2
            if alignment.believed:
                # Made from a public base model, either kind of reference puts all its descendants in an order
                # that suits a key.
                reasons += ("the reference for the order of channels was brought by the claimant",)
        unread: ShapeError | None = None
        try:
            readings = [*self.readings()]
        except ShapeError as error:
            # Channels may have been split, or idle ones added: then the weights still tell which is which.
            readings, unread = [*self.unreadable()], error
        if reference is not None and self.source == "claimant":
            aligned = self.in_order(alignment)
        started = self.origin()
        readings += [] if started is None else [started]

        price = choices.price(
            key,
            cuts=choices.count_cuts(suspect, key),
            tries=tries,
            trusted=authority is not None,
            register=register,
        )
        # The third test is counted in any case, so that leaving it out where nothing is left to prove is no
        # choice.
        if reference is None and not price.proves(best_of(readings).log10_p_before, level):
            alignment = self.align_by_key()
            aligned = self.in_order(alignment)
        readings += [] if aligned is None else [aligned]
        descent = 0.0 if started is None else price.corrected(started.log10_p_before)
        descends = started is not None and price.proves(started.log10_p_before, level)
        if unread is not None and aligned is None and not descends:
            raise unread

        best = best_of(readings)
        needed = best.threshold(price.level(level))
        sound = not reasons and level <= ALPHA
        return Report(
            owned=sound and best.counts and price.proves(best.log10_p_before, level),
            descends=sound and descends,
            readings=tuple(readings),
            log10_p=price.corrected(best.log10_p_before) if best.counts or reasons else 0.0,
            log10_p_origin=descent,
            alpha=level,
            tries=tries,
            cuts=price.cuts,
            allowance_log2=price.allowance_log2,
            bits=key.bits,
            threshold=needed if needed <= 1.0 else None,
            register_count=register,
            trusted_root=authority,
            seed=self.seed,
            alignment=None if alignment is None else AlignmentFacts.of(alignment),
            reasons=tuple(harmless(reason) for reason in reasons),
            key=KeyFacts.of(key),
            suspect=_facts(suspect, self.shape, opened),
            created=moment_text(datetime.now(UTC)),
            software=Software.here(),
        )

    def readings(self) -> tuple[Reading, ...]:
        """The mark on noise, and on inputs if there are any.

        Inputs are asked first. A suspect may be made to fail on noise, or to end the process that it runs
        in: that is an outcome if it answers the others. If it answers nothing, what was wrong is raised.
        """
        made: dict[str, Reading] = {}
        failed: SuspectError | ShapeError | None = None
        for ask in (self.on_noise,) if self.inputs is None else (self.on_inputs, self.on_noise):
            try:
                reading = ask()
                made[reading.kind] = reading
            except (SuspectError, ShapeError) as error:
                failed = error
        if failed is not None and not made:
            raise failed
        return tuple(made.get(reading.kind, reading) for reading in self.unreadable())

    def unreadable(self) -> tuple[Reading, ...]:
        """The mark on noise, and on inputs if there are any, of a suspect that answers neither."""
        found = [unreadable("noise", self.probes)]
        if self.inputs is not None:
            digest = self.inputs.digest
            found.append(unreadable("inputs", INPUTS_READ, source=self.source, digest=digest))
        return tuple(found)

    def on_noise(self, alignment: Alignment | None = None) -> Reading:
        """The paper's question: standard normal noise."""
        return read(self.suspect, self.key, self._noise, kind="noise", count=self.probes, alignment=alignment)

    def on_inputs(self, alignment: Alignment | None = None) -> Reading:
        """Real inputs of the task, drawn by the key from those that were given."""
        inputs = self.inputs
        assert inputs is not None
        chosen = self.key.choose(INPUTS_READ, len(inputs)).tolist()
        return read(
            self.suspect,
            self.key,
            lambda: inputs.batches(chosen, self.batch_size),
            kind="inputs",
            count=len(chosen),
            source=self.source,
            digest=inputs.digest,
            alignment=alignment,
        )

    def origin(self) -> Reading | None:
        """Which weights have the sign of their initial value, if the key draws initial weights."""
        test = origin_of(self.suspect, self.key, self.shape, self.layers)
        if test is None:
            return None
        return Reading(
            kind="origin",
            count=test.count,
            wsr=test.share,
            log10_p_before=test.log10_p,
            aligned=test.restored,
            agreements=test.agreeing + test.tested,
        )

    def in_order(self, alignment: Alignment | None) -> Reading | None:
        """The mark once more with channels put back in order: on inputs if they count, else on noise."""
        if alignment is None or not alignment.believed:
            return None
        try:
            return self.on_noise(alignment) if self.source == "claimant" else self.on_inputs(alignment)
        except (SuspectError, ShapeError):
            return None

    def align_by_key(self) -> Alignment | None:
        """The order of the channels by the initial weights that the key drew, which nobody chose."""
        module = module_of(self.suspect)
        if self.key.fields.initialiser is None:
            return None
        start: nn.Module | None = start_of(self.key)
        same = (
            isinstance(start, Model) and isinstance(module, Model) and module.spec.width == start.spec.width
        )
        drawn_for = self.layers
        if drawn_for is None and isinstance(module, Model) and (start is None or same):
            drawn_for = module  # the names of its layers are Sigil's
        if drawn_for is not None:
            start = own_start(drawn_for, self.key)
        if start is None:
            return None
        try:
            return align(self.suspect, start, None, input_shape=self.shape, batch_size=self.batch_size)
        except (AlignmentError, SuspectError, ShapeError):
            return None  # another architecture, or one that does not show its filters

    def align(self, reference: Reference | nn.Module | str | os.PathLike[str]) -> tuple[Alignment, bool]:
        """The order of the channels by a reference, and whether it could have been made to fit.

        Correlations were recorded in training, which counts as one more try; weights from a file could be
        anybody's.
        """
        module = module_of(self.suspect)
        check_channels(self.key.shape)
        known = reference
        if not isinstance(known, str | os.PathLike | Reference | Model):
            raise ConfigError(
                f"The reference is of type {type(known).__name__}, but a file, the directory of a run, a "
                "recorded reference or a model of sigil.models is wanted."
            )
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
        return torch.cat(list(self.inputs.batches(chosen, self.batch_size)))

    def _noise(self) -> Iterator[Tensor]:
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        for start in range(0, self.probes, self.batch_size):
            stop = min(start + self.batch_size, self.probes)
            if generator is not None:
                yield noise(self.shape, stop - start, generator=generator)
            else:
                yield self.key.noise_probes(start, stop, self.shape)
