"""Watch a training of two clients on its live page in headless Chromium: do its numbers equal metrics.jsonl?

    python release/look_at_live_page.py [screenshots]

Owner and clients are real processes on the loopback address. After the second round the clients are stopped,
so that page and file stand still while they are compared. Needs `chromium` on the path; screenshots (light,
dark and as wide as a phone) are written if a folder for them is given.
"""

from __future__ import annotations

import html
import json
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browser import chromium

from harness.processes import TrainingProcesses
from sigil.transport.flower.processes import free_port

SETTINGS = [
    "model.name=vgg11", "model.width=4", "model.cut=pool2", "data.name=digits", "data.train_limit=200",
    "data.test_limit=40", "federation.rounds=4", "federation.local_epochs=1", "federation.batch_size=16",
    "watermark.bits=64", "watermark.strength=0.5", "run.threads=1", "run.workers=1", "run.device=cpu",
]  # fmt: skip
ROUNDS = 2
WAIT = "--virtual-time-budget=4000"
LOOKS = {
    "light": ("--blink-settings=preferredColorScheme=1", "--window-size=1200,1100"),
    "dark": ("--blink-settings=preferredColorScheme=0", "--window-size=1200,1100"),
    "phone": ("--blink-settings=preferredColorScheme=1", "--window-size=500,2100"),
}


def read(dumped: str, name: str) -> str:
    """The text of the element with this id."""
    found = re.search(rf'id="{name}"[^>]*>([^<]*)<', dumped)
    assert found, f"the page has no element {name}"
    return html.unescape(found[1])


def compare(dumped: str, rows: list[dict[str, Any]], rounds: int) -> None:
    """Every number on the page against the rows of the file."""
    last = rows[-1]

    def percent(name: str) -> str:
        return f"{100 * last[name]:.1f} %" if name in last else "–"

    expected = {
        "rounds": f"{len(rows)} / {rounds}",
        "loss": f"{last['loss']:.3f}",
        **{name: percent(name) for name in ("accuracy", "wsr", "wsr_inputs")},
    }
    shown = {name: read(dumped, name) for name in expected}
    assert shown == expected, (shown, expected)
    for name in {"log10_p", "log10_p_inputs"} & last.keys():
        assert f"log10 p {last[name]:.1f}" in html.unescape(dumped).replace("\N{NO-BREAK SPACE}", " "), name
    # The curves: as many points as rounds, the last one as high as its number says.
    for title, name, low, high in (
        ("Accuracy", "accuracy", 0.0, 1.0),
        ("Loss", "loss", 0.0, max(row["loss"] for row in rows) * 1.05),
    ):
        drawing = dumped[dumped.index(f'aria-label="{title}"') :]
        path = re.search(r' d="([^"]+)"', drawing)
        assert path, title
        heights = [float(point.split()[1]) for point in re.split("[ML]", path[1]) if point]
        wanted = [8 + 160 * (1 - (row[name] - low) / (high - low)) for row in rows]
        assert len(heights) == len(wanted), title
        assert all(abs(seen - due) < 0.06 for seen, due in zip(heights, wanted, strict=True)), title
    print(f"the page shows what metrics.jsonl holds: {shown}")


def main(shots: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="sigil-live-") as folder:
        out, port = Path(folder) / "run", free_port()
        options = ["--page", "--page-port", str(port), "--owner", "ACME"]
        options += [word for setting in SETTINGS for word in ("--set", setting)]
        with TrainingProcesses(out, clients=2, options=options) as training:
            training.serve()
            clients = [training.join(index) for index in range(2)]
            file = out / "metrics.jsonl"
            training.until(lambda: file.exists() and file.read_text().count("\n") >= ROUNDS)
            for client in clients:
                client.send_signal(signal.SIGSTOP)
            page = f"http://127.0.0.1:{port}/"
            dumped = chromium(WAIT, "--dump-dom", page)
            compare(dumped, [json.loads(line) for line in file.read_text().splitlines()], 4)
            if shots is not None:
                shots.mkdir(parents=True, exist_ok=True)
                for name, look in LOOKS.items():
                    chromium(WAIT, *look, f"--screenshot={(shots / f'{name}.png').resolve()}", page)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
