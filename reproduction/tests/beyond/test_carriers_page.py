"""The page of carriers: what was never proof, or never attacked, is not called proof after all attacks."""

from __future__ import annotations

from sigil.pages.tables import NOT_RUN, Row
from sigil_reproduction.beyond import carriers
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Result

NONE, FLATTENING = "none", "flattening, 1"


def measured(rows: dict[str, tuple[float, float]]) -> Measured:
    """Cells of random carriers at desk with these accuracies and log10 p, by attack."""
    cells = carriers.cells(scales.get("desk"), [0])
    found = {}
    for attack, (accuracy, log10_p) in rows.items():
        name = carriers.name_of("cifar10", "random", attack)
        numbers = {"accuracy": accuracy, "log10_p_inputs": log10_p, "wsr_inputs": 80.0}
        found[name, 0] = Result(name, 0, {}, numbers)
    return Measured(cells, found)


def summary(**rows: tuple[float, float]) -> Row:
    named = {{"none": NONE, "flattening": FLATTENING}[name]: row for name, row in rows.items()}
    return list(carriers._summary(measured(named), "cifar10", "random"))[2:]


def test_what_does_not_embed_is_no_proof_after_attacks_either() -> None:
    assert summary(none=(60, -7.7)) == ["log10 p -7.7, **no**", NOT_RUN, "**no**"]
    assert summary(none=(60, -7.7), flattening=(57, -1.0))[1:] == [f"{FLATTENING}: +3.0 points", "**no**"]


def test_what_was_not_attacked_is_not_called_proof() -> None:
    assert summary(none=(60, -59.7)) == ["log10 p -59.7, yes", NOT_RUN, NOT_RUN]


def test_what_was_attacked_is_judged_by_its_cheapest_removal() -> None:
    assert summary(none=(60, -59.7), flattening=(59, -40.0))[1:] == ["none of these attacks", "yes"]
    assert summary(none=(60, -59.7), flattening=(59, -1.0))[1:] == [f"{FLATTENING}: +1.0 points", "**no**"]
    assert summary(none=(60, -59.7), flattening=(57, -1.0))[1:] == [f"{FLATTENING}: +3.0 points", "yes"]


def test_the_page_says_how_long_and_where_was_trained() -> None:
    words = carriers._trainings(measured({}), "cifar10", ["random", "channel-wise", "more bits"])
    assert words == (
        "vgg11 in 10 rounds, cut at stage3 with width 16; channel-wise: cut at stage4 with width 16."
    )
