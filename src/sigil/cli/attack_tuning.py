"""`sigil attack reverse|read|dodge|orthogonalise`, which fine-tune, and those that act during training.

How to fine-tune, and on which images, is asked alike by all of them: :func:`tuning_command` adds the options
of :func:`open_tuning` to each command's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigil.cli.attack_options import (
    AttackCommand,
    BatchSize,
    Epochs,
    Optimizer,
    Rate,
    Seed,
    Share,
    Steps,
    attack_command,
    rounds_of,
)
from sigil.errors import AttackError

if TYPE_CHECKING:
    from torch import Tensor

    from sigil.attacks.training import Tuning
    from sigil.data import Dataset

Recorded = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Recorded gradients; else SUSPECT/recording.")
]
Gamma = Annotated[float, typer.Option(metavar="G", help="Weight of the penalty.")]
Reversal = Annotated[
    float, typer.Option(metavar="R", help="How far past zero to push: 0 is zero, 1 mirrors.")
]


@dataclass(frozen=True)
class TuningCall:
    """A call of an attack that fine-tunes: what every attack has, the attacker's images, and how to train."""

    call: AttackCommand
    images: Dataset
    how: Tuning

    @contextmanager
    def tuning(self, name: str) -> Iterator[Tuning]:
        """How to train, with a bar on a terminal."""
        with self.call.progress(name) as progress:
            yield replace(self.how, progress=progress)

    def tell_overlap(self, directions: Tensor) -> None:
        """Say how much of the mark's direction the attack found, if there is a key to know it by."""
        from sigil.attacks import overlap

        key = self.call.target.key
        if key is None or self.call.quiet:
            return
        part = overlap(directions, key)
        typer.echo(
            f"Of the direction found {100 * part * key.bits:.1f} % lies in the span of the key's matrix."
        )


def open_tuning(
    call: AttackCommand,
    *,
    steps: Steps = None,
    epochs: Epochs = None,
    lr: Rate = 5e-4,
    optimizer: Optimizer = "adam",
    batch_size: BatchSize = 32,
    share: Share = 0.1,
    seed: Seed = 0,
) -> TuningCall:
    """What the options of a fine-tuning say; 4 epochs if nothing is said."""
    from sigil.attacks import Tuning

    how = Tuning(
        lr,
        steps=steps,
        epochs=epochs,
        batch_size=batch_size,
        optimizer=optimizer,  # type: ignore[arg-type]
        seed=seed,
        checkpoint=call.target.checkpoint,
    )
    return TuningCall(call, call.target.attackers_data(share, seed=seed), how)


def register(app: typer.Typer) -> None:
    """Add the commands to `sigil attack`."""
    for attack in (reverse, read, dodge, orthogonalise):
        attack_command(app, opener=open_tuning)(attack)
    for note in (starve, combine):
        in_training(app)(note)


def in_training(app: typer.Typer) -> Callable[[Callable[[], None]], Callable[..., Any]]:
    """Make a command, which takes anything, of a function that raises the sentence where to look instead."""

    def register(note: Callable[[], None]) -> Callable[..., Any]:
        def run(context: typer.Context) -> None:
            note()

        run.__name__, run.__doc__ = note.__name__, note.__doc__
        return app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(run)

    return register


def reverse(
    called: TuningCall,
    *,
    recording: Recorded = None,
    rounds: Annotated[
        str | None, typer.Option(metavar="ROUNDS", help="Rounds to average over, such as 1-8; else all.")
    ] = None,
    reversal: Reversal = 0.5,
    gamma: Gamma = 10.0,
) -> None:
    """Push activations past zero along the mean of recorded gradients.

    \b
    The recording comes from the training: sigil train --set record.clients=[0]
    Examples:
      sigil attack reverse runs/a --out runs/b --data digits --key owner.key
      sigil attack reverse runs/a --out runs/b --data cifar10 \\
        --reversal 1 --rounds 1-8 --epochs 10
    """
    from sigil import attacks
    from sigil.federation.recording import Recording

    call = called.call
    with called.tuning("reversal") as tuning:
        attacked, direction = attacks.reverse(
            call.target.model,
            Recording(recording or call.folder / "recording"),
            called.images,
            reversal=reversal,
            gamma=gamma,
            rounds=None if rounds is None else rounds_of(rounds, "--rounds"),
            cut=call.cut,
            tuning=tuning,
        )
    call.finish(attacked)
    called.tell_overlap(direction)


def read(
    called: TuningCall,
    *,
    way: Annotated[str, typer.Option(metavar="WAY", help="push, flatten or equalise.")] = "push",
    reversal: Reversal = 0.0,
    gamma: Gamma = 10.0,
) -> None:
    """Find the mark in the model's mean activation and push it out.

    \b
    Examples:
      sigil attack read runs/a --out runs/b --data digits --key owner.key
      sigil attack read runs/a --out runs/b --data cifar10 \\
        --way flatten --gamma 1
    """
    from sigil import attacks

    call = called.call
    with called.tuning("reading") as tuning:
        attacked, direction = attacks.read(
            call.target.model,
            called.images,
            way=way,  # type: ignore[arg-type]
            reversal=reversal,
            gamma=gamma,
            cut=call.cut,
            tuning=tuning,
        )
    call.finish(attacked)
    called.tell_overlap(direction)


def dodge(called: TuningCall, *, gamma: Gamma = 1.0) -> None:
    """Change the answers to noise, and keep those to images.

    \b
    Examples:
      sigil attack dodge runs/a --out runs/b --data digits --key owner.key
      sigil attack dodge runs/a --out runs/b --data digits --gamma 0.1
    """
    from sigil import attacks

    call = called.call
    with called.tuning("dodging") as tuning:
        attacked = attacks.dodge(call.target.model, called.images, gamma=gamma, cut=call.cut, tuning=tuning)
    call.finish(attacked)


def orthogonalise(
    called: TuningCall,
    *,
    initial: Annotated[
        Path, typer.Option(metavar="F", help="The initial weights: a model file, or the run's directory.")
    ],
    way: Annotated[
        str, typer.Option(metavar="WAY", help="project, rotate, penalty, flip or turn.")
    ] = "project",
    strength: Annotated[
        float, typer.Option(metavar="S", help="Share to take away, 0 to 1; the weight of a penalty.")
    ] = 1.0,
    keep: Annotated[bool, typer.Option("--keep", help="Repeat it at every step.")] = False,
) -> None:
    """Train the client half away from the weights it began with.

    \b
    Examples:
      sigil attack orthogonalise runs/a --out runs/b --initial runs/a \\
        --data digits --key owner.key
      sigil attack orthogonalise runs/a --out runs/b --initial w0.safetensors \\
        --data digits --way flip --strength 0.5
    """
    from sigil import attacks
    from sigil.attacks.files import open_initial

    call = called.call
    with called.tuning("orthogonalising") as tuning:
        attacked = attacks.orthogonalise(
            call.target.model,
            called.images,
            open_initial(initial, call.target.key),
            way=way,  # type: ignore[arg-type]
            strength=strength,
            keep=keep,
            cut=call.cut,
            tuning=tuning,
        )
    call.finish(attacked)


def starve() -> None:
    """Not here: a client starves the mark while a model is trained.

    \b
    As a client observer, from Python:
      train(settings, folder, key=key, client_observers=[attacks.Starve(1e4)])
    """
    raise AttackError(
        "Starving happens while a model is trained and not to a finished one; give sigil.attacks.Starve(1e4) "
        "to sigil.federation.train as a client observer."
    )


def combine() -> None:
    """Not here: a client combines answers while a model is trained.

    \b
    As a client observer, from Python; what it records serves `reverse`:
      train(settings, folder, key=key, client_observers=[attacks.Combine(...)])
      sigil attack reverse runs/a --out runs/b --recording runs/combined
    """
    raise AttackError(
        "Combination happens while a model is trained and not to a finished one; give sigil.attacks.Combine "
        "to sigil.federation.train as a client observer."
    )
