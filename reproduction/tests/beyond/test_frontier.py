"""The search for the least price: what is drawn, what is chosen, and what stops early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sigil.data import load
from sigil.pages import drawing
from sigil_reproduction.beyond import frontier
from sigil_reproduction.beyond.recipes import recipe
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Cell, Result, Store

RESULTS = Path(__file__).parents[2] / "results"
CELLS = frontier.cells(scales.get("desk"), [0])
BEFORE = {"choosing": 81.0, "accuracy": 82.0, "log10_p_mark": -76.0, "log10_p_origin": -12_000.0}


def measured(numbers: Mapping[str, dict[str, Any]], cells: Sequence[Cell] = CELLS) -> Measured:
    known = {"none": BEFORE, **numbers}
    results = {
        (cell.name, 0): Result(cell.name, 0, cell.options, known[cell.name], seconds=120.0)
        for cell in cells
        if cell.name in known
    }
    return Measured(cells, results)


def left(choosing: float, accuracy: float, mark: float, **more: float) -> dict[str, Any]:
    return {"choosing": choosing, "accuracy": accuracy, "log10_p_mark": mark, "log10_p_origin": -9.0, **more}


def test_one_half_of_the_test_images_chooses_and_the_other_reports() -> None:
    data = load("digits", train_limit=20, test_limit=40)
    parts = [frontier.every_second(data, start).test for start in (0, 1)]
    assert [len(part) for part in parts] == [20, 20]
    assert (parts[0].images == data.test.images[::2]).all()
    assert (parts[1].labels == data.test.labels[1::2]).all()
    found = measured(
        {
            "trial 0": left(80.0, 79.0, -14.0),
            "trial 1": left(79.0, 81.9, -14.0),
            "trial 2": left(80.9, 81.9, -14.5),
        }
    )
    stamped, plain = (frontier.best(found, "mark", kind) for kind in ("stamped", "plain"))
    # Of those without proof the best by the first half; its price is that of the second.
    assert stamped is not None
    assert stamped.options == recipe(0)
    assert stamped.price == pytest.approx(3.0)
    # With a plain key, whose level is 10^-31, the third is no proof either.
    assert plain is not None
    assert plain.options == recipe(2)
    assert plain.price == pytest.approx(0.1)


def test_a_goal_is_reached_when_nothing_that_it_names_is_proven() -> None:
    gone = left(80.0, 80.0, -14.0, log10_p_imprint=-6.0)
    # Whose imprint nobody looked for was not rid of it.
    assert not frontier.reached(left(80.0, 80.0, -14.0), "everything", "stamped")
    assert all(frontier.reached(gone, goal, "stamped") for goal in frontier.GOALS)
    assert not frontier.reached({**gone, "log10_p_origin": -15.0}, "both", "stamped")
    assert frontier.reached({**gone, "log10_p_origin": -15.0}, "both", "plain")
    assert not frontier.reached({**gone, "log10_p_imprint": -7.0}, "everything", "plain")
    assert frontier.score(gone, "both") == pytest.approx(20.0)
    assert frontier.score({**gone, "log10_p_origin": -115.0}, "both") > 21.5


def test_a_trial_counts_for_every_goal_whose_proofs_are_gone() -> None:
    found = measured(
        {
            "trial 0": left(80.5, 80.5, -14.0, log10_p_origin=-900.0),
            "trial 3": left(79.0, 79.5, -14.0, log10_p_imprint=-6.0),
            "trial 4": {"short": left(80.0, 80.1, -14.0, log10_p_imprint=-90.0), "stopped": True},
        }
    )
    lost = {goal: frontier.best(found, goal, "stamped") for goal in frontier.GOALS}
    prices = {goal: found and round(found.price, 1) for goal, found in lost.items()}
    assert prices == {"mark": 1.5, "origin": 1.9, "both": 1.9, "everything": 2.5}
    # A trial that stopped early made a model too, by a third of its epochs.
    assert lost["both"] is not None
    assert lost["both"].options["tuning"]["epochs"] == 3


def test_the_page_says_what_was_tried_and_names_the_recipe(tmp_path: Path) -> None:
    found = measured(
        {
            "none": {**BEFORE, "model": "results/desk/models/a"},
            "trial 0": left(80.0, 79.0, -14.0, log10_p_origin=-900.0),
            "trial 1": {"short": left(60.0, 60.0, -60.0, log10_p_origin=-900.0), "stopped": True},
            "student": left(77.0, 77.0, -1.0),
        }
    )
    page = drawing.markdown(frontier.show(found, tmp_path))
    assert "| mark, stamped key | 1 | trial 0 | +3.00 | +2.00 | not run | 2.0 |" in page
    assert "| origin, stamped key | 0 | no recipe | not run | not run | not run | not run |" in page
    assert "2 trials, of which 1 stopped early" in page
    assert "- `MODEL=results/desk/models/a`\n- mark, plain key; mark, stamped key: `sigil attack" in page
    assert "$MODEL/owner.key --data cifar10 --lr 0.0005 --epochs 10 --flatten 10.0`\n- what is left" in page
    assert (tmp_path / "frontier.png").exists()


def test_a_search_that_has_only_begun_shows_a_low_price_and_never_a_high_one() -> None:
    def judged(*trials: tuple[float, float, float]) -> list[bool | None]:
        found = measured(
            {f"trial {number}": left(*each, log10_p_origin=-900.0) for number, each in enumerate(trials)}
        )
        return [finding.agrees for finding in frontier.verdict(found)]

    dear, cheap = (80.0, 79.0, -14.0), (81.5, 81.5, -14.0)
    whole = frontier.TRIALS.at(scales.get("desk"))
    # After the four prices come the three other models, on which nothing was tried.
    assert judged() == judged(dear) == [None] * 7
    assert judged(cheap) == [False, *[None] * 6]
    assert judged(*[dear] * whole) == [*[True] * 4, *[None] * 3]


def test_a_longer_or_a_stronger_mark_is_held_against_the_recipe_that_takes_both() -> None:
    cells = [Cell("frontier", "none", 0, (), {}), Cell("frontier", "trial 0", 0, (), recipe(0))]
    kept, gone = left(80.0, 80.5, -20.0), left(80.0, 80.5, -14.0)
    known = {"trial 0": gone, "none, paper's mark": BEFORE, "trial 0, paper's mark": kept}
    cells += [Cell("frontier", name, 0, (), {}) for name in known if name not in ("none", "trial 0")]
    *_, paper, shorter, stronger = frontier.verdict(measured(known, cells))
    assert (paper.agrees, shorter.agrees, stronger.agrees) == (True, None, None)
    assert paper.text.endswith("stamped key: +1.50 points.")
    *_, paper, _, _ = frontier.verdict(measured({**known, "trial 0, paper's mark": gone}, cells))
    assert paper.agrees is False


def test_a_trial_goes_on_only_among_the_best_third() -> None:
    def goes_on(choosing: float, before: int) -> bool:
        known = [{"short": left(60.0 + number, 60.0, -1.0)} for number in range(before)]
        return frontier.is_promising(left(choosing, 60.0, -1.0), "both", [BEFORE, *known])

    assert goes_on(0.0, before=frontier.LEAST_BEFORE - 1)
    assert not goes_on(64.5, before=9)
    assert goes_on(65.5, before=9)
    assert not frontier.is_promising(left(64.5, 60.0, -1.0), "both", [{"short": left(66.0, 60.0, -1.0)}] * 6)


def test_confirmed_are_the_five_best_of_each_goal_once_the_search_is_done() -> None:
    store = Store("desk", results=RESULTS, runs=RESULTS)
    search = [cell for cell in CELLS if cell.name == "none" or frontier.is_a("trial", cell)]
    searched = Measured(search, store.results_of(search))
    confirmed = frontier.CONFIRMED.at("desk")
    assert frontier.is_done(searched) or not confirmed
    for goal, names in confirmed.items():
        assert list(names) == [each.name for each in frontier.ranked(searched, goal, "stamped")[:5]]


def test_a_recipe_that_other_thieves_followed_counts_by_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, confirmed = scales.get("desk"), {"mark": ["trial 4 shortened"], "both": ["trial 4 shortened"]}
    monkeypatch.setattr(frontier, "WORKED", scales.PerScale(()))
    monkeypatch.setattr(frontier, "CONFIRMED", scales.PerScale({}))
    before = {cell.name for cell in frontier.cells(desk, [0])}
    monkeypatch.setattr(frontier, "CONFIRMED", scales.PerScale(confirmed))
    cells = frontier.cells(desk, [0])
    again = [frontier.again("trial 4 shortened", seed) for seed in frontier.AGAIN]
    # Each is confirmed once for all goals, by two thieves and on the three other models.
    added = [cell for cell in cells if cell.name not in before]
    assert [cell.name for cell in added[:2]] == again
    assert len(added) == 2 + 3 * 3
    assert {cell.options["tuning"]["epochs"] for cell in added if "tuning" in cell.options} == {3}

    def price(*others: dict[str, Any]) -> tuple[str, float]:
        short = {"short": left(80.0, 80.0, -14.0), "stopped": True}
        known = {
            "trial 4": short,
            "trial 5": left(80.9, 81.9, -14.0),
            **dict(zip(again, others, strict=False)),
        }
        found = frontier.best(measured(known, cells), "mark", "stamped")
        assert found is not None
        return found.name, round(found.price, 2)

    # As long as nothing is confirmed, the cheapest recipe counts; then the cheapest of those that are.
    first, second = left(79.0, 79.0, -14.0), left(80.0, 81.0, -14.0)
    assert price() == price(first) == ("trial 5", 0.1)
    assert price(first, second) == ("trial 4 shortened", 2.0)
    # If one thief of three leaves a proof, the recipe does not reach the goal.
    assert price(first, {**second, "log10_p_mark": -20.0}) == ("trial 5", 0.1)
