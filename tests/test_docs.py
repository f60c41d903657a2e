"""The programs in the documentation do what the text around them says."""

from __future__ import annotations

import ast
import math
import random
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import sigil
from harness.luck import Margin
from sigil.verdict.verification import read_mark

DOCS = Path(__file__).parents[1] / "docs"


def programs(page: str) -> list[str]:
    """The Python blocks of a page that are whole programs."""
    return re.findall(r"```python(?: title=\S+)?\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


def run(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(source, "own-server.md", "exec"), names)
    return names


def test_a_newcomers_own_loop_is_owned_and_a_clean_one_and_wrong_keys_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], margin: Margin
) -> None:
    monkeypatch.chdir(tmp_path)
    source, _ = programs("own-server.md")
    loop = source[source.index("def layer") : source.index("print(sigil.check")]
    assert len([line for line in loop.splitlines() if line.strip()]) <= 20

    fixed = source.replace("bits=128, ", "bits=128, seed=bytes(32), ")
    assert fixed != source
    marked = run(fixed)
    assert re.search("The mark is provable on (noise and on )?inputs", capsys.readouterr().out)
    report = marked["report"]
    assert report.owned
    margin("log10 p", min(reading.log10_p_before for reading in report.readings), below=-9)
    margin("log10 p, corrected", report.log10_p, below=math.log10(report.alpha))
    assert report.allowance_log2 == 80
    with torch.no_grad():
        logits = marked["server"].eval()(marked["client"].eval()(marked["images"]))
    margin("accuracy", float((logits.argmax(1) == marked["labels"]).float().mean()), above=0.9)

    clean = run(source.replace("        injector.attach(activation)\n", ""))
    assert clean["key"] == marked["key"]  # of the file that the first run wrote
    assert not clean["report"].owned
    judged = sigil.verify(clean["client"], marked["key"], clean["images"], register=1)
    assert not judged.owned
    margin("log10 p of a clean one", min(reading.log10_p_before for reading in judged.readings), above=-6.5)

    wrong = [
        read_mark(
            marked["client"],
            sigil.Key.generate("Mallory", shape=(64, 2, 2), bits=128, seed=number.to_bytes(32, "big")),
            input_shape=(1, 8, 8),
            probes=64,
        )[0].log10_p_before
        for number in range(1000)
    ]
    # Even as a judge who counted one key would see it, no other key is proven.
    margin("log10 p of the best wrong key", min(wrong), above=math.log10(3e-7 / 4))
    # Under the null a thousand p-values spread over (0, 1): about one in ten lies below 0.1.
    margin("wrong keys below 0.1", sum(log10_p < -1 for log10_p in wrong), above=60, below=145)


@pytest.mark.parametrize("page", sorted(DOCS.glob("own-*.md")), ids=lambda page: page.name)
def test_a_page_for_newcomers_says_what_it_needs_beyond_the_core(page: Path) -> None:
    text, wanted = page.read_text("utf-8"), set()
    for node in (node for source in programs(page.name) for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.Import):
            wanted |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            wanted.add(node.module)
    if any(name.startswith(("sigil.federation", "sigil.attacks", "sigil.detectors")) for name in wanted):
        assert "pip install 'sigil-watermark[train]'" in text
    if any(name.startswith("sklearn") for name in wanted):
        assert "`pip install scikit-learn" in text


def test_two_pages_never_train_differently_in_one_folder() -> None:
    """A newcomer reads them in one folder: the second training of a name would be refused."""
    trained: dict[str, set[str]] = {}
    for page in (DOCS.parent / "README.md", DOCS / "tutorial.md", DOCS / "training.md", DOCS / "loggers.md"):
        text = page.read_text("utf-8").replace("\\\n", " ")
        for command in re.findall(r"^sigil train (-o [^#\n]*)", text, re.MULTILINE):
            words = shlex.split(command)
            settings = sorted(word for option, word in pairwise(words) if option == "--set")
            trained.setdefault(words[1], set()).add(" ".join(settings))
    assert {folder: ways for folder, ways in trained.items() if len(ways) > 1} == {}
    assert {"runs/first", "runs/digits"} <= set(trained)


def test_a_detector_says_the_same_when_its_page_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    detector, *_, live = programs("own-detector.md")[:3]
    small = live.replace('"federation": {', '"data": {"train_limit": 400}, "federation": {')
    assert small != live
    printed = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for _ in range(2):
        monkeypatch.setattr("secrets.token_bytes", random.Random("own-detector.md").randbytes)
        run(detector + small)
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "marked     alarms in 0%" not in printed[0]


def test_an_own_loop_refuses_a_client_that_scales_its_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    _, source = programs("own-server.md")
    names = run(source)
    assert "not one of the agreed loss" in capsys.readouterr().out
    assert names["activation"].grad is not None
