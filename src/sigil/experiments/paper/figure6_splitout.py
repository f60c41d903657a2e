"""Stealth against SplitOut (the paper's second stealth figure, and a column of its two ablation tables).

Outliers are counted a sample, in recorded gradients of client 0, and given for a batch of 256 as in the
paper, whose alarm is at 128. FSHA is watched live (see `splitguard`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.ticker import LogLocator, NullFormatter

from sigil.experiments.beyond import splitguard
from sigil.experiments.lab import published as paper
from sigil.experiments.lab import stealth
from sigil.experiments.lab.experiment import Experiment, Finding, Results, judge
from sigil.experiments.lab.scales import PAPER_BITS, Scale
from sigil.experiments.lab.store import Cell, Result, Store
from sigil.experiments.pages import figures
from sigil.experiments.pages.tables import MISSING, beside, difference, markdown, mean, spread, values
from sigil.federation.precision import choose
from sigil.federation.run import Run

NAME, BY_BATCH = "splitout", stealth.SplitOutByBatch.name
BATCH = stealth.BATCH
SPLITS = ("layer1", "layer2", "layer3", "layer4")


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every recorded server, the split points and lengths of the ablations, and the positive control."""
    wanted: dict[tuple[str, int], tuple[str, dict[str, Any]]] = {
        (f"{setting} {server}", seed): (setting, stealth.SERVERS[server])
        for seed, setting, server in stealth.asked(scale, seeds)
    }
    for seed in seeds:
        wanted |= {(_split(split), seed): (split, {"strength": 0.1}) for split in SPLITS}
        wanted |= {
            (name_of_length(bits), seed): ("layer3", {"strength": 0.1, "bits": bits})
            for bits in sorted({*scale.lengths, *scale.proof_bits})
            if bits != PAPER_BITS
        }
    own = [
        Cell(
            experiment="splitout",
            name=name,
            seed=seed,
            trainings=(stealth.recorded(scale, seed, setting, watermark),),
            options={"setting": setting, "watermark": watermark},
        )
        for (name, seed), (setting, watermark) in wanted.items()
    ]
    return own + splitguard.controls(scale, seeds)


def _split(split: str) -> str:
    return f"{split} strength 0.1"


def name_of_length(bits: int) -> str:
    """The cell that counts outliers of a mark of so many bits."""
    return _split("layer3") if bits == PAPER_BITS else f"{bits} bits"


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Replay the recording; and how much the trained half's activations differ between images."""
    if not runs:
        return splitguard.measure(cell, runs, store)
    (run,) = runs
    dataset = store.dataset(run.settings)
    recording = stealth.recording_of(run)
    found = stealth.summary(stealth.splitout(run.settings, dataset).replay(recording))
    by_batch = stealth.summary(stealth.splitout_by_batch(run.settings, dataset).replay(recording))
    place = choose(run.settings.run.device, run.settings.run.precision).device
    with torch.no_grad():
        half = run.halves()[0].to(place).eval()
        activation = half(stealth.normalised(dataset, dataset.test.images[:500]).to(place))
    return {
        NAME: found,
        BY_BATCH: by_batch,
        "outliers_256": in_256(found),
        "lengths": stealth.binned(_lengths(run)),
        "activation_spread": float(activation.std(0).mean()),
    }


def in_256(found: dict[str, Any]) -> float:
    """Outliers in a batch of the paper, from a detector's summary."""
    share: float = found["outliers"]
    return BATCH * share / 100


def _lengths(run: Run) -> list[float]:
    """The mean length of a sample's gradient, batch by batch, without the factor 1/n of a mean loss."""
    return [
        float(torch.tensor(step.gradients).norm(dim=1).sum())
        for step in stealth.recording_of(run).steps(client=stealth.CLIENT)
    ]


def show(cells: list[Cell], results: Results, folder: Path) -> str:
    """Outliers over training, then the tables: servers, split points, lengths."""
    first = min((cell.seed for cell in cells), default=0)
    found = {name: result for (name, seed), result in results.items() if seed == first}
    _draw(found, results, folder / "splitout.png")

    def outliers(name: str) -> list[float]:
        return values(cells, results, name, "outliers_256")

    lines = []
    for cell in cells:
        server = cell.name.removeprefix("live ").partition(" ")[2]
        if cell.seed != first or cell.name.startswith(("layer1", "layer2")) or "bits" in cell.name:
            continue
        result = found.get(cell.name)
        if cell.experiment == "splitguard":
            where = f"{cell.options['cut']}, live"
        else:
            where = cell.options["setting"]
            server = cell.name.removeprefix(where).strip()
        lines.append([where, stealth.label(server), *_row(result)])
    servers = markdown(
        ["training", "server", "alarm", "outliers in 256", "most", "above half", "spread", "by batch"],
        lines,
    )
    tables = paper.numbers()

    def ablation(name: str, theirs: float | None) -> list[str]:
        alarm, *_, activations, _ = _row(found.get(name))
        return [beside(spread(outliers(name)), theirs), alarm, activations]

    header = ["outliers in 256", "alarm", "spread"]
    splits = markdown(
        ["split point", *header],
        [[split, *ablation(_split(split), tables["ablation_split"][split]["splitout"])] for split in SPLITS],
    )
    published = tables["ablation_length"]
    lengths = markdown(
        ["bits", *header],
        [
            [str(bits), *ablation(name_of_length(bits), published.get(str(bits), {}).get("splitout"))]
            for bits in sorted(
                {int(cell.name.split()[0]) for cell in cells if "bits" in cell.name} | {PAPER_BITS}
            )
        ],
    )
    return (
        f"![Outliers over training](splitout.png)\n\n{servers}\n"
        "*Alarm*: the client's step at which more than half of the last 256 gradients were first outliers; "
        "none before there are so many. *Most*: in the last 256, or in the first few. *Spread*: standard "
        "deviation over images of the trained client half's activations. *By batch*: one vector a batch, the "
        "sum of its gradients, over ten batches. Live trainings are those of [splitguard](../splitguard/), "
        "with fewer images.\n\n"
        f"λ = 0.1, k = 50 (the paper's in brackets):\n\n{splits}\n"
        f"λ = 0.1, cut at layer3 (the paper's in brackets):\n\n{lengths}"
    )


def _row(result: Result | None) -> list[str]:
    if result is None:
        return [MISSING] * 6
    found = result.numbers[NAME]
    activations = result.numbers.get("activation_spread")
    return [
        f"step {found['first_alarm']}" if found["alarm"] else "no",
        f"{in_256(found):.1f}",
        f"{BATCH * found['highest']:.0f}",
        f"{found['suspicious']:.1f} %",
        "" if activations is None else f"{activations:.2f}",
        splitguard.said(result, BY_BATCH),
    ]


def _draw(found: dict[str, Result], results: Results, path: Path) -> None:
    """Outliers over training at both cuts, and the length of the gradients, which is what they follow."""
    figure, axes = figures.panels(2 * len(stealth.CUTS), columns=2)
    for number, cut in enumerate(stealth.CUTS):
        count, length = axes[2 * number : 2 * number + 2]
        stealth.honest_band(count, results, cut, NAME, times=BATCH)
        for server in (*stealth.SERVERS, *stealth.ATTACKERS):
            live = server in stealth.ATTACKERS
            result = found.get(splitguard.name_of(cut, server) if live else f"{cut} {server}")
            if result is None:
                continue
            rows = result.numbers[NAME]["curves"]
            style = {"color": stealth.COLOURS[server], "label": stealth.label(server), "marker": ""}
            figures.curve(count, rows["scored_step"], [BATCH * share for share in rows["score"]], **style)
            if not live:
                figures.curve(length, rows["scored_step"], result.numbers["lengths"], **style)
        count.axhline(BATCH / 2, color="0.5", linewidth=1, linestyle="--")
        count.set(title=f"{cut}: outliers in a batch of 256", xlabel="step", ylim=(-5, BATCH + 5))
        length.set(title=f"{cut}: length of a sample's gradient", xlabel="step", yscale="log")
        length.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        length.yaxis.set_major_formatter("{x:g}")
        length.yaxis.set_minor_formatter(NullFormatter())
    figures.legend(axes[-2], {"loc": "upper right", "ncols": 2})  # where no curve runs
    figures.save(figure, path)


def verdict(cells: list[Cell], results: Results) -> list[Finding]:
    """The paper's sentences about this detector, and its positive control."""

    def outliers(*names: str) -> dict[str, float | None]:
        return {stealth.label(name): mean(cells, results, name, "outliers_256") for name in names}

    def more(name: str, other: str) -> dict[str, float | None]:
        one, two = outliers(name, other).values()
        return {"difference": difference(one, two)}

    def suspicious(detector: str) -> dict[str, float | None]:
        names = {name: splitguard.name_of("layer3", name) for name in stealth.ATTACKERS}
        return stealth.suspicious(results, names, detector)

    def by_batch(*names: str) -> dict[str, float | None]:
        return stealth.suspicious(results, {stealth.label(name): name for name in names}, BY_BATCH)

    return [
        judge(
            "An honest server has at most 15 outliers in 256", outliers("layer3 honest"), lambda n: n <= 15
        ),
        judge(
            "So have the marks at λ = 0.01 and 0.1",
            outliers("layer3 strength 0.01", "layer3 strength 0.1"),
            lambda n: n <= 15,
        ),
        judge(
            "λ = 1 has more than an honest server",
            more("layer3 strength 1", "layer3 honest"),
            lambda n: n > 0,
        ),
        judge("and is far from the alarm at 128", outliers("layer3 strength 1"), lambda n: n < 64),
        judge(
            "Layer4 has fewer than layer1",
            more(_split("layer4"), _split("layer1")),
            lambda n: n < 0,
        ),
        judge("FSHA alarms (% of batches)", suspicious(NAME), lambda share: share > 0),
        judge("FSHA alarms, by batch (% of batches)", suspicious(BY_BATCH), lambda share: share > 0),
        judge(
            "Honest and λ = 0.1 do not, by batch (% of batches)",
            by_batch("layer3 honest", "layer3 strength 0.1"),
            lambda share: share == 0,
        ),
    ]


EXPERIMENT = Experiment(
    name="splitout",
    caption=(
        "SplitOut at client 0: gradients outside those of a local, honest training, of honest, marked and "
        "hijacking servers, split points and lengths of the mark (ResNet-18)."
    ),
    cells=cells,
    measure=measure,
    show=show,
    verdict=verdict,
)
