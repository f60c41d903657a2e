"""`sigil attack NAME SUSPECT --out F`: try to remove a mark, and see what is left of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sigil.cli import attack_tuning
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
    line,
    rounds_of,
)
from sigil.cli.attack_tuning import Gamma, Recorded, in_training
from sigil.errors import AttackError

app = typer.Typer(name="attack", no_args_is_help=True, rich_markup_mode=None)


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

    Each attack has its own help, such as: sigil attack prune --help
    One that trains can be stopped: the same command goes on where it was.
    """


@attack_command(app)
def finetune(
    call: AttackCommand,
    *,
    steps: Steps = None,
    epochs: Epochs = None,
    lr: Rate = 0.01,
    kind: Annotated[
        str, typer.Option(metavar="KIND", help="all, last, reset-all or reset-last (layers).")
    ] = "all",
    batch_size: BatchSize = 256,
    share: Share = 0.1,
    seed: Seed = 0,
) -> None:
    """Train further on the attacker's own images, for 100 steps by default.

    \b
    Examples:
      sigil attack finetune runs/a --out runs/b --data digits --steps 50
      sigil attack finetune runs/a --out runs/b --data digits \\
        --kind reset-all --epochs 5 --lr 0.05
    """
    from sigil import attacks

    with call.progress("fine-tuning") as progress:
        attacked = attacks.finetune(
            call.target.model,
            call.target.attackers_data(share, seed=seed),
            steps=steps,
            epochs=epochs,
            lr=lr,
            kind=kind,  # type: ignore[arg-type]
            batch_size=batch_size,
            seed=seed,
            progress=progress,
            checkpoint=call.target.checkpoint,
        )
    call.finish(attacked)


@attack_command(app)
def prune(
    call: AttackCommand,
    *,
    ratio: Annotated[float, typer.Option(metavar="R", help="Share of the weights to zero, 0 to 1.")],
    scope: Annotated[
        str, typer.Option(metavar="SCOPE", help="What is ranked together: layer, tensor or global.")
    ] = "layer",
    norms: Annotated[bool, typer.Option("--norms", help="Prune batch norms too.")] = False,
    part: Annotated[
        str, typer.Option(metavar="PART", help="What is pruned: whole, or client for the client half.")
    ] = "whole",
) -> None:
    """Set the smallest weights to zero.

    \b
    Examples:
      sigil attack prune runs/a --out runs/b --ratio 0.6 --key owner.key
      sigil attack prune client.safetensors --out pruned.safetensors \\
        --ratio 0.8 --scope global --norms
    """
    from sigil import attacks

    attacked = attacks.prune(
        call.target.model,
        ratio,
        scope=scope,  # type: ignore[arg-type]
        norms=norms,
        part=part,  # type: ignore[arg-type]
    )
    call.finish(attacked)


@attack_command(app)
def quantize(
    call: AttackCommand,
    *,
    format: Annotated[str, typer.Option(metavar="FORMAT", help="fp16, int8 or int4.")],
    per: Annotated[
        str, typer.Option(metavar="UNIT", help="What has a scale of its own: channel or tensor.")
    ] = "channel",
) -> None:
    """Round the weights to few bits.

    \b
    Examples:
      sigil attack quantize runs/a --out runs/b --format int8 --key owner.key
      sigil attack quantize model.safetensors --out q.safetensors \\
        --format int4 --per tensor
    """
    from sigil import attacks

    attacked = attacks.quantize(
        call.target.model,
        format,  # type: ignore[arg-type]
        per=per,  # type: ignore[arg-type]
    )
    call.finish(attacked)


@attack_command(app)
def subspace(
    call: AttackCommand,
    *,
    early: Annotated[str, typer.Option(metavar="ROUNDS", help="Rounds ruled by the mark, such as 1-2.")],
    late: Annotated[
        str | None,
        typer.Option(
            metavar="ROUNDS",
            help="Rounds ruled by the task, such as 70-80; needed unless --main-components is 0.",
        ),
    ] = None,
    recording: Recorded = None,
    early_steps: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N steps of the early rounds.")
    ] = None,
    unit: Annotated[
        str, typer.Option(metavar="UNIT", help="What a gradient is: sample, batch or window (means).")
    ] = "sample",
    main_components: Annotated[int, typer.Option(metavar="N", help="Directions of the task.")] = 64,
    components: Annotated[int, typer.Option(metavar="N", help="Directions of the mark.")] = 64,
    gamma: Gamma = 1.0,
    epochs: Annotated[int, typer.Option(metavar="N", help="Epochs of fine-tuning.")] = 100,
    lr: Rate = 1e-4,
    optimizer: Optimizer = "adam",
    centre: Annotated[bool, typer.Option("--centre", help="Subtract the mean gradient first.")] = False,
    normalise: Annotated[
        bool, typer.Option("--normalise/--raw", help="Variances that sum to 1, or as they are.")
    ] = True,
    batch_size: BatchSize = 256,
    share: Share = 0.1,
    seed: Seed = 0,
) -> None:
    """Find the mark's directions in recorded gradients and train them away.

    \b
    The recording comes from the training: sigil train --set record.clients=[0]
    Examples:
      sigil attack subspace runs/a --out runs/b --early 1-2 --late 70-80 \\
        --data cifar10 --key owner.key
      sigil attack subspace model.safetensors --out attacked.safetensors \\
        --recording runs/a/recording --early 1 --late 11,12 --data digits
    """
    from sigil import attacks
    from sigil.federation.recording import Recording

    rounds = rounds_of(early, "--early"), [] if late is None else rounds_of(late, "--late")
    recorded = Recording(recording or call.folder / "recording")
    with call.progress("subspace removal") as progress:
        attacked, found = attacks.subspace(
            call.target.model,
            recorded,
            call.target.attackers_data(share, seed=seed),
            early_rounds=rounds[0],
            late_rounds=rounds[1],
            early_steps=early_steps,
            unit=unit,  # type: ignore[arg-type]
            main_components=main_components,
            components=components,
            gamma=gamma,
            epochs=epochs,
            lr=lr,
            optimizer=optimizer,  # type: ignore[arg-type]
            centre=centre,
            normalise=normalise,
            cut=call.cut,
            batch_size=batch_size,
            seed=seed,
            progress=progress,
            checkpoint=call.target.checkpoint,
        )
    call.finish(attacked)
    if call.target.key is not None and not call.quiet:
        part = attacks.overlap(found.directions, call.target.key)
        typer.echo(f"The attack found {100 * part:.1f} % of the span of the key's matrix.")


@attack_command(app)
def overwrite(
    call: AttackCommand,
    *,
    second: Annotated[Path, typer.Option(metavar="FILE", help="The attacker's own key file.")],
    strength: Annotated[float, typer.Option(metavar="S", help="Strength of the second mark.")] = 1.0,
    steps: Steps = None,
    epochs: Epochs = None,
    lr: Rate = 0.01,
    batch_size: BatchSize = 256,
    share: Share = 0.1,
    seed: Seed = 0,
) -> None:
    """Embed a second mark over the first, for 10 epochs by default.

    \b
    Examples:
      sigil key new mallory.key --owner Mallory --shape 256,8,8
      sigil attack overwrite runs/a --out runs/b --second mallory.key \\
        --key owner.key --data cifar10
      sigil attack overwrite runs/a --out runs/b --second mallory.key \\
        --strength 0.1 --steps 500 --data digits
    """
    from sigil import attacks
    from sigil.keys.key import Key

    mallory = Key.load(second)
    with call.progress("overwriting") as progress:
        attacked = attacks.overwrite(
            call.target.model,
            call.target.attackers_data(share, seed=seed),
            mallory,
            strength=strength,
            steps=steps,
            epochs=epochs,
            lr=lr,
            cut=call.cut,
            batch_size=batch_size,
            seed=seed,
            progress=progress,
            checkpoint=call.target.checkpoint,
        )
    call.finish(attacked)
    if not call.quiet:
        typer.echo(
            line("second", attacks.measure(attacked, data=call.target.data, key=mallory, cut=call.target.cut))
        )


@attack_command(app)
def permute(
    call: AttackCommand,
    *,
    scale: Annotated[
        float, typer.Option(metavar="S", help="Deviation of the log of the channels' scales; 0: none.")
    ] = 0.5,
    permutation: Annotated[
        bool, typer.Option("--permutation/--no-permutation", help="Reorder channels, or only scale.")
    ] = True,
    seed: Seed = 0,
) -> None:
    """Reorder and scale the channels at the cut; the model's outputs stay.

    \b
    Examples:
      sigil attack permute runs/a --out runs/b --key owner.key
      sigil attack permute model.safetensors --out same.safetensors \\
        --cut layer2 --no-permutation --scale 1
    """
    from sigil import attacks

    attacked = attacks.permute(
        call.target.model, cut=call.cut, seed=seed, permutation=permutation, scale=scale
    )
    call.finish(attacked)


@attack_command(app)
def extract(
    call: AttackCommand,
    *,
    student: Annotated[
        str | None,
        typer.Option(metavar="NAME|F", help="Architecture or file of a fresh model; else the suspect's own."),
    ] = None,
    width: Annotated[int | None, typer.Option(metavar="W", help="Width of a student made by name.")] = None,
    epochs: Annotated[int, typer.Option(metavar="N", help="Number of epochs to train.")] = 50,
    lr: Rate = 0.05,
    temperature: Annotated[float, typer.Option(metavar="T", help="Softens the suspect's answers.")] = 4.0,
    batch_size: BatchSize = 256,
    share: Share = 0.1,
    seed: Seed = 0,
) -> None:
    """Teach a fresh model to answer like the suspect.

    \b
    Examples:
      sigil attack extract runs/a --out runs/b --data digits --key owner.key
      sigil attack extract runs/a --out runs/b --data digits \\
        --student vgg11 --width 16 --epochs 20
    """
    from sigil import attacks, models

    given = call.target.model
    spec = given[0].spec if isinstance(given, tuple) else given.spec
    if student is not None and Path(student).suffix == ".safetensors":
        fresh = models.load(student)
    else:
        name = student or spec.name
        fresh = models.build(
            name,
            classes=spec.classes,
            width=width or (spec.width if name == spec.name else None),
            channels=spec.channels,
            seed=seed + 1,
        )
    with call.progress("extraction") as progress:
        pupil = attacks.extract(
            given,
            fresh,
            call.target.attackers_data(share, seed=seed),
            epochs=epochs,
            lr=lr,
            temperature=temperature,
            batch_size=batch_size,
            seed=seed,
            progress=progress,
            checkpoint=call.target.checkpoint,
        )
    place = call.target.cut if pupil.spec.name == spec.name else models.default_cut(pupil.spec.name)
    call.finish(models.split(pupil, place) if isinstance(given, tuple) else pupil, cut=place)


@in_training(app)
def noise() -> None:
    """Not here: noise is added while a model is trained.

    \b
    Every client adds noise at a signal-to-noise ratio of 1/30:
      sigil train -o runs/noisy --set behaviour.noise_snr=0.0333
    """
    raise AttackError(
        "Noise is an option of training and not an attack on a finished model; train with "
        "`sigil train --set behaviour.noise_snr=0.1`."
    )


attack_tuning.register(app)
