"""The paper's own numbers, as data: every table shows them beside ours."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def numbers() -> dict[str, Any]:
    """All numbers of the paper, by table."""
    content: dict[str, Any] = json.loads(
        files("sigil_reproduction.runner").joinpath("paper.json").read_text("utf-8")
    )
    return content


def key(strength: float) -> str:
    """What the paper's data calls a strength."""
    return str(float(strength))


def fidelity(model: str, strength: float) -> dict[str, float] | None:
    """Accuracy (%), WSR (%) and cosine of the fidelity table; strength 0 is the clean model."""
    for row in numbers()["fidelity"]:
        if row["model"] == model:
            if strength == 0:
                return {"accuracy": row["clean_acc"]}
            cell = row["strength"].get(key(strength))
            if cell is not None:
                return {"accuracy": cell["acc"], "wsr": cell["wsr"], "cosine": cell["cosine"]}
    return None


def pair(table: str, row: str, strength: float) -> dict[str, float] | None:
    """Accuracy (%) and WSR (%) of a table whose cells are pairs by row and strength."""
    cell = numbers()[table].get(row, {}).get(key(strength))
    return None if cell is None else {"accuracy": cell[0], "wsr": cell[1]}
