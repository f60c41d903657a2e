"""`sigil train`: U-SFL, SFL or SL training in one process, with or without a mark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sigil import extras, files, presets
from sigil.cli import data_names, outputs
from sigil.cli.interruption import going_on
from sigil.cli.key import AskPassphrase, PassphraseFile, load_key, warn_if_useless
from sigil.cli.live import PageHost, PageOption, PagePort, watched
from sigil.cli.run_options import Change, Config, DataDir, KeyToEmbed, Quiet, RunFolder
from sigil.cli.terminal import printable
from sigil.errors import TrainingError

if TYPE_CHECKING:
    from sigil.federation.run import Run
    from sigil.federation.settings import Settings
    from sigil.keys.key import Key


def register(app: typer.Typer) -> None:
    """Add the command to the `sigil` command."""
    app.command("train")(train)


def train(
    out: RunFolder = Path("runs/run"),
    config: Config = None,
    change: Change = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Settings to begin with: {presets.describe()}."),
    ] = None,
    key_file: KeyToEmbed = None,
    owner: Annotated[str, typer.Option(metavar="NAME", help="Owner's name in a key that is made.")] = "owner",
    data_dir: DataDir = None,
    page: PageOption = False,
    page_host: PageHost = "127.0.0.1",
    page_port: PagePort = 0,
    passphrase: AskPassphrase = False,
    passphrase_file: PassphraseFile = None,
    quiet: Quiet = False,
    settings_only: Annotated[
        bool, typer.Option("--settings", help="Print the settings as TOML, and do not train.")
    ] = False,
) -> None:
    """Train a network by split federated learning and embed a mark on the way.

    A run can be stopped at any time, with any signal: the same command goes
    on where it stopped and ends with exactly the same weights. The key is
    never in the run's directory; one that is made lies beside it.

    Examples:
      sigil train                                   a small task, in a minute
      sigil train --preset paper --set data.name=cifar10 --data-dir ~/data
      sigil train -o runs/a --set data.name=cifar10 --data-dir ~/data \\
          --set model.width=16 --set federation.rounds=20 --key owner.key
      sigil train --set watermark.strength=0        without a mark
      sigil train --settings > my.toml              all settings, to edit
      sigil train --config my.toml -o runs/b
    """
    given = {"--config": config, "--key": key_file, "--passphrase-file": passphrase_file}
    outputs.check_there(given)
    data_names.check_changes(change or [], data_dir)
    extras.need("train")
    from sigil import attacks, baselines  # noqa: F401  (they carry out the section behaviour)
    from sigil.federation import progress
    from sigil.federation import run as runs
    from sigil.federation import settings as reader

    settings = reader.read(config, change or [], preset=preset)
    if settings_only:
        typer.echo(reader.to_toml(settings), nl=False)
        return
    check_run(out, inputs=given)
    key, made = find_key(settings, out, key_file, owner, data_dir, passphrase, passphrase_file, quiet=quiet)
    with (
        going_on(out, rounds=settings.federation.rounds),
        watched(
            progress.choose(quiet), out=out, page=page, host=page_host, port=page_port, quiet=quiet
        ) as shown,
    ):
        finished = runs.train(
            settings,
            out,
            key=key,
            data_dir=data_dir,
            progress=shown,
            begin=(lambda: save_key(key, out, quiet)) if made and key is not None else None,
        )
    if not quiet:
        print_result(finished, key, key_file, data_dir)


def check_run(out: Path, *more: outputs.Folder, inputs: dict[str, Path | None]) -> None:
    """Raise unless a run can be made in `out`, or gone on with there, without harm to anything else."""
    from sigil.federation import run as runs

    outputs.check(outputs.Folder("--out", out, ("run.json", *runs.NAMES)), *more, inputs=inputs)
    runs.check_folder(out)


def print_result(run: Run, key: Key | None, key_file: Path | None, data_dir: Path | None = None) -> None:
    """Say what a finished run came to, whether its mark is provable, and how to verify it."""
    from sigil.verdict import wording
    from sigil.verdict.provability import judge_metrics

    final = run.final
    if "accuracy" not in final:
        typer.echo(f"No round could be evaluated: {printable(final['evaluation_failed'])}.")
        return
    typer.echo(f"accuracy {100 * final['accuracy']:.1f} %", nl=key is None)
    if key is not None:
        p = f"p = {wording.decimal(final['log10_p'])} after correction; proof asks for {final['alpha']:g}"
        typer.echo(f", WSR {wording.percent(final['wsr'])} on noise ({p})")
        typer.echo(str(judge_metrics(final, key, run.settings.model.name, run.settings.model.cut)))
        command = (
            f"sigil verify {run.folder / 'client.safetensors'} --key {key_file or key_beside(run.folder)}"
        )
        if "wsr_inputs" in final:
            command += f" --inputs {run.settings.data.name}"
            command += "" if data_dir is None else f" --data-dir {data_dir}"
        typer.echo(f"Verify with: {printable(command)}")


def find_key(
    settings: Settings,
    out: Path,
    key_file: Path | None,
    owner: str,
    data_dir: Path | None,
    ask: bool,
    passphrase_file: Path | None,
    *,
    quiet: bool,
) -> tuple[Key | None, bool]:
    """The key to embed, and whether it was made just now and is not saved yet."""
    from sigil.federation.from_settings import what_a_key_states
    from sigil.federation.scheme import resolve
    from sigil.keys.key import Key

    if not settings.marked:
        return None, False
    beside = key_beside(out)
    if key_file is not None or beside.exists():
        given = load_key(key_file or beside, ask=ask, passphrase_file=passphrase_file)
        if not quiet:
            warn_if_useless(given, "a key of sigil key new --bits ")
        return given, False
    if (out / "run.json").exists():
        raise TrainingError(
            f"There is a run in {out}, but its key is not beside it as {beside}; give the key that it was "
            "begun with (--key), or another --out."
        )
    mark = resolve(settings, None).watermark
    key = Key.generate(
        owner,
        **what_a_key_states(settings, data_dir),
        bits=mark.bits,
        scheme="shares" if mark.scheme == "shares" else "paper",
        carriers_per_bit=mark.carriers_per_bit,
    )
    return key, True


def save_key(key: Key, out: Path, quiet: bool) -> None:
    """Save a key that was made for a run beside its directory, and say what to publish."""
    beside = key_beside(out)
    files.make_folder(beside.parent)
    key.save(beside)
    if not quiet:
        typer.echo(f"Made the key {printable(str(beside))}: keep it, and publish this line now:")
        typer.echo(key.statement())
        warn_if_useless(key, "a larger model.width or --set watermark.bits=")


def key_beside(out: Path) -> Path:
    """Where a key that is made for a run lies: beside its directory, never in it."""
    return out.with_name(out.name + ".key")
