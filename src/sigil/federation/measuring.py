"""The metrics of a round: what it came to, how good the model is now, and how well the mark is read."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sigil.errors import reason
from sigil.federation.averaging import State
from sigil.federation.federation import Federation, RoundResult
from sigil.keys.key import Key
from sigil.verdict import choices
from sigil.verdict.readings import Reading

log = logging.getLogger("sigil.federation")


def measure(federation: Federation, result: RoundResult, key: Key | None) -> dict[str, Any]:
    """One line of ``metrics.jsonl``."""
    settings = federation.settings
    row: dict[str, Any] = {
        "round": result.round,
        "lr": result.lr,
        "loss": result.loss,
        "images": result.images,
        "seconds": round(result.seconds, 3),
        "images_per_second": round(result.images / result.seconds, 1),
        **{f"injection_{name}": value for name, value in result.injection.items()},
    }
    if result.repeated:
        row["repeated_activations"] = sum(result.repeated.values())
        row["repeating_clients"] = list(result.repeated)
    if result.missing:
        row["missing"] = list(result.missing)
    if result.left_out:
        row["left_out"] = {str(client): why for client, why in result.left_out.items()}
    last = result.round == settings.federation.rounds
    if result.round % settings.run.evaluate_every == 0 or last:
        _evaluate(federation, key, row)
    return row


def _evaluate(federation: Federation, key: Key | None, row: dict[str, Any]) -> None:
    """Add accuracy and the mark's readings to a round's metrics, or the sentence that says why not.

    A round whose weights are not finite, or whose client half answers so, is lost: it is marked as discarded,
    and training goes on from the weights before it.
    """
    try:
        found: dict[str, Any] = {"accuracy": federation.accuracy()}
        sound = _finite(federation.client_state) and _finite(federation.server_state)
        if key is not None:
            readings = federation.read_mark(key, probes=federation.settings.watermark.probes)
            found |= marked(readings, key, federation.halves()[0])
            sound = sound and all(reading.readable for reading in readings)
    except Exception as error:  # whatever it is, hours of training are worth more than one measurement
        row["evaluation_failed"] = reason(error)
        log.warning("round %d could not be evaluated: %s", row["round"], row["evaluation_failed"])
        return
    if sound:
        row |= found
        return
    row |= {"evaluation_failed": "the weights or what they answer are not finite", "discarded": True}
    log.warning("round %d is discarded: its weights or what they answer are not finite", row["round"])


def marked(readings: Sequence[Reading], key: Key, client_half: nn.Module) -> dict[str, float]:
    """What a round's readings of the mark come to: p before correction and corrected, and the rate of proof.

    The names without a kind are those of noise, the paper's probe. Inputs that the key does not state have
    neither a corrected p nor a rate of proof, because they do not count as long as nobody else chose them.
    """
    alpha = float(key.fields.alpha)
    price = choices.price(key, cuts=choices.count_cuts(client_half, key))
    found: dict[str, float] = {"alpha": alpha}
    for reading in readings:
        end = "" if reading.kind == "noise" else f"_{reading.kind}"
        found |= {f"wsr{end}": reading.wsr, f"log10_p_before{end}": reading.log10_p_before}
        if reading.source != "claimant":
            found[f"log10_p{end}"] = price.corrected(reading.log10_p_before)
            if math.isfinite(rate := reading.threshold(price.level(alpha))):
                found[f"wsr_level{end}"] = rate
    return found


def _finite(state: State) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in state.values() if value.is_floating_point())
