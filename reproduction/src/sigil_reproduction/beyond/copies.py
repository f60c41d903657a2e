"""What a leaked copy survives: how far its imprint is found after every attack, and what that costs.

This is not in the paper. The finished model of the scheme `shares` is handed to 20 recipients
(:class:`sigil.Imprint`). The thief is the first of them, or the first few who pool their copies, with client
0's images and the initial weights; it has read the source. Attacks that need the gradients of the training
are left out: the kept model has none. In the last rows the thief is a client of a training that goes on from
the same model for five rounds, and holds the copies of all of them.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sigil
from sigil import attacks
from sigil.attacks import BEST
from sigil.attacks.halves import Halves
from sigil.federation import Federation
from sigil.federation.run import Run
from sigil.federation.settings import make
from sigil.imprint import Imprint, recipient
from sigil.models import Model, from_state, save
from sigil.pages.tables import NOT_RUN, Number, Page, Row, Table
from sigil.tracing import COURT_LOG2, IMPRINTS, Trace
from sigil_reproduction.beyond.thief import Thief
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured, check_claim
from sigil_reproduction.runner.scales import PerScale, Scale, shares
from sigil_reproduction.runner.store import Cell, Store

RECIPIENTS = 20
EPOCHS = PerScale(4, smoke=1)
ROUNDS = 5
NOTHING, LAUNDERED, DISTURBED = "nothing", "shaped noise 0.9, distilled", "shaped noise 0.3, distilled"
State = Mapping[str, Tensor]


def laundered(thief: Thief, noise: float, shape: float) -> Halves:
    """Noise, white or shaped by each layer's inputs, and distillation from the own copy."""
    return attacks.launder(thief.halves, thief.own, noise=noise, shape=shape, tuning=thief.tuning, lr=1e-3)


def erased(thief: Thief) -> Halves:
    """Everything that takes mark, origin and imprint away, at once."""
    tuning = thief.tuning.changed(lr=1e-3)
    return attacks.erase(
        thief.halves, thief.own, thief.initial, flatten=3.0, orthogonalise=1.0, noise=0.9, tuning=tuning
    )


ATTACKS: dict[str, Callable[[Thief], Halves]] = {
    NOTHING: lambda thief: thief.halves,
    "INT8": lambda thief: attacks.quantize(thief.halves, "int8"),
    "INT4": lambda thief: attacks.quantize(thief.halves, "int4"),
    "pruning 60 %": lambda thief: attacks.prune(thief.halves, 0.6),
    "pruning 80 %": lambda thief: attacks.prune(thief.halves, 0.8),
    "reordering and scaling channels": lambda thief: attacks.permute(thief.halves),
    LAUNDERED: lambda thief: laundered(thief, 0.9, 0.7),
    "fine-tuning": lambda thief: attacks.finetune(
        thief.halves, thief.own, tuning=thief.tuning, labels=1.0, logits=0.0
    ),
    "noise 0.3, distilled": lambda thief: laundered(thief, 0.3, 0.0),
    "noise 1.0, distilled": lambda thief: laundered(thief, 1.0, 0.0),
    "flattening": lambda thief: thief.read(way="flatten"),
    "orthogonalising": lambda thief: thief.orthogonalise(thief.halves, keep=True),
    "everything at once": erased,
    "reading": lambda thief: thief.read(),
    "dodging": lambda thief: thief.dodge(0.1),
    "overwriting": Thief.overwrite,
    "turning signs": lambda thief: thief.orthogonalise(thief.halves, way="turn"),
}


def chosen_at_random(values: Tensor) -> Tensor:
    """Each weight of one of the copies (copies, …)."""
    which = torch.randint(len(values), values.shape[1:], generator=torch.Generator().manual_seed(0))
    return values.gather(0, which[None])[0]


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda values: values.mean(0),
    "midpoint": lambda values: (values.amin(0) + values.amax(0)) / 2,
    "random choice": chosen_at_random,
}
SIZES, DISTURBED_SIZES = (2, 3, 5, 10), (2, 5, 10)
AFTERWARDS: dict[str, Callable[[Thief], Halves]] = {
    NOTHING: lambda thief: thief.halves,
    DISTURBED: lambda thief: laundered(
        replace(thief, tuning=thief.tuning.changed(epochs=math.ceil((thief.tuning.epochs or 0) / 2))),
        0.3,
        0.7,
    ),
}
# Where only the machinery is tried.
SMOKE = (NOTHING, LAUNDERED, "mean of 2, nothing", "five rounds")
TRAINING = ("last copy", "last copy, laundered", "five copies averaged", "five copies averaged, laundered")


def mixed(copies: Sequence[Model], way: str) -> Model:
    """One model of several copies."""
    states = [one.state_dict() for one in copies]
    state = {
        name: WAYS[way](torch.stack([one[name].double() for one in states])).to(value.dtype)
        for name, value in states[0].items()
    }
    return from_state(copies[0].spec, state)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Each attack on one copy, each mixture of copies, and a client's copies of five rounds."""
    single: list[tuple[str, dict[str, Any]]] = [(name, {"attack": name}) for name in ATTACKS]
    mixtures: list[tuple[str, dict[str, Any]]] = [
        (f"{way} of {size}, {after}", {"way": way, "copies": size, "attack": after})
        for after, sizes in ((NOTHING, SIZES), (DISTURBED, DISTURBED_SIZES))
        for way in WAYS
        for size in sizes
    ]
    # What trains nothing first.
    quick, plain = list(ATTACKS).index(LAUNDERED), len(SIZES) * len(WAYS)
    wanted = single[:quick] + mixtures[:plain] + [single[quick], ("five rounds", {"rounds": ROUNDS})]
    wanted += single[quick + 1 :] + mixtures[plain:]
    record = {} if scale.keeps_models else scale.recording
    settings = [scale.settings(seed=seed, watermark=shares(scale), record=record) for seed in seeds]
    return [
        Cell("copies", name, seed, (each,), options)
        for seed, each in zip(seeds, settings, strict=True)
        for name, options in wanted
        if scale.judged or name in SMOKE
    ]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Issue the copies, attack what the thief has, trace it."""
    (run,) = runs
    found = Thief.of(run, store)
    tuning = BEST.changed(
        epochs=EPOCHS.at(store.scale),
        batch_size=64,
        seed=found.tuning.seed,
        precision=found.tuning.precision,
    )
    thief = replace(found, tuning=tuning)
    if "rounds" in cell.options:
        return {"rows": five_rounds(thief)}
    key = store.key(run)
    assert key is not None
    copies = Imprint(key, thief.halves[0])
    size = cell.options.get("copies", 1)
    issued = [copies.issue(recipient(number)) for number in range(RECIPIENTS)]
    held = mixed(issued[:size], cell.options["way"]) if size > 1 else issued[0]
    attack = (ATTACKS | AFTERWARDS)[cell.options["attack"]]
    attacked = attack(replace(thief, halves=(held, thief.halves[1])))
    return left(thief, attacked, sigil.trace(attacked[0], key, copies), size)


def five_rounds(thief: Thief) -> dict[str, dict[str, Any]]:
    """A training of two clients that goes on from the model, and what the first makes of its copies."""
    given = thief.run.settings.model_dump(mode="json")
    changes: dict[str, dict[str, Any]] = {
        "federation": {"clients": 2, "rounds": ROUNDS + 1, "local_epochs": 1, "imprint": True},
        "data": {"train_limit": 2_500 if thief.store.scale != "smoke" else 80},
        "optimizer": {"lr": 0.05, "warmup_rounds": 0},
        "record": {"clients": []},
    }
    settings = make({name: {**values, **changes.get(name, {})} for name, values in given.items()})
    key = thief.store.key(thief.run)
    assert key is not None
    data = thief.store.dataset(settings)
    client, server = thief.halves
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        federation = Federation(settings, data, key=key, registers=place / IMPRINTS)
        federation.load(0, client.state_dict(), server.state_dict())
        held = []
        for number in range(1, ROUNDS + 1):
            assert federation.imprinting is not None
            patterns = federation.imprinting.begin(number, federation.client_state)
            held.append(patterns.give(recipient(0), federation.client_state))
            last = from_state(server.spec, {name: v.clone() for name, v in federation.server_state.items()})
            federation.run_round()
        save(place / "client.safetensors", from_state(client.spec, federation.client_state))
        federation.close()
        copies = [from_state(client.spec, state) for state in held]
        rows = {}
        for name, half in {"last copy": copies[-1], "five copies averaged": mixed(copies, "mean")}.items():
            holder = replace(thief, halves=(half, last))
            for after, attacked in (
                (name, holder.halves),
                (f"{name}, laundered", laundered(holder, 0.9, 0.7)),
            ):
                rows[after] = left(thief, attacked, sigil.trace(attacked[0], key, place), 1)
        blocks = len(list((place / IMPRINTS).iterdir()))
    return {name: {**row, "blocks": blocks} for name, row in rows.items()}


def left(thief: Thief, attacked: Halves, found: Trace, size: int) -> dict[str, Any]:
    """Accuracy, and how the copies of the first ``size`` recipients are found, and the others."""
    data = thief.store.dataset(thief.run.settings)
    known = {recipient(number) for number in range(size)}
    mine = [each for each in found.recipients if each.name in known]
    others = [each for each in found.recipients if each.name not in known]
    together = found.coalition
    return {
        "accuracy": 100
        * (attacks.measure(attacked, data=data, precision=thief.tuning.precision).accuracy or 0.0),
        "deviations": [round(each.deviations, 2) for each in mine],
        "log10_p_before": [round(each.log10_p_before, 2) for each in mine],
        "log10_p": [round(each.log10_p, 2) for each in mine],
        "named": sum(each.contained for each in mine),
        "others": max(each.deviations for each in others),
        "wrongly": sum(each.contained for each in others),
        "together": None if together is None else round(together.log10_p, 2),
        "together_names": 0 if together is None else len(together.names),
        "together_right": 0 if together is None else len(known & set(together.names)),
    }


def show(measured: Measured, folder: Path) -> Page:
    """A table per thief: of one copy, of several, of a training's rounds."""
    before = measured.first(NOTHING)
    whole = None if before is None else float(before["accuracy"])
    first = measured.of_first_seed
    single: list[Row] = [
        _row(cell.name, measured.first(cell.name), whole) for cell in first if cell.name in ATTACKS
    ]
    mixtures: list[Row] = [
        _row(cell.name, measured.first(cell.name), whole) for cell in first if "way" in cell.options
    ]
    rows = (measured.first("five rounds") or {}).get("rows", {})
    start = float(rows[TRAINING[0]]["accuracy"]) if rows else None
    rounds: list[Row] = [_row(name, rows.get(name), start) for name in TRAINING]
    columns = ["accuracy", "lost", "deviations", "log10 p before", "corrected", "named", "court"]
    columns += ["others, at most", "wrongly"]
    return [
        Table(["what was done to the copy", *columns], single, notes=NOTES),
        Table(
            ["copies", *columns, "as a group", "rightly"],
            [[*row, *_together(measured.first(str(row[0])))] for row in mixtures],
            notes=NOTES,
        ),
        Table(["a client's copies of five rounds", *columns], rounds, notes=NOTES),
    ]


NOTES = (
    "*Deviations*, log10 p before correction and corrected: of several copies the least and the most found. "
    f"*Named* for the owner, *court* with a p that is 2^{COURT_LOG2} times as large."
)


def _row(name: str, numbers: Mapping[str, Any] | None, whole: float | None) -> Row:
    if numbers is None or whole is None:
        return [name, *[NOT_RUN] * 9]

    def both(what: str, form: str) -> str:
        values = sorted(numbers[what], key=abs)
        return " to ".join(f"{value:{form}}" for value in dict.fromkeys((values[0], values[-1])))

    size = len(numbers["log10_p"])
    level = math.log10(sigil.rules.ALPHA) - COURT_LOG2 * math.log10(2)
    return [
        name,
        Number(numbers["accuracy"]),
        Number(whole - numbers["accuracy"], form="+.2f"),
        both("deviations", ".1f"),
        both("log10_p_before", ".1f"),
        both("log10_p", ".1f"),
        f"{numbers['named']} of {size}",
        f"{sum(each <= level for each in numbers['log10_p'])} of {size}",
        Number(numbers["others"]),
        str(numbers["wrongly"]),
    ]


def _together(numbers: Mapping[str, Any] | None) -> list[Any]:
    if numbers is None:
        return [NOT_RUN] * 2
    if numbers["together"] is None:
        return ["–", "–"]
    return [f"{numbers['together']:.1f}", f"{numbers['together_right']} of {numbers['together_names']}"]


def verdict(measured: Measured) -> list[Finding]:
    """Nobody is named wrongly, and a copy that is not attacked is named."""
    numbers = {cell.name: measured.first(cell.name) for cell in measured.cells}
    found: dict[str, dict[str, Any]] = {
        name: row
        for cell, values in numbers.items()
        if values is not None
        for name, row in values.get("rows", {cell: values}).items()
    }
    untouched = found.get(NOTHING)
    return [
        check_claim(
            "Nobody is named wrongly",
            {"in all rows": float(sum(row["wrongly"] for row in found.values())) if found else None},
            lambda x: x == 0,
            ".0f",
        ),
        check_claim(
            "A copy as it was given is named",
            {"named": None if untouched is None else float(untouched["named"])},
            lambda x: x == 1,
            ".0f",
        ),
    ]


CAPTION = "What a leaked copy survives: how far its imprint is found after every attack."
EXPERIMENT = Experiment("copies", CAPTION, cells, show, measure, verdict)
