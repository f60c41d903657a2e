"""Checkpoints: the global weights after a round, written so that no instant of a crash can spoil them.

A checkpoint is a folder. It is written under another name, flushed to the disk and then renamed, which is
atomic; the one before it is removed only afterwards. Reading checks a hash of every file and falls back to
the older one. Formats are safetensors and JSON.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from sigil import files
from sigil.errors import TrainingError
from sigil.federation.averaging import State

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """The end of a round: both global halves, the metrics so far, and what observers remember."""

    round: int
    client: State
    server: State
    metrics: list[dict[str, Any]]
    observers: list[dict[str, Any]]
    reference: State


def write(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint into `folder`, atomically, and drop all but the newest two."""
    target = folder / f"round-{checkpoint.round:05d}"
    partial = folder / f".{target.name}.partial"
    try:
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        digests = {}
        for name in ("client", "server", "reference"):
            state: State = getattr(checkpoint, name)
            tensors = {key: value.detach().cpu().contiguous() for key, value in state.items()}
            save_file(tensors, partial / f"{name}.safetensors")
            digests[name] = files.sha256_of(partial / f"{name}.safetensors")
        description = {
            "round": checkpoint.round,
            "metrics": checkpoint.metrics,
            "observers": checkpoint.observers,
            "sha256": digests,
        }
        (partial / "state.json").write_text(json.dumps(description))
        for file in partial.iterdir():
            files.flush(file)
        files.flush(partial)
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
        files.flush(folder)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(partial)
        raise TrainingError(
            f"The checkpoint of round {checkpoint.round} could not be written to {folder} ({error}); the "
            "one before it is kept: make room and start the run again to go on."
        ) from None
    for old in _rounds(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def read_latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None if there is none."""
    for path in reversed(_rounds(folder)):
        with contextlib.suppress(OSError, ValueError, KeyError, SafetensorError):
            return _read(path)
    return None


def _read(path: Path) -> Checkpoint:
    state = json.loads((path / "state.json").read_text())
    parts = {}
    for name, digest in state["sha256"].items():
        file = path / f"{name}.safetensors"
        if files.sha256_of(file) != digest:
            raise ValueError(f"{file} is damaged")
        parts[name] = load_file(file)
    return Checkpoint(round=state["round"], metrics=state["metrics"], observers=state["observers"], **parts)


def _rounds(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-[0-9]*")) if folder.is_dir() else []
