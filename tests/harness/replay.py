"""The same training in one process: what a training across machines must come to, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sigil.data import Dataset
from sigil.federation import Federation, Settings
from sigil.federation.from_settings import scheduled_rate
from sigil.key import Key


def replay(
    settings: Settings, dataset: Dataset, *, key: Key | None, participants: Sequence[Sequence[int]]
) -> Federation:
    """Train in this process, with only these clients in the rounds 1, 2, …."""
    federation = Federation(settings, dataset, key=key)
    for number, clients in enumerate(participants, start=1):
        with torch.random.fork_rng(devices=[]):
            harvest = federation.seat.train(
                number,
                clients,
                federation.client_state,
                federation.server_state,
                lr=scheduled_rate(settings, number),
            )
        federation.load(number, harvest.client.result(), harvest.server.result())
    return federation
