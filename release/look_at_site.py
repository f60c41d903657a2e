"""Open the built site from the disk in headless Chromium and check what a reader needs.

    python release/look_at_site.py site [screenshots]

The home page has a picture, the navigation is visible at 1,200 pixels, and the search finds pages without a
server. Needs `chromium` on the path; screenshots are written if a folder for them is given.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTH, HEIGHT = 1200, 900
# Asks the search for a word once the page is there, and writes what was found into the title.
PROBE = """
<script>
window.addEventListener("load", () => setTimeout(() => {
  const seen = element => element && element.getClientRects().length > 0;
  const side = [...document.querySelectorAll(".md-sidebar--primary a.md-nav__link")].filter(seen).length;
  const tabs = [...document.querySelectorAll(".md-tabs a")].filter(seen).length;
  const pictures = [...document.images].filter(image => image.naturalWidth > 200).length;
  const query = document.querySelector(".md-search__input");
  query.focus(); query.value = "statement";
  for (const kind of ["focus", "input", "keyup"]) query.dispatchEvent(new Event(kind));
  setTimeout(() => {
    const found = document.querySelectorAll(".md-search-result__item").length;
    document.body.setAttribute("data-probe", JSON.stringify({side, tabs, pictures, found}));
  }, 4000);
}, 1500));
</script>
"""


def chromium(*arguments: str) -> str:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "install Chromium to look at the site"
    with tempfile.TemporaryDirectory(prefix="sigil-chromium-") as profile:
        command = [
            *(program, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"),
            *(f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}", "--virtual-time-budget=20000"),
        ]
        ended = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=180, check=True
        )
    return ended.stdout


def main(site: Path, shots: Path | None) -> None:
    home = site / "index.html"
    probe = site / "probe.html"
    probe.write_text(home.read_text("utf-8").replace("</body>", PROBE + "</body>"), "utf-8")
    try:
        dumped = chromium("--dump-dom", probe.resolve().as_uri())
        found = re.search(r'data-probe="([^"]+)"', dumped)
        assert found, "the page did not come to life"
        said = html.unescape(found[1])
        print(said)
        numbers = dict(re.findall(r'"(\w+)":(\d+)', said))
        assert int(numbers["side"]) + int(numbers["tabs"]) >= 5, "the navigation is hidden"
        assert int(numbers["pictures"]) >= 1, "the home page has no picture"
        assert int(numbers["found"]) >= 1, "the search finds nothing from the disk"
    finally:
        probe.unlink()
    if shots is not None:
        shots.mkdir(parents=True, exist_ok=True)
        chromium(f"--screenshot={(shots / 'home.png').resolve()}", home.resolve().as_uri())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
