"""The live page for commands that train: its options, and where its numbers come from."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigil.cli.terminal import printable

if TYPE_CHECKING:
    from sigil.federation.progress import Silent
    from sigil.transport.metrics import Metrics

PageOption = Annotated[bool, typer.Option("--page", help="Serve a live page to watch the training on.")]
PageHost = Annotated[
    str,
    typer.Option(metavar="HOST", help="Where the page listens; off this machine its address has a token."),
]
PagePort = Annotated[
    int, typer.Option(metavar="P", min=0, max=65535, help="Port of the page; 0 is any free one.")
]


@contextmanager
def watched(
    shown: Silent,
    *,
    out: Path,
    page: bool,
    host: str,
    port: int,
    quiet: bool,
    metrics: Metrics | None = None,
) -> Iterator[Silent]:
    """The progress that a training is to be given: `shown`, and behind it the live page if there is one."""
    if not quiet:
        shown = _naming_tensorboard(shown, out)
    if not page:
        yield shown
        return
    from sigil.watching import Board, Client, LivePage

    if metrics is None:
        board = Board(shown)
    else:
        counted = metrics
        board = Board(
            shown,
            clients=lambda: [Client(**asdict(now)) for now in counted.people],
            refusals=counted.refusals,
            waited=lambda: counted.registry.get_sample_value("sigil_waited_seconds_total") or 0.0,
        )
    logger = logging.getLogger("sigil")
    # A logger with a handler no longer reports warnings by itself.
    own = [board.handler] if logger.handlers else [board.handler, _warnings()]
    level = logger.level
    for handler in own:
        logger.addHandler(handler)
    logger.setLevel(min(level, logging.INFO) if level else logging.INFO)
    try:
        with LivePage(board, host=host, port=port) as live:
            # Printed even if quiet: with its token it cannot be guessed.
            typer.echo(f"Watch it at {live.address}", err=True)
            yield board
    finally:
        for handler in own:
            logger.removeHandler(handler)
        logger.setLevel(level)


def _naming_tensorboard(shown: Silent, out: Path) -> Silent:
    """The same progress, which first says how to see the run in TensorBoard: not before there is one."""
    start = shown.start

    def announced(name: str, **values: Any) -> None:
        typer.echo(f"TensorBoard: tensorboard --logdir {printable(str(out))}", err=True)
        start(name, **values)

    shown.start = announced  # type: ignore[method-assign]
    return shown


def _warnings() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler
