"""`sigil detect`: detectors over the gradients that a run recorded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigil.cli import options, outputs, own_code
from sigil.cli.options import option
from sigil.cli.terminal import printable
from sigil.errors import DetectorError

if TYPE_CHECKING:
    from sigil.detectors import Detector
    from sigil.federation import Recording, Run

_LIVE_ONLY = "splitguard"
_OFFLINE = ("gradient-scrutinizer", "splitout")
# What was measured of servers without a mark: docs/attacks.md, "Detectors".
_OF_HONEST_SERVERS = {
    "gradient-scrutinizer": "one every 50 steps; at cuts like layer3 of ResNet-18, and with small batches, "
    "an honest server is below the threshold too",
    "splitout": "one per step; batch by batch, in a network that has learned, an honest server is above the "
    "threshold too",
}


def detect(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Directory of a finished run that recorded its gradients.")
    ],
    detector: Annotated[
        list[str] | None,
        option("NAME", "gradient-scrutinizer, splitout or FILE.py:NAME; the first two if left out."),
    ] = None,
    parameter: own_code.Parameters = None,
    client: Annotated[
        int | None, option("N", "Whose gradients; the first recorded client if left out.")
    ] = None,
    compat: Annotated[
        bool,
        typer.Option("--compat", help="Compute Gradient Scrutinizer's overlap as its published code does."),
    ] = False,
    share: Annotated[float, option("X", "Share of the client's data for SplitOut's local training.")] = 0.01,
    data_dir: Annotated[
        Path | None, option("DIR", "Where the data sets are (for SplitOut).", envvar="SIGIL_DATA")
    ] = None,
    out: Annotated[
        Path | None, option("FILE", "The picture; RUN/detectors.png if left out.", "--out", "-o")
    ] = None,
    force: options.Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with all curves.")] = False,
) -> None:
    """Would a suspicious client have noticed? Ask detectors about a recorded run.

    \b
    Prints each detector's last score, whether and when it raised an alarm,
    and draws the curves. An alarm is a result like any other, so the exit
    status is 0 with and without one, and 2 if something is missing.

    SplitGuard sends batches with wrong labels while a training runs, so it
    cannot be asked afterwards; docs/attacks.md says how to run it live.

    \b
    Examples:
      sigil train -o runs/a --set record.clients=[0]
      sigil detect runs/a
      sigil detect runs/a --detector splitout --share 0.05 --out outliers.png
      sigil detect runs/a --compat --json > detectors.json

    \b
    A detector of your own, a class in a file, which is executed: name only
    one that you would run (docs/extend.md):
      sigil detect runs/a --detector my.py:SteadyDirection --set threshold=0.4
    """
    outputs.check_there({"RUN": run})

    from sigil.detectors import draw
    from sigil.federation import Recording, open_run

    names = list(dict.fromkeys(detector or _OFFLINE))
    _check(names, parameter)
    picture = out or run / "detectors.png"
    # The run's own picture is drawn again whenever it is asked for; one elsewhere only by force.
    outputs.check(
        outputs.picture("--out", picture, force=force or out is None),
        inputs={"RUN": run}
        | {f"--detector {name}": own_code.split(name)[0] for name in names if ":" in name},
    )
    loaded = {name: _load(name) for name in names if ":" in name}
    finished = open_run(run)
    recording = Recording(run / "recording")
    number = _client(recording, client)
    detectors = [
        _replay_own(name, loaded[name], number, own_code.parameters(parameter), recording)
        if name in loaded
        else _make(name, finished, number, compat=compat, share=share, data_dir=data_dir).replay(recording)
        for name in names
    ]
    draw(detectors, picture)
    if as_json:
        described = {"run": str(run), "client": number, "picture": str(picture), "share": recording.share}
        names_of = ("score", "threshold", "alarm", "first_alarm", "alarm_share", "curves")
        curves = [
            {"detector": each.name, "steps": each.step} | {name: getattr(each, name) for name in names_of}
            for each in detectors
        ]
        typer.echo(json.dumps(described | {"detectors": curves}))
        return
    _print_table(detectors)
    for sentence in _caveats([each for each in detectors if each.alarm], marked=finished.settings.marked):
        typer.echo(sentence)
    typer.echo(f"Client {number}, {detectors[0].step:,} recorded steps; curves in {printable(str(picture))}")
    if recording.share < 1:
        typer.echo(
            f"A share of {recording.share:g} of the client's steps was recorded: steps are counted among "
            "those, and gradient-scrutinizer, whose score depends on how many it has seen, would have scored "
            "earlier."
        )


def _check(names: list[str], parameters: list[str] | None) -> None:
    for name in names:
        if ":" in name:
            continue
        if name == _LIVE_ONLY:
            raise DetectorError(
                "SplitGuard cannot judge a recording, because it must have sent batches with wrong labels "
                "while the training ran; give sigil.detectors.SplitGuard to it as a client observer."
            )
        if name not in _OFFLINE:
            raise DetectorError(f"There is no detector {name!r}; choose {' or '.join(_OFFLINE)}.")
    if parameters and not any(":" in name for name in names):
        raise DetectorError(
            "--set is for a detector of your own; add --detector FILE.py:NAME, or leave it out."
        )


def _load(name: str) -> type[Detector]:
    """A detector of the caller's own."""
    from sigil.detectors import Detector

    kind = own_code.load(name)
    if not (
        isinstance(kind, type) and issubclass(kind, Detector) and isinstance(getattr(kind, "name", None), str)
    ):
        raise DetectorError(
            f"{name} is not a detector: a class with a name, derived from sigil.detectors.Detector."
        )
    return kind


def _replay_own(
    name: str, kind: type[Detector], client: int, options: dict[str, Any], recording: Recording
) -> Detector:
    own_code.check_call(name, kind, client=client, **options)
    with own_code.running(own_code.split(name)[0]):
        detector = kind(client=client, **options).replay(recording)
    values = [value for curve in detector.curves.values() for value in curve]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise DetectorError(f"A score or a curve of {name} is not a finite number; return a float or None.")
    return detector


def _client(recording: Recording, wanted: int | None) -> int:
    recorded = sorted({step.at.client for step in recording.steps()})
    if wanted is not None and wanted not in recorded:
        raise DetectorError(
            f"Client {wanted} recorded nothing; choose one of {', '.join(map(str, recorded))} with --client, "
            f"or train again with record.clients=[{wanted}]."
        )
    return recorded[0] if wanted is None else wanted


def _make(name: str, run: Run, client: int, *, compat: bool, share: float, data_dir: Path | None) -> Detector:
    from sigil.detectors import GradientScrutinizer, SplitOut, local_gradients_of_run
    from sigil.federation.from_settings import load_data

    if name == GradientScrutinizer.name:
        return GradientScrutinizer(compat=compat, client=client)
    dataset = load_data(run.settings, data_dir)
    local = local_gradients_of_run(run.settings, dataset, client=client, share=share)
    return SplitOut(local, client=client)


def _caveats(alarmed: list[Detector], *, marked: bool) -> list[str]:
    """What an alarm rests on, and what the same detector says of an honest server."""
    if not alarmed:
        return []
    sentences = []
    for detector in alarmed:
        scores = len(detector.curves["score"])
        number = "1 score" if scores == 1 else f"{scores:,} scores"
        known = (
            _OF_HONEST_SERVERS.get(detector.name) if type(detector).__module__.startswith("sigil.") else None
        )
        sentences.append(
            f"{detector.name}: {number}; ask it of honest servers too, or an alarm says nothing."
            if known is None
            else f"{detector.name}: {number}, {known} (docs/attacks.md)."
        )
    if marked:
        sentences.append(
            "Before you put it down to the mark, ask the same of a run with --set watermark.strength=0."
        )
    else:
        sentences.append("The server of this run marked nothing: no alarm here is about a mark.")
    return sentences


def _print_table(detectors: list[Detector]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("detector", "score", "alarm", "first alarm", "suspicious scores"):
        table.add_column(column, justify="left" if column == "detector" else "right")
    for detector in detectors:
        scores = len(detector.curves["score"])
        table.add_row(
            detector.name,
            "none yet" if detector.score is None else f"{detector.score:.3f}",
            "yes" if detector.alarm else "no",
            "–" if detector.first_alarm is None else f"step {detector.first_alarm:,}",
            f"{detector.alarms:,} of {scores:,}",
        )
    Console().print(table)
