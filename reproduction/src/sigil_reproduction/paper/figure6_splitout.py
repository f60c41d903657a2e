"""Stealth against SplitOut (the paper's figure 6, and a column of its tables 6 and 7).

Outliers are counted by sample, in recorded gradients of client 0, and given for a batch of 256 as in the
paper, whose alarm is at 128. FSHA is watched live (see `splitguard`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.ticker import LogLocator, NullFormatter

from sigil.federation.precision import choose
from sigil.federation.run import Run
from sigil.pages import figures
from sigil.pages.tables import NOT_RUN, Answer, Entry, Number, Page, Picture, Table, Words
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner import stealth, watched_live
from sigil_reproduction.runner.experiment import Claim, Experiment, Measured
from sigil_reproduction.runner.scales import LENGTHS, PAPER_BITS, PROOF, Scale
from sigil_reproduction.runner.store import Cell, Store

NAME, BY_BATCH = "splitout", stealth.SplitOutByBatch.name
BATCH = stealth.BATCH
SPLITS = ("layer1", "layer2", "layer3", "layer4")


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every recorded server, the split points and lengths of the ablations, and the positive control."""
    wanted: dict[tuple[str, int], dict[str, Any]] = {
        (f"{setting} {server}", seed): {
            "setting": setting,
            "server": server,
            "watermark": stealth.watermark_of(scale, server),
        }
        for seed, setting, server in stealth.asked(scale, seeds)
    }
    for seed in seeds:
        for split in SPLITS:
            wanted.setdefault((_split(split), seed), {"setting": split, "watermark": {"strength": 0.1}})
        for bits in sorted({*LENGTHS.at(scale), *PROOF.at(scale)}):
            watermark = {"strength": 0.1, "bits": bits}
            wanted.setdefault((name_of_length(bits), seed), {"setting": "layer3", "watermark": watermark})
    own = [
        Cell(
            experiment="splitout",
            name=name,
            seed=seed,
            trainings=(stealth.recorded(scale, seed, options["setting"], options["watermark"]),),
            options=options,
        )
        for (name, seed), options in wanted.items()
    ]
    return own + watched_live.controls(scale, seeds)


def _split(split: str) -> str:
    return f"{split} strength 0.1"


def name_of_length(bits: int) -> str:
    """The cell that counts outliers of a mark of this length."""
    return _split("layer3") if bits == PAPER_BITS else f"{bits} bits"


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Replay the recording; and how much the trained half's activations differ between images."""
    (run,) = runs
    dataset = store.dataset(run.settings)
    amsgrad = not stealth.earlier_forms(store.scale)
    found, by_batch = (
        stealth.replayed(make(run.settings, dataset, amsgrad=amsgrad), run, store)
        for make in (stealth.splitout, stealth.splitout_by_batch)
    )
    place = choose(run.settings.run.device, run.settings.run.precision).device
    with torch.no_grad():
        half = run.halves()[0].to(place).eval()
        activation = half(stealth.normalised(dataset, dataset.test.images[:500]).to(place))
    return {
        NAME: found,
        BY_BATCH: by_batch,
        stealth.OUTLIERS: in_256(found),
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


def show(measured: Measured, folder: Path) -> Page:
    """Outliers over training, then the tables: servers, split points, lengths."""
    _draw(measured, folder / "splitout.png")
    own = measured.of_first_seed
    servers = [
        [
            cell.options.get("setting") or f"{cell.options['cut']}, live",
            stealth.label(cell.options["server"]),
            *_row(measured.first(cell.name)),
        ]
        for cell in own
        if "server" in cell.options
    ]

    def ablation(name: str, theirs: float | None) -> list[Entry]:
        alarm, *_, activations, _ = _row(measured.first(name))
        return [measured.number(name, stealth.OUTLIERS, paper=theirs), alarm, activations]

    header = ["outliers in 256", "alarm", "spread"]
    of_splits, of_lengths = paper.numbers()["ablation_split"], paper.numbers()["ablation_length"]
    marks = [cell.options["watermark"] for cell in own if "watermark" in cell.options]
    lengths = sorted(
        {PAPER_BITS, *(mark["bits"] for mark in marks if "bits" in mark and "scheme" not in mark)}
    )
    return [
        Picture("Outliers over training", "splitout.png"),
        Table(
            ["training", "server", "alarm", "outliers in 256", "most", "above half", "spread", "by batch"],
            servers,
            names=2,
            notes="*Alarm*: the client's step at which more than half of the last 256 gradients were first "
            "outliers; none before there are 256. *Most*: in the last 256, or in the first few. "
            "*Spread*: standard deviation over images of the trained client half's activations. *By batch*: "
            "one vector per batch, the sum of its gradients, over ten batches. Live trainings are those of "
            f"[splitguard](../splitguard/), with fewer images. {stealth.EARLIER_FORMS}",
        ),
        Table(
            ["split point", *header],
            [[split, *ablation(_split(split), of_splits[split]["splitout"])] for split in SPLITS],
            caption="λ = 0.1, k = 50 (the paper's in brackets):",
        ),
        Table(
            ["bits", *header],
            [
                [str(bits), *ablation(name_of_length(bits), of_lengths.get(str(bits), {}).get("splitout"))]
                for bits in lengths
            ],
            caption="λ = 0.1, cut at layer3 (the paper's in brackets):",
        ),
    ]


def _row(numbers: dict[str, Any] | None) -> list[Entry]:
    if numbers is None:
        return [NOT_RUN] * 6
    found = numbers[NAME]
    activations = numbers.get("activation_spread")
    return [
        Number(found["first_alarm"], "step", ".0f") if found["alarm"] else Answer("no"),
        Number(in_256(found)),
        Number(BATCH * found["highest"], form=".0f"),
        Number(found["suspicious"], unit="%"),
        Words("") if activations is None else Number(activations, form=".2f"),
        stealth.said(numbers, BY_BATCH),
    ]


def _draw(measured: Measured, path: Path) -> None:
    """Outliers over training at both cuts, and the length of the gradients, which is what they follow."""
    figure, axes = figures.panels(2 * len(stealth.CUTS), columns=2)
    for number, cut in enumerate(stealth.CUTS):
        count, length = axes[2 * number : 2 * number + 2]
        stealth.honest_band(count, measured, cut, NAME, times=BATCH)
        for server, numbers in watched_live.with_attackers(measured, cut):
            rows = numbers[NAME]["curves"]
            style = {**stealth.style(server), "marker": ""}
            figures.curve(count, rows["scored_step"], [BATCH * share for share in rows["score"]], **style)
            if "lengths" in numbers:
                figures.curve(length, rows["scored_step"], numbers["lengths"], **style)
        count.axhline(BATCH / 2, color="0.5", linewidth=1, linestyle="--")
        count.set(title=f"{cut}: outliers in a batch of 256", xlabel="step", ylim=(-5, BATCH + 5))
        length.set(title=f"{cut}: length of a sample's gradient", xlabel="step", yscale="log")
        length.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        length.yaxis.set_major_formatter("{x:g}")
        length.yaxis.set_minor_formatter(NullFormatter())
    figures.legend(axes[-2], {"loc": "upper right", "ncols": 2})  # where no curve runs
    figures.save(figure, path)


def _outliers(text: str, cell: str, holds: Callable[[float], bool], theirs: str = "", **more: Any) -> Claim:
    return Claim(f"SplitOut at layer3 {text}", cell, holds, stealth.OUTLIERS, theirs, unit="", **more)


def _alarms(text: str, cell: str, holds: Callable[[float], bool], detector: str = BY_BATCH) -> Claim:
    read = ", by batch" if detector == BY_BATCH else ""
    return Claim(
        f"SplitOut at layer3 {text}{read}", cell, holds, f"{detector}.suspicious", unit="% of batches"
    )


HIJACKERS = [(stealth.label(each), watched_live.name_of("layer3", each)) for each in stealth.ATTACKERS]
CLAIMS = [
    _outliers(
        "counts as few outliers as for an honest server (≤ 15 in 256)",
        "layer3 strength 0.1",
        lambda n: n <= 15,
        f"{paper.numbers()['ablation_length']['50']['splitout']:.0f}",
        opens=True,
    ),
    _outliers("counts at most 15 for λ = 0.01", "layer3 strength 0.01", lambda n: n <= 15),
    _outliers("counts at most 15 for an honest server", "layer3 honest", lambda n: n <= 15),
    _outliers(
        "counts more for λ = 1", "layer3 strength 1", lambda n: n > 0, instead_of="layer3 honest", form="+.1f"
    ),
    _outliers(
        "counts far fewer than the alarm's 128 for λ = 1 (< 64)", "layer3 strength 1", lambda n: n < 64
    ),
    Claim(
        "SplitOut counts fewer outliers at layer4 than at layer1",
        _split("layer4"),
        lambda n: n < 0,
        stealth.OUTLIERS,
        instead_of=_split("layer1"),
        form="+.1f",
        unit="",
    ),
    *(_alarms(f"warns of {name}", cell, lambda x: x > 0, NAME) for name, cell in HIJACKERS),
    *(_alarms(f"warns of {name}", cell, lambda x: x > 0) for name, cell in HIJACKERS),
    *(
        _alarms(f"does not warn of {stealth.label(each)}", f"layer3 {each}", lambda x: x <= 0)
        for each in ("honest", "strength 0.1")
    ),
]
CAPTION = (
    "SplitOut at client 0: gradients outside those of a local, honest training, of honest, marked and "
    "hijacking servers, split points and lengths of the mark (ResNet-18)."
)
EXPERIMENT = Experiment("splitout", CAPTION, cells, show, measure, claims=CLAIMS)
