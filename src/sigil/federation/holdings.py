"""Who holds what, from the settings alone: the data set of a training, and each client's share of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from sigil import data
from sigil.federation.seeds import derive
from sigil.federation.settings import Settings


def load_data(settings: Settings, data_dir: Path | None = None) -> data.Dataset:
    """The data set of a training with these settings, reduced as they say."""
    chosen = settings.data
    return data.load(
        chosen.name,
        data_dir=data_dir,
        train_limit=chosen.train_limit,
        test_limit=chosen.test_limit,
        classes=chosen.classes,
    )


def client_parts(settings: Settings, dataset: data.Dataset) -> list[npt.NDArray[np.int64]]:
    """The indices of the training images that each client holds."""
    federation = settings.federation
    return data.partition(
        np.asarray(dataset.train.labels),
        clients=federation.clients,
        kind=federation.partition,
        beta=federation.beta,
        sigma=federation.sigma,
        seed=derive(settings.run.seed, "partition") % 2**32,
    )
