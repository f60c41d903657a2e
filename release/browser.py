"""Headless Chromium, started alike by everything here that looks at a page."""

from __future__ import annotations

import shutil
import subprocess
import tempfile


def chromium(*arguments: str) -> str:
    """What Chromium prints when it is started with these arguments and a fresh profile."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "install Chromium to look at pages"
    with tempfile.TemporaryDirectory(prefix="sigil-chromium-") as profile:
        command = [
            *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--allow-file-access-from-files", f"--user-data-dir={profile}"),
        ]
        ended = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=180, check=True
        )
    return ended.stdout
