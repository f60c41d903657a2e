"""Install the built wheel alone in a fresh environment, count what it brings, and let it work.

    python release/fresh_install.py dist

Takes a minute or two and the network (or a local index): pip installs torch and what it needs.
"""

from __future__ import annotations

import json
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
THREE_LINES = """
import torch, sigil
from torch import nn

torch.manual_seed(0)
client, server = nn.Sequential(nn.Flatten(), nn.Linear(192, 1024), nn.ReLU()), nn.Linear(1024, 10)
example = torch.randn(16, 3, 8, 8)
key = sigil.Key.for_activation(client(example), owner="ACME")
injector = sigil.Injector(key, strength=1.0)
for _ in range(60):
    activation = client(torch.randn(16, 3, 8, 8))
    injector.attach(activation)
    nn.functional.cross_entropy(server(activation), torch.randint(10, (16,))).backward()
    with torch.no_grad():
        for parameter in (*client.parameters(), *server.parameters()):
            parameter -= 0.5 * parameter.grad / parameter.grad.norm()
            parameter.grad = None
report = sigil.verify(client, key, input_shape=(3, 8, 8))
print(report.sentence())
assert report.owned
"""


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
        subprocess.run([python, "-c", THREE_LINES], check=True, cwd=folder)
        sigil = str(Path(folder) / "bin" / "sigil")
        refused = subprocess.run([sigil, "train"], capture_output=True, text=True, cwd=folder, check=False)
        assert refused.returncode == 2, refused
        assert "pip install 'sigil-watermark[train]'" in refused.stderr, refused
        print(refused.stderr.strip())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
