from __future__ import annotations

import pytest

from sigil.experiments.lab.store import Cell, Result
from sigil.experiments.pages import tables
from sigil.experiments.pages.tables import Entry, Table

CELLS = [Cell("x", "a", seed, ()) for seed in (0, 1, 2)]
RESULTS = {
    ("a", 0): Result("a", 0, {}, {"wsr": 98.0}),
    ("a", 2): Result("a", 2, {}, {"wsr": 100.0, "accuracy": None}),
}


def test_only_what_was_measured_counts() -> None:
    assert tables.values(CELLS, RESULTS, "a", "wsr") == [98.0, 100.0]
    assert tables.mean(CELLS, RESULTS, "a", "wsr") == 99.0
    assert tables.mean(CELLS, RESULTS, "a", "accuracy") is None
    assert tables.spread([98.0, 100.0]) == "99.0 ± 1.4"
    assert tables.spread([]) == "not run"
    assert tables.beside("99.0", 100.0) == "99.0 (100.0)"


@pytest.mark.parametrize(
    ("text", "quantity", "ours", "deviation", "paper"),
    [
        ("acc 38.7 ± 0.5 (92.4)", "acc", "38.7", "0.5", "92.4"),
        ("cos -2.1e-05 ± 1.5e-04 (-2.1e-06)", "cos", "-2.1e-05", "1.5e-04", "-2.1e-06"),
        ("WSR not run (100.0)", "WSR", "not run", None, "100.0"),
        ("p = 10^-12.1", "log10 p", "-12.1", None, None),
        ("span 3.1 ± 0.2 %", "span", "3.1", "0.2", None),
        ("partly (no)", "", "partly", None, "no"),
        ("325", "", "325", None, None),
        ("resnet18", "", None, None, None),
        ("2 × 1,000", "", None, None, None),
        ("0 (0.02 expected)", "", None, None, None),
        ("", "", None, None, None),
    ],
)
def test_a_line_is_taken_apart(
    text: str, quantity: str, ours: str | None, deviation: str | None, paper: str | None
) -> None:
    assert Entry.read(text) == Entry(text, quantity, ours, deviation, paper)


def test_a_table_comes_back_from_markdown() -> None:
    text = tables.markdown(
        ["task", "clean", "λ = 0.1"],
        [["resnet18", "38.4 (92.6)", "acc 38.7 ± 0.5 (92.4)<br>WSR 99.5 (100.0)"], ["", "not run", ""]],
    )
    table = Table.read(text.splitlines())
    assert table.header == ["task", "clean", "λ = 0.1"]
    first, second, third = table.records()[:3]
    assert first["row"] == "resnet18"
    assert (first["column"], first["ours"], first["paper"]) == ("clean", "38.4", "92.6")
    assert (second["quantity"], second["ours"], second["deviation"]) == ("acc", "38.7", "0.5")
    assert (third["quantity"], third["ours"], third["paper"]) == ("WSR", "99.5", "100.0")
    assert [record["ours"] for record in table.records()[3:]] == ["not run", ""]
