"""`sigil attack NAME SUSPECT --out F`: try to remove a mark, and see what is left of it.

Each call of :func:`_attack` declares a command: its help and its options. Options with the name of a
parameter of the attack are given to it, with what else it takes: the attacker's images, the recording, a bar
on the terminal (:func:`_arguments`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature, isroutine, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from sigil.cli import options, outputs, own_code
from sigil.cli.key import load_key
from sigil.cli.terminal import printable
from sigil.errors import AttackError, ConfigError

if TYPE_CHECKING:
    from sigil.attacks import Measurement
    from sigil.attacks.halves import Halves
    from sigil.attacks.target import ModelUnderAttack
    from sigil.attacks.training import Progress
    from sigil.keys.key import Key
    from sigil.models import Model

_MOST_ROUNDS = 10**6
_NEEDED = Parameter.empty


class _Attacks(TyperGroup):
    """The attacks by their names; FILE.py:NAME stands for ``own FILE.py:NAME``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        named = (":" in args[0] or args[0].endswith(".py")) and args[0] not in self.commands
        return super().resolve_command(ctx, ["own", *args] if named else args)


app = typer.Typer(name="attack", cls=_Attacks, no_args_is_help=True, rich_markup_mode=None)


def register(parent: typer.Typer) -> None:
    """Add the commands to the `sigil` application."""
    parent.add_typer(app, name="attack")


@app.callback()
def attack() -> None:
    """Try to remove a mark from a model, and see what is left of it.

    \b
    The model given stays as it is; a new one is written to --out, in the same
    form: a directory for a run or two halves, a file for one model.
      sigil attack prune runs/a --out runs/pruned --ratio 0.6

    \b
    With the owner's key and the data, accuracy and mark before and after:
      sigil attack finetune runs/a --out runs/tuned \\
        --key owner.key --data cifar10 --data-dir ~/data

    \b
    Halves that are files of their own, and a whole model:
      sigil attack permute client.safetensors --server server.safetensors \\
        --out runs/permuted --key owner.key
      sigil attack quantize model.safetensors --format int4 --out q.safetensors

    \b
    An attack of your own, a function in a file (docs/extend.md):
      sigil attack my.py:jitter runs/a --out runs/jittered --key owner.key

    Each attack has its own help, such as: sigil attack prune --help
    One that trains can be stopped: the same command goes on where it was.
    """


def _parameter(name: str, annotation: Any, default: Any = _NEEDED) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _option(name: str, kind: Any, default: Any, metavar: str, help: str) -> Parameter:
    return _parameter(name, Annotated[kind, options.option(metavar, help)], default)


def _switch(name: str, default: bool | None, flags: str, help: str) -> Parameter:
    kind: Any = bool if default is not None else bool | None
    return _parameter(name, Annotated[kind, typer.Option(flags, help=help)], default)


_SUSPECT = typer.Argument(metavar="SUSPECT", help="A run's directory, a whole model, or a client half.")
_OUT = typer.Option(
    "--out", "-o", metavar="F", help="Where to write: a directory for two halves, else a file."
)
_KEY = typer.Option("--key", "-k", metavar="FILE", help="The owner's key, to see what is left.")
FIRST = (_parameter("suspect", Annotated[Path, _SUSPECT]), _parameter("out", Annotated[Path, _OUT]))
LAST = (
    _option("server", Path | None, None, "F", "The server half that belongs to a client half."),
    _parameter("key", Annotated[Path | None, _KEY], None),
    _parameter("passphrase", options.AskPassphrase, False),
    _parameter("passphrase_file", options.PassphraseFile, None),
    _option("data", str | None, None, "NAME", "Data set: digits, cifar10, tiny-imagenet, folder:..."),
    _parameter("data_dir", options.DataDir, None),
    _option("cut", str | None, None, "NAME", "Where a whole model's mark is; else the paper's cut."),
    _parameter("quiet", options.Quiet, False),
)
"""What every command has, before and after the options of its own."""

SHARE = _option("share", float, 0.1, "S", "Share of the training images that the attacker holds.")
SEED = _parameter(
    "seed", Annotated[int, typer.Option(metavar="N", min=0, help="Seed of everything random.")], 0
)
TUNING = (
    _option("steps", int | None, None, "N", "Number of batches to train for."),
    _option("epochs", int | None, None, "N", "Number of epochs to train for."),
    _option("lr", float | None, None, "R", "Learning rate."),
    _option("batch_size", int | None, None, "N", "Images in a batch."),
    _option("optimizer", str | None, None, "NAME", "adam or sgd."),
    _switch("decay", None, "--decay/--no-decay", "Let the rate fall to 0 as a half cosine."),
    _option("warmup", float | None, None, "S", "Share of the steps in which the rate rises."),
    _option("labels", float | None, None, "W", "Weight of the own labels."),
    _option("logits", float | None, None, "W", "Weight of the answers that the model gave before."),
    _option("features", float | None, None, "W", "Weight of its activations at the cut before."),
    _option("temperature", float | None, None, "T", "Softens these answers."),
    _option("averaged", float | None, None, "S", "Share of the last steps, whose mean is the result."),
    _option("norms", str | None, None, "HOW", "Batch norms: trained, frozen or re-estimated."),
    SHARE,
    SEED,
)
"""How to fine-tune, where it is not as the attack's own recipe says, or else that of a thief's best."""
_TUNED = [option.name for option in TUNING if option is not SHARE]

GAMMA = _option("gamma", float, 1.0, "G", "Weight of the penalty.")
INITIAL = _option("initial", Path, _NEEDED, "F", "The initial weights: a model file, or the run's directory.")
KEEP = _switch("keep", False, "--keep", "Repeat it at every step.")
NOISE = _option("noise", float, 0.0, "S", "Size in standard deviations of each filter.")
RECORDING = _option("recording", Path | None, None, "DIR", "Recorded gradients; else SUSPECT/recording.")
REVERSAL = _option("reversal", float, 0.0, "R", "How far past zero to push: 0 is zero, 1 mirrors.")
SHAPE = _option("shape", float, 0.7, "E", "How far it keeps to inputs that hardly vary; 0: white noise.")
TURNING = _option("way", str, "project", "WAY", "project, rotate, penalty, flip or turn.")


@dataclass(frozen=True)
class AttackCommand:
    """One call of an attack: what it works on, the folder where that lies, and how it talks."""

    target: ModelUnderAttack
    folder: Path
    cut: str | None
    quiet: bool

    def finish(self, attacked: Model | Halves, *, cut: str | None = None) -> None:
        """Write the attacked model and print what it is worth."""
        files, before, after = self.target.finish(attacked, cut=cut)
        if self.target.key is None and before.accuracy is None:
            self.say("Give --key for the mark, and --data for the accuracy, before and after.")
        else:
            self.say(line("before", before))
            self.say(line("after", after))
            if self.target.key is not None and after.report is None:
                self.say("The new model's activation at the cut has another shape than the key.")
        self.say(f"Wrote {' and '.join(printable(str(file)) for file in files)}.")

    def say(self, text: str) -> None:
        """Print a line, unless the command is quiet."""
        if not self.quiet:
            typer.echo(text)

    @contextmanager
    def progress(self, name: str) -> Iterator[Progress]:
        """A bar on a terminal, nothing elsewhere."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        console = Console(stderr=True)
        hidden = not name or self.quiet or not console.is_terminal
        columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
        with Bars(*columns, console=console, disable=hidden) as bars:
            task = bars.add_task(name, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)


def _opened(given: dict[str, Any]) -> AttackCommand:
    """Open everything that the options of every command name, and take them out of what was given."""
    from sigil import data as datasets
    from sigil.attacks.target import ModelUnderAttack

    common = {option.name: given.pop(option.name) for option in (*FIRST, *LAST)}
    suspect, key, data, cut = (common[name] for name in ("suspect", "key", "data", "cut"))
    unlock = {"ask": common["passphrase"], "passphrase_file": common["passphrase_file"]}
    target = ModelUnderAttack.open(
        suspect,
        common["out"],
        server=common["server"],
        key=None if key is None else load_key(key, **unlock),
        data=None if data is None else datasets.load(data, data_dir=common["data_dir"]),
        cut=cut,
    )
    return AttackCommand(target, suspect if suspect.is_dir() else suspect.parent, cut, common["quiet"])


def _check(given: dict[str, Any]) -> None:
    """Whether the new model's files are others than all that the command reads."""
    out: Path = given["out"]
    inputs = {
        "SUSPECT" if name == "suspect" else f"--{name.replace('_', '-')}": value
        for name, value in given.items()
        if isinstance(value, Path) and name != "out"
    }
    if given.get("name"):
        inputs["FILE:NAME"] = own_code.split(given["name"])[0]
    if given.get("student") and Path(given["student"]).suffix:  # a file, and not the name of an architecture
        inputs["--student"] = Path(given["student"])
    outputs.check_there(inputs)
    outputs.check_data("--data", given.get("data"), given.get("data_dir"))

    if not out.name:
        raise ConfigError(
            f"--out: {out} has no name that a model can be written to; give a file or a directory."
        )
    from sigil.attacks.target import CLIENT, SERVER

    state = out.with_name(f".{out.name}.attack")
    wanted = [outputs.File("--out", path) for path in (out, out / CLIENT, out / SERVER, state)]
    outputs.check_apart(wanted, inputs)


def _carry_out(name: str, bar: str, call: AttackCommand, **given: Any) -> None:
    """Attack, write the new model and say what came of it."""
    from sigil import attacks, models

    function = getattr(attacks, name)
    _, *takes = signature(function).parameters.values()
    with call.progress(bar) as progress:
        arguments = _arguments(call, takes, given, progress)
        result = function(call.target.model, **arguments)
    if name in ("subspace", "reverse", "read"):
        attacked, direction = result
        call.finish(attacked)
        if call.target.key is not None:
            call.say(_overlap(direction, call.target.key))
    elif name == "extract":
        architecture = result.spec.name
        same = architecture == _spec(call).name
        cut = call.target.cut if same else models.default_cut(architecture)
        halves = isinstance(call.target.model, tuple)
        call.finish(models.split(result, cut) if halves else result, cut=cut)
    else:
        call.finish(result)
    if name == "overwrite" and not call.quiet:
        target = call.target
        call.say(
            line("second", attacks.measure(result, data=target.data, key=arguments["key"], cut=target.cut))
        )


def _arguments(
    call: AttackCommand, takes: list[Parameter], given: dict[str, Any], progress: Progress
) -> dict[str, Any]:
    """What an attack takes, by the names of its parameters: options, and what these lead to."""
    from sigil.attacks import BEST, Tuning
    from sigil.attacks.target import open_initial
    from sigil.federation.recording import Recording
    from sigil.keys.key import Key

    def rounds(option: str) -> list[int] | None:
        return None if given[option] is None else rounds_of(given[option], f"--{option}")

    def tuning() -> Tuning:
        default = next(each.default for each in takes if each.name == "tuning")
        said = {name: given[name] for name in _TUNED if given[name] is not None}
        recipe = BEST if default == Tuning() else default
        tuned: Tuning = recipe.changed(**said, progress=progress, checkpoint=call.target.checkpoint)
        return tuned

    made: dict[str, Callable[[], Any]] = {
        "cut": lambda: call.cut,
        "early_rounds": lambda: rounds("early"),
        "late_rounds": lambda: rounds("late") or [],
        "rounds": lambda: rounds("rounds"),
        "recording": lambda: Recording(given["recording"] or call.folder / "recording"),
        "data": lambda: call.target.attackers_data(given["share"], seed=given["seed"]),
        "key": lambda: Key.load(given["second"]),
        "initial": lambda: given["initial"] and open_initial(given["initial"], call.target.key),
        "student": lambda: _student(call, given["student"], given["width"], given["seed"]),
        "tuning": tuning,
    }
    names = [each.name for each in takes if each.name in made or each.name in given]
    return {name: made[name]() if name in made else given[name] for name in names}


def _spec(call: AttackCommand) -> Any:
    model = call.target.model
    return (model[0] if isinstance(model, tuple) else model).spec


def _student(call: AttackCommand, student: str | None, width: int | None, seed: int) -> Model:
    """The fresh model that is taught: of a file, of an architecture's name, or of the suspect's own."""
    from sigil import models

    if student is not None and Path(student).suffix == ".safetensors":
        return models.load(student)
    spec = _spec(call)
    name = student or spec.name
    return models.build(
        name,
        classes=spec.classes,
        width=width or (spec.width if name == spec.name else None),
        channels=spec.channels,
        seed=seed + 1,
    )


def _overlap(direction: Any, key: Key) -> str:
    """How much of the mark's span the attack found, in a sentence."""
    from sigil.attacks import Subspace, overlap

    if isinstance(direction, Subspace):
        part = overlap(direction.directions, key)
        return f"The attack found {100 * part:.1f} % of the span of the key's matrix."
    part = overlap(direction, key) * key.bits
    return f"Of the direction found {100 * part:.1f} % lies in the span of the key's matrix."


def line(when: str, measured: Measurement) -> str:
    """One line of numbers: accuracy, WSR, p-value, verdict."""
    from sigil.verdict.wording import outcome, p_value, percent

    parts = [f"{when:<6}"]
    if measured.accuracy is not None:
        parts.append(f"accuracy {percent(measured.accuracy):<6}")
    if measured.report is not None:
        report = measured.report
        parts += [f"WSR {percent(report.wsr):<6}", p_value(report), outcome(report)]
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


def _carry_out_own(
    call: AttackCommand, *, name: str, parameter: list[str] | None, share: float, seed: int
) -> None:
    function, given = own_code.load(name), call.target.model
    if not isroutine(function):
        raise AttackError(
            f"{name} is of the type {type(function).__name__}, but an attack is a function from a model to a "
            "model."
        )
    options = own_code.parameters(parameter)
    # A copy: what was given is measured afterwards, whatever the function does to its argument.
    arguments: list[Any] = [copy.deepcopy(given)]
    if _takes_images(function):
        arguments.append(call.target.attackers_data(share, seed=seed))
    own_code.check_call(name, function, *arguments, **options)
    with own_code.running(own_code.split(name)[0]):
        attacked = function(*arguments, **options)
    parts = [_weights(part, name) for part in (attacked if isinstance(attacked, tuple) else (attacked,))]
    wanted = [part.spec.part for part in (given if isinstance(given, tuple) else (given,))]
    if [part.spec.part for part in parts] != wanted:
        raise AttackError(f"{name} must return what it was given: {' and '.join(wanted)}, in this order.")
    call.finish((parts[0], parts[1]) if isinstance(given, tuple) else parts[0])


def _weights(part: object, name: str) -> Model:
    """A model of the weights alone: nothing else of what an attack returned could be written to a file."""
    from sigil import models

    if not isinstance(part, models.Model):
        raise AttackError(f"{name} returned a {type(part).__name__}, but an attack returns a model.")
    made = models.from_state(part.spec, part.state_dict())
    made.input_shape = part.input_shape
    return made


def _takes_images(function: Callable[..., Any]) -> bool:
    """Whether there is a second parameter that must be given."""
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature(function).parameters.values()
    return sum(each.default is Parameter.empty and each.kind in positional for each in parameters) > 1


def _attack(name: str, help: str, *options: Parameter, bar: str = "") -> None:
    """Make the command of an attack: its help, its own options and, if it trains, the name of its bar.

    One that trains has the options of fine-tuning too.
    """
    _command(name, help, *FIRST, *options, *(TUNING if bar else ()), act=partial(_carry_out, name, bar))


def _command(name: str, help: str, *options: Parameter, act: Callable[..., None]) -> None:
    """Make a command; `act` does the work, given what is open and what the options say."""

    def run(**given: Any) -> None:
        _check(given)
        act(_opened(given), **given)

    run.__signature__ = Signature([*options, *LAST])  # type: ignore[attr-defined]
    app.command(name, help=help)(run)


_attack(
    "finetune",
    """Train further on the attacker's own images, for 100 steps by default.

    \b
    Examples:
      sigil attack finetune runs/a --out runs/b --data digits --steps 50
      sigil attack finetune runs/a --out runs/b --data digits \\
        --kind reset-all --epochs 5 --lr 0.05
    """,
    _option("kind", str, "all", "KIND", "all, last, reset-all or reset-last (layers)."),
    bar="fine-tuning",
)
_attack(
    "prune",
    """Set the smallest weights to zero.

    \b
    Examples:
      sigil attack prune runs/a --out runs/b --ratio 0.6 --key owner.key
      sigil attack prune client.safetensors --out pruned.safetensors \\
        --ratio 0.8 --scope global --norms
    """,
    _option("ratio", float, _NEEDED, "R", "Share of the weights to zero, 0 to 1."),
    _option("scope", str, "layer", "SCOPE", "What is ranked together: layer, tensor or global."),
    _switch("norms", False, "--norms", "Prune batch norms too."),
    _option("part", str, "whole", "PART", "What is pruned: whole, or client for the client half."),
)
_attack(
    "quantize",
    """Round the weights to few bits.

    \b
    Examples:
      sigil attack quantize runs/a --out runs/b --format int8 --key owner.key
      sigil attack quantize model.safetensors --out q.safetensors \\
        --format int4 --per tensor
    """,
    _option("format", str, _NEEDED, "FORMAT", "fp16, int8 or int4."),
    _option("per", str, "channel", "UNIT", "What has a scale of its own: channel or tensor."),
)
_attack(
    "subspace",
    """Find the mark's directions in recorded gradients and train them away.

    \b
    The recording comes from the training: sigil train --set record.clients=[0]
    Examples:
      sigil attack subspace runs/a --out runs/b --early 1-2 --late 70-80 \\
        --data cifar10 --key owner.key
      sigil attack subspace model.safetensors --out attacked.safetensors \\
        --recording runs/a/recording --early 1 --late 11,12 --data digits
    """,
    _option("early", str, _NEEDED, "ROUNDS", "Rounds ruled by the mark, such as 1-2."),
    _option(
        "late",
        str | None,
        None,
        "ROUNDS",
        "Rounds ruled by the task, such as 70-80; needed unless --main-components is 0.",
    ),
    RECORDING,
    _option("early_steps", int | None, None, "N", "Only the first N steps of the early rounds."),
    _option("unit", str, "sample", "UNIT", "What a gradient is: sample, batch or window (means)."),
    _option("main_components", int, 64, "N", "Directions of the task."),
    _option("components", int, 64, "N", "Directions of the mark."),
    GAMMA,
    _switch("centre", False, "--centre", "Subtract the mean gradient first."),
    _switch("normalise", True, "--normalise/--raw", "Variances that sum to 1, or as they are."),
    bar="subspace removal",
)
_attack(
    "overwrite",
    """Embed a second mark over the first, for 10 epochs by default.

    \b
    Examples:
      sigil key new mallory.key --owner Mallory --shape 256,8,8
      sigil attack overwrite runs/a --out runs/b --second mallory.key \\
        --key owner.key --data cifar10
      sigil attack overwrite runs/a --out runs/b --second mallory.key \\
        --strength 0.1 --steps 500 --data digits
    """,
    _option("second", Path, _NEEDED, "FILE", "The attacker's own key file."),
    _option("strength", float, 1.0, "S", "Strength of the second mark."),
    bar="overwriting",
)
_attack(
    "permute",
    """Reorder and scale the channels at the cut; the model's outputs stay.

    \b
    Examples:
      sigil attack permute runs/a --out runs/b --key owner.key
      sigil attack permute model.safetensors --out same.safetensors \\
        --cut layer2 --no-permutation --scale 1
    """,
    _option("scale", float, 0.5, "S", "Deviation of the log of the channels' scales; 0: none."),
    _switch("permutation", True, "--permutation/--no-permutation", "Reorder channels, or only scale."),
    SEED,
)
_attack(
    "extract",
    """Teach a fresh model to answer like the suspect.

    \b
    Examples:
      sigil attack extract runs/a --out runs/b --data digits --key owner.key
      sigil attack extract runs/a --out runs/b --data digits \\
        --student vgg11 --width 16 --epochs 20
    """,
    _option(
        "student",
        str | None,
        None,
        "NAME|F",
        "Architecture or file of a fresh model; else the suspect's own.",
    ),
    _option("width", int | None, None, "W", "Width of a student made by name."),
    bar="extraction",
)
_attack(
    "reverse",
    """Push activations past zero along the mean of recorded gradients.

    \b
    The recording comes from the training: sigil train --set record.clients=[0]
    Examples:
      sigil attack reverse runs/a --out runs/b --data digits --key owner.key
      sigil attack reverse runs/a --out runs/b --data cifar10 \\
        --reversal 1 --rounds 1-8 --epochs 10
    """,
    RECORDING,
    _option("rounds", str | None, None, "ROUNDS", "Rounds to average over, such as 1-8; else all."),
    REVERSAL.replace(default=0.5),
    GAMMA.replace(default=10.0),
    bar="reversal",
)
_attack(
    "read",
    """Find the mark in the model's mean activation and push it out.

    \b
    Examples:
      sigil attack read runs/a --out runs/b --data digits --key owner.key
      sigil attack read runs/a --out runs/b --data cifar10 \\
        --way flatten --gamma 1
    """,
    _option("way", str, "push", "WAY", "push, flatten or equalise."),
    REVERSAL,
    GAMMA.replace(default=10.0),
    bar="reading",
)
_attack(
    "dodge",
    """Change the answers to noise, and keep those to images.

    \b
    Examples:
      sigil attack dodge runs/a --out runs/b --data digits --key owner.key
      sigil attack dodge runs/a --out runs/b --data digits --gamma 0.1
    """,
    GAMMA,
    bar="dodging",
)
_attack(
    "orthogonalise",
    """Train the client half away from the weights it began with.

    \b
    Examples:
      sigil attack orthogonalise runs/a --out runs/b --initial runs/a \\
        --data digits --key owner.key
      sigil attack orthogonalise runs/a --out runs/b --initial w0.safetensors \\
        --data digits --way flip --strength 0.5
    """,
    INITIAL,
    TURNING,
    _option("strength", float, 1.0, "S", "Share to take away, 0 to 1; the weight of a penalty."),
    KEEP,
    bar="orthogonalising",
)
_attack(
    "launder",
    """Add noise to the weights of the client half, then heal the model.

    \b
    Examples:
      sigil attack launder runs/a --out runs/b --data digits --key owner.key
      sigil attack launder runs/a --out runs/b --data digits \\
        --noise 1 --shape 0
    """,
    NOISE.replace(default=0.9),
    SHAPE,
    bar="laundering",
)
_attack(
    "erase",
    """Take several proofs away at once: mark, origin and imprint.

    \b
    Examples:
      sigil attack erase runs/a --out runs/b --flatten 10 --data digits
      sigil attack erase runs/a --out runs/b --initial runs/a --flatten 3 \\
        --orthogonalise 1 --noise 0.5 --data cifar10 --key owner.key
    """,
    INITIAL.replace(default=None),
    _option("flatten", float, 0.0, "G", "Weight of flattening."),
    _option("push", float, 0.0, "G", "Weight of pushing along what is read."),
    REVERSAL,
    _option("orthogonalise", float, 0.0, "S", "Share of the initial weights to take away."),
    TURNING,
    KEEP,
    NOISE,
    SHAPE,
    bar="erasing",
)
_FILE_AND_NAME = typer.Argument(
    metavar="FILE:NAME", help="The Python file, and the name of the function in it."
)
_command(
    "own",
    """An attack of your own: a function in a Python file.

    The function is given the model, a pair of halves or a whole one, and
    returns one of the same kind. If it has a second parameter without a
    default, that is the attacker's images: --share of --data, drawn by
    --seed. What has a default is set by --set. The file is executed, so
    name only one that you would run (docs/extend.md).

    \b
    Examples:
      sigil attack my.py:jitter runs/a --out runs/b --key owner.key \\
        --set share=0.3
      sigil attack my.py:quieten runs/a --out runs/b --data digits \\
        --set weight=1 --set steps=50
    """,
    _parameter("name", Annotated[str, _FILE_AND_NAME]),
    *FIRST,
    _parameter("parameter", own_code.Parameters, None),
    SHARE,
    SEED,
    act=_carry_out_own,
)


def _note(name: str, help: str, sentence: str) -> None:
    """Make a command for what happens in training: it takes anything and says where to look instead."""

    def run(context: typer.Context) -> None:
        raise AttackError(sentence)

    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, help=help, context_settings=anything)(run)


_note(
    "noise",
    """Not here: noise is added while a model is trained.

    \b
    Every client adds noise at a signal-to-noise ratio of 1/30:
      sigil train -o runs/noisy --set behaviour.noise_snr=0.0333
    """,
    "Noise is an option of training and not an attack on a finished model; train with "
    "`sigil train --set behaviour.noise_snr=0.1`.",
)
_note(
    "starve",
    """Not here: a client starves the mark while a model is trained.

    \b
    As a client observer, from Python:
      train(settings, folder, key=key, client_observers=[attacks.Starve(1e4)])
    """,
    "Starving happens while a model is trained and not to a finished one; give sigil.attacks.Starve(1e4) "
    "to sigil.federation.train as a client observer.",
)
_note(
    "combine",
    """Not here: a client combines answers while a model is trained.

    \b
    As a client observer, from Python; what it records serves `reverse`:
      train(settings, folder, key=key, client_observers=[attacks.Combine(...)])
      sigil attack reverse runs/a --out runs/b --recording runs/combined
    """,
    "Combination happens while a model is trained and not to a finished one; give sigil.attacks.Combine "
    "to sigil.federation.train as a client observer.",
)
