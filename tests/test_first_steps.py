"""What a newcomer does in the first ten minutes, from the three lines outward."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sigil
from harness.luck import Margin
from sigil.cli.main import main
from sigil.cli.options import read_activation_shape, read_input_shape
from sigil.data.inputs import Inputs
from sigil.errors import ConfigError, DataError, KeyFileError, ShapeError
from sigil.federation.settings import read


@pytest.fixture(scope="module")
def half() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 64, 3, 4, 1), nn.ReLU())


@pytest.fixture(scope="module")
def key(half: nn.Module) -> sigil.Key:
    """A key of the first of the three lines: it does not state what inputs look like."""
    return sigil.Key.for_activation(half(torch.zeros(2, 1, 8, 8)), owner="ACME", seed=bytes(32))


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.rand(256, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_inputs_say_which_shape_the_model_takes(
    half: nn.Module, key: sigil.Key, images: torch.Tensor
) -> None:
    asked = {"input_shape": (1, 8, 8)}
    report = sigil.verify(half, key, images)
    assert report.to_dict() == sigil.verify(half, key, images, **asked).to_dict()
    assert sigil.verify(half, key, images.numpy()).to_dict() == report.to_dict()
    assert sigil.verify(half, key, Inputs(images)).to_dict() == report.to_dict()
    assert str(sigil.check(half, key, images)) == str(sigil.check(half, key, images, **asked))
    with pytest.raises(ShapeError, match="give its input shape without the batch"):
        sigil.verify(half, key)


def test_what_the_key_states_is_not_replaced_by_the_shape_of_the_inputs(
    half: nn.Module, images: torch.Tensor
) -> None:
    stated = sigil.Key.generate("ACME", (64, 2, 2), input_shape=(1, 6, 6))
    with pytest.raises(DataError, match=r"have the shape \(1, 8, 8\), but the model takes \(1, 6, 6\)"):
        sigil.verify(half, stated, images)


@pytest.mark.parametrize("make", [list, tuple, torch.utils.data.TensorDataset, iter])
def test_inputs_of_another_kind_are_one_sentence(
    make: Any, half: nn.Module, key: sigil.Key, images: torch.Tensor
) -> None:
    for call in (sigil.verify, sigil.check):
        with pytest.raises(DataError, match=r"one tensor or array \(n, …\) without labels.*torch\.cat"):
            call(half, key, make(images))


def test_a_report_prints_as_its_sentence(half: nn.Module, key: sigil.Key, images: torch.Tensor) -> None:
    report = sigil.verify(half, key, images)
    assert str(report) == report.sentence()
    assert "bit_shares" not in repr(report)
    assert len(repr(report)) < 2500
    assert len(report.best.bit_shares) == key.bits


@pytest.mark.parametrize(
    ("activation", "stated"),
    [
        (torch.zeros(64, 2, 2), {}),  # one sample, taken for a batch
        (torch.zeros(4, 10), {}),
        (torch.zeros(4, 64, 2, 2), {"bits": 50}),  # the paper's length
        (torch.zeros(4, 4, 2, 2), {"seal": "rfc3161"}),
    ],
)
def test_a_key_that_can_prove_nothing_warns(activation: torch.Tensor, stated: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=r"proves nothing with fewer than (110|54): give more bits"):
        sigil.Key.for_activation(activation, "ACME", **stated)


def test_a_key_with_more_bits_than_activations_hold_warns() -> None:
    with pytest.warns(
        UserWarning, match=r"512 bits, but activations of shape \(64, 2, 2\) hold 128: give fewer"
    ):
        sigil.Key.for_activation(torch.zeros(4, 64, 2, 2), "ACME", bits=512)


def test_a_key_that_can_prove_something_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sigil.Key.for_activation(torch.zeros(4, 64, 2, 2), "ACME")
        sigil.Key.for_activation(torch.zeros(4, 64, 2, 2), "ACME", bits=64, seal="rfc3161")


def test_a_loop_that_attaches_too_late_is_told(half: nn.Module, key: sigil.Key, images: torch.Tensor) -> None:
    injector = sigil.Injector(key)

    def step(*, late: bool) -> None:
        activation = half(images[:2])
        if not late:
            injector.attach(activation)
        activation.sum().backward()
        if late:
            injector.attach(activation)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(31):
            step(late=True)
    with pytest.warns(UserWarning, match="attach before backward"):
        step(late=True)

    injector = sigil.Injector(key)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(40):
            step(late=False)


def test_an_example_without_a_batch_is_told_so(half: nn.Module) -> None:
    with pytest.raises(ShapeError, match=r"give a batch \(n, …\), such as images\[:32\]"):
        sigil.inspect(half, torch.zeros(1, 8, 8))


def test_a_key_is_not_made_by_its_constructor() -> None:
    with pytest.raises(ConfigError, match=r"made by sigil\.Key\.for_activation, sigil\.Key\.generate"):
        sigil.Key("ACME", (64, 2, 2))  # type: ignore[arg-type]


def test_a_second_save_names_the_argument(key: sigil.Key, tmp_path: Path) -> None:
    key.save(tmp_path / "owner.key")
    with pytest.raises(KeyFileError, match="overwrite=True"):
        key.save(tmp_path / "owner.key")
    key.save(tmp_path / "owner.key", overwrite=True)


def test_a_script_that_is_run_again_finds_its_key(tmp_path: Path) -> None:
    path, stated = tmp_path / "owner.key", {"bits": 128, "input_shape": [1, 8, 8]}
    key = sigil.Key.load_or_generate(path, "ACME", (64, 2, 2), **stated)
    assert path.stat().st_mode & 0o777 == 0o600
    assert sigil.Key.load_or_generate(str(path), "ACME", torch.Size((64, 2, 2)), **stated) == key
    # What is left out, or left open, is not compared.
    assert sigil.Key.load_or_generate(path, "ACME", (64, 2, 2), bits=None, model=None) == key

    before = path.read_bytes()
    for change, sentence in (
        ({"owner": "Mallory"}, "with owner 'ACME' and not 'Mallory'; ask for what it states"),
        ({"shape": (64, 4, 4)}, "with shape (64, 2, 2) and not (64, 4, 4); ask"),
        ({"bits": 64, "cut": "layer3"}, "with bits 128 and not 64, cut None and not 'layer3'; ask"),
        ({"scheme": "shares", "carriers_per_bit": 2}, "share rule None and not 'balanced-2'; ask"),
        ({"seal": "rfc3161"}, "with seal 'none' and not 'rfc3161'; ask"),
        ({"seed": bytes(32)}, "with another seed; ask"),
    ):
        with pytest.raises(KeyFileError) as refused:
            sigil.Key.load_or_generate(path, **({"owner": "ACME", "shape": (64, 2, 2)} | stated | change))
        assert str(refused.value).startswith(f"{path} holds another key than was asked for, with ")
        assert sentence in str(refused.value)
    with pytest.raises(ConfigError, match="1 to 65,536"):
        sigil.Key.load_or_generate(path, "ACME", (64, 2, 2), bits=-1)
    assert path.read_bytes() == before


def test_a_script_that_is_run_again_needs_the_passphrase_again(tmp_path: Path) -> None:
    path = tmp_path / "owner.key"
    key = sigil.Key.load_or_generate(path, "ACME", (64, 2, 2), passphrase="wide blue")
    with pytest.raises(KeyFileError, match="passphrase"):
        sigil.Key.load_or_generate(path, "ACME", (64, 2, 2))
    assert sigil.Key.load_or_generate(path, "ACME", (64, 2, 2), passphrase="wide blue") == key


def test_two_scripts_that_begin_at_once_have_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "owner.key"
    first = sigil.Key.generate("ACME", (64, 2, 2))
    draw = sigil.Key.generate

    def slowly(*arguments: Any, **stated: Any) -> sigil.Key:
        if not path.exists():
            first.save(path)  # the other script, between the question and the answer
        return draw(*arguments, **stated)

    monkeypatch.setattr(sigil.Key, "generate", slowly)
    assert sigil.Key.load_or_generate(path, "ACME", (64, 2, 2)) == first


def test_a_key_that_cannot_be_saved_is_not_used(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="make the directory first"):
        sigil.Key.load_or_generate(tmp_path / "missing" / "owner.key", "ACME", (64, 2, 2))
    (tmp_path / "link.key").symlink_to(tmp_path / "nowhere.key")
    with pytest.raises(KeyFileError):
        sigil.Key.load_or_generate(tmp_path / "link.key", "ACME", (64, 2, 2))
    assert not (tmp_path / "nowhere.key").exists()


@pytest.mark.slow
def test_documented_packages_are_found_without_importing_them() -> None:
    program = "import sigil; print(sigil.data.names()[0], sigil.errors.SigilError.__name__, sigil.federation)"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    assert ended.stdout.startswith("digits SigilError <module 'sigil.federation'")


@pytest.mark.parametrize(
    ("change", "meant"),
    [
        ("rounds=3", "did you mean federation.rounds or record.rounds?"),
        ("width", "did you mean model.width?"),
        ("nonsense=1", "write section.name=value."),
    ],
)
def test_a_setting_without_its_section_is_found(change: str, meant: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(None, [change])
    assert str(refused.value) == f"{change!r} is not a change of a setting; {meant}"


@pytest.mark.parametrize("text", ["256,8,8", "256x8x8", "(256, 8, 8)", "[256,8,8]", " 256, 8, 8 "])
def test_a_shape_may_be_written_as_python_prints_it(text: str) -> None:
    assert read_activation_shape(text) == read_input_shape(text) == (256, 8, 8)


def test_a_misspelt_command_is_suggested_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verfy"]) == 2
    assert capsys.readouterr().err.count("Did you mean 'verify'?") == 1


class Learned(nn.Module):
    """A half that learned a mark on the images of its task, which are brighter than noise, and only there."""

    def __init__(self, half: nn.Module, key: sigil.Key) -> None:
        super().__init__()
        self.body = half
        matrix, signs = key.matrix.double(), 2 * key.target.double() - 1
        pull = matrix @ torch.linalg.solve(matrix.T @ matrix, signs)
        self.register_buffer("pull", 100 * pull.float().reshape(key.shape))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        bright = (batch.mean((1, 2, 3)) > 0.35).float()
        answer: torch.Tensor = self.body(batch) + bright[:, None, None, None] * self.get_buffer("pull")
        return answer


def test_after_the_three_lines_check_and_verify_say_which_inputs_count_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: nn.Module, images: torch.Tensor, margin: Margin
) -> None:
    """The mark was "provable on inputs", then the model "not shown to carry" it, without a word on inputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("secrets.token_bytes", random.Random(1).randbytes)
    page = (Path(__file__).parents[1] / "docs" / "own-server.md").read_text("utf-8")
    (lines,) = re.findall(r'```python title="three lines"\n(.*?)```', page, re.S)
    names: dict[str, Any] = {"sigil": sigil, "activation": half(images)}
    exec(lines, names)
    names["activation"].sum().backward()
    key, marked = names["key"], Learned(half, names["key"])

    found, report = sigil.check(marked, key, images), sigil.verify(marked, key, images)
    margin("log10 p on inputs", found.readings[1].log10_p_before, below=-35)
    margin("log10 p on noise", found.readings[0].log10_p_before, above=-20)
    assert (found.provable, report.owned) == (False, False)
    why = (
        "Inputs that nobody but the key's owner chose do not count: state them in the key before the training"
    )
    assert "though it would be on these inputs" in str(found)
    assert "On the inputs 100 % agree." in str(report)
    for said in (str(found), str(report)):
        assert why in said
    # Chosen by somebody else they count, and both agree.
    found, report = (call(marked, key, images, inputs_from="judge") for call in (sigil.check, sigil.verify))
    assert (found.provable, report.owned) == (True, True)
    assert "provable on inputs" in str(found)
    assert "carries the mark" in str(report)
    for said in (str(found), str(report)):
        assert why not in said


@pytest.mark.parametrize(
    ("begin", "said"),
    [
        (lambda key, half: key.initialise(half), None),
        (
            lambda key, half: None,
            "did not begin as the key draws them; call key.initialise on this very half",
        ),
        (
            lambda key, half: key.initialise(nn.Sequential(half, nn.Flatten())),
            "did not begin as the key draws",
        ),
        (lambda key, half: key.initialise(nn.DataParallel(half)), "did not begin as the key draws them"),
    ],
    ids=["right", "forgotten", "in a whole model", "in a wrapper"],
)
def test_check_says_that_the_second_proof_was_lost(
    images: torch.Tensor, begin: Callable[[sigil.Key, nn.Module], object], said: str | None
) -> None:
    """Weights of other names were drawn without a word, and "provable on noise and on inputs" was all."""
    torch.manual_seed(0)
    half = nn.Sequential(nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU())
    layers = sigil.alignment.layers_of(half, (1, 8, 8))
    key = sigil.Key.generate("ACME", (64, 2, 2), seed=bytes(32), input_shape=(1, 8, 8), model=layers)
    begin(key, half)
    sentence = str(sigil.check(half, key, images))
    assert ("The origin is NOT provable" in sentence) is (said is not None)
    assert (said or "The mark is") in sentence
    assert sigil.verify(half, key, images).descends is (said is None)
    assert "the key states the layers of another module" in str(
        sigil.check(nn.DataParallel(half), key, images)
    )


def test_a_loop_that_never_attached_is_asked_whether_it_did(
    half: nn.Module, key: sigil.Key, images: torch.Tensor
) -> None:
    """It was "train longer, raise the strength or cut deeper"."""
    asked = "Nothing of a mark is read: is injector.attach called for each batch, before backward()?"
    assert str(sigil.check(half, key, images)).endswith(asked)
    assert asked not in str(sigil.check(Learned(half, key), key, images))


def test_a_key_with_the_size_of_the_batch_is_told_so() -> None:
    """It was "has the shape (8, 64, 2, 2), but the key is for batches of (8, 64, 2, 2)"."""
    activation = torch.rand(8, 64, 2, 2, requires_grad=True)
    injector = sigil.Injector(sigil.Key.generate("ACME", activation.shape), 0.3)
    with pytest.raises(ShapeError, match=r"without the size of the batch: activation.shape\[1:\]\."):
        injector.attach(activation)
    injector = sigil.Injector(sigil.Key.generate("ACME", (32, 4, 4)), 0.3)
    with pytest.raises(ShapeError, match=r"for batches of activations of shape \(32, 4, 4\); make .* cut\."):
        injector.attach(activation)
