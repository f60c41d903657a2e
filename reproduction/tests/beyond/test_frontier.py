"""The search for the least price: what is drawn, what is chosen, and what stops early."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sigil.data import load
from sigil.pages import drawing
from sigil_reproduction.beyond import frontier
from sigil_reproduction.runner import scales
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Result

CELLS = frontier.cells(scales.get("desk"), [0])
BEFORE = {"choosing": 81.0, "accuracy": 82.0, "log10_p_mark": -76.0, "log10_p_origin": -12_000.0}


def measured(numbers: Mapping[str, dict[str, Any]]) -> Measured:
    known = {"none": BEFORE, **numbers}
    results = {
        (cell.name, 0): Result(cell.name, 0, cell.options, known[cell.name])
        for cell in CELLS
        if cell.name in known
    }
    return Measured(CELLS, results)


def left(choosing: float, accuracy: float, mark: float, **more: float) -> dict[str, Any]:
    return {"choosing": choosing, "accuracy": accuracy, "log10_p_mark": mark, "log10_p_origin": -9.0, **more}


def test_recipes_differ_and_repeat() -> None:
    drawn = [str(frontier.recipe(goal, trial)) for goal in frontier.GOALS for trial in range(40)]
    assert drawn == [str(frontier.recipe(goal, trial)) for goal in frontier.GOALS for trial in range(40)]
    assert len(set(drawn)) == len(drawn)
    assert all("noise" in frontier.recipe("everything", trial) for trial in range(40))
    assert not any("orthogonalise" in frontier.recipe("mark", trial) for trial in range(40))


def test_one_half_of_the_test_images_chooses_and_the_other_reports() -> None:
    data = load("digits", train_limit=20, test_limit=40)
    parts = [frontier.every_second(data, start).test for start in (0, 1)]
    assert [len(part) for part in parts] == [20, 20]
    assert (parts[0].images == data.test.images[::2]).all()
    assert (parts[1].labels == data.test.labels[1::2]).all()
    found = measured(
        {
            "mark, trial 0": left(80.0, 79.0, -14.0),
            "mark, trial 1": left(79.0, 81.9, -14.0),
            "mark, trial 2": left(80.9, 81.9, -14.5),
        }
    )
    stamped, plain = (frontier.best(found, "mark", kind) for kind in ("stamped", "plain"))
    # Of those without proof the best by the first half; its price is that of the second.
    assert stamped is not None
    assert stamped.options["trial"] == 0
    assert stamped.lost == pytest.approx(3.0)
    # With a plain key, whose level is 10^-31, the third is no proof either.
    assert plain is not None
    assert plain.options["trial"] == 2
    assert plain.lost == pytest.approx(0.1)


def test_a_goal_is_reached_when_nothing_that_it_names_is_proven() -> None:
    gone = left(80.0, 80.0, -14.0, log10_p_imprint=-6.0)
    assert all(frontier.reached(gone, goal, "stamped") for goal in frontier.GOALS)
    assert not frontier.reached({**gone, "log10_p_origin": -15.0}, "both", "stamped")
    assert frontier.reached({**gone, "log10_p_origin": -15.0}, "both", "plain")
    assert not frontier.reached({**gone, "log10_p_imprint": -7.0}, "everything", "plain")
    assert frontier.score(gone, "both") == pytest.approx(20.0)
    assert frontier.score({**gone, "log10_p_origin": -115.0}, "both") > 21.5


def test_the_page_says_what_was_tried_and_names_the_recipe(tmp_path: Path) -> None:
    found = measured(
        {
            "mark, trial 0": left(80.0, 79.0, -14.0),
            "mark, trial 1": {"short": left(60.0, 60.0, -60.0), "stopped": True},
            "student": left(77.0, 77.0, -1.0),
        }
    )
    page = drawing.markdown(frontier.show(found, tmp_path))
    assert "| mark | 2 | 1 | +3.00 | +3.00 |" in page
    assert "--data cifar10 --lr 0.0005 --epochs 10 --flatten 10`" in page
    assert (tmp_path / "frontier.png").exists()


def test_a_search_that_has_only_begun_shows_a_low_price_and_never_a_high_one() -> None:
    def judged(*trials: tuple[float, float, float]) -> list[bool | None]:
        found = measured({f"mark, trial {number}": left(*each) for number, each in enumerate(trials)})
        return [finding.agrees for finding in frontier.verdict(found)]

    dear, cheap = (80.0, 79.0, -14.0), (81.5, 81.5, -14.0)
    whole = frontier.TRIALS.at(scales.get("desk"))
    assert judged() == judged(dear) == [None] * 4
    assert judged(cheap) == [False, None, None, None]
    assert judged(*[dear] * whole) == [True, None, None, None]
