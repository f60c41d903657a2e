"""One page about finished runs: their curves, what they came to, their settings and commitments."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sigil import files
from sigil.errors import ExperimentError
from sigil.federation.run import Run, open_run
from sigil.federation.settings import Settings
from sigil.hardware import in_words
from sigil.pages import drawing, figures
from sigil.pages.drawing import NOTHING, Section, render, shown
from sigil.pages.tables import Page, Picture, Table

CURVES = {"loss": "training loss", "accuracy": "accuracy (%)", "wsr": "WSR (%)"}


def write_runs(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page about these runs; all of them must be finished."""
    runs = [open_run(folder) for folder in folders]
    page = out or folders[0] / "report.html"
    sections = [Section("curves", "Round by round.", _curves(runs))] if len(runs) > 1 else []
    sections += [_section(run, alone=len(runs) == 1) for run in runs]
    names = ", ".join(run.folder.name for run in runs)
    files.write(
        page,
        render(
            title=f"Trainings: {names}" if len(runs) > 1 else f"Training: {names}",
            lead=NOTHING,
            sections=sections,
            rest=NOTHING,
            command="sigil report " + " ".join(str(folder) for folder in folders),
        ),
        replace=files.PAGE,
        raises=ExperimentError,
    )
    return page


def _section(run: Run, *, alone: bool) -> Section:
    described: dict[str, Any] = json.loads((run.folder / "run.json").read_text("utf-8"))
    final = run.final
    facts = [["rounds", str(len(run.metrics))], ["accuracy (%)", f"{100 * final['accuracy']:.1f}"]]
    if "wsr" in final:
        before = f"10^{final['log10_p_before']:.1f}"
        facts += [["WSR (%)", f"{100 * final['wsr']:.1f}"], ["p before correction", before]]
    facts += [
        ["commitment of the key", f"`{described['commitment']}`" if described["commitment"] else "no key"],
        ["owner", str(described["owner"] or "–")],
        ["time (s)", f"{sum(row['seconds'] for row in run.metrics):,.0f}"],
        ["processor, number format", in_words(run.machine)],
        ["versions", ", ".join(f"{name} {number}" for name, number in described["versions"].items())],
    ]
    changed = _changed(run.settings)
    page: Page = [
        Table(["", "value"], facts),
        "### Settings that are not the default",
        Table(["setting", "value"], changed) if changed else "None.",
    ]
    body = drawing.html(page, lambda picture: NOTHING)
    return Section(run.folder.name, str(run.folder), (_curves([run]) if alone else NOTHING) + body)


def _changed(settings: Settings) -> list[list[str]]:
    sections = settings.model_dump(mode="json", exclude_defaults=True)
    return [
        [f"`{section}.{name}`", f"`{json.dumps(value)}`"]
        for section, values in sections.items()
        for name, value in values.items()
    ]


def _curves(runs: Sequence[Run]) -> Markup:
    """Loss, accuracy and WSR of all runs, one colour per run."""
    with tempfile.TemporaryDirectory() as folder, figures.collected() as drawn:
        figure, axes = figures.panels(len(CURVES))
        for number, run in enumerate(runs):
            colour = figures.SERIES[number % len(figures.SERIES)]
            for axis, name in zip(axes, CURVES, strict=True):
                factor = 1 if name == "loss" else 100
                rounds = [row["round"] for row in run.metrics]
                values = [row.get(name) for row in run.metrics]
                points = [None if value is None else factor * value for value in values]
                figures.curve(axis, rounds, points, color=colour, label=run.folder.name)
        for axis, title in zip(axes, CURVES.values(), strict=True):
            axis.set(title=title, xlabel="round")
        if len(runs) > 1:
            figures.legend(axes[0])
        figures.save(figure, Path(folder) / "curves.png")
        picture = Picture("Loss, accuracy and WSR over the rounds", "curves.png")
        return shown(picture, Path(folder), drawn)
