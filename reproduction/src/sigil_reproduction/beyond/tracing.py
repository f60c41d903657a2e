"""Who leaked: are local models traced to the right client, and global models to nobody?

This is not in the paper. Clients are equal, or unequal in classes, in size or in when they take part,
because bits differ by client in the global models of such trainings. *Leaks* are local models after half,
one and all local epochs. *Innocents* are global models: as they are, with their own round left out of the
record, mixed with older ones, quantized, pruned, disturbed, or fine-tuned by a stranger; every client's
share counts, and so do drawn shares, which nobody was ever given. The closing stage gives every client a
final model of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from sigil import attacks
from sigil.attacks.halves import Halves
from sigil.attacks.training import Tuning
from sigil.data import Dataset, Inputs
from sigil.federation.averaging import State
from sigil.federation.precision import choose
from sigil.federation.run import Run
from sigil.federation.seeds import derive, generator
from sigil.keys.key import Key
from sigil.tracing import contrast
from sigil.tracing.leak import LEVEL, Trace, compare
from sigil.tracing.record import AgreementRecord, read_record
from sigil.verdict.readings import Reading, read
from sigil.verdict.verification import INPUTS_READ
from sigil_reproduction.beyond import tracing_attacks, tracing_closing, tracing_page
from sigil_reproduction.beyond.tracing_models import (
    KINDS,
    TASKS,
    disturbed,
    global_states,
    local_states,
    mixed,
    opened,
    settings_of,
    trained,
)
from sigil_reproduction.runner.experiment import Experiment
from sigil_reproduction.runner.scales import PerScale, Scale, get
from sigil_reproduction.runner.store import Cell, Store

DRAWN = PerScale(50, smoke=5)  # drawn assignments for each innocent model
# Sets of bits that stand for chance: as many as the product draws, unless it only has to run.
SETS: PerScale[int | None] = PerScale(None, smoke=10_000)


@dataclasses.dataclass(frozen=True)
class TracedTraining:
    """A finished training, its key, its record, and how its test images read a model."""

    run: Run
    kept: Path
    key: Key
    record: AgreementRecord
    dataset: Dataset
    sets: int | None = None

    @classmethod
    def open(cls, scale: Scale, task: str, kind: str, seed: int, store: Store) -> TracedTraining:
        """Train unless that was done."""
        run, kept = trained(scale, task, kind, seed, store)
        key = store.key(run)
        assert key is not None
        return cls(run, kept, key, read_record(run.folder), store.dataset(run.settings), sets=SETS.at(scale))

    @cached_property
    def client_half(self) -> nn.Module:
        """The client half that the training ended with."""
        return self.run.halves()[0]

    def reading(self, model: nn.Module) -> Reading:
        """The mark on the images that the record was read on."""
        data = self.dataset
        inputs = Inputs(data.test.images, normalisation=(data.mean, data.std), is_data_set=True)
        chosen = self.key.choose(INPUTS_READ, len(inputs)).tolist()
        return read(
            model,
            self.key,
            lambda: inputs.batches(chosen, 128),
            kind="inputs",
            count=len(chosen),
            digest=inputs.digest,
        )

    def trace(self, state: State, record: AgreementRecord | None = None) -> Trace:
        """The trace of a client half with these weights."""
        return self.compare(self.reading(self.half(state)), record or self.record)

    def compare(self, reading: Reading, record: AgreementRecord) -> Trace:
        """The trace of a model that was read."""
        return compare(reading, self.key, record, draws=self.sets)

    def half(self, state: State) -> nn.Module:
        return opened(self.client_half, state)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Leaks and innocents of each kind of training; attacks and the closing stage with equal clients."""
    whats = [(kind, "leaks") for kind in KINDS] + [("equal", "attacks"), ("equal", "closing")]
    whats[4:4] = [(kind, "innocents") for kind in KINDS]
    return [
        Cell(
            "tracing",
            f"{task} {kind} {what}",
            seed,
            (),
            {
                "task": task,
                "kind": kind,
                "what": what,
                "settings": settings_of(scale, task, kind, seed).model_dump(
                    mode="json", exclude_defaults=True
                ),
            },
        )
        for task in TASKS.at(scale)
        for seed in seeds
        for kind, what in whats
    ]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Train unless that was done, then look at one side of it."""
    scale = get(store.scale)
    subject = TracedTraining.open(scale, cell.options["task"], cell.options["kind"], cell.seed, store)
    what = cell.options["what"]
    if what == "leaks":
        return _leaks(subject)
    if what == "innocents":
        return _innocents(subject, DRAWN.at(scale))
    if what == "attacks":
        return tracing_attacks.measure(subject.run, subject.kept, subject.dataset, subject.trace)
    return tracing_closing.measure(subject.run, subject.key, subject.dataset, subject.trace, store)


def _leaks(subject: TracedTraining) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for number, client, moment, state in local_states(subject.kept):
        found = subject.trace(state)
        own = next(each for each in found.ranking if each.client == client)
        rows.append(
            {
                "round": number,
                "moment": moment,
                "images": len_part(subject, client),
                "named": found.named,
                "client": client,
                "first": found.ranking[0].client == client,
                "p": own.p,
                "gain": own.gain,
                "marked": found.marked,
            }
        )
    return {
        "accuracy": 100 * subject.run.final["accuracy"],
        "wsr": 100 * subject.run.final["wsr_inputs"],
        "rows": rows,
    }


def len_part(subject: TracedTraining, client: int) -> int:
    """How many images a client holds."""
    from sigil.federation.from_settings import client_parts

    return len(client_parts(subject.run.settings, subject.dataset)[client])


def _innocents(subject: TracedTraining, drawn: int) -> dict[str, Any]:
    """How many innocents would be named, by what was done to the global model."""
    states = global_states(subject.kept)
    counts: dict[str, dict[str, int]] = {}
    smallest = 1.0
    pairs = wrong_pairs = drawn_pairs = drawn_wrong = 0
    for number, state in states.items():
        if number == 0:
            continue
        for what, changed, record in _changed(subject, number, state, states):
            reading = subject.reading(subject.half(changed))
            found = subject.compare(reading, record)
            row = counts.setdefault(what, {"models": 0, "named": 0, "called global": 0, "unmarked": 0})
            row["models"] += 1
            row["named"] += found.named is not None
            row["called global"] += found.is_global
            row["unmarked"] += not found.marked
            pairs += len(found.ranking)
            wrong_pairs += sum(each.p <= LEVEL for each in found.ranking)
            smallest = min(smallest, min(each.p for each in found.ranking))
            made, wrong = _drawn(subject, reading, record, drawn, number)
            drawn_pairs, drawn_wrong = drawn_pairs + made, drawn_wrong + wrong
    return {
        "counts": counts,
        "pairs": pairs,
        "pairs_named": wrong_pairs,
        "drawn_pairs": drawn_pairs,
        "drawn_named": drawn_wrong,
        "smallest_p": smallest,
    }


def _drawn(
    subject: TracedTraining, reading: Reading, record: AgreementRecord, count: int, number: int
) -> tuple[int, int]:
    """Innocents by construction: the model with shares that nobody was given, `count` times all clients."""
    total = record.counted["inputs"]
    rounds = {
        each: contrast.stabilised(counts["inputs"], total)
        for each, counts in record.rounds.items()
        if "inputs" in counts
    }
    values = contrast.stabilised([round(share * total) for share in reading.bit_shares], total)
    basis = contrast.regressors(contrast.nearest(values, rounds), rounds)
    stream = np.random.default_rng(derive(subject.run.settings.run.seed, "tracing", "drawn", number))
    clients = record.clients
    dealt = np.arange(record.bits) % clients
    own = np.concatenate(
        [np.arange(clients)[:, None] == stream.permutation(dealt)[None] for _ in range(count)]
    )
    found, _ = contrast.p_values(values, basis, own, seed=number, draws=subject.sets or 100_000)
    return len(own), int((clients * found <= LEVEL).sum())


def _changed(
    subject: TracedTraining, number: int, state: State, states: dict[int, State]
) -> list[tuple[str, State, AgreementRecord]]:
    """Innocent models that descend from the global model of a round, each with the record to trace by."""
    seed, full = subject.run.settings.run.seed, subject.record
    without = dataclasses.replace(
        full, rounds={each: counts for each, counts in full.rounds.items() if each != number}
    )
    noise = generator(seed, "tracing", "noise", number)
    models: list[tuple[str, State, AgreementRecord]] = [
        ("as it is", state, full),
        ("its round left out of the record", state, without),
        *(
            (f"mixed with {words}", mixed([(0.5, state), (0.5, states[number - back])]), full)
            for back, words in ((1, "the round before"), (2, "the round two before"))
            if number > back
        ),
        *(("disturbed", disturbed(state, size, noise), full) for size in (0.02, 0.05, 0.1)),
    ]
    halves = _with_server(subject, state)
    for bits in (8, 4):
        models.append((f"INT{bits}", attacks.quantize(halves, f"int{bits}")[0].state_dict(), full))  # type: ignore[arg-type]
    models.append(("pruned by 30 %", attacks.prune(halves, 0.3)[0].state_dict(), full))
    precision = choose(subject.run.settings.run.device, subject.run.settings.run.precision)
    images = len(subject.dataset.train)
    for epochs in (1, 3):
        picked = np.random.default_rng(derive(seed, "stranger", number, epochs)).choice(
            images, max(16, images // 10), replace=False
        )
        tuning = Tuning(epochs=epochs, seed=epochs, precision=precision)
        stranger = attacks.share(subject.dataset, np.sort(picked))
        model = attacks.finetune(
            halves,
            stranger,
            epochs=epochs,
            lr=0.01,
            batch_size=tuning.batch_size,
            seed=number,
            precision=precision,
        )
        models.append(("fine-tuned by a stranger", model[0].state_dict(), full))
    return models


def _with_server(subject: TracedTraining, state: State) -> Halves:
    client, server = subject.run.halves()
    client.load_state_dict(state)
    return client, server


CAPTION = (
    "Tracing a leaked local model to its client by the bits that it carries more strongly than the recorded "
    "global models: right and wrong names, what a client can do about it, and final models of a client's own "
    "(ResNet-18, shares, key of the default length)."
)
EXPERIMENT = Experiment("tracing", CAPTION, cells, tracing_page.show, measure, tracing_page.verdict)
