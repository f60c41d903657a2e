"""Impact of the number of clients (the paper's table 12, appendix E)."""

from __future__ import annotations

from sigil_reproduction.runner.scales import PerScale
from sigil_reproduction.runner.variations import table

COUNTS = PerScale((10, 20, 50, 100), smoke=(4, 8))

EXPERIMENT = table(
    "clients",
    caption="Accuracy and WSR for 10, 20, 50 and 100 clients that share the same data.",
    axis="clients",
    rows=lambda scale: {str(count): {"clients": count} for count in COUNTS.at(scale)},
    published="clients",
    costs=True,
    opening=("50", "50 clients carry it"),
)
