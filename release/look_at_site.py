"""Open the built site from the disk in headless Chromium and check what a reader needs.

    python release/look_at_site.py site [screenshots]

The home page has a picture, the navigation is visible at 1,200 pixels with the pages of a page's section,
nothing is wider than a phone, and the search finds pages without a server. Needs `chromium` on the path.
Screenshots to look at are written if a folder for them is given.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

from browser import chromium

WIDTH, HEIGHT = 1200, 900
WIDE = 1440
PHONE = 500  # the narrowest window that headless Chromium opens
# Asks the search for a word once the page is there, and writes what was found into the title.
PROBE = """
<script>
window.addEventListener("load", () => setTimeout(() => {
  const seen = element => {  // links in a closed drawer have a place, but something else is shown there
    const place = element.getBoundingClientRect();
    return element.contains(
      document.elementFromPoint(place.left + place.width / 2, place.top + place.height / 2));
  };
  const side = [...document.querySelectorAll(".md-sidebar--primary a.md-nav__link")].filter(seen).length;
  const section = [...document.querySelectorAll(".sigil-neighbours a")].filter(seen).length;
  const tabs = [...document.querySelectorAll(".md-tabs a")].filter(seen).length;
  const pictures = [...document.images].filter(image => image.naturalWidth > 200).length;
  const query = document.querySelector(".md-search__input");
  query.focus(); query.value = "statement";
  for (const kind of ["focus", "input", "keyup"]) query.dispatchEvent(new Event(kind));
  setTimeout(() => {
    const found = document.querySelectorAll(".md-search-result__item").length;
    const wide = document.documentElement.scrollWidth - window.innerWidth;
    document.body.setAttribute("data-probe", JSON.stringify({side, section, tabs, pictures, found, wide}));
  }, 4000);
}, 1500));
</script>
"""


def look(*arguments: str, width: int = WIDTH) -> str:
    """What Chromium prints in a window of this width, once the page has settled."""
    return chromium(f"--window-size={width},{HEIGHT}", "--virtual-time-budget=20000", *arguments)


def asked(page: str, width: int) -> dict[str, int]:
    """What the probe in a page found when the page was opened in a window of this width."""
    dumped = look("--dump-dom", page, width=width)
    found = re.search(r'data-probe="([^"]+)"', dumped)
    assert found, "the page did not come to life"
    said = html.unescape(found[1])
    print(f"{width} pixels: {said}")
    return {name: int(number) for name, number in re.findall(r'"(\w+)":(-?\d+)', said)}


def put_probe(page: Path, probe: Path) -> None:
    """Write a page with the probe in it."""
    probe.write_text(page.read_text("utf-8").replace("</body>", PROBE + "</body>"), "utf-8")


def main(site: Path, shots: Path | None) -> None:
    home = site / "index.html"
    probe = site / "probe.html"
    try:
        put_probe(site / "own-server.html", probe)
        assert asked(probe.resolve().as_uri(), WIDTH)["section"] >= 5, "the pages of a section are hidden"
        numbers = asked(probe.resolve().as_uri(), WIDE)
        assert numbers["side"] >= 5, "the side bar is hidden"
        assert not numbers["section"], "the pages of a section are listed twice"
        put_probe(home, probe)
        numbers = asked(probe.resolve().as_uri(), WIDTH)
        assert numbers["side"] + numbers["tabs"] >= 5, "the navigation is hidden"
        assert numbers["pictures"] >= 1, "the home page has no picture"
        assert numbers["found"] >= 1, "the search finds nothing from the disk"
        assert asked(probe.resolve().as_uri(), PHONE)["wide"] <= 0, "the home page is wider than a phone"
        if shots is not None:
            shots.mkdir(parents=True, exist_ok=True)
            pages = {"home": (home, WIDTH), "phone": (home, PHONE), "search": (probe, WIDTH)}
            for page in ("own-server", "attacks", "results/index"):
                name = page.replace("/", "-")
                pages |= {
                    name: (site / f"{page}.html", WIDTH),
                    f"{name}-wide": (site / f"{page}.html", WIDE),
                    f"{name}-phone": (site / f"{page}.html", PHONE),
                }
            for name, (file, width) in pages.items():
                picture = (shots / f"{name}.png").resolve()
                look(f"--screenshot={picture}", file.resolve().as_uri(), width=width)
    finally:
        probe.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
