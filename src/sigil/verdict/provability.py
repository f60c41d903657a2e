"""After a training: is the mark provable, and by which reading? One sentence for the owner.

A mark can be in the activations of real inputs and not show on noise (shallow cuts), or be too short for the
kind of key (:mod:`sigil.keys.length`). Better to learn that on the day of the training than in court.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from sigil.data.inputs import Array, Inputs
from sigil.errors import ConfigError
from sigil.keys.key import Key
from sigil.keys.length import needed_rate, shortest_bits
from sigil.models import default_cut
from sigil.probing import Suspect, module_of
from sigil.verdict import wording
from sigil.verdict.arguments import as_key, check_suspect
from sigil.verdict.choices import MOST_CUTS, count_cuts
from sigil.verdict.readings import Kind, Reading
from sigil.verdict.report import TESTS
from sigil.verdict.verification import read_mark

# How a training's metrics call what was read; the name without a kind is that of noise, the paper's probe.
_KINDS: Final[tuple[tuple[Kind, str], ...]] = (("noise", ""), ("inputs", "_inputs"))


@dataclass(frozen=True)
class Provability:
    """Whether a finished model's mark is provable with its key, by the kinds of reading in ``by``."""

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
    input_shape: Sequence[int] | None = None,
) -> Provability:
    """Say whether the mark of ``key`` in a model that was just trained is provable, and by which reading.

    ``inputs`` are at least 256 inputs of the task, as the model takes them: the mark is trained on such and
    best read on them. Tests, allowance and level are those of :func:`sigil.verify`, for a suspect that is
    this very model, cut where the key says.
    """
    key = as_key(key)
    check_suspect(client_half)
    if isinstance(client_half, str | os.PathLike):
        raise ConfigError("check() takes the model itself, up to the cut; sigil.verify reads a file.")
    readings = read_mark(client_half, key, inputs, input_shape=input_shape)
    return judge(readings, key, cuts=count_cuts(module_of(client_half), key))


def judge_metrics(
    metrics: Mapping[str, Any], key: Key, architecture: str, cut: str | None = None
) -> Provability:
    """The same by the metrics of a training's round, in which both kinds of reading were made."""
    readings = [
        Reading(kind=kind, count=0, wsr=metrics[f"wsr{end}"], log10_p=metrics[f"log10_p{end}"])
        for kind, end in _KINDS
        if f"wsr{end}" in metrics
    ]
    named = key.fields.input_shape is not None and key.fields.cut == (cut or default_cut(architecture))
    return judge(readings, key, cuts=1 if named else MOST_CUTS)


def judge(readings: Sequence[Reading], key: Key, *, cuts: int = 1) -> Provability:
    """The same for readings that were made already; `cuts` is the factor for what the key leaves open."""
    price = math.log10(TESTS) + math.log10(cuts) + key.allowance_log2 * math.log10(2)
    level = math.log10(float(key.fields.alpha))
    by = tuple(reading.kind for reading in readings if reading.log10_p + price <= level)
    return Provability(bool(by), by, tuple(readings), _sentence(readings, by, key, cuts))


def _sentence(readings: Sequence[Reading], by: tuple[str, ...], key: Key, cuts: int) -> str:
    found = ", ".join(
        f"{wording.percent(reading.wsr)} on {reading.kind}"
        if reading.readable
        else f"unreadable on {reading.kind}"
        for reading in readings
    )
    if by:
        limits = "" if len(by) == len(readings) else f", and not on {_others(readings, by)}"
        return f"The mark is provable on {' and on '.join(by)}{limits} (WSR {found}; {key.kind} key)."
    tests, alpha = TESTS * cuts, float(key.fields.alpha)
    least = shortest_bits(key.allowance_log2, tests=tests, alpha=alpha)
    if key.bits < least:
        other = ", or a stamped key" if key.kind == "plain" else ""
        return (
            f"The mark is NOT provable: a {key.kind} key of {key.bits} bits proves nothing, however well it "
            f"is read; it takes at least {least} bits{other} (WSR {found})."
        )
    needed = wording.percent(needed_rate(key.bits, key.allowance_log2, tests=tests, alpha=alpha))
    advice = "train longer, raise the strength or cut deeper"
    if all(reading.kind != "inputs" for reading in readings):
        advice = "try inputs of the task, on which it is read best"
    return (
        f"The mark is NOT provable: WSR {found}, and a {key.kind} key of {key.bits} bits needs about "
        f"{needed}; {advice}."
    )


def _others(readings: Sequence[Reading], by: tuple[str, ...]) -> str:
    return " and on ".join(reading.kind for reading in readings if reading.kind not in by)
