"""What a client can do about being traced: hide its own share, or have another one named.

Each row starts from the local models of all clients at the end of one round. A client has its local model,
all global models and its images, and knows nothing of anybody else's share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sigil import attacks
from sigil.attacks.halves import Halves, open_at_cut, same_kind
from sigil.attacks.penalties import finetune_at_cut, mean_activation
from sigil.attacks.training import Tuning
from sigil.data import Dataset
from sigil.federation.averaging import State
from sigil.federation.from_settings import client_parts
from sigil.federation.precision import choose
from sigil.federation.run import Run
from sigil.pages.tables import NOT_RUN, Page, Row, Table
from sigil.tracing.leak import Trace
from sigil_reproduction.beyond.tracing_models import global_states, local_states, mixed
from sigil_reproduction.runner.experiment import Measured

FRAMING = "framing: pushed along another client's shift, by who holds its model"
NAMES = (
    "none",
    "averaged with the global model it started from",
    "averaged with an older global model",
    "averaged with the next global model",
    "averaged with another client's local model",
    "fine-tuned alone for two epochs",
    "its own shift pushed back, two epochs",
    FRAMING,
    "framing: pushed along minus its own shift, knowing nothing of others",
)


def measure(run: Run, kept: Path, dataset: Dataset, trace: Callable[[State], Trace]) -> dict[str, Any]:
    """Who is named after each attempt, for every client of the middle round of which there are leaks."""
    globals_, locals_ = global_states(kept), list(local_states(kept))
    numbers = sorted({number for number, *_ in locals_})
    number = numbers[len(numbers) // 2]
    leaked = {client: state for at, client, moment, state in locals_ if at == number and moment == "all"}
    parts = client_parts(run.settings, dataset)
    before, older, after = globals_[number - 1], globals_[max(0, number - 3)], globals_[number]
    precision = choose(run.settings.run.device, run.settings.run.precision)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    clients = sorted(leaked)
    for position, client in enumerate(clients):
        state, victim = leaked[client], clients[(position + 1) % len(clients)]
        own = attacks.share(dataset, parts[client])
        tuning = Tuning(epochs=2, seed=client, precision=precision)

        def pushed(start: State, along: Tensor, aim: float) -> State:
            return _pushed(run, start, along, aim, own, tuning)  # noqa: B023  called at once

        def mean(of: State) -> Tensor:
            return mean_activation(open_at_cut(_halves(run, of), own), own, tuning).flatten()  # noqa: B023

        base = mean(before)
        shift, other = mean(state) - base, mean(leaked[victim]) - base
        made = {
            NAMES[0]: state,
            NAMES[1]: mixed([(0.5, state), (0.5, before)]),
            NAMES[2]: mixed([(0.5, state), (0.5, older)]),
            NAMES[3]: mixed([(0.5, state), (0.5, after)]),
            NAMES[4]: mixed([(0.5, state), (0.5, leaked[victim])]),
            NAMES[5]: attacks.finetune(
                _halves(run, state), own, epochs=2, batch_size=32, seed=client, precision=precision
            )[0].state_dict(),
            NAMES[6]: pushed(state, shift, 0.0),
            NAMES[7]: pushed(before, other, 1.0),
            NAMES[8]: pushed(before, shift, -1.0),
        }
        for name, attacked in made.items():
            found = trace(attacked)
            rows[name].append(
                {"client": client, "victim": victim, "named": found.named, "marked": found.marked}
            )
    return {"round": number, "rows": rows}


def _halves(run: Run, state: State) -> Halves:
    client, server = run.halves()
    client.load_state_dict(state)
    return client, server


def _pushed(run: Run, start: State, along: Tensor, aim: float, own: Dataset, tuning: Tuning) -> State:
    """Fine-tune until the mean activation lies at base + aim · along, as far as ``along`` goes.

    The base is the mean of the model that is given, less its own part along the direction if aim is zero.
    """
    halves = _halves(run, start)
    opened = open_at_cut(halves, own)
    length = float(along.norm())
    unit = along / max(length, 1e-12)
    now = float(mean_activation(opened, own, tuning).flatten() @ unit)
    target = now - length if aim == 0.0 else now + aim * length

    def penalty(activation: Tensor) -> Tensor:
        return 10.0 * (activation.float().flatten(1) @ unit - target).square().mean()

    finetune_at_cut(opened, own, penalty, tuning, identity=f"trace {target}")
    with torch.no_grad():
        return same_kind(opened.whole, halves)[0].state_dict()


def show(measured: Measured, tasks: Sequence[str]) -> Page:
    """Who is named after each attempt."""
    page: list[str | Table] = []
    for task in tasks:
        found = measured.every(f"{task} equal attacks")
        rows: list[Row] = []
        for name in sorted(NAMES, key=lambda each: -_escaped(found, each)):
            each = [row for numbers in found for row in numbers["rows"][name]]
            if not each:
                rows.append([name, NOT_RUN, NOT_RUN, NOT_RUN, NOT_RUN])
                continue
            right = sum(row["named"] == row["client"] for row in each)
            victim = sum(row["named"] == row["victim"] for row in each)
            nobody = sum(row["named"] is None for row in each)
            counts = (right, victim, nobody, len(each) - right - victim - nobody)
            rows.append([name, *(f"{count} of {len(each)}" for count in counts)])
        page.append(
            Table(
                ["attempt", "the client itself is named", "the other client", "nobody", "a third one"],
                rows,
                caption=f"## {task}: what a client can do about it",
                notes="Local models of all clients at the end of one round; attempts that worked come first.",
            )
        )
    return page


def _escaped(found: list[dict[str, Any]], name: str) -> int:
    return sum(row["named"] != row["client"] for numbers in found for row in numbers["rows"][name])
