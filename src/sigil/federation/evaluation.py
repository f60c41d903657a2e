"""How good a pair of halves is: the share of the test images that they classify rightly."""

from __future__ import annotations

import torch
from torch import nn

from sigil.data import Dataset, evaluate_batches
from sigil.federation.precision import Precision


@torch.inference_mode()
def accuracy(
    client_half: nn.Module,
    server_half: nn.Module,
    dataset: Dataset,
    *,
    precision: Precision,
    batch_size: int = 500,
) -> float:
    """Share of the test images that both halves together classify rightly, in evaluation mode."""
    client_half.eval()
    server_half.eval()
    right = torch.zeros((), dtype=torch.long, device=precision.device)
    for images, labels in evaluate_batches(
        dataset.test.images,
        dataset.test.labels,
        mean=dataset.mean,
        std=dataset.std,
        batch_size=batch_size,
        device=precision.device,
        memory_format=precision.layout,
    ):
        with precision.autocast():
            logits = server_half(client_half(images))
        right += (logits.argmax(1) == labels).sum()
    return float(right) / len(dataset.test)
