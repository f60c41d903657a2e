"""What a person sees while a run trains: bars on a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# On a terminal the numbers are redrawn this often; more would cost time and tell nothing.
REDRAW_SECONDS = 0.2


class Silent:
    """Shows nothing; also the interface of the others."""

    def start(
        self,
        name: str,
        *,
        first_round: int,
        rounds: int,
        images_per_round: int,
        rows: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """A run begins or goes on after `first_round` finished rounds, whose metrics are `rows`."""

    def tick(self, images: int) -> None:
        """Training went over this many images more."""

    def round_end(self, metrics: dict[str, Any]) -> None:
        """A round is over."""

    def close(self) -> None:
        """The run is over."""


class Lines(Silent):
    """One plain line per round, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def start(
        self,
        name: str,
        *,
        first_round: int,
        rounds: int,
        images_per_round: int,
        rows: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.rounds, self.done, self.first = rounds, first_round, first_round
        self.began: float | None = None
        if first_round:
            self._print(f"{name}: going on after round {first_round} of {rounds}")
        else:
            self._print(
                f"{name}: {rounds} rounds of {images_per_round:,} images each, counting every local epoch"
            )

    def tick(self, images: int) -> None:
        # The clock starts with the first batch: who waits for clients learns nothing of the speed.
        self.began = self.began or time.monotonic()

    def round_end(self, metrics: dict[str, Any]) -> None:
        self.done += 1
        took = time.monotonic() - (self.began or time.monotonic() - metrics["seconds"])
        left = took / (self.done - self.first) * (self.rounds - self.done)
        self._print(f"round {metrics['round']}/{self.rounds}  {summary(metrics)}  {left:.0f} s left")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Bars(Silent):
    """A bar for the whole run with its speed, accuracy, WSR and the time left."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True),
            console=console,
        )

    def start(
        self,
        name: str,
        *,
        first_round: int,
        rounds: int,
        images_per_round: int,
        rows: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.images = images_per_round
        self.current = 0
        self.drawn = time.monotonic()
        # Counted in rounds, with the fraction of the round under way.
        self.task = self.progress.add_task(name, total=rounds, completed=first_round, numbers="", start=False)
        self.first = first_round
        self.progress.start()

    def tick(self, images: int) -> None:
        if not self.current:
            self.progress.start_task(self.task)  # which does something the first time only
        self.current += images
        now = time.monotonic()
        if now - self.drawn > REDRAW_SECONDS:
            self.drawn = now
            share = min(0.999, self.current / max(1, self.images))
            self.progress.update(self.task, completed=self.first + share)

    def round_end(self, metrics: dict[str, Any]) -> None:
        self.first, self.current = metrics["round"], 0
        self.progress.update(self.task, completed=self.first, numbers=summary(metrics))

    def close(self) -> None:
        self.progress.stop()


def summary(metrics: dict[str, Any]) -> str:
    """The numbers of a round in one short text."""
    parts = [f"loss {metrics['loss']:.3f}"]
    if metrics.get("accuracy") is not None:
        parts.append(f"accuracy {100 * metrics['accuracy']:.1f} %")
    if metrics.get("wsr") is not None:
        parts.append(f"WSR {100 * metrics['wsr']:.1f} %")
    parts.append(f"{metrics['images_per_second']:,.0f} images/s")
    return "  ".join(parts)


def choose(quiet: bool, console: Console | None = None) -> Silent:
    """Bars on a terminal, lines elsewhere, nothing if quiet."""
    console = console or Console(stderr=True)
    if quiet:
        return Silent()
    return Bars(console) if console.is_terminal else Lines(console)
