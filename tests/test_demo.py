"""The demonstration keeps its promises."""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path

import pytest

from harness.commands import Command
from harness.luck import Margin
from sigil import data, demo
from sigil.cli.main import main
from sigil.federation.federation import Federation
from sigil.federation.from_settings import what_a_key_states
from sigil.federation.run import Run
from sigil.federation.settings import make
from sigil.keys.key import Key
from sigil.rules import ALPHA
from sigil.verdict.report import KeyFacts, Reading, Report, Software, SuspectFacts

MARKS = ["mark, on noise", "p, before correction", "mark, on real inputs", "p, before correction"]
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def rows(page: str) -> list[tuple[str, str]]:
    """The rows of both tables of the page: what, and the number."""
    return re.findall(r"<tr><th>([^<]+)</th><td>([^<]+)</td></tr>", page)


def probabilities(page: str, name: str) -> list[float]:
    found = [number.translate(SUPERSCRIPTS) for what, number in rows(page) if what == name]
    return [float(number.replace(" × 10", "e")) for number in found]


def test_the_demonstration_proves_the_marked_model_and_its_copy_and_not_the_clean_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], margin: Margin
) -> None:
    """Its authority is made anew each time, and with its stamp the key and all initial weights.

    Of 60 keys the worst had an accuracy of 95.8 % (the mean is 97.2, the deviation 0.6), a rate of 99.8 %
    and a corrected p of 3.7e-12, another factor of 80 below what is asked for. Of the permuted copies of 7
    more, two each, every one had all 64 channels recognised and the same p.
    """
    folder = tmp_path / "demo"
    assert main(["demo", "--out", str(folder)]) == 0
    said = capsys.readouterr().out
    assert str(folder / "report.html") in said
    marked = re.search(r"marked: accuracy ([\d.]+) %.*?carries the mark.*?in ([\d.]+) % of cases", said)
    clean = re.search(r"clean: accuracy ([\d.]+) %.*?not shown to carry", said)
    assert marked is not None
    assert clean is not None
    margin("accuracy, marked", float(marked[1]), above=95)
    margin("accuracy, clean", float(clean[1]), above=95)
    margin("WSR", float(marked[2]), above=95)
    permuted = re.search(r"permuted: accuracy ([\d.]+) %.*?carries the mark.*?back in order", said)
    assert permuted is not None
    assert abs(float(permuted[1]) - float(marked[1])) <= 0.5  # the same function, but for rounding

    page = (folder / "report.html").read_text("utf-8")
    assert "ownership proven" in page
    assert "not proven" in page
    assert "demonstration seal: worth nothing outside" in page
    names = ["accuracy", *MARKS, "best p, corrected", "needed for a proof"]
    aligned = ["mark, on real inputs, channels put back in order", "p, before correction"]
    copied = [*names[:5], *aligned, *names[5:]]
    assert [what for what, _ in rows(page)] == [*names, *copied, *names]
    best, copied_best, clean_best = probabilities(page, "best p, corrected")
    margin("log10 p, corrected", math.log10(best), below=math.log10(ALPHA / 1000))
    margin("log10 p of the copy, corrected", math.log10(copied_best), below=math.log10(ALPHA / 1000))
    assert clean_best > ALPHA
    before = probabilities(page, "p, before correction")
    margin("log10 p", math.log10(min(before[:2])), below=-9)
    # Of the copy, in order; as it is, it says nothing.
    margin("log10 p of the copy, in order", math.log10(before[4]), below=-9)
    assert min(before[2:4]) > 10**-6.5
    assert min(before[5:]) > 10**-6.5
    for name in ("marked.html", "permuted.html", "clean.html"):
        assert f'href="{name}"' in page
        assert "demonstration seal: worth nothing outside" in (folder / name).read_text("utf-8")
    assert not re.search(r"https?://", re.sub(r"base64,[A-Za-z0-9+/=]+", "", page))
    key = Key.load(folder / "owner.key")
    assert (key.kind, key.fields.cut, key.fields.input_shape) == ("stamped", "layer3", (1, 8, 8))
    assert key.commitment in page
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "owner.key":
            assert key._seed not in path.read_bytes()
            assert key._seed.hex().encode() not in path.read_bytes()


def test_a_key_with_little_room_is_learned_as_well() -> None:
    """The mark is in the model after four rounds also with a seed whose key was among the hardest.

    At half the width, which left two activations for each bit, this seed's key had 83 % then and 90 % at the
    end, as the activations that agree with all of its bits were too narrow a cone.
    """
    settings = demo.settings(0.1)
    settings = make(settings.model_dump() | {"run": {"workers": 1, "threads": 1}})
    seed = hashlib.sha256(b"demonstration 1018").digest()
    key = Key.generate("Demo owner", **what_a_key_states(settings), bits=demo.BITS, seed=seed)
    federation = Federation(settings, data.load(demo.DATA), key=key)
    for _ in range(4):
        federation.run_round()
    on_inputs = next(reading for reading in federation.read_mark(key) if reading.kind == "inputs")
    federation.close()
    assert on_inputs.wsr >= 0.95  # it is 99.8 % in bfloat16 and float32
    assert key.dimension >= 4 * key.bits


def test_the_page_writes_rates_and_powers_as_a_verdict_does() -> None:
    key = Key.generate("Demo owner", shape=(64, 2, 2), bits=64)

    def judged(name: str, accuracy: float, rate: float, log10_p: float) -> demo.JudgedModel:
        readings = tuple(
            Reading(kind=kind, count=256, wsr=rate, log10_p_before=log10_p) for kind in ("noise", "inputs")
        )
        report = Report(
            owned=log10_p < -15,
            descends=False,
            readings=readings,
            log10_p=min(0.0, log10_p + 7.8),
            log10_p_origin=0.0,
            alpha=ALPHA,
            tries=1,
            cuts=1,
            allowance_log2=24,
            bits=64,
            threshold=0.8,
            key=KeyFacts.of(key).model_copy(update={"kind": "stamped"}),
            suspect=SuspectFacts(file=name, sha256=None, kind="", description="", input_shape=(1, 8, 8)),
            created="2026-03-01T12:30:59Z",
            software=Software.here(),
        )
        metrics = [{"round": 1, "accuracy": accuracy, "wsr": rate, "wsr_inputs": rate}]
        run = Run(Path(name), demo.settings(0.1), metrics)
        return demo.JudgedModel(name, accuracy, run, report, Path(f"{name}.html"))

    marked, clean = judged("marked", 1.0, 0.99996, -19.266), judged("clean", 0.9749, 0.5, 0.0)
    page = demo._page(key, (marked, marked, clean))
    assert rows(page)[:7] == rows(page)[7:14]
    assert rows(page)[7:] == [
        *[("accuracy", "100 %")],
        *zip(MARKS, ["more than 99.9 %", "5.5 × 10⁻²⁰"] * 2, strict=True),
        *[("best p, corrected", "3.5 × 10⁻¹²"), ("needed for a proof", "3 × 10⁻⁷")],
        *[("accuracy", "97.5 %")],
        *zip(MARKS, ["50.0 %", "1"] * 2, strict=True),
        *[("best p, corrected", "1"), ("needed for a proof", "3 × 10⁻⁷")],
    ]
    assert re.search(r"\btd \{[^}]*white-space: nowrap", page)
    assert "by 2<sup>24</sup> for stamped keys" in page
    assert not re.search(r"10<sup>|100\.0|\de-\d", re.sub(r"base64,[A-Za-z0-9+/=]+|<pre>.*?</pre>", "", page))


def test_a_key_that_is_not_of_a_demonstration_is_left_alone(tmp_path: Path, refused: Command) -> None:
    Key.generate("ACME", shape=(32, 2, 2), bits=64).save(tmp_path / "owner.key")
    before = (tmp_path / "owner.key").read_bytes()
    assert "not the stamped key of a demonstration" in refused("demo", "--out", tmp_path)
    assert (tmp_path / "owner.key").read_bytes() == before
