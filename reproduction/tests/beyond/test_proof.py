"""Which key lengths stay proof: the worst attack and the worst seed count."""

from __future__ import annotations

from sigil_reproduction.beyond import proof
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Result

SCALE = scales.get("cpu")


def agrees(p: dict[str, float], *, seeds: int = 1) -> dict[str, bool | None]:
    """What is found of 50 and 128 bits where `p` holds log10 p of some attacks; the rest is proof."""
    cells = proof.cells(SCALE, range(seeds))
    results = {
        (cell.name, cell.seed): Result(cell.name, cell.seed, cell.options, {"log10_p": value})
        for cell in cells
        if cell.experiment == "proof"
        for value in [p.get(cell.name, -40.0) if cell.seed == 0 else -40.0]
    }
    findings = proof.verdict(Measured(cells, results))
    return {finding.text.split(" bits are")[0]: finding.agrees for finding in findings[1:]}


def test_every_length_that_no_attack_breaks_is_proof() -> None:
    assert agrees({}) == {"50": True, "128": True, "160": True, "256": True}


def test_one_attack_on_one_seed_is_enough_to_break_it() -> None:
    found = agrees({"50 bits averaging": -3.0, "128 bits R_wm 1": -31.3}, seeds=2)
    assert (found["50"], found["128"]) == (False, True)


def test_nothing_is_said_of_a_length_before_all_attacks_were_tried() -> None:
    cells = proof.cells(SCALE, [0])
    some = {("128 bits none", 0): Result("", 0, {}, {"log10_p": -38.0})}
    by_text = {
        finding.text.split(" bits are")[0]: finding.agrees for finding in proof.verdict(Measured(cells, some))
    }
    assert by_text["128"] is None


def test_five_sigma_before_correction_is_no_proof() -> None:
    """50 bits are never: all of them right have a chance of 2^-50, and a plain key needs 10^-31.2."""
    assert agrees({"50 bits none": -15.05})["50"] is False
