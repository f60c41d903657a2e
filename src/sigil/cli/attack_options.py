"""What the commands of `sigil attack` share: their options, what they open, write and print."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigil.cli import data_names, outputs
from sigil.cli.key import AskPassphrase, PassphraseFile, load_key
from sigil.cli.run_options import DataDir, Quiet
from sigil.cli.terminal import printable
from sigil.errors import ConfigError

if TYPE_CHECKING:
    from sigil.attacks.halves import Halves
    from sigil.attacks.measurement import Measurement
    from sigil.attacks.model_under_attack import ModelUnderAttack
    from sigil.attacks.training import Progress
    from sigil.models import Model

_MOST_ROUNDS = 10**6

Suspect = Annotated[
    Path,
    typer.Argument(metavar="SUSPECT", help="A run's directory, a whole model, or a client half."),
]
Out = Annotated[
    Path,
    typer.Option("--out", "-o", metavar="F", help="Where to write: a directory for two halves, else a file."),
]
Server = Annotated[
    Path | None, typer.Option(metavar="F", help="The server half that belongs to a client half.")
]
KeyFile = Annotated[
    Path | None, typer.Option("--key", "-k", metavar="FILE", help="The owner's key, to see what is left.")
]
Data = Annotated[
    str | None, typer.Option(metavar="NAME", help="Data set: digits, cifar10, tiny-imagenet, folder:...")
]
Share = Annotated[
    float, typer.Option(metavar="S", help="Share of the training images that the attacker holds.")
]
Cut = Annotated[
    str | None, typer.Option(metavar="NAME", help="Where a whole model's mark is; else the paper's cut.")
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Seed of everything random.")]
Steps = Annotated[int | None, typer.Option(metavar="N", help="Number of batches to train for.")]
Epochs = Annotated[int | None, typer.Option(metavar="N", help="Number of epochs to train for.")]
Rate = Annotated[float, typer.Option("--lr", metavar="R", help="Learning rate.")]
Optimizer = Annotated[str, typer.Option(metavar="NAME", help="adam or sgd.")]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Images in a batch.")]


@dataclass(frozen=True)
class AttackCommand:
    """One call of an attack: what it works on, the folder where that lies, and how it talks."""

    target: ModelUnderAttack
    folder: Path
    cut: str | None
    quiet: bool

    def finish(self, attacked: Model | Halves, *, cut: str | None = None) -> None:
        """Write the attacked model and print what it is worth."""
        outcome = self.target.finish(attacked, cut=cut)
        if self.quiet:
            return
        if self.target.key is None and outcome.before.accuracy is None:
            typer.echo("Give --key for the mark, and --data for the accuracy, before and after.")
        else:
            typer.echo(line("before", outcome.before))
            typer.echo(line("after", outcome.after))
            if self.target.key is not None and outcome.after.report is None:
                typer.echo("The new model's activation at the cut has another shape than the key.")
        typer.echo(f"Wrote {' and '.join(printable(str(file)) for file in outcome.files)}.")

    @contextmanager
    def progress(self, name: str) -> Iterator[Progress | None]:
        """A bar on a terminal, nothing elsewhere."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        console = Console(stderr=True)
        if self.quiet or not console.is_terminal:
            yield None
            return
        columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
        with Bars(*columns, console=console) as bars:
            task = bars.add_task(name, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)


def attack_command(
    app: typer.Typer, *, opener: Callable[..., Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function ``attack(call, *, own options)``.

    The options of :func:`open_command`, which every attack has, are added to its own. With an ``opener``, a
    function ``opener(call, *, options)``, those are too, and the attack is given what it returns.
    """

    def register(attack: Callable[..., None]) -> Callable[..., None]:
        shared, own = _options(open_command), _options(attack)
        opened = {} if opener is None else _options(opener)
        first, rest = list(shared.values())[:2], list(shared.values())[2:]

        def run(**given: Any) -> None:
            _check(given)
            call = open_command(**{name: given.pop(name) for name in shared})
            if opener is not None:
                call = opener(call, **{name: given.pop(name) for name in opened})
            attack(call, **given)

        run.__name__, run.__doc__ = attack.__name__, attack.__doc__
        run.__signature__ = Signature([*first, *own.values(), *opened.values(), *rest])  # type: ignore[attr-defined]
        return app.command()(run)

    return register


def _options(function: Callable[..., Any]) -> dict[str, Parameter]:
    """The keyword parameters of a function, which are options of a command."""
    parameters = signature(function, eval_str=True).parameters
    return {name: each for name, each in parameters.items() if each.kind is Parameter.KEYWORD_ONLY}


def _check(given: dict[str, Any]) -> None:
    """Whether the new model's files are others than all that the command reads."""
    out: Path = given["out"]
    read = {name: value for name, value in given.items() if isinstance(value, Path) and name != "out"}
    if given.get("student"):
        read["student"] = Path(given["student"])
    inputs = {
        "SUSPECT" if name == "suspect" else f"--{name.replace('_', '-')}": path for name, path in read.items()
    }
    outputs.check_there(inputs)
    if given.get("student") and Path(given["student"]).suffix:
        outputs.check_there({"--student (a file)": Path(given["student"])})
    data_names.check_data("--data", given.get("data"), given.get("data_dir"))

    from sigil.attacks.files import CLIENT, SERVER

    if not out.name:
        raise ConfigError(
            f"--out: {out} has no name that a model can be written to; give a file or a directory."
        )
    state = out.with_name(f".{out.name}.attack")
    wanted = [outputs.File("--out", place) for place in (out, out / CLIENT, out / SERVER, state)]
    outputs.check_apart(wanted, inputs)


def open_command(
    *,
    suspect: Suspect,
    out: Out,
    server: Server = None,
    key: KeyFile = None,
    passphrase: AskPassphrase = False,
    passphrase_file: PassphraseFile = None,
    data: Data = None,
    data_dir: DataDir = None,
    cut: Cut = None,
    quiet: Quiet = False,
) -> AttackCommand:
    """Open everything that the command line names."""
    from sigil import data as datasets
    from sigil.attacks.model_under_attack import ModelUnderAttack

    target = ModelUnderAttack.open(
        suspect,
        out,
        server=server,
        key=None if key is None else load_key(key, ask=passphrase, passphrase_file=passphrase_file),
        data=None if data is None else datasets.load(data, data_dir=data_dir),
        cut=cut,
    )
    return AttackCommand(target, suspect if suspect.is_dir() else suspect.parent, cut, quiet)


def line(when: str, measured: Measurement) -> str:
    """One line of numbers: accuracy, WSR, p-value, verdict."""
    from sigil.verdict.wording import p_value, percent, word

    parts = [f"{when:<6}"]
    if measured.accuracy is not None:
        parts.append(f"accuracy {percent(measured.accuracy):<6}")
    if measured.report is not None:
        report = measured.report
        parts += [f"WSR {percent(report.wsr):<6}", p_value(report), word(report)]
    return "  ".join(parts)


def rounds_of(text: str, option: str) -> list[int]:
    """Round numbers from "1-3,7"."""
    rounds: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            start, stop = int(first), int(last or first)
            if not 1 <= start <= stop <= _MOST_ROUNDS:
                raise ValueError
            rounds += range(start, stop + 1)
    except ValueError:
        raise ConfigError(
            f"{option} is {text!r}, but it must be round numbers from 1 on, such as 1-2 or 1,5."
        ) from None
    return rounds
