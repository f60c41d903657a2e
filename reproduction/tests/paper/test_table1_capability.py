"""The trials behind the capability table must be able to come out either way."""

from __future__ import annotations

import torch
from torch import nn

from sigil.baselines import Backdoor
from sigil.federation.messages import Activation
from sigil.federation.observers import Step
from sigil_reproduction.paper import table1_capability as capability
from sigil_reproduction.paper.table1_capability import NO, PARTLY, YES, Trial, Witness, tensors
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Cell, Result


def test_the_server_of_usfl_is_given_nothing_private_and_that_of_sfl_the_labels() -> None:
    assert [Trial("usfl", 0).access(what, federated=False)[0] for what in ("labels", "parameters")] == [
        NO,
        NO,
    ]
    assert Trial("sfl", 0).access("labels", federated=False)[0] == YES


def test_a_witness_notices_what_is_handed_over() -> None:
    witness, half = Witness(), nn.Linear(2, 2)
    images, labels = torch.rand(4, 2), torch.tensor([0, 1, 1, 0])
    witness.on_batch(Step(1, 0, 1), images, labels)
    witness.on_update(Step(1, 0, 1), half)
    assert [witness.reached(what) for what in ("images", "labels", "parameters")] == [0, 0, 0]
    witness.given += tensors([half, Activation(images), 3, "x"])
    assert [witness.reached(what) for what in ("images", "labels", "parameters")] == [1, 0, 2]


def test_a_baseline_at_the_server_embeds_nothing() -> None:
    answer, happened = Trial("usfl", 0).mark_at_the_server(Backdoor(size=2))
    assert answer == NO
    assert "bit for bit the clean one" in happened


def test_a_federated_server_writes_a_parameter_mark() -> None:
    answer, happened = Trial("usfl", 0).parameter_mark_in_fl()
    assert answer == YES
    assert "100 % of the bits" in happened


def test_an_answer_unlike_the_papers_is_a_finding() -> None:
    cells = [
        Cell("capability", f"{row} {framework}", 0, (), {})
        for row in (*capability.PAPER, capability.SIGIL)
        for framework in capability.FRAMEWORKS
    ]
    answers = {
        f"{row} {framework}": answer
        for row, theirs in capability.PAPER.items()
        for framework, answer in zip(capability.FRAMEWORKS, theirs, strict=True)
    }
    answers["Sigil U-SL / U-SFL"] = YES
    results = {
        (name, 0): Result(name, 0, {}, {"answer": answer, "happened": "it was tried"})
        for name, answer in answers.items()
    }
    assert [finding.agrees for finding in capability.verdict(Measured(cells, results))] == [True, True]
    results["client data access FL", 0].numbers["answer"] = PARTLY
    first = capability.verdict(Measured(cells, results))[0]
    assert first.agrees is False
    assert "client data access in FL" in first.text
    assert capability.verdict(Measured(cells, {}))[0].agrees is None
