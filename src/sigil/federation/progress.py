"""What is told while a run trains: to people (bars, lines), to loggers and to TensorBoard.

All of them are a :class:`Progress`, whose methods do nothing, so that each implements only the moments that
it needs. The counters for Prometheus and the live page are further ones.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Row = Mapping[str, Any]
"""What a round came to: one line of ``metrics.jsonl``."""


class Progress:
    """Told how a run goes, and does nothing about it."""

    def on_start(
        self, name: str, *, first_round: int, rounds: int, images_per_round: int, rows: Sequence[Row] = ()
    ) -> None:
        """A run begins or goes on after `first_round` finished rounds, whose metrics are `rows`."""

    def on_step(self, images: int) -> None:
        """Training went over this many images more."""

    def on_round(self, row: Row) -> None:
        """A round is over and measured."""

    def on_end(self) -> None:
        """The run is over."""


class Together(Progress):
    """Tells each of several what it is told, in their order."""

    def __init__(self, *several: Progress) -> None:
        self._several = several

    def on_start(self, name: str, **values: Any) -> None:
        for each in self._several:
            each.on_start(name, **values)

    def on_step(self, images: int) -> None:
        for each in self._several:
            each.on_step(images)

    def on_round(self, row: Row) -> None:
        for each in self._several:
            each.on_round(row)

    def on_end(self) -> None:
        for each in self._several:
            each.on_end()


class MetricsObserver(Progress):
    """Hands the numbers of every round to a function that logs them: ``log(numbers, step=round)``.

    That is how ``mlflow.log_metrics`` and ``wandb.log`` are called. Only finite numbers are passed on; a
    round that was trained before an interruption is not logged again.
    """

    def __init__(self, log: Callable[..., object]) -> None:
        self._log = log

    def on_round(self, row: Row) -> None:
        numbers = {
            name: float(value)
            for name, value in row.items()
            if name != "round" and isinstance(value, int | float) and math.isfinite(value)
        }
        self._log(numbers, step=row["round"])


class TensorBoard(MetricsObserver):
    """Writes the numbers of every round as TensorBoard's events into a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(self._write)
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def on_start(self, name: str, *, first_round: int, **values: Any) -> None:
        # Here, so that processes that only compute for a training do not wait for it.
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), purge_step=first_round + 1)

    def _write(self, numbers: Mapping[str, float], *, step: int) -> None:
        assert self._writer is not None
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def on_end(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Lines(Progress):
    """One plain line per round, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def on_start(
        self, name: str, *, first_round: int, rounds: int, images_per_round: int, rows: Sequence[Row] = ()
    ) -> None:
        self.rounds, self.done = rounds, first_round
        self.began: float | None = None
        self.seconds: list[float] = []
        if first_round:
            self._print(f"{name}: going on after round {first_round} of {rounds}")
        else:
            self._print(
                f"{name}: {rounds} rounds of {images_per_round:,} images each, counting every local epoch"
            )

    def on_step(self, images: int) -> None:
        # The clock starts with the first batch: who waits for clients learns nothing of the speed.
        self.began = self.began or time.monotonic()

    def on_round(self, row: Row) -> None:
        self.done += 1
        now = time.monotonic()
        self.seconds.append(now - (self.began or now - row["seconds"]))
        self.began = now
        # The usual round, not the mean: one that waited for a lost client says nothing of those to come.
        left = statistics.median(self.seconds) * (self.rounds - self.done)
        self._print(f"round {row['round']}/{self.rounds}  {summary(row)}  {left:.0f} s left")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Bars(Progress):
    """A bar for the whole run with its speed, accuracy, WSR and the time left."""

    def __init__(self, console: Console) -> None:
        self.progress = rich.progress.Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True),
            console=console,
        )

    def on_start(
        self, name: str, *, first_round: int, rounds: int, images_per_round: int, rows: Sequence[Row] = ()
    ) -> None:
        self.images = images_per_round
        self.current = 0
        # Counted in rounds, with the fraction of the round under way.
        self.task = self.progress.add_task(name, total=rounds, completed=first_round, numbers="", start=False)
        self.first = first_round
        self.progress.start()

    def on_step(self, images: int) -> None:
        if not self.current:
            self.progress.start_task(self.task)  # which does something the first time only
        self.current += images
        share = min(0.999, self.current / max(1, self.images))
        self.progress.update(self.task, completed=self.first + share)  # drawn ten times per second at most

    def on_round(self, row: Row) -> None:
        self.first, self.current = row["round"], 0
        self.progress.update(self.task, completed=self.first, numbers=summary(row))

    def on_end(self) -> None:
        self.progress.stop()


def summary(row: Row) -> str:
    """The numbers of a round in one short text."""
    parts = [f"loss {row['loss']:.3f}"]
    if row.get("accuracy") is not None:
        parts.append(f"accuracy {100 * row['accuracy']:.1f} %")
    if row.get("wsr") is not None:
        parts.append(f"WSR {100 * row['wsr']:.1f} %")
    parts.append(f"{row['images_per_second']:,.0f} images/s")
    return "  ".join(parts)


def choose(quiet: bool, console: Console | None = None) -> Progress:
    """Bars on a terminal, lines elsewhere, nothing if quiet."""
    console = console or Console(stderr=True)
    if quiet:
        return Progress()
    return Bars(console) if console.is_terminal else Lines(console)
