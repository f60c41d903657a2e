"""`sigil verify` of a copy whose channels were reordered and rescaled."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from harness.commands import Command
from harness.luck import Margin
from sigil import attacks, data, models
from sigil.alignment import initial_half
from sigil.cli.main import main
from sigil.federation import train
from sigil.federation.settings import make
from sigil.keys.key import Key


@dataclass(frozen=True)
class Disguised:
    """A training's files, the disguised copy of its client half, pictures, and its start as a file."""

    key_file: Path
    copy: Path
    run: Path
    pictures: Path
    initial: Path

    def verify(self, *options: str) -> int:
        return main(
            ["verify", str(self.copy), "--key", str(self.key_file), "--register", "1", "--json", *options]
        )


@pytest.fixture(scope="module")
def disguised(tmp_path_factory: pytest.TempPathFactory) -> Disguised:
    """A marked training on the embedded digits, in small."""
    folder = tmp_path_factory.mktemp("disguised")
    names = ("owner.key", "copy.safetensors", "run", "pictures", "initial.safetensors")
    found = Disguised(*(folder / name for name in names))
    key = Key.generate(
        "ACME",
        shape=(32, 2, 2),
        bits=50,
        seed=bytes(range(32)),
        model="resnet18",
        width=8,
        cut="layer3",
        input_shape=(1, 8, 8),
    )
    key.save(found.key_file)
    settings = make(
        {
            "model": {"width": 8},
            "data": {"train_limit": 700},
            "federation": {"clients": 2, "rounds": 5, "batch_size": 16},
            "optimizer": {"warmup_rounds": 1},
            "watermark": {"strength": 0.5},
            "run": {"workers": 1, "threads": 1},
        }
    )
    run = train(settings, found.run, key=key)
    models.save(found.copy, attacks.permute(run.halves(), seed=3)[0])
    models.save(found.initial, initial_half(found.run, key))
    found.pictures.mkdir()
    for index, image in enumerate(data.load("digits").test.images[:300]):
        Image.fromarray(image[0]).save(found.pictures / f"{index}.png")
    return found


def test_the_key_puts_a_disguised_copy_back_and_weights_from_a_file_are_an_experiment(
    disguised: Disguised, capsys: pytest.CaptureFixture[str], margin: Margin
) -> None:
    # A run's directory says nothing of its initial weights that the key does not know.
    for options in ([], ["--reference", str(disguised.run)]):
        assert disguised.verify(*options) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["owned"] is found["descends"] is found["aligned"] is True
        assert found["alignment"]["compared"] == "initial weights"
        margin("log10 p in disguise", found["readings"][0]["log10_p_before"], above=-4)
        margin("log10 p in order, corrected", found["log10_p"], below=math.log10(found["alpha"]))
        margin("sure channels", found["alignment"]["sure_channels"], above=23)
    assert disguised.verify("--reference", str(disguised.initial)) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["experiment"] is found["aligned"] is True
    assert found["owned"] is False
    assert found["alignment"]["compared"] == "initial weights"
    margin("log10 p by a file, corrected", found["log10_p"], below=-6.5)
    assert len(found["alignment"]["reference"]) == 64
    margin("sure channels", found["alignment"]["sure_channels"], above=23)


@pytest.mark.parametrize("images", ["folder", "digits"])
def test_images_tell_the_channels_apart(
    disguised: Disguised, images: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = str(disguised.run / "reference.safetensors")
    digits = data.load("digits")
    place = ["digits"]
    if images == "folder":
        place = [str(disguised.pictures), "--normalisation", f"{digits.mean[0]}/{digits.std[0]}"]
    status = disguised.verify("--reference", recorded, "--inputs-from", "judge", "--inputs", *place)
    found = json.loads(capsys.readouterr().out)
    assert found["alignment"]["compared"] == "correlations under images"
    assert found["tries"] == 2
    # 32 channels of five short rounds are at the edge: where they are not recognised, nothing is claimed.
    best = min(
        (one for one in found["readings"] if one["kind"] != "origin"), key=lambda one: one["log10_p_before"]
    )
    assert (best["log10_p_before"] < -6.5) == best["aligned"] == found["aligned"]
    assert found["log10_p"] == pytest.approx(min(0.0, best["log10_p_before"] + math.log10(4 * 2)))
    # A reference that somebody brings is an experiment, which proves nothing however small p is.
    assert found["experiment"] is True
    assert found["owned"] is False
    assert status == 1


def test_people_are_told_what_was_aligned(disguised: Disguised, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["verify", str(disguised.copy), "--key", str(disguised.key_file), "--reference"]
    assert main([*command, str(disguised.initial)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("EXPERIMENT")
    assert "the reference for the order of channels was brought by the claimant" in out
    assert "channels recognised by initial weights, put back in order" in out
    assert "fingerprint " in out


def test_the_reference_of_a_record_is_the_keys_own_or_a_published_one(
    disguised: Disguised, tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Command
) -> None:
    own, brought = tmp_path / "own.json", tmp_path / "brought.json"
    assert disguised.verify("--reference", str(disguised.run), "--evidence", str(own)) == 0
    assert disguised.verify("--reference", str(disguised.initial), "--evidence", str(brought)) == 1
    assert main(["key", "reference", str(disguised.key_file), str(disguised.run)]) == 0
    published = capsys.readouterr().out.splitlines()[-1]
    recorded = disguised.run / "reference.safetensors"
    assert main(["key", "reference", str(disguised.key_file), str(recorded), "--json"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert other["initial_weights"] is None
    assert published.endswith(f" correlations={other['correlations']}")

    statement = ["--statement", Key.load(disguised.key_file).statement()]
    check = ["evidence", "check", str(own), *statement]
    assert main([*check, "--reference", published]) == 0
    printed = capsys.readouterr().out
    assert "channels recognised by initial weights, put back in order" in printed
    assert "reference that was not compared" not in printed
    assert main(check) == 0
    assert "by initial weights which the key drew is the claimant's word" in capsys.readouterr().out
    assert "not a line of references" in refused(*check, "--reference", "nonsense")
    check = ["evidence", "check", str(brought), *statement]
    assert main(check) == 0
    assert "the reference for the order of channels was brought by the claimant" in capsys.readouterr().out
    assert main([*check, "--reference", published]) == 1
    assert "reference that was not published" in capsys.readouterr().err


def test_a_reference_of_a_stranger_is_not_used(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = tmp_path / "stranger.safetensors"
    models.save(stranger, models.build("resnet18", classes=4, width=8, input_size=8, seed=5))
    command = ["verify", str(case.marked), "--key", str(case.key_file), "--register", "1"]
    assert main([*command, "--reference", str(stranger)]) == 0
    assert "alignment     not used: only 0 channels recognised" in capsys.readouterr().out


def test_bad_references_are_one_sentence(
    disguised: Disguised, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = str(disguised.run / "reference.safetensors")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.safetensors").write_bytes(b"\x80\x04.")
    cases = [
        (["--reference", str(tmp_path / "none.safetensors")], "it does not exist; check --reference"),
        (["--reference", str(tmp_path / "broken.safetensors")], "cannot be read as a reference"),
        (["--reference", str(tmp_path / "empty")], "empty"),
        (["--reference", recorded, "--inputs", str(tmp_path / "empty")], "no PNG or JPEG pictures"),
        (["--reference", recorded, "--inputs", "digitz"], "digits"),
    ]
    for options, words in cases:
        assert disguised.verify(*options) == 2, options
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1
        assert words in printed.err


def test_a_graph_without_names_is_put_back_in_order_too(
    disguised: Disguised, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exported and reordered, a copy once showed neither the mark nor where its weights came from."""
    half, graph = models.load(disguised.copy), tmp_path / "copy.onnx"
    torch.onnx.export(half.eval(), (torch.zeros(1, 1, 8, 8),), str(graph), dynamo=False)
    with_key = ["--key", str(disguised.key_file), "--register", "1", "--json"]
    assert main(["verify", str(graph), *with_key]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["owned"]
    assert found["aligned"]
    assert found["descends"]
