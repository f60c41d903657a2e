"""Fill the page of the benchmarks' results from the files beside it.

    python benchmarks/page.py

``benchmarks/results/README.md.jinja`` becomes ``README.md``. In the template ``data("poisoned")`` is what
``poisoned.json`` holds, and ``percent``, ``minus`` and ``met`` are ways to write a number.
"""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

RESULTS = Path(__file__).parent / "results"


def data(name: str) -> Any:
    """What a benchmark wrote."""
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def percent(share: float) -> str:
    """A share as a percentage with one digit."""
    return f"{share:.1%}".replace("%", " %")


def minus(number: float, digits: int = 1) -> str:
    """A number with a true minus sign and thousands apart."""
    return f"{number:,.{digits}f}".replace("-", "−")


def met(row: dict[str, Any]) -> str:
    """Whether a claim met its target, if it had one.

    >>> met({"measured": 1.2, "target": "<= 1.1"}), met({"measured": 3.0, "target": "report"})
    ('**no**', '')
    """
    compare = {"<=": operator.le, ">=": operator.ge, "<": operator.lt}
    sign, _, bound = row["target"].partition(" ")
    if sign not in compare:
        return ""
    return "yes" if compare[sign](row["measured"], float(bound)) else "**no**"


def render() -> str:
    """The page's text."""
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    environment.filters |= {"percent": percent, "minus": minus, "met": met}
    template = (RESULTS / "README.md.jinja").read_text("utf-8")
    return environment.from_string(template).render(data=data)


if __name__ == "__main__":
    (RESULTS / "README.md").write_text(render(), "utf-8")
