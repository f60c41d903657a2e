"""`sigil data fetch|show|partition`: download data sets, describe them, divide them over clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sigil.cli import options, outputs
from sigil.cli.options import option
from sigil.cli.terminal import printable

app = typer.Typer(
    name="data",
    help="Download data sets, describe them, divide them over clients.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="digits, cifar10, tiny-imagenet, fashion-mnist, folder:PATH or hub:NAME."
    ),
]
DataDir = Annotated[Path | None, option("DIR", "Where the data sets are; SIGIL_DATA if not given.")]
TrainLimit = Annotated[int | None, option("N", "Keep at most this many training images.")]
TestLimit = Annotated[int | None, option("N", "Keep at most this many test images.")]
Classes = Annotated[int | None, option("N", "Keep the first N classes.")]
Size = Annotated[int | None, option("PIXELS", "Resize folder and hub images to a square.")]


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="cifar10, tiny-imagenet or fashion-mnist.")],
    data_dir: DataDir = None,
    base_url: Annotated[
        str | None, option("URL", "A mirror to use in place of the official address.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Download an official data set, check it and unpack it.

    What arrives must have the published checksum, from whatever address.

    \b
    Examples:
      sigil data fetch cifar10 --data-dir ~/data
      SIGIL_DATA=~/data sigil data fetch tiny-imagenet
    """
    from sigil import data

    directory = data.fetch(name, data_dir, progress=not quiet, base_url=base_url)
    typer.echo(f"{name} is in {printable(str(directory))}")


@app.command()
def show(
    name: Name,
    data_dir: DataDir = None,
    train_limit: TrainLimit = None,
    test_limit: TestLimit = None,
    classes: Classes = None,
    size: Size = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the sizes, classes and shape of a data set, decoding it if that was not done yet.

    \b
    Examples:
      sigil data show digits
      sigil data show cifar10 --train-limit 5000 --json
      sigil data show folder:photos --size 64
    """
    outputs.check_data("NAME", name, data_dir)
    from sigil import data

    dataset = data.load(
        name,
        data_dir=data_dir,
        train_limit=train_limit,
        test_limit=test_limit,
        classes=classes,
        size=size,
    )
    facts = {
        "name": dataset.name,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "classes": dataset.classes,
        "shape": dataset.shape,
        "mean": dataset.mean,
        "std": dataset.std,
        "augment": dataset.augment,
    }
    shown = facts | {
        "name": printable(name),
        "train": f"{len(dataset.train):,} images",
        "test": f"{len(dataset.test):,} images",
        "shape": " x ".join(map(str, dataset.shape)),
        "mean": ", ".join(f"{value:.4f}" for value in dataset.mean),
        "std": ", ".join(f"{value:.4f}" for value in dataset.std),
    }
    typer.echo(json.dumps(facts) if as_json else "\n".join(f"{key:<9}{shown[key]}" for key in shown))


@app.command()
def partition(
    name: Name,
    clients: Annotated[int, option("N", "Number of clients.")] = 10,
    kind: Annotated[str, typer.Option(help="iid, dirichlet or lognormal.")] = "iid",
    beta: Annotated[
        float | None, typer.Option(help="dirichlet: the smaller, the fewer classes a client has.")
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(help="lognormal: the larger, the more unequal the sizes.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed, another partition.")] = 0,
    out: Annotated[Path | None, option("FILE", "Draw it to this PNG, SVG or PDF file.")] = None,
    force: options.Force = False,
    data_dir: DataDir = None,
    train_limit: TrainLimit = None,
    classes: Classes = None,
    as_json: options.AsJson = False,
) -> None:
    """Divide the training images over clients and show who holds what.

    \b
    Examples:
      sigil data partition digits --clients 10
      sigil data partition cifar10 --kind dirichlet --beta 0.5 --out who.png
      sigil data partition cifar10 --clients 1000 --kind lognormal --sigma 1
    """
    outputs.check_data("NAME", name, data_dir)
    import numpy as np

    from sigil import data

    outputs.check(None if out is None else outputs.picture("--out", out, force=force))
    dataset = data.load(name, data_dir=data_dir, train_limit=train_limit, classes=classes)
    labels = dataset.train.labels
    parts = data.partition(labels, clients=clients, kind=kind, beta=beta, sigma=sigma, seed=seed)
    if out is not None:
        setting = {"dirichlet": f"(β = {beta})", "lognormal": f"(σ = {sigma})"}.get(kind, "")
        data.draw_partition(labels, parts, out, title=f"{name}, {kind} {setting}".rstrip())
    counts = [np.bincount(labels[part], minlength=dataset.classes) for part in parts]
    if as_json:
        typer.echo(json.dumps({"clients": [count.tolist() for count in counts]}))
        return
    typer.echo(f"clients  {len(parts)}")
    for what, values in (
        ("samples", [len(part) for part in parts]),
        ("classes", [np.count_nonzero(count) for count in counts]),
    ):
        low, middle, high = min(values), np.median(values), max(values)
        typer.echo(f"{what}  smallest {low:,}, median {middle:,.0f}, largest {high:,} per client")
    if out is not None:
        typer.echo(f"picture  {printable(str(out))}")
