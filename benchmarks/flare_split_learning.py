"""Split learning of two parties by NVIDIA FLARE, set up as its own CIFAR-10 example sets it up.

As there, `site-1` holds the images and the first half, `site-2` the labels and the second half. The
server only starts the loop, which runs at `site-1`: one call of `site-2` per batch, with activations and
gradients as float16. Model, batches and optimizer are those of :mod:`peers`, which starts this as a
program::

    python benchmarks/flare_split_learning.py JOB.json WORKSPACE
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from nvflare.collab import CollabRecipe, collab
from nvflare.recipe import SimEnv
from torch import Tensor

from sigil import data
from sigil.federation.from_settings import build_halves, fresh_optimizer, load_data
from sigil.federation.precision import Precision
from sigil.federation.settings import make

SITES = {"site-1": "images", "site-2": "labels"}
TIMEOUT = 600.0


def narrow(values: Tensor) -> Tensor:
    return values.detach().to(torch.float16)


class Party:
    """One of the two sites; what it holds depends on its role."""

    @collab.init
    def prepare(self) -> None:
        job: dict[str, Any] = json.loads(Path(collab.get_app_prop("job")).read_text())
        torch.set_num_threads(job["threads"])
        self.steps, self.progress = job["steps"], Path(job["progress"])
        settings = make(job["settings"])
        # Contiguous, as in the example; the number format is the example's or that of all other loops.
        self.precision = Precision(torch.device("cpu"), bfloat16=job["bfloat16"], channels_last=False)
        self.dataset = load_data(settings, Path(job["data_dir"]))
        self.batch_size = settings.federation.batch_size
        halves = build_halves(
            settings,
            classes=self.dataset.classes,
            input_shape=self.dataset.shape,
            precision=self.precision,
        )
        self.half = halves.client if collab.get_app_prop("role") == "images" else halves.server
        self.half.train()
        self.optimizer = fresh_optimizer(
            self.half, settings.optimizer.lr, settings=settings, precision=self.precision
        )
        self.labels = self.batches()

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The same batches at both sites, without end: the order follows from the seed."""
        batches = data.Batches(
            self.dataset.train.images,
            self.dataset.train.labels,
            batch_size=self.batch_size,
            mean=self.dataset.mean,
            std=self.dataset.std,
        )
        order = torch.Generator().manual_seed(0)
        while True:
            yield from batches.epoch(order)

    @collab.publish
    def loop(self) -> int:
        """The whole training, at the site of the images."""
        other = collab.get_clients(["site-2"])[0]
        with self.progress.open("a") as file:
            for images, _ in islice(self.batches(), self.steps):
                with self.precision.autocast():
                    activation = self.half(images)
                gradient = other(timeout=TIMEOUT).answer(narrow(activation))
                self.optimizer.zero_grad(set_to_none=True)
                activation.backward(gradient.to(activation.dtype))
                self.optimizer.step()
                print(time.monotonic(), len(images), file=file, flush=True)
        return self.steps

    @collab.publish
    def answer(self, activation: Tensor) -> Tensor:
        """At the site of the labels: train the second half on one batch, return the gradient at the cut."""
        _, labels = next(self.labels)
        received = activation.float().requires_grad_()
        with self.precision.autocast():
            logits = self.half(received)
        self.optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(logits.float(), labels).backward()
        self.optimizer.step()
        assert received.grad is not None
        return narrow(received.grad)


class Starter:
    """The server."""

    @collab.main
    def run(self) -> int:
        steps: int = collab.get_clients(["site-1"])[0](timeout=24 * TIMEOUT).loop()
        return steps


def main() -> None:
    job, workspace = sys.argv[1:]
    recipe = CollabRecipe(
        "split", server=Starter(), client=Party(), min_clients=len(SITES), sync_task_timeout=TIMEOUT
    )
    recipe.set_client_prop("job", job)
    recipe.set_per_site_config({site: {"role": role} for site, role in SITES.items()})
    environment = SimEnv(clients=recipe.configured_sites(), workspace_root=workspace, log_config="ERROR")
    recipe.execute(environment).get_result()


if __name__ == "__main__":
    main()
