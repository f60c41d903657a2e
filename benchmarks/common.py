"""What the benchmarks share: how they print claims, and what they write beside every result."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from sigil import hardware

_PACKAGES = ("torch", "numpy", "scipy", "grpcio", "flwr", "nvflare")


def command_line(
    about: str | None, *, written: str = "also write the outcome to this file"
) -> argparse.ArgumentParser:
    """The command line of a benchmark, which adds its own options to ``--json``."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help=written)
    return parser


def print_claims(claims: Sequence[tuple[str, float | list[float], str]]) -> list[dict[str, Any]]:
    """Print claims as a table and return its rows: a name, one number or one per repetition, a target."""
    rows = []
    print("| claim | measured | must reach |\n| --- | --- | --- |")
    for claim, measured, target in claims:
        every = measured if isinstance(measured, list) else [measured]
        row: dict[str, Any] = {"claim": claim, "measured": statistics.median(every), "target": target}
        reach = ""
        if len(every) > 1:
            row["all"] = every
            reach = f" ({min(every):.4g} to {max(every):.4g})"
        rows.append(row)
        print(f"| {claim} | {row['measured']:.4g}{reach} | {target} |")
    return rows


def reader() -> str:
    """The last commit that changed what reads a suspect, for tables that are to be of one reader."""
    parts = [f"src/sigil/{name}" for name in ("suspect", "alignment", "verdict", "origin.py", "probing.py")]
    asked = ["git", "log", "-1", "--format=%h", "--", *parts]
    folder = Path(__file__).parents[1]
    return subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def write_result(file: Path | None, content: dict[str, Any]) -> None:
    """Write a benchmark's outcome, if a file is given, with the machine, its load and the versions."""
    if file is None:
        return
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    device = torch.device("cpu")
    about = {
        "machine": hardware.describe(device, bfloat16=hardware.prefers_bfloat16(device))
        | {"cores": hardware.cores()},
        "load_average": os.getloadavg(),
        "versions": versions,
    }
    file.write_text(json.dumps(content | about, indent=1, ensure_ascii=False, default=str) + "\n")
