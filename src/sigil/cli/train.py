"""`sigil train` and `sigil demo`: training in one process; and what `sigil serve` shares with them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigil import extras, files, presets
from sigil.cli import outputs
from sigil.cli.key import load_key, warn_if_useless
from sigil.cli.options import AskPassphrase, DataDir, PassphraseFile, Quiet, option
from sigil.cli.terminal import printable, show_log
from sigil.errors import TrainingError

if TYPE_CHECKING:
    from sigil.federation.progress import Progress
    from sigil.federation.run import Run
    from sigil.federation.settings import Settings
    from sigil.keys.key import Key
    from sigil.transport.metrics import Metrics

RunFolder = Annotated[Path, option("DIR", "Directory of the run.", "--out", "-o")]
Config = Annotated[Path | None, option("FILE", "Settings in TOML; see `sigil train --settings`.")]
Change = Annotated[list[str] | None, option("A.B=C", "Change one setting; may be given many times.", "--set")]
KeyToEmbed = Annotated[Path | None, option("FILE", "The key to embed; made as DIR.key if left out.", "--key")]
PageOption = Annotated[bool, typer.Option("--page", help="Serve a live page to watch the training on.")]
PageHost = Annotated[str, option("HOST", "Where the page listens; off this machine its address has a token.")]
PagePort = Annotated[int, option("P", "Port of the page; 0 is any free one.", min=0, max=65535)]


def train(
    out: RunFolder = Path("runs/run"),
    config: Config = None,
    change: Change = None,
    preset: Annotated[str | None, option("NAME", f"Settings to begin with: {presets.describe()}.")] = None,
    key_file: KeyToEmbed = None,
    owner: Annotated[str, option("NAME", "Owner's name in a key that is made.")] = "owner",
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
    outputs.check_changes(change or [], data_dir)
    extras.need("train")
    from sigil.federation import progress
    from sigil.federation import run as runs
    from sigil.federation import settings as reader

    settings = reader.read(config, change or [], preset=preset)
    if settings_only:
        typer.echo(reader.to_toml(settings), nl=False)
        return
    check_run(out, inputs=given)
    show_log(quiet=True)
    key, made = find_key(settings, out, key_file, owner, data_dir, passphrase, passphrase_file, quiet=quiet)
    with (
        resumable(out, rounds=settings.federation.rounds),
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
    from sigil.federation.from_settings import resolve, what_a_key_states
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
        warn_if_useless(key, "--set watermark.bits=", wider="a larger model.width")


def key_beside(out: Path) -> Path:
    """Where a key that is made for a run lies: beside its directory, never in it."""
    return out.with_name(out.name + ".key")


class Interrupted(Exception):
    """A person stopped a command, which says where. Not a KeyboardInterrupt: typer would swallow that."""


@contextmanager
def resumable(out: Path, *, rounds: int, more: str = "") -> Iterator[None]:
    """Let Ctrl-C in a training end with one sentence: the round it stopped in and what goes on from there."""
    try:
        yield
    except KeyboardInterrupt:
        done = finished_rounds(out)
        kept = f"round {done} is kept" if done else "no round was finished"
        also = f", and {more}" if more else ""
        raise Interrupted(
            f"Stopped in round {min(done + 1, rounds)} of {rounds}; {kept}. The same command goes on{also}."
        ) from None


def finished_rounds(out: Path) -> int:
    """How many rounds of the run in this folder are finished."""
    try:
        with (out / "metrics.jsonl").open("rb") as file:
            return sum(1 for line in file if line.endswith(b"\n"))
    except OSError:
        return 0


@contextmanager
def watched(
    shown: Progress,
    *,
    out: Path,
    page: bool,
    host: str,
    port: int,
    quiet: bool,
    metrics: Metrics | None = None,
) -> Iterator[Progress]:
    """The progress that a training is to be given: `shown`, and behind it the live page if there is one."""
    from sigil.federation.progress import Together

    if not quiet:
        shown = Together(_tensorboard(out), shown)
    if not page:
        yield shown
        return
    from sigil.watching import Board, LivePage

    board, logger = Board(metrics), logging.getLogger("sigil")
    logger.addHandler(board.handler)
    try:
        with LivePage(board, host=host, port=port) as live:
            # Printed even if quiet: with its token it cannot be guessed.
            typer.echo(f"Watch it at {live.address}", err=True)
            yield Together(board, shown)
    finally:
        logger.removeHandler(board.handler)


def _tensorboard(out: Path) -> Progress:
    """Says how to see the run in TensorBoard when it begins: not before there is one."""
    from sigil.federation.progress import Progress

    class TensorBoard(Progress):
        def on_start(self, name: str, **values: Any) -> None:
            typer.echo(f"TensorBoard: tensorboard --logdir {printable(str(out))}", err=True)

    return TensorBoard()


def demo(
    out: Annotated[Path, option("DIR", "Where everything is written.", "--out", "-o")] = Path("runs/demo"),
    quiet: Quiet = False,
) -> None:
    """Make a key, train with and without the mark, disguise a copy, verify all.

    Ten clients, handwritten digits, two minutes on two cores. Nothing is
    downloaded. Stopped half way, it goes on with the same command.

    Examples:
      sigil demo
      sigil demo --out /tmp/story
    """
    extras.need("train")
    outputs.check(outputs.Folder("--out", out))
    from sigil.demo import demonstrate
    from sigil.federation.progress import choose

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text)

    (marked, permuted, clean), page = demonstrate(out, say=say, progress=lambda: choose(quiet))
    say(f"6. Open {page} in a browser; it links to all verdicts.")
    proven = marked.report.owned and permuted.report.owned and not clean.report.owned
    raise typer.Exit(0 if proven else 1)
