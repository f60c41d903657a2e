"""Watch a training of two clients on its live page in headless Chromium: do its numbers equal metrics.jsonl?

    python release/look_at_live_page.py [screenshots]

Owner and clients are real processes on the loopback address. After the second round the clients are
stopped, so that page and file stand still while they are compared; then one is killed, and the page must
say so. An owner has no images of the clients to read the mark on, so a training in one process follows,
whose page shows WSR on inputs and the level of proof as well. Needs `chromium` on the path; screenshots
(light, dark and as wide as a phone) are written if a folder for them is given.
"""

from __future__ import annotations

import html
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browser import chromium

from harness.processes import TrainingProcesses
from sigil.transport.flower.processes import free_port

SETTINGS = [
    "model.name=vgg11", "model.width=8", "model.cut=pool2", "data.name=digits", "data.train_limit=200",
    "data.test_limit=40", "federation.rounds=4", "federation.local_epochs=1", "federation.batch_size=16",
    "watermark.bits=64", "watermark.strength=0.5", "run.threads=1", "run.workers=1", "run.device=cpu",
]  # fmt: skip
ALONE = ["federation.rounds=30", "run.threads=1", "run.device=cpu"]
ROUNDS = 2
# In the order of the page: the rates and, broken, the lowest ones that prove.
RATES = ("wsr", "wsr_inputs", "wsr_level", "wsr_level_inputs")
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
    rates = [name for name in RATES if any(name in row for row in rows)]
    lowest = min((row[name] for name in rates for row in rows if name in row), default=0.4)
    for title, names, low, high in (
        ("Accuracy", ["accuracy"], 0.0, 1.0),
        ("Loss", ["loss"], 0.0, max(row["loss"] for row in rows) * 1.05),
        ("WSR: ", rates, min(0.4, lowest), 1.0),
    ):
        drawing = dumped[dumped.index(f'aria-label="{title}') :].split("</svg>")[0]
        paths = re.findall(r' d="([^"]+)"', drawing)
        assert len(paths) == len(names), (title, names)
        for name, path in zip(names, paths, strict=True):
            heights = [float(point.split()[1]) for point in re.split("[ML]", path) if point]
            wanted = [8 + 160 * (1 - (row[name] - low) / (high - low)) for row in rows if name in row]
            assert len(heights) == len(wanted), name
            assert all(abs(seen - due) < 0.06 for seen, due in zip(heights, wanted, strict=True)), name
    print(f"curves: loss, accuracy, {', '.join(rates)}")
    print(f"the page shows what metrics.jsonl holds: {shown}")


def look(page: str, shots: Path | None, prefix: str) -> None:
    """Screenshots, if they are wanted."""
    if shots is not None:
        shots.mkdir(parents=True, exist_ok=True)
        for name, options in LOOKS.items():
            chromium(WAIT, *options, f"--screenshot={(shots / f'{prefix}{name}.png').resolve()}", page)


def across_processes(folder: Path, shots: Path | None) -> None:
    """An owner and two clients."""
    out, port = folder / "run", free_port()
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
        look(page, shots, "")
        clients[0].send_signal(signal.SIGCONT)
        clients[1].kill()
        training.until(lambda: training.said("Client 1 has been lost since") > 0)
        banner = read(chromium(WAIT, "--dump-dom", page), "banner")
        assert "Client 1 has been lost since" in banner, banner
        assert "sigil join" in banner, banner
        print(f"a client was killed, and the page says: {banner}")
        look(page, shots, "lost_")


def in_one_process(folder: Path, shots: Path | None) -> None:
    """`sigil train` goes on while it is looked at, so that the rows are those of the page's rounds."""
    out, port = folder / "alone", free_port()
    command = [sys.executable, "-m", "sigil", "train", "-o", str(out), "--owner", "ACME", "--page"]
    command += ["--page-port", str(port), *(word for setting in ALONE for word in ("--set", setting))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            file = out / "metrics.jsonl"
            while not (file.exists() and file.read_text().count("\n") >= ROUNDS):
                assert process.poll() is None, "the training ended before it was looked at"
                time.sleep(0.2)
            page = f"http://127.0.0.1:{port}/"
            dumped = chromium(WAIT, "--dump-dom", page)
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            rows = rows[: int(read(dumped, "rounds").split(" / ")[0])]
            assert all(name in row for name in RATES for row in rows), "WSR on inputs or a level is missing"
            compare(dumped, rows, 30)
            look(page, shots, "alone_")
        finally:
            process.terminate()


def main(shots: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="sigil-live-") as folder:
        across_processes(Path(folder), shots)
        in_one_process(Path(folder), shots)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
