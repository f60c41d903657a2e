"""Data quantity heterogeneity (the paper's table 14, appendix E): log-normal client sizes."""

from __future__ import annotations

from sigil_reproduction.runner.variations import table

EXPERIMENT = table(
    "unbalanced",
    caption="Accuracy and WSR where the clients' sizes are log-normal with deviation σ.",
    axis="σ",
    rows=lambda scale: {
        "balanced": {},
        **{f"{sigma}": {"partition": "lognormal", "sigma": sigma} for sigma in (0.5, 1.0, 2.0)},
    },
    published="unbalanced_lognormal",
    costs=False,
    opening=("2.0", "Unequal clients carry it (log-normal 2)"),
)
