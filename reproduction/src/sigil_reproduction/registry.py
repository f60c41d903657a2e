"""All experiments, by name, in the paper's order."""

from __future__ import annotations

import difflib

from sigil.errors import ExperimentError
from sigil_reproduction.beyond import (
    alignment,
    ambiguity,
    answers,
    carriers,
    copies,
    curves,
    extraction,
    frontier,
    fsha,
    imprints,
    knowing_client,
    proof,
    splitguard,
    width,
)
from sigil_reproduction.paper import (
    figure3_training_curves,
    figure4_orthogonality,
    figure5_scrutinizer,
    figure6_splitout,
    figure7_noise,
    figure8_gradient_norms,
    section5_threshold,
    section6_efficiency,
    table1_capability,
    table3_fidelity,
    table4_removal,
    table5_adaptive,
    table6_split_point,
    table7_length,
    table12_clients,
    table13_non_iid,
    table14_unbalanced,
)
from sigil_reproduction.runner.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        table1_capability,
        section5_threshold,
        table3_fidelity,
        figure3_training_curves,
        figure4_orthogonality,
        figure8_gradient_norms,
        figure5_scrutinizer,
        figure6_splitout,
        splitguard,
        knowing_client,
        fsha,
        figure7_noise,
        table4_removal,
        table5_adaptive,
        table6_split_point,
        table7_length,
        proof,
        ambiguity,
        extraction,
        answers,
        alignment,
        width,
        imprints,
        copies,
        curves,
        frontier,
        carriers,
        section6_efficiency,
        table12_clients,
        table13_non_iid,
        table14_unbalanced,
    )
}


def get(name: str) -> Experiment:
    """The experiment with this name."""
    if name not in EXPERIMENTS:
        nearest = difflib.get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"choose one of {', '.join(EXPERIMENTS)}."
        raise ExperimentError(f"There is no experiment {name!r}; {hint}")
    return EXPERIMENTS[name]
