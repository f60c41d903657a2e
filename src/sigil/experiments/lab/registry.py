"""All experiments, by name, in the paper's order."""

from __future__ import annotations

import difflib

from sigil.errors import ExperimentError
from sigil.experiments.beyond import alignment, ambiguity, extraction, fsha, proof, scaling, splitguard
from sigil.experiments.beyond import knowing_client as informed
from sigil.experiments.beyond import paper_steps as longer
from sigil.experiments.lab.experiment import Experiment
from sigil.experiments.paper import figure3_training_curves as training_curves
from sigil.experiments.paper import figure4_orthogonality as orthogonality
from sigil.experiments.paper import figure5_scrutinizer as scrutinizer
from sigil.experiments.paper import figure6_splitout as splitout
from sigil.experiments.paper import figure7_noise as noise
from sigil.experiments.paper import figure8_gradient_norms as gradient_norms
from sigil.experiments.paper import section5_threshold as threshold
from sigil.experiments.paper import section6_efficiency as efficiency
from sigil.experiments.paper import table1_capability as capability
from sigil.experiments.paper import table3_fidelity as fidelity
from sigil.experiments.paper import table4_removal as removal
from sigil.experiments.paper import table5_adaptive as adaptive
from sigil.experiments.paper import table6_split_point as split_point
from sigil.experiments.paper import table7_length as length
from sigil.experiments.paper import table12_clients as clients
from sigil.experiments.paper import table13_non_iid as non_iid
from sigil.experiments.paper import table14_unbalanced as unbalanced

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
