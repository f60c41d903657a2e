"""After a training: is the mark provable, and by which reading? One sentence for the owner.

A mark can be in the activations of real inputs and not show on noise (shallow cuts), or be too short for the
kind of key (:mod:`sigil.rules`). Better to learn that on the day of the training than in court.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from torch import Tensor

from sigil.alignment import LAYERS
from sigil.data.inputs import Array, Inputs
from sigil.errors import ConfigError
from sigil.keys.key import Key
from sigil.models import Model, default_cut
from sigil.probing import Suspect
from sigil.rules import Price
from sigil.verdict import choices, wording
from sigil.verdict.arguments import as_key, asked_shape, check_suspect
from sigil.verdict.descent import origin_of, stated_layers
from sigil.verdict.report import Kind, Reading
from sigil.verdict.verification import read_mark

# How a training's metrics call what was read; the name without a kind is that of noise, the paper's probe.
_KINDS: Final[tuple[tuple[Kind, str], ...]] = (("noise", ""), ("inputs", "_inputs"))

_NO_MARK: Final = "Nothing of a mark is read: is injector.attach called for each batch, before backward()?"
_NO_ORIGIN: Final = (
    "The origin is NOT provable: these weights did not begin as the key draws them; call key.initialise on "
    "this very half before the training."
)
_OTHER_LAYERS: Final = (
    "The origin is NOT provable: the key states the layers of another module; give this very half to "
    "layers_of and key.initialise, neither in a wrapper nor as part of a whole model."
)


@dataclass(frozen=True)
class Provability:
    """Whether a finished model's mark is provable with its key, by the kinds of reading in ``by``.

    It is where :func:`sigil.verify` finds this very model owned, given the same inputs, and the root of the
    authority if the key is stamped.
    """

    provable: bool
    by: tuple[str, ...]
    readings: tuple[Reading, ...]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def check(
    client_half: Suspect,
    key: Key | str | os.PathLike[str],
    inputs: Inputs | Array | Tensor | None = None,
    *,
    inputs_from: Literal["judge", "defendant"] | None = None,
    input_shape: Sequence[int] | None = None,
) -> Provability:
    """Say whether the mark of ``key`` in a model that was just trained is provable, and by which reading.

    ``inputs`` are at least 256 inputs of the task, as the model takes them: the mark is trained on such and
    best read on them. They count as in :func:`sigil.verify`: if the key's statement names their digest, or if
    somebody without the key chose them; ``inputs_from`` supposes that. Where the key
    states the layers of a module of one's own, the sentence also says if the origin is not provable.
    """
    key = as_key(key)
    check_suspect(client_half)
    if isinstance(client_half, str | os.PathLike):
        raise ConfigError("check() takes the model itself, up to the cut; sigil.verify reads a file.")
    shape = asked_shape(client_half, key, inputs, input_shape)
    alpha = float(key.fields.alpha)
    chosen = choices.chosen(client_half, key, shape=shape, probes=None, seed=None, alpha=alpha)
    readings = read_mark(client_half, key, inputs, inputs_from=inputs_from, input_shape=shape)
    price = choices.price(key, cuts=choices.count_cuts(client_half, key))
    judged = judge(readings, key, price, chosen)
    nothing = all(reading.readable and reading.log10_p_before > -2 for reading in readings)
    if nothing and not isinstance(client_half, Model):  # whose trainings are mostly Sigil's own, which attach
        judged = replace(judged, sentence=f"{judged.sentence} {_NO_MARK}")
    if (key.fields.model or "").startswith(LAYERS) and shape is not None:
        layers = stated_layers(client_half, key, shape)
        origin = None if layers is None else origin_of(client_half, key, shape, layers)
        if layers is None:
            return replace(judged, sentence=f"{judged.sentence} {_OTHER_LAYERS}")
        if origin is None or not price.proves(origin.log10_p, alpha):
            return replace(judged, sentence=f"{judged.sentence} {_NO_ORIGIN}")
    return judged


def judge_metrics(
    metrics: Mapping[str, Any], key: Key, architecture: str, cut: str | None = None
) -> Provability:
    """The same by the metrics of a training's round; what does not count has no corrected p there."""
    readings = [
        Reading(
            kind=kind,
            count=0,
            wsr=metrics[f"wsr{end}"],
            log10_p_before=metrics[f"log10_p_before{end}"],
            source="key" if kind == "noise" else "statement" if f"log10_p{end}" in metrics else "claimant",
        )
        for kind, end in _KINDS
        if f"wsr{end}" in metrics
    ]
    cuts = choices.cuts_of_model(architecture, cut or default_cut(architecture), key)
    return judge(readings, key, choices.price(key, cuts=cuts))


def judge(readings: Sequence[Reading], key: Key, price: Price, chosen: Sequence[str] = ()) -> Provability:
    """The same for readings that were made already; with anything `chosen` it would be an experiment."""
    alpha = float(key.fields.alpha)
    reached = [reading for reading in readings if price.proves(reading.log10_p_before, alpha)]
    by = () if chosen else tuple(reading.kind for reading in reached if reading.counts)
    if chosen:
        sentence = f"The mark is NOT provable so, because it would be an experiment: {'; '.join(chosen)}."
    else:
        sentence = _sentence(readings, reached, key, price)
    return Provability(bool(by), by, tuple(readings), sentence)


def _sentence(readings: Sequence[Reading], reached: Sequence[Reading], key: Key, price: Price) -> str:
    rates = ", ".join(
        f"{wording.percent(reading.wsr)} on {reading.kind}"
        if reading.readable
        else f"unreadable on {reading.kind}"
        for reading in readings
    )
    kind = "plain key" if key.kind == "plain" else "stamped key, under the root of its authority"
    uncounted = [reading for reading in readings if reading.readable and not reading.counts]
    if by := [reading.kind for reading in reached if reading.counts]:
        others = [reading.kind for reading in readings if reading.kind not in by and reading not in uncounted]
        limits = f", and not on {' and on '.join(others)}" if others else ""
        aside = f" {wording.NOT_COUNTED}" if uncounted else ""
        return f"The mark is provable on {' and on '.join(by)}{limits} (WSR {rates}; {kind}).{aside}"
    if not any(reading.readable for reading in readings):
        return f"The mark is NOT provable: {wording.NOT_READABLE}."
    alpha = float(key.fields.alpha)
    if key.bits < price.shortest_bits(alpha):
        other = ", or a stamped key" if key.kind == "plain" else ""
        short = wording.too_short(key.bits, key.kind, price, alpha)
        return f"The mark is NOT provable: {short}{other} (WSR {rates})."
    if reached:
        return f"The mark is NOT provable so, though it would be on these inputs (WSR {rates}; {kind}). " + (
            wording.NOT_COUNTED
        )
    advice = "train longer, raise the strength or cut deeper"
    if all(reading.kind != "inputs" for reading in readings):
        advice = "try inputs of the task, on which it is read best"
    return (
        f"The mark is NOT provable: WSR {rates}, and a {key.kind} key of {key.bits} bits"
        f"{wording.left_open(price)} needs "
        f"{wording.needed_percent(price.needed_rate(key.bits, alpha))} {wording.IF_ALL_AGREE}; {advice}."
    )
