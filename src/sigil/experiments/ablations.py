"""What the paper's two ablation tables share: one row a variant of the mark, one column an attack.

Every column but noise is measured on one training with a recording of client 0's gradients, the attacker's.
"""

from __future__ import annotations

from typing import Any

from sigil.detectors import SplitOut, local_gradients_of_run
from sigil.detectors.splitout import MINIMUM
from sigil.experiments import adaptive
from sigil.experiments.experiment import Results, final_numbers
from sigil.experiments.removal import ATTACKS, attackers_share, entry, marks
from sigil.experiments.store import Cell, Store
from sigil.experiments.tables import MISSING, beside, spread, values
from sigil.federation.holdings import client_parts
from sigil.federation.recording import Recording
from sigil.federation.run import Run

SPLITOUT, NOISE = "SplitOut", "noise 1/100"
REMOVAL = ("finetune 100", "prune 80 %", "INT4")
WINDOWS = tuple(f"R_wm {window}" for window in adaptive.WINDOWS)
# What the paper's data calls these columns.
PUBLISHED = {
    "none": "none",
    NOISE: "noise_1_100",
    "finetune 100": "finetune_100",
    "prune 80 %": "prune_80",
    "INT4": "int4",
}


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """One column of one row."""
    (run,) = runs
    column = cell.options["column"]
    if column == NOISE:
        return final_numbers(cell, runs, store)
    if column == SPLITOUT:
        return outliers(run, store)
    if column in REMOVAL:
        settings, dataset = run.settings, store.dataset(run.settings)
        attack, _ = ATTACKS[column]
        attacked = attack(run.halves(), attackers_share(dataset, settings), settings)
        return marks(attacked, dataset, settings, store)
    return adaptive.after_attack(run, column, store)


def outliers(run: Run, store: Store) -> dict[str, Any]:
    """What SplitOut counts in the recorded gradients: mean outliers a batch, and whether it alarms."""
    settings, dataset = run.settings, store.dataset(run.settings)
    own = len(client_parts(settings, dataset)[0])
    # A hundredth of the client's data, as the detector's authors do, or as little as it can work with.
    local = local_gradients_of_run(settings, dataset, share=max(0.01, MINIMUM / own))
    detector = SplitOut(local).replay(Recording(run.folder / "recording"))
    return {
        "outliers": detector.mean_outliers,
        "batch": settings.federation.batch_size,
        "alarm_share": 100 * detector.alarm_share,
        "steps": detector.step,
    }


def text(
    cells: list[Cell], results: Results, name: str, column: str, published: dict[str, Any] | None
) -> str:
    """One cell of the table, with the paper's numbers in brackets if it has this row."""
    theirs = published or {}
    if column == SPLITOUT:
        found = values(cells, results, name, "outliers")
        alarms = values(cells, results, name, "alarm_share")
        text = "outliers " + beside(spread(found, ".2f"), theirs.get("splitout"), ".2f")
        return text + (f"<br>alarms in {spread(alarms)} % of steps" if alarms else "")
    if column in WINDOWS:
        pair = theirs.get("adaptive", {}).get(column.removeprefix("R_wm "))
    else:
        pair = theirs.get(PUBLISHED[column])
    return entry(cells, results, name, tuple(pair) if pair else (None, None))


def splitout_note(cells: list[Cell], results: Results) -> str:
    """What a batch is, here and in the paper."""
    batches = {
        str(result.numbers["batch"]) for result in results.values() if result.numbers.get("batch") is not None
    }
    size = ", ".join(sorted(batches)) or MISSING
    return (
        f"SplitOut: mean outliers in a batch of {size} (the paper's batch is 256). Where there are several "
        "seeds, p is the largest of them."
    )
