"""A table is data: what is drawn of it says the same as Markdown, HTML and CSV."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from sigil.pages import drawing
from sigil.pages.tables import LEVEL, NOT_RUN, Answer, Entry, Number, Picture, Power, Table, Words, measured


@pytest.mark.parametrize(
    ("entry", "text", "quantity", "ours", "deviation", "paper"),
    [
        (
            Number(38.7, "acc", deviation=0.5, paper=92.4),
            "acc 38.7 ± 0.5 (92.4)",
            "acc",
            "38.7",
            "0.5",
            "92.4",
        ),
        (
            Number(-2.1e-5, "cos", ".1e", deviation=1.5e-4, paper=-2.1e-6),
            "cos -2.1e-05 ± 1.5e-04 (-2.1e-06)",
            "cos",
            "-2.1e-05",
            "1.5e-04",
            "-2.1e-06",
        ),
        (Number(None, "WSR", paper=100.0), "WSR not run (100.0)", "WSR", "not run", "", "100.0"),
        (
            Number(24.06, "outliers", paper=8.95, paper_form=".4g"),
            "outliers 24.1 (8.95)",
            "outliers",
            "24.1",
            "",
            "8.95",
        ),
        (Number(0.12, form="+.2f", deviation=0.03), "+0.12 ± 0.03", "", "+0.12", "0.03", ""),
        (Power(-12.14), "p = 10^-12.1 before correction", "log10 p before correction", "-12.1", "", ""),
        (Number(3.1, "span", deviation=0.2, unit="%"), "span 3.1 ± 0.2 %", "span", "3.1", "0.2", ""),
        (Answer("partly", "no"), "partly (no)", "", "partly", "", "no"),
        (NOT_RUN, "not run", "", "not run", "", ""),
        (Words("2 × 1,000"), "2 × 1,000", "", "2 × 1,000", "", ""),
    ],
)
def test_an_entry_in_words_and_taken_apart(
    entry: Entry, text: str, quantity: str, ours: str, deviation: str, paper: str
) -> None:
    assert entry.text == text
    assert (entry.quantity, entry.ours, entry.spread, entry.published) == (quantity, ours, deviation, paper)


def test_numbers_over_seeds() -> None:
    assert Number.over([98.0, 100.0]).text == "99.0 ± 1.4"
    assert Number.over([98.0], "WSR").text == "WSR 98.0"
    assert Number.over([]).text == "not run"


TABLE = Table(
    ["task", "clean", "λ = 0.1"],
    [
        [
            "resnet18",
            Number(38.4, paper=92.6),
            [Number(38.7, "acc", deviation=0.5, paper=92.4), Number(None, "WSR", paper=100.0), Power(-15.1)],
        ],
        ["<b>", NOT_RUN, "**none** <i>"],
        ["empty", "", []],
    ],
    caption="Above.",
    notes="Below.",
)
PAGE = ["## Heading", Picture("a picture", "x.png"), TABLE, "The *end*."]


def test_a_page_as_markdown() -> None:
    assert drawing.markdown(PAGE, pictures="here/") == (
        "## Heading\n\n![a picture](here/x.png)\n\nAbove.\n\n"
        "| task | clean | λ = 0.1 |\n"
        "| --- | --- | --- |\n"
        "| resnet18 | 38.4 (92.6) | acc 38.7 ± 0.5 (92.4)<br>WSR not run (100.0)<br>"
        "p = 10^-15.1 before correction |\n"
        "| <b> | not run | **none** <i> |\n"
        "| empty |  |  |\n\n"
        f"Below.\n\n{LEVEL}\n\nThe *end*.\n"
    )


def test_a_page_as_html() -> None:
    page = drawing.html(
        PAGE, lambda picture: Markup('<img alt="{}" src="{}">').format(picture.words, picture.file)
    )
    assert page.startswith('<h3>Heading</h3>\n<img alt="a picture" src="x.png">\n<p>Above.</p>\n<div')
    level = (
        "<p>Before correction proof begins at 10<sup>-31.2</sup> with a plain key and at 10<sup>-14.3</sup>"
    )
    assert f"</div>\n<p>Below.</p>\n{level}" in page
    assert page.endswith("\n<p>The <i>end</i>.</p>")
    assert '<span class="quantity">acc</span> 38.7 ± 0.5 <span class="paper">(92.4)</span>' in page
    assert '<span class="line number missing"><span class="quantity">WSR</span> not run' in page
    assert "<th>resnet18</th>" in page
    assert "<th>&lt;b&gt;</th>" in page
    assert "<b>none</b> &lt;i&gt;" in page
    assert "10<sup>-15.1</sup>" in page


def test_a_page_as_records() -> None:
    records = drawing.records([*PAGE, Table(["", "value"], [["a", Answer("yes", "no")]])])
    assert [(row["table"], row["row"], row["column"], row["quantity"], row["ours"]) for row in records] == [
        ("1", "resnet18", "clean", "", "38.4"),
        ("1", "resnet18", "λ = 0.1", "acc", "38.7"),
        ("1", "resnet18", "λ = 0.1", "WSR", "not run"),
        ("1", "resnet18", "λ = 0.1", "log10 p before correction", "-15.1"),
        ("1", "<b>", "clean", "", "not run"),
        ("1", "<b>", "λ = 0.1", "", "**none** <i>"),
        ("1", "empty", "clean", "", ""),
        ("1", "empty", "λ = 0.1", "", ""),
        ("2", "a", "value", "", "yes"),
    ]
    assert records[1]["deviation"] == "0.5"
    assert [records[0]["paper"], records[-1]["paper"]] == ["92.6", "no"]


def test_what_was_not_measured_is_no_row_no_column_and_no_heading() -> None:
    gap, number = Number(None, "acc", paper=92.4), Number(38.4, "acc")
    table = Table(
        ["cut", "server", "λ = 0.1", "λ = 1", "note"],
        [
            ["layer1", "honest", gap, gap, ""],
            ["layer3", "honest", [number, Number(None, "WSR")], gap, "a"],
            ["layer4", "honest", NOT_RUN, gap, "b"],
        ],
        names=2,
    )
    assert drawing.markdown(measured(["## Kept", table])) == (
        "## Kept\n\n| cut | server | λ = 0.1 | note |\n| --- | --- | --- | --- |\n"
        "| layer3 | honest | acc 38.4 | a |\n| layer4 | honest | – | b |\n"
    )
    empty = Table(["cut", "λ = 1"], [["layer1", gap]], caption="Above.")
    page = ["Words.", "## Gone", Picture("gone", "x.png"), empty, "## Words alone", "stay."]
    assert measured(page) == ["Words.", "## Words alone", "stay."]
    assert measured([Picture("a figure alone", "x.png")]) == [Picture("a figure alone", "x.png")]
