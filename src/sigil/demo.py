"""The whole story on embedded data: a stamped key, two trainings, a disguised copy, three verdicts, one page.

Ten clients train a small ResNet-18 on the handwritten digits that come with scikit-learn, once under a
server that marks and once under one that does not. A thief reorders and rescales the channels of the marked
model, which computes the same. Then an auditor tests all three, on noise and on test images.
The key is stamped by an authority that the demonstration runs itself, which shows the way and proves nothing
to anybody else.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined

from sigil import attacks, data, files, hardware, models
from sigil.data import open_inputs
from sigil.errors import ExperimentError
from sigil.federation.from_settings import what_a_key_states
from sigil.federation.progress import Progress
from sigil.federation.run import Run, check_folder, train
from sigil.federation.settings import Settings, make
from sigil.keys.key import Key
from sigil.keys.stamping import make_query
from sigil.pages import figures
from sigil.rules import ALPHA
from sigil.suspect import open_suspect
from sigil.testing.authority import DemonstrationAuthority
from sigil.verdict import wording
from sigil.verdict.page import superscripts
from sigil.verdict.report import Reading, Report
from sigil.verdict.verification import verify

Say = Callable[[str], None]

DATA = "digits"
BITS = 64


@dataclass(frozen=True)
class JudgedModel:
    """A model: its accuracy, the training that it comes from, the verdict on it, and the verdict's page."""

    name: str
    accuracy: float
    run: Run
    report: Report
    page: Path

    @property
    def marks(self) -> tuple[Reading, ...]:
        """The readings of the mark: on noise and on test images."""
        return tuple(reading for reading in self.report.readings if reading.kind != "origin")


def settings(strength: float) -> Settings:
    """Settings of the demonstration: 10 clients, 10 rounds of 2 local epochs.

    The width leaves four of the 256 activations at the cut for each bit. With two, at half the width, the
    activations that agree with all bits of a key are so narrow a cone for some keys that training misses it.
    """
    return make(
        {
            "model": {"name": "resnet18", "width": 16, "cut": "layer3"},
            "data": {"name": DATA},
            "federation": {"clients": 10, "rounds": 10, "local_epochs": 2, "batch_size": 24},
            "optimizer": {"lr": 0.1, "warmup_rounds": 1},
            "watermark": {"strength": strength, "bits": BITS},
            "run": {"workers": min(2, hardware.cores())},
        }
    )


def demonstrate(
    folder: Path, *, say: Say, progress: Callable[[], Progress] = Progress
) -> tuple[tuple[JudgedModel, JudgedModel, JudgedModel], Path]:
    """Run the demonstration in `folder`; returns the marked model, its copy, the clean one, and the page."""
    files.make_folder(folder)
    for name in ("marked", "clean"):
        check_folder(folder / name)
    for name in ("report", "marked", "permuted", "clean"):
        files.check(folder / f"{name}.html", replace=files.PAGE, kind="page")
    key_file, root_file = folder / "owner.key", folder / "authority.pem"
    key = _stamped_key(key_file, root_file)
    say(f"1. The server's owner has a secret key, {key_file}, and published this line before training:")
    say(f"   {key.statement()}")
    say(f"   It was stamped by an authority that this program made for itself ({wording.DEMONSTRATION}).")
    say("2. Ten clients train with this server, which adds the mark to every gradient it returns.")
    marked = train(settings(0.1), folder / "marked", key=key, progress=progress(), name="marked")
    say("3. For comparison, the same training without a mark.")
    clean = train(settings(0.0), folder / "clean", progress=progress(), name="clean")
    say("4. A thief reorders and rescales the channels of the marked model: it computes the same as before.")
    copied = folder / "permuted.safetensors"
    halves = attacks.permute(marked.halves(), seed=1)
    if not copied.exists():  # of an earlier start: the same
        models.save(copied, halves[0], replace=False)
    right = attacks.measure(halves, data=data.load(DATA)).accuracy
    say("5. An auditor tests all three models, on noise and on test images:")
    suspects = (
        ("marked", marked, marked.final["accuracy"], marked.folder / "client.safetensors"),
        ("permuted", marked, right or 0.0, copied),
        ("clean", clean, clean.final["accuracy"], clean.folder / "client.safetensors"),
    )
    first, second, third = (
        JudgedModel(name, accuracy, run, *_verdict(name, file, key, key_file, root_file))
        for name, run, accuracy, file in suspects
    )
    judged = (first, second, third)
    for model in judged:
        say(f"   {model.name}: accuracy {wording.percent(model.accuracy)}. {model.report.sentence()}")
        for reading in model.marks:
            say(f"      on {reading.kind}: {wording.reading(reading)}")
    page = folder / "report.html"
    files.write(page, _page(key, judged), replace=files.PAGE)
    return judged, page


def _stamped_key(key_file: Path, root_file: Path) -> Key:
    """The key of the demonstration, made, stamped and sealed at its first start."""
    if key_file.exists():
        key = Key.load(key_file)
        if key.stamp is None or not root_file.exists():
            raise ExperimentError(
                f"{key_file} is not the stamped key of a demonstration, or {root_file.name} is gone: "
                "choose another --out."
            )
        return key
    authority = DemonstrationAuthority()
    key = Key.generate("Demo owner", **what_a_key_states(settings(0.1)), bits=BITS, seal="rfc3161")
    sealed = key.seal(authority.answer(make_query(key.statement())))
    files.write(root_file, authority.root_pem(), replace=True)
    sealed.save(key_file)
    return sealed


def _verdict(name: str, model: Path, key: Key, key_file: Path, root_file: Path) -> tuple[Report, Path]:
    suspect = open_suspect(model, key=key)
    report = verify(suspect, key, open_inputs(DATA), roots=root_file)
    command = f"sigil verify {model} --key {key_file} --inputs {DATA} --tsa-root {root_file}"
    page = key_file.with_name(f"{name}.html")
    report.model_copy(update={"command": command}).save_page(page, overwrite=True)
    return report, page


def _page(key: Key, judged: tuple[JudgedModel, JudgedModel, JudgedModel]) -> str:
    environment = Environment(
        loader=PackageLoader("sigil.pages", "."), autoescape=True, undefined=StrictUndefined
    )
    marked = judged[0].report
    return environment.get_template("demo.html").render(
        key=key,
        judged=judged,
        curves=_curves(judged),
        settings=judged[0].run.settings,
        words=wording,
        level=math.log10(ALPHA),
        corrections=superscripts(wording.corrections_at_length(marked)),
    )


def _curves(judged: tuple[JudgedModel, JudgedModel, JudgedModel]) -> str:
    """Accuracy and WSR over the rounds as an SVG picture, encoded for an <img>."""
    figure, (left, right) = figures.panels(2)
    colours = {"marked": figures.COLOURS[0.1], "clean": "#888888"}
    marked, _, clean = judged

    def draw(axes: Any, model: JudgedModel, number: str, label: str, style: str = "-") -> None:
        rounds = [row["round"] for row in model.run.metrics]
        values = figures.percent([row.get(number) for row in model.run.metrics])
        figures.curve(axes, rounds, values, color=colours[model.name], label=label, linestyle=style)

    draw(left, marked, "accuracy", "marked")
    draw(left, clean, "accuracy", "clean")
    draw(right, marked, "wsr_inputs", "marked, on images")
    draw(right, marked, "wsr", "marked, on noise", ":")
    right.axhline(100 * clean.report.wsr, color=colours["clean"], linestyle="--", label="clean, at the end")
    left.set(title="accuracy on test images (%)", xlabel="round", ylim=(0, 101))
    right.set(title="watermark success rate (%)", xlabel="round", ylim=(30, 101))
    figures.legend(left)
    figures.legend(right)
    figure.tight_layout()
    picture = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "sigil"}):
        figure.savefig(picture, format="svg", metadata={"Date": None})
    mpl.pyplot.close(figure)
    return base64.b64encode(picture.getvalue()).decode()
