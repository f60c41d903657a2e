"""Install the built wheel alone in a fresh environment, count what it brings, and let it work.

    python release/fresh_install.py dist

Takes a minute or two and the network (or a local index): pip installs torch and what it needs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

MOST_PACKAGES = 40
# What torch brings by itself, CUDA aside, which must not come at all.
TORCHS = {
    *("torch", "filelock", "typing-extensions", "setuptools", "sympy", "mpmath", "networkx", "jinja2"),
    *("markupsafe", "fsspec", "pip"),
}
README = Path(__file__).parents[1] / "README.md"


def walk_readme(folder: Path, binaries: Path) -> None:
    """The program of the README and the commands below it, in a folder of their own."""
    text = README.read_text("utf-8")
    program, commands = re.findall(r"^```(?:python title=\"train.py\"|sh)\n(.*?)^```$", text, re.M | re.S)[:2]
    (folder / "train.py").write_text(program, "utf-8")
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", "-e", "-c", commands], check=True, cwd=folder, env=os.environ | {"PATH": path})


def main(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with tempfile.TemporaryDirectory(prefix="sigil-fresh-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
        listed = subprocess.run(
            [python, "-m", "pip", "list", "--format=json"], check=True, capture_output=True
        )
        names = {entry["name"].lower() for entry in json.loads(listed.stdout)}
        cuda = sorted(name for name in names if name.startswith("nvidia"))
        beside = sorted(names - TORCHS - set(cuda))
        print(f"{len(beside)} packages besides torch's own: {', '.join(beside)}")
        megabytes = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) / 1e6
        print(f"{len(names - {'pip'})} packages in all, {megabytes:,.0f} MB with pip")
        assert len(beside) <= MOST_PACKAGES
        assert not cuda, f"CUDA came along: {cuda}"
        walk_readme(Path(folder), Path(python).parent)
        sigil = str(Path(folder) / "bin" / "sigil")
        refused = subprocess.run([sigil, "train"], capture_output=True, text=True, cwd=folder, check=False)
        assert refused.returncode == 2, refused
        assert "pip install 'sigil-watermark[train]'" in refused.stderr, refused
        print(refused.stderr.strip())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
