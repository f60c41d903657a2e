"""What this package adds to the `sigil` command: `reproduce`, and `report` on a folder of results.

Nothing heavy is imported before a command runs, as the command line loads this module at every start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from sigil import extras
from sigil.cli import outputs
from sigil.cli.options import DataDir, Quiet
from sigil.errors import ExperimentError


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Experiments, or `all`.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), cpu (minutes each), desk (hours each), paper (GPU).")
    ] = "smoke",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0 to N-1.")] = 1,
    status: Annotated[bool, typer.Option("--status", help="Only say what has been measured.")] = False,
    trained: Annotated[
        bool, typer.Option("--trained", help="Train nothing: only cells whose trainings are finished.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=0, help="Processes side by side; 0: one per core.")] = 0,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Work on this Ray cluster: HOST:PORT, ray://…, auto or local."),
    ] = None,
    results: Annotated[Path, typer.Option(metavar="DIR", help="Where the cells are kept.")] = Path("results"),
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Where the trainings are kept.")] = Path("runs"),
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Reproduce tables and figures of the paper, each number beside the paper's.

    Finished cells are small files under results/SCALE and are never computed
    again; interrupted work goes on where it stopped.

    Examples:
      sigil reproduce --status --scale cpu          what there is, what is missing
      sigil reproduce fidelity                      in seconds, on embedded data
      sigil reproduce fidelity clients --scale cpu --seeds 3 --data-dir ~/data
      sigil reproduce all --scale desk --trained    what finished trainings allow
      sigil reproduce all --scale paper             as published, on a GPU
      sigil reproduce all --scale cpu --ray head:6379    on many machines
    """
    extras.need("train")
    from sigil_reproduction import registry
    from sigil_reproduction import reproduce as runner
    from sigil_reproduction.runner.scales import get
    from sigil_reproduction.runner.store import Store

    get(scale)
    chosen = list(registry.EXPERIMENTS) if not names or "all" in names else names
    for name in chosen:
        registry.get(name)
    store = Store(scale, results=results, runs=runs, data_dir=data_dir)
    numbers = range(seeds)
    if status or not names:
        for name, done, count in runner.status(chosen, store, numbers):
            typer.echo(f"{name:16} {done:4} of {count:4} cells")
        return

    outputs.check(outputs.Folder("--results", store.results), outputs.Folder("--runs", store.runs))

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text)

    runner.reproduce(chosen, store, seeds=numbers, jobs=jobs, ray=ray, trained=trained, say=say)


def report(
    folders: Sequence[Path],
    out: Path | None,
    *,
    summary: Path | None,
    redraw: bool,
    inputs: Mapping[str, Path],
) -> list[Path]:
    """Write the report on one folder of results, such as results/cpu; returns its files."""
    from sigil_reproduction.pages.report import CSV, MARKDOWN, files_of, write

    if len(folders) > 1:
        raise ExperimentError(
            "A report is on one folder of results or on any number of runs; give them one at a time."
        )
    wanted = files_of(folders[0], out)
    outputs.check(
        outputs.page("--out", wanted.page, force=redraw),
        outputs.File("the same tables in", wanted.markdown, MARKDOWN, redraw, "report"),
        outputs.File("the same tables in", wanted.csv, CSV, redraw, "report"),
        inputs=inputs,
    )
    made = write(folders[0], out, summary=summary)
    return [made.page, made.markdown, made.csv]
