"""Data distribution heterogeneity (the paper's table 13, appendix E): Dirichlet partitions."""

from __future__ import annotations

from sigil_reproduction.runner.variations import table

EXPERIMENT = table(
    "non-iid",
    caption="Accuracy and WSR where each client's classes are drawn from Dirichlet(β).",
    axis="β",
    rows=lambda scale: {
        "iid": {},
        **{f"{beta}": {"partition": "dirichlet", "beta": beta} for beta in (1.0, 0.5, 0.1)},
    },
    published="noniid_dirichlet",
    costs=True,
    opening=("0.1", "Skewed classes carry it (Dirichlet 0.1)"),
)
