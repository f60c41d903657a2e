"""Whose copy leaked, in real trainings where every client has its own copy (``federation.imprint``).

This is not in the paper. Trainings on the embedded digits at width 8, whatever the scale. In every round one
client's copy leaks, as it was given and as it was returned; a client averages its last five copies; and a
client goes from its first copy of a block along its own training and away from the next models, which tell a
little of everybody's pattern: of what was tried, that puts the most blame on others. The global models
themselves must name nobody, no honest client's change may be refused for a pattern, and names that nobody has
must be found as often as chance finds them. Shorter trainings at several widths show how deviations grow with
the number of weights.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sigil
from sigil import imprint_reading, models
from sigil.federation import Federation
from sigil.federation.from_settings import load_data, what_a_key_states
from sigil.federation.imprinting import Imprinting
from sigil.federation.run import Run
from sigil.federation.settings import Settings, read
from sigil.imprint import Imprint, Patterns, recipient
from sigil.models import Model
from sigil.pages.tables import MISSING, Page, Row, Table
from sigil.tracing import IMPRINTS
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim
from sigil_reproduction.runner.scales import PerScale, Scale
from sigil_reproduction.runner.store import Cell, Store

ADAM = ("federation.local_epochs=6", "optimizer.name=adam", "optimizer.lr=0.002", "data.train_limit=500")
TRAININGS: dict[str, tuple[str, ...]] = {
    "2 clients": ("federation.clients=2",),
    "4 clients": ("federation.clients=4",),
    "8 clients": ("federation.clients=8",),
    "4 clients, non-IID": (
        *("federation.clients=4", "federation.partition=dirichlet", "federation.beta=0.5"),
    ),
    "4 clients, median": ("federation.clients=4", "federation.average=median"),
    "2 clients, Adam, six epochs": ("federation.clients=2", *ADAM),
    **{
        f"width {width}": (
            *("federation.clients=2", "federation.rounds=3", f"model.width={width}"),
            *("data.train_limit=400", "optimizer.lr=0.02", "optimizer.warmup_rounds=0"),
        )
        for width in (8, 16, 32, 64)
    },
}
# Seconds, where only the machinery is tried.
SMALLER = PerScale((), smoke=("data.train_limit=80", "federation.rounds=2"))
# What leaks, and what is nobody's copy.
LEAKS = ("given", "returned", "last five averaged", "extrapolated")
KINDS = (*LEAKS, "global")
ROUNDS = 5
# How far a client goes from its copy along its own training and away from the next models, in turns.
BEYOND = (1.0, 4.0)
NAMES = 30
LEVELS = (0.1, 0.01, 0.001)
State = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class _Watched(Patterns):
    """Patterns that note what each client returned."""

    returned: dict[str, State] = field(default_factory=dict)

    def take(self, recipient: str, model: State, returned: State) -> dict[str, Tensor]:
        self.returned[recipient] = {name: value.detach().clone() for name, value in returned.items()}
        return super().take(recipient, model, returned)


class _Leaking(Imprinting):
    """Copies of which this file sees everything."""

    patterns: _Watched

    def begin(self, number: int, state: Any) -> Patterns:
        found = super().begin(number, state)
        self.patterns = _Watched(found.steps, found.shapes, found.streams)
        return self.patterns


class _Traces:
    """What the traces of each kind of suspect came to."""

    def __init__(self, key: sigil.Key, folder: Path) -> None:
        self._key, self._folder = key, folder
        self._rows: dict[str, list[tuple[bool, float, int, float]]] = {}

    def add(self, kind: str, suspect: State, leaking: str | None) -> None:
        """Trace a suspect that holds the copy of who leaks it, and nobody else's."""
        outcome = sigil.trace(suspect, self._key, self._folder)
        own = [each for each in outcome.recipients if each.name == leaking]
        others = [each for each in outcome.recipients if each.name != leaking]
        self._rows.setdefault(kind, []).append(
            (
                any(each.contained for each in own),
                max((each.deviations for each in own), default=0.0),
                sum(each.contained for each in others),
                max((each.deviations for each in others), default=0.0),
            )
        )

    def numbers(self) -> dict[str, float]:
        """Of each kind: how many, how many named rightly and wrongly, and the extreme deviations."""
        return {
            f"{kind}: {what}": number
            for kind, rows in self._rows.items()
            for what, number in {
                "traced": len(rows),
                "named": sum(row[0] for row in rows),
                "least": min(row[1] for row in rows),
                "wrongly": sum(row[2] for row in rows),
                "others": max(row[3] for row in rows),
            }.items()
        }


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """One training per cell; those of several widths, which take longest, come last and have one seed."""
    small = SMALLER.at(scale)
    wanted = [(name, seed) for seed in seeds for name in TRAININGS if not name.startswith("width")]
    wanted += [(name, seeds[0]) for name in TRAININGS if name.startswith("width")]
    return [
        Cell("imprints", name, seed, (), {"changes": [*TRAININGS[name], *small]})
        for name, seed in wanted
        if not small or name == "2 clients"
    ]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Train, let a copy of every kind leak in every round, and trace it through all registers."""
    fixed = ("model.width=8", f"federation.rounds={ROUNDS}", "federation.imprint=true", "run.workers=1")
    settings = read(None, [*fixed, f"run.seed={cell.seed}", *cell.options["changes"]])
    key = sigil.Key.generate("ACME", seed=cell.seed.to_bytes(32, "big"), **what_a_key_states(settings))
    with tempfile.TemporaryDirectory() as folder:
        return _train(settings, key, Path(folder))


def _train(settings: Settings, key: sigil.Key, folder: Path) -> dict[str, Any]:
    clients = settings.federation.clients
    federation = Federation(settings, load_data(settings), key=key)
    half = federation.training.halves.client
    assert isinstance(half, Model)
    leaking = federation.imprinting = _Leaking(key, half, clients=clients, folder=folder / IMPRINTS)
    leaks: list[tuple[str, State, str | None]] = []
    names = [recipient(client) for client in range(clients)]
    copies: dict[str, list[State]] = {name: [] for name in names}
    first: Mapping[str, State] = {}
    ahead: dict[str, State] = {}
    refused = 0
    for number in range(1, settings.federation.rounds + 1):
        block, before = leaking.block, federation.client_state
        patterns = leaking.begin(number, before)
        given: dict[str, State] = {name: patterns.give(name, before) for name in names}
        if leaking.block != block:
            first, ahead = given, {name: _combined([given[name]], [0.0]) for name in names}
        for name in names:
            copies[name].append(given[name])
        name = names[(number - 1) % clients]
        leaks.append(("given", given[name], name))
        if len(copies[name]) >= ROUNDS:
            leaks.append(
                ("last five averaged", _combined(copies[name][-ROUNDS:], [1 / ROUNDS] * ROUNDS), name)
            )
        federation.run_round()
        after, returned = federation.client_state, leaking.patterns.returned
        leaks += [("returned", returned[name], name), ("global", after, None)]
        for each in names:
            # Its own training, minus what became of everybody's: its next copy in the block minus this one.
            known = [ahead[each], returned[each], given[each], after, before]
            ahead[each] = _combined(known, [1, 1, -1, -1, 1])
        beyond = BEYOND[number % len(BEYOND)]
        leaks.append(("extrapolated", _combined([first[name], ahead[name]], [1, beyond]), name))
        refused += _refused(patterns, before, returned)
    accuracy = federation.accuracy()
    models.save(folder / "client.safetensors", federation.halves()[0])
    federation.close()
    traces = _Traces(key, folder)
    for leak in leaks:
        traces.add(*leak)
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {
        "accuracy": 100 * accuracy,
        "weights": sum(math.prod(shape) for shape in leaking.patterns.shapes.values()),
        "blocks": len(list((folder / IMPRINTS).iterdir())),
        "megabytes": sum(file.stat().st_size for file in files) / 1e6,
        "refused": refused,
        **traces.numbers(),
        **_by_chance(key, folder / IMPRINTS, [federation.client_state, returned[name]]),
    }


def _refused(patterns: Patterns, before: State, returned: Mapping[str, State]) -> int:
    """How many honest clients' changes would be left out for the pattern of somebody."""
    taken = {who: patterns.take(who, before, state) for who, state in returned.items()}
    changes = {
        who: {name: state[name].double() - before[name].double() for name in patterns.steps}
        for who, state in taken.items()
    }
    return len(patterns.carried(changes))


def _combined(states: Sequence[State], factors: Sequence[float]) -> State:
    """A linear combination; counters are the first one's."""
    return {
        name: sum(
            (factor * state[name] for factor, state in zip(factors, states, strict=True)),
            torch.zeros_like(value),
        )
        if value.is_floating_point()
        else value
        for name, value in states[0].items()
    }


def _by_chance(key: sigil.Key, folder: Path, innocents: Sequence[State]) -> dict[str, int]:
    """How often p of a name for which no copy was made is at most x, over names, registers and suspects."""
    found = []
    for place in sorted(folder.iterdir()):
        copies = Imprint.load(place, key)
        ours = {name: copies.state[name] for name in copies.carriers}
        for which, suspect in enumerate(innocents):
            reading = imprint_reading.read(ours, suspect)
            for number in range(NAMES):
                positive = reading.positive(copies.pattern(f"Nobody {which}.{number}"))
                found.append(imprint_reading.log10_p_before(positive, reading.coins))
    return {"names": len(found)} | {
        f"p <= {level}": sum(each <= math.log10(level) for each in found) for level in LEVELS
    }


def show(measured: Measured, folder: Path) -> Page:
    """One row per training and kind of suspect; what it costs; and names that nobody has."""
    names = measured.names

    def total(name: str, number: str) -> str:
        values = measured.values(name, number)
        return f"{sum(values):.0f}" if values else MISSING

    def extreme(name: str, number: str, choose: Any) -> str:
        values = measured.values(name, number)
        return f"{choose(values):.1f}" if values else MISSING

    rows: list[Row] = [
        [
            name,
            kind,
            total(name, f"{kind}: traced"),
            total(name, f"{kind}: named"),
            extreme(name, f"{kind}: least", min),
            total(name, f"{kind}: wrongly"),
            extreme(name, f"{kind}: others", max),
        ]
        for name in names
        for kind in KINDS
    ]
    sizes: list[Row] = [
        [
            name,
            str(len(measured.values(name, "accuracy"))),
            measured.number(name, "weights", form=",.0f"),
            *(measured.number(name, number) for number in ("accuracy", "blocks", "megabytes")),
            *(total(name, number) for number in ("refused", "names", *(f"p <= {level}" for level in LEVELS))),
        ]
        for name in names
    ]
    return [
        Table(
            ["training", "suspect", "traced", "named", "deviations", "wrongly", "others, at most"],
            rows,
            names=2,
        ),
        Table(
            [
                *("training", "seeds", "weights", "accuracy", "blocks", "MB", "refused", "names"),
                *(f"p ≤ {x}" for x in LEVELS),
            ],
            sizes,
            names=2,
        ),
    ]


def verdict(measured: Measured) -> list[Finding]:
    """Nobody is named wrongly, no honest change is refused, and a copy that leaks as it was given names."""

    def total(what: str) -> float | None:
        values = [value for name in measured.names for value in measured.values(name, what)]
        return sum(values) if values else None

    wrongly = {kind: total(f"{kind}: wrongly") for kind in KINDS}
    named = {"traced": total("given: traced"), "named": total("given: named")}
    missed = None if None in named.values() else named["traced"] - named["named"]  # type: ignore[operator]
    return [
        check_claim("Nobody is named wrongly", wrongly, lambda x: x == 0, ".0f"),
        check_claim("Copies as they were given that name nobody", {"given": missed}, lambda x: x == 0, ".0f"),
        check_claim("Honest changes refused", {"all": total("refused")}, lambda x: x == 0, ".0f"),
    ]


CAPTION = "Copies that leak in every round of trainings on the digits, and whom they name."
EXPERIMENT = Experiment("imprints", CAPTION, cells, show, measure, verdict)
