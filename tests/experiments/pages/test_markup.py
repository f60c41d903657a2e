from __future__ import annotations

import re

from markupsafe import Markup

from sigil.experiments.pages.markup import html

PAGE = """# Title

One *soft* and **hard** word, `a < b`
over two lines, p = 10^-12.5 in [fidelity](fidelity/) and [elsewhere](../other.md).

- first
  goes on
- second <script>alert(1)</script>

| task | λ = 0.1 |
| --- | --- |
| resnet18 | acc 38.7 (92.4)<br>WSR not run (100.0) |
![a picture](x.png)
with text below it.
"""


def picture(words: str, file: str) -> Markup:
    return Markup('<img alt="{}" src="{}">').format(words, file)


def test_all_kinds_of_blocks() -> None:
    page = html(PAGE, picture, anchors=["fidelity"])
    assert "<h2>Title</h2>" in page
    assert "<i>soft</i> and <b>hard</b> word, <code>a &lt; b</code>" in page
    assert "10<sup>-12.5</sup>" in page
    assert '<a href="#fidelity">fidelity</a> and elsewhere.' in page
    assert page.count("<li>") == 2
    assert "first\n  goes on" in page
    assert "λ\u00a0=\u00a00.1" in page
    assert '<img alt="a picture" src="x.png">\n<p>with text below it.</p>' in page


def test_nothing_but_our_own_markup_gets_through() -> None:
    page = html(PAGE, picture)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "href" not in page


def test_ours_and_the_papers_numbers_can_be_told_apart() -> None:
    page = html(PAGE, picture)
    assert re.search(r'<span class="quantity">acc</span> 38\.7 <span class="paper">\(92\.4\)</span>', page)
    assert re.search(r'<span class="line number missing"><span class="quantity">WSR</span> not run', page)
    assert "<th>resnet18</th>" in page
