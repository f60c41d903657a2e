"""Make a notebook of a script, and run it.

    python release/make_notebook.py examples/mark_and_verify.py [NOTEBOOK]

The script is the source: a line `# %%` begins a cell of code and `# %% [markdown]` one of text. The notebook
is executed by a kernel of its own and written with its outputs, beside the script unless a place is named.
Needs nbclient and ipykernel, and what the script imports.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def cells(script: str) -> list[tuple[str, str]]:
    """The cells of a script: "markdown" or "code", and the text.

    >>> cells("# %% [markdown]\\n# A title\\n#\\n# text\\n\\n# %%\\nx = 1\\n\\n\\n# %%\\nx\\n")
    [('markdown', 'A title\\n\\ntext'), ('code', 'x = 1'), ('code', 'x')]
    """
    found = []
    for kind, text in re.findall(
        r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", script, re.MULTILINE | re.DOTALL
    ):
        text = text.strip()
        found.append(("markdown", re.sub(r"^# ?", "", text, flags=re.MULTILINE)) if kind else ("code", text))
    return found


def main(script: Path, notebook: Path) -> None:
    import nbclient
    import nbformat
    from nbformat import v4

    made = {"markdown": v4.new_markdown_cell, "code": v4.new_code_cell}
    book = v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for number, (kind, text) in enumerate(cells(script.read_text("utf-8"))):
        book.cells.append(made[kind](text, id=f"cell-{number}"))
    nbclient.NotebookClient(book, timeout=1800, record_timing=False).execute()
    book.metadata.pop("language_info", None)  # differs from machine to machine
    nbformat.write(book, notebook)
    size = notebook.stat().st_size
    assert size < 100_000, f"{notebook} has {size:,} bytes: its outputs should be small"
    printed = notebook.read_text("utf-8")
    assert "The suspect carries the mark" in printed, "the marked model was not proven"
    assert printed.count("is not shown to carry the mark") == 2, (
        "a model or a key was proven that must not be"
    )
    print(f"{notebook}: {len(book.cells)} cells, {size:,} bytes")


if __name__ == "__main__":
    source = Path(sys.argv[1])
    main(source, Path(sys.argv[2]) if len(sys.argv) > 2 else source.with_suffix(".ipynb"))
