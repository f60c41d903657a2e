"""A closing stage: every client is given a final model of its own, by a few steps with its share only.

After the last average the server sends gradients of the client's own bits once more, for 30 steps, and
nothing is averaged afterwards. What is tried is how to keep the accuracy: smaller rates, only the parameters
of batch norms and of the last block, the global model's logits as the task. The server half stays the global
one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigil import optimizers
from sigil.data import Batches, Dataset
from sigil.federation.averaging import State
from sigil.federation.evaluation import accuracy
from sigil.federation.from_settings import client_parts
from sigil.federation.precision import choose
from sigil.federation.run import Run
from sigil.federation.seeds import generator
from sigil.keys.key import Key
from sigil.pages.tables import NOT_RUN, Number, Page, Row, Table
from sigil.tracing.leak import Trace
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.scales import PerScale
from sigil_reproduction.runner.store import Store

STEPS = PerScale(30, smoke=2)


@dataclass(frozen=True)
class Way:
    """How the closing stage trains: rate, weight of the mark, which parameters, and against what."""

    rate: float
    weight: float
    few: bool = False
    distilled: bool = False


WAYS = {
    "all parameters, rate 0.01": Way(0.01, 1.0),
    "all parameters, rate 0.001": Way(0.001, 1.0),
    "batch norms and last block, rate 0.01": Way(0.01, 1.0, few=True),
    "distillation, all parameters, rate 0.01": Way(0.01, 1.0, distilled=True),
    "distillation, all parameters, rate 0.001": Way(0.001, 1.0, distilled=True),
    "distillation, batch norms and last block, rate 0.01": Way(0.01, 1.0, few=True, distilled=True),
    "distillation, all parameters, rate 0.01, mark 0.3": Way(0.01, 0.3, distilled=True),
}


def measure(
    run: Run, key: Key, dataset: Dataset, trace: Callable[[State], Trace], store: Store
) -> dict[str, Any]:
    """For each way: accuracy of all clients' final models, and whether each is traced to its client."""
    settings = run.settings
    precision = choose(settings.run.device, settings.run.precision)
    client_half, server_half = run.halves()
    before = 100 * accuracy(client_half, server_half, dataset, precision=precision)
    parts, steps = client_parts(settings, dataset), STEPS.at(store.scale)
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, way in WAYS.items():
        rows[name] = []
        for client in range(settings.federation.clients):
            own = key.share_of(client, settings.federation.clients)
            half = _close(client_half, server_half, key, own, way, dataset, parts[client], client, steps)
            found = trace(half.state_dict())
            rows[name].append(
                {
                    "lost": before - 100 * accuracy(half, server_half, dataset, precision=precision),
                    "named": found.named,
                    "client": client,
                    "gain": next(each.gain for each in found.ranking if each.client == client),
                }
            )
    return {"before": before, "rows": rows}


def _close(
    client_half: nn.Module,
    server_half: nn.Module,
    key: Key,
    own: Tensor,
    way: Way,
    dataset: Dataset,
    part: Any,
    client: int,
    steps: int,
) -> nn.Module:
    """One client's final half; batch norms keep the statistics of the global model."""
    half, teacher = copy.deepcopy(client_half).eval(), copy.deepcopy(client_half).eval()
    server = copy.deepcopy(server_half).eval().requires_grad_(False)
    chosen = _few(half) if way.few else list(half.parameters())
    optimizer = optimizers.SGD(chosen, lr=way.rate, momentum=0.9)
    batches = Batches(
        dataset.train.images,
        dataset.train.labels,
        part,
        batch_size=32,
        mean=dataset.mean,
        std=dataset.std,
        augment=dataset.augment,
    )
    matrix, target = key.matrix[:, own], key.target[own]
    done, order = 0, generator(0, "closing", client)
    while done < steps:
        for images, labels in batches.epoch(order):
            activation = half(images)
            logits = server(activation)
            if way.distilled:
                with torch.no_grad():
                    wanted = server(teacher(images)).softmax(1)
                task = F.kl_div(logits.log_softmax(1), wanted, reduction="batchmean")
            else:
                task = F.cross_entropy(logits, labels)
            projection = activation.flatten(1) @ matrix
            scale = projection.detach().std().clamp(min=1e-6)
            mark = F.binary_cross_entropy_with_logits(projection / scale, target.expand(len(images), -1))
            optimizer.zero_grad(set_to_none=True)
            (task + way.weight * mark).backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    return half


def _few(half: nn.Module) -> list[nn.Parameter]:
    """The parameters of all batch norms and of the last block."""
    norms = {id(p) for m in half.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
    last = {id(p) for p in list(half.children())[-1].parameters()}
    return [parameter for parameter in half.parameters() if id(parameter) in norms | last]


def show(measured: Measured, tasks: Sequence[str]) -> Page:
    """What the closing stage costs each way, and whether it does what it is for."""
    page: list[str | Table] = []
    for task in tasks:
        found = measured.every(f"{task} equal closing")
        rows: list[Row] = []
        for name in WAYS:
            each = [row for numbers in found for row in numbers["rows"][name]]
            if not each:
                rows.append([name, NOT_RUN, NOT_RUN, NOT_RUN, NOT_RUN])
                continue
            right = sum(row["named"] == row["client"] for row in each)
            wrong = sum(row["named"] not in (None, row["client"]) for row in each)
            rows.append(
                [
                    name,
                    Number.over([row["lost"] for row in each], form="+.2f"),
                    Number(max(row["lost"] for row in each), form="+.2f"),
                    f"{right} of {len(each)}",
                    f"{wrong} of {len(each)}",
                ]
            )
        page.append(
            Table(
                ["way", "accuracy lost, points", "largest loss", "named rightly", "wrongly"],
                rows,
                caption=f"## {task}: a final model of each client's own",
                notes=(
                    f"{STEPS.at('paper')} steps of 32 images ({STEPS.at('smoke')} at the scale `smoke`) with "
                    "the own share only, batch norms' statistics frozen; over all clients."
                ),
            )
        )
    return page
