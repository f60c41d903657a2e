from __future__ import annotations

from sigil.pages.markup import html

TEXT = """# Title

One *soft* and **hard** word, `a < b`
over two lines, p = 10^-12.5 in [fidelity](fidelity/) and [elsewhere](../other.md).

- first
  goes on
- second <script>alert(1)</script>

| task | λ = 0.1 |
| --- | --- |
| resnet18 | *by hand* |
"""


def test_all_kinds_of_blocks() -> None:
    page = html(TEXT, ["fidelity"])
    assert "<h2>Title</h2>" in page
    assert "<i>soft</i> and <b>hard</b> word, <code>a &lt; b</code>" in page
    assert "10<sup>-12.5</sup>" in page
    assert '<a href="#fidelity">fidelity</a> and elsewhere.' in page
    assert page.count("<li>") == 2
    assert "first\n  goes on" in page
    assert "<th>λ\u00a0=\u00a00.1</th>" in page
    assert "<tr><td>resnet18</td><td><i>by hand</i></td></tr>" in page


def test_nothing_but_our_own_markup_gets_through() -> None:
    page = html(TEXT)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "href" not in page
