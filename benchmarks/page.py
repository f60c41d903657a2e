"""Fill the page of the benchmarks' results from the files beside it.

    python benchmarks/page.py

``benchmarks/results/README.md.jinja`` becomes ``README.md``. In the template ``data("poisoned")`` is what
``poisoned.json`` holds, and ``percent`` and ``minus`` are ways to write a number.
"""

from __future__ import annotations

import json
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


def render() -> str:
    """The page's text."""
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    environment.filters |= {"percent": percent, "minus": minus}
    template = (RESULTS / "README.md.jinja").read_text("utf-8")
    return environment.from_string(template).render(data=data)


if __name__ == "__main__":
    (RESULTS / "README.md").write_text(render(), "utf-8")
