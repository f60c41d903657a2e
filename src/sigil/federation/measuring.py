"""How good a model is, and the metrics of a round: what it came to, and how well the mark is read."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sigil.data import Dataset, evaluate_batches
from sigil.errors import reason
from sigil.federation.averaging import State
from sigil.federation.precision import Precision
from sigil.keys.key import Key
from sigil.verdict import choices
from sigil.verdict.report import Reading

if TYPE_CHECKING:
    from sigil.federation.federation import Federation, RoundResult

log = logging.getLogger("sigil.federation")


@torch.inference_mode()
def accuracy(
    client_half: nn.Module,
    server_half: nn.Module,
    dataset: Dataset,
    *,
    precision: Precision,
) -> float:
    """Share of the test images that both halves together classify rightly, in evaluation mode."""
    client_half.eval()
    server_half.eval()
    right = torch.zeros((), dtype=torch.long, device=precision.device)
    for images, labels in evaluate_batches(
        dataset.test,
        dataset,
        batch_size=500,
        device=precision.device,
        memory_format=precision.layout,
    ):
        with precision.autocast():
            logits = server_half(client_half(images))
        right += (logits.argmax(1) == labels).sum()
    return float(right) / len(dataset.test)


def measure(federation: Federation, result: RoundResult) -> dict[str, Any]:
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
    if federation.imprinting is not None:
        row["imprint"] = federation.imprinting.block
    if result.repeated:
        row["repeated_activations"] = sum(result.repeated.values())
        row["repeating_clients"] = list(result.repeated)
    if result.missing:
        row["missing"] = list(result.missing)
    if result.left_out:
        row["left_out"] = {str(client): why for client, why in result.left_out.items()}
    last = result.round == settings.federation.rounds
    if result.round % settings.run.evaluate_every == 0 or last:
        _evaluate(federation, row)
    return row


def _evaluate(federation: Federation, row: dict[str, Any]) -> None:
    """Add accuracy and the mark's readings to a round's metrics, or the sentence that says why not.

    A round whose weights are not finite, or whose client half answers so, is lost: it is marked as discarded,
    and training goes on from the weights before it.
    """
    key = federation.training.key
    try:
        measured: dict[str, Any] = {"accuracy": federation.accuracy()}
        sound = _finite(federation.client_state) and _finite(federation.server_state)
        if key is not None:
            readings = federation.read_mark(key, probes=federation.settings.watermark.probes)
            measured |= marked(readings, key, federation.halves()[0])
            sound = sound and all(reading.readable for reading in readings)
    except Exception as error:  # whatever it is, hours of training are worth more than one measurement
        row["evaluation_failed"] = reason(error)
        log.warning("round %d could not be evaluated: %s", row["round"], row["evaluation_failed"])
        return
    if sound:
        row |= measured
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
    numbers: dict[str, float] = {"alpha": alpha}
    for reading in readings:
        end = "" if reading.kind == "noise" else f"_{reading.kind}"
        numbers |= {f"wsr{end}": reading.wsr, f"log10_p_before{end}": reading.log10_p_before}
        if reading.source != "claimant":
            numbers[f"log10_p{end}"] = price.corrected(reading.log10_p_before)
            if math.isfinite(rate := reading.threshold(price.level(alpha))):
                numbers[f"wsr_level{end}"] = rate
    return numbers


def _finite(state: State) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in state.values() if value.is_floating_point())
