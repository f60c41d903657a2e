"""What is said when a long command is interrupted: where it stopped, and how to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Interrupted(Exception):
    """A person stopped a command, which says where. Not a KeyboardInterrupt: typer would swallow that."""


@contextmanager
def going_on(out: Path, *, rounds: int, more: str = "") -> Iterator[None]:
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
