"""The same training in one process: what a training across machines must come to, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sigil.data import Dataset
from sigil.federation import Federation, Settings
from sigil.federation.from_settings import scheduled_rate
from sigil.federation.trainer import LocalTrainer, RoundStart
from sigil.keys.key import Key


def replay(
    settings: Settings, dataset: Dataset, *, key: Key | None, participants: Sequence[Sequence[int]]
) -> Federation:
    """Train in this process, with only these clients in the rounds 1, 2, …."""
    federation = Federation(settings, dataset, key=key)
    trainer = LocalTrainer(federation.training)
    for number, clients in enumerate(participants, start=1):
        with torch.random.fork_rng(devices=[]):
            rate = scheduled_rate(settings, number)
            copies = federation.imprinting
            patterns = None if copies is None else copies.begin(number, federation.client_state)
            start = RoundStart(number, rate, federation.client_state, federation.server_state, patterns)
            sums = trainer.train(start, clients=clients)
        federation.load(number, sums.client.result(), sums.server.result())
    return federation
