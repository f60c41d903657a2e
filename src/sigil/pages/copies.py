"""One page about a trace: whose copy a suspect contains, what that shows and what not."""

from __future__ import annotations

from markupsafe import Markup

from sigil.pages import drawing
from sigil.pages.drawing import NOTHING, Section, render
from sigil.pages.tables import Row, Table
from sigil.tracing import Trace, in_sentences

SHOWN = 100


def trace_page(outcome: Trace, *, suspect: str, command: str) -> str:
    """The page as HTML text; everything in it that came from a file or a register is escaped."""
    rows: list[Row] = [
        [
            each.name,
            "yes" if each.contained else "not shown",
            f"{each.log10_p_before:.1f}",
            f"{each.log10_p:.1f}",
            f"{each.deviations:.1f}",
            each.date[:10],
            each.folder or "–",
        ]
        for each in outcome.recipients[:SHOWN]
    ]
    columns = ["made for", "contained", "log10 p before correction", "corrected", "deviations", "date"]
    facts: list[Row] = [
        ["suspect", suspect],
        ["SHA-256 of its file", outcome.sha256 or "–"],
        ["models in it that were read", str(len(outcome.entries))],
        ["registers", str(outcome.registers)],
        ["weights that were compared", f"{outcome.weights:,}"],
        ["level, as log10 p", f"{outcome.log10_level:.1f} ({outcome.level})"],
        ["tries", str(outcome.tries)],
    ]
    left = len(outcome.recipients) - SHOWN
    more = f" {left:,} less likely ones are left out." if left > 0 else ""
    return render(
        title="Whose copy is it?",
        lead=Markup("").join(Markup("<p>{}</p>").format(line) for line in in_sentences(outcome).split("\n")),
        sections=[
            Section(
                "recipients",
                f"Each recipient's p is exact, and corrected by all that was tried.{more}",
                drawing.html([Table([*columns, "register"], rows)], lambda picture: NOTHING),
            ),
            Section("facts", "What was compared.", drawing.html([Table(["", ""], facts)], lambda _: NOTHING)),
        ],
        rest=NOTHING,
        command=command,
    )
