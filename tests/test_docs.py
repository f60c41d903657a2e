"""The programs in the documentation do what the text around them says."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import sigil
from harness.luck import Margin
from sigil.verdict.verification import read_mark

ROOT = Path(__file__).parents[1]


def programs(page: str) -> list[str]:
    """The Python blocks of a page that are whole programs."""
    return re.findall(r"```python(?: title=\S+)?\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


def run(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "a page", "exec"), names)
    return names


def test_a_newcomers_own_loop_is_owned_and_a_clean_one_and_wrong_keys_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], margin: Margin
) -> None:
    monkeypatch.chdir(tmp_path)
    (source,) = programs("README.md")
    loop = source[source.index("# A key") : source.index("print(sigil.check")]
    assert len([line for line in loop.splitlines() if line.strip()]) <= 16

    fixed = source.replace('stated = {"input', 'stated = {"seed": bytes(32), "input')
    fixed = fixed.replace("print(sigil.verify(client", "print(report := sigil.verify(client")
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

    clean = run(re.sub(r"injector\.attach.*|key\.initialise.*", "", fixed))
    assert clean["key"] == marked["key"]  # of the file that the first run wrote
    assert not clean["report"].owned
    judged = sigil.verify(clean["client"], marked["key"], clean["images"][:400], register=1)
    assert not judged.owned
    margin("log10 p of a clean one", min(reading.log10_p_before for reading in judged.readings), above=-6.5)

    wrong = [
        read_mark(
            marked["client"],
            sigil.Key.generate("Mallory", shape=(128, 2, 2), bits=128, seed=number.to_bytes(32, "big")),
            input_shape=(1, 8, 8),
            probes=64,
        )[0].log10_p_before
        for number in range(1000)
    ]
    # Even as a judge who counted one key would see it, no other key is proven.
    margin("log10 p of the best wrong key", min(wrong), above=math.log10(3e-7 / 4))
    # Under the null a thousand p-values spread over (0, 1): about one in ten lies below 0.1.
    margin("wrong keys below 0.1", sum(log10_p < -1 for log10_p in wrong), above=60, below=145)


def test_an_own_loop_refuses_a_client_that_scales_its_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    *_, source = programs("docs/own-server.md")
    names = run(source)
    assert "not one of the agreed loss" in capsys.readouterr().out
    assert names["activation"].grad is not None
