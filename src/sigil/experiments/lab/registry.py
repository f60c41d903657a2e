"""All experiments, by name, in the paper's order."""

from __future__ import annotations

import difflib

from sigil.errors import ExperimentError
from sigil.experiments import (
    adaptive,
    alignment,
    ambiguity,
    capability,
    clients,
    efficiency,
    extraction,
    fidelity,
    fsha,
    gradient_norms,
    informed,
    length,
    longer,
    noise,
    non_iid,
    orthogonality,
    proof,
    removal,
    scaling,
    scrutinizer,
    split_point,
    splitguard,
    splitout,
    threshold,
    training_curves,
    unbalanced,
)
from sigil.experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        capability,
        threshold,
        fidelity,
        training_curves,
        orthogonality,
        gradient_norms,
        scrutinizer,
        splitout,
        splitguard,
        informed,
        fsha,
        noise,
        removal,
        adaptive,
        split_point,
        length,
        proof,
        ambiguity,
        extraction,
        alignment,
        longer,
        scaling,
        efficiency,
        clients,
        non_iid,
        unbalanced,
    )
}


def get(name: str) -> Experiment:
    """The experiment with this name."""
    if name not in EXPERIMENTS:
        nearest = difflib.get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"choose one of {', '.join(EXPERIMENTS)}."
        raise ExperimentError(f"There is no experiment {name!r}; {hint}")
    return EXPERIMENTS[name]
