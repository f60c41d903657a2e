"""Impact of the number of clients (the paper's appendix E, first table)."""

from __future__ import annotations

from sigil.experiments.lab.variations import table

EXPERIMENT = table(
    "clients",
    caption="Accuracy and WSR for 10, 20, 50 and 100 clients that share the same data.",
    axis="clients",
    rows=lambda scale: {str(count): {"clients": count} for count in scale.client_counts},
    published="clients",
    costs=True,
)
