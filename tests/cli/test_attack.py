"""`sigil attack` from the command line to its exit status and files."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from sigil import attacks, models
from sigil.cli import attack, attack_tuning
from sigil.cli import main as program
from sigil.federation.observers import Step
from sigil.federation.recording import GradientRecorder
from sigil.keys.key import Key

TUNING = ("reverse", "read", "dodge", "orthogonalise")
NAMES = ("finetune", "prune", "quantize", "subspace", "overwrite", "permute", "extract", *TUNING)
IN_TRAINING = ("noise", "starve", "combine")


@pytest.fixture(autouse=True)
def _only_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(context_settings={"help_option_names": ["--help", "-h"]})
    attack.register(app)
    monkeypatch.setattr(program, "app", app)


def sigil(*arguments: object) -> int:
    return program.main(["attack", *map(str, arguments)])


@dataclass(frozen=True)
class Files:
    """A small model for digits, whole and as a run's directory, its key and recorded gradients."""

    whole: Path
    run: Path
    key: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("attack")
    model = models.build("vgg11", classes=10, width=4, channels=1, input_size=8, seed=0)
    found = Files(folder / "whole.safetensors", folder / "run", folder / "owner.key")
    models.save(found.whole, model)
    found.run.mkdir()
    for name, half in zip(("client", "server"), models.split(model, "pool2"), strict=True):
        models.save(found.run / f"{name}.safetensors", half)
    Key.generate("ACME", shape=(8, 2, 2), bits=16, seed=bytes(32)).save(found.key)
    recorder = GradientRecorder(found.run / "recording", (8, 2, 2), clients=[0])
    generator = torch.Generator().manual_seed(0)
    for number in (1, 2, 3):
        gradient = torch.randn(32, 8, 2, 2, generator=generator)
        recorder.on_gradient_received(Step(number, 0, 1), gradient, torch.zeros(32, dtype=torch.long))
        recorder.on_round_end(number)
    recorder.close()
    return found


def test_a_client_half_alone_with_its_key(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pruned.safetensors"
    assert sigil("prune", case.marked, "--out", out, "--ratio", 0.2, "--key", case.key_file) == 0
    before, after, wrote = capsys.readouterr().out.splitlines()
    assert before.startswith("before  WSR 9") or before.startswith("before  WSR 100 %")
    assert before.endswith("  owned")
    assert "accuracy" not in before
    assert after.startswith("after   WSR ")
    assert wrote == f"Wrote {out}."
    pruned = models.load(out)
    assert pruned.spec == models.load(case.marked).spec
    weight = pruned.state_dict()["layer1.0.conv1.weight"]
    assert int((weight == 0).sum()) == round(0.2 * weight.numel())


def test_halves_as_files_become_a_directory_and_lose_the_mark(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = tmp_path / "server.safetensors"
    whole = models.build("resnet18", classes=4, width=8, input_size=8, seed=0)
    models.save(server, models.split(whole, "layer1")[1])
    out = tmp_path / "permuted"
    options = ("--server", server, "--key", case.key_file)
    assert sigil("permute", case.marked, "--out", out, *options) == 0
    before, after, _ = capsys.readouterr().out.splitlines()
    marked, permuted = (float(line.split("WSR ")[1].split()[0]) for line in (before, after))
    assert marked > 90
    assert permuted < 75
    assert sorted(file.name for file in out.iterdir()) == ["client.safetensors", "server.safetensors"]
    # The directory can be attacked in its turn; a second order at the same place leaves no mark either.
    assert sigil("permute", out, "--out", tmp_path / "again", "--seed", 1) == 0
    assert "Give --key" in capsys.readouterr().out


def test_a_whole_model_and_data(files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tuned.safetensors"
    options = ("--data", "digits", "--epochs", 4, "--lr", 0.05, "--batch-size", 32, "--share", 0.2)
    assert sigil("finetune", files.whole, "--out", out, *options) == 0
    before, after, _ = capsys.readouterr().out.splitlines()
    assert before.startswith("before  accuracy ")
    assert "WSR" not in before
    assert float(after.split()[2]) > float(before.split()[2]) + 15
    assert models.load(out).spec.part == "whole"
    assert list(tmp_path.iterdir()) == [out]


def test_quantize_says_nothing_if_quiet(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "q.safetensors"
    options = ("--format", "int4", "--key", files.key, "--cut", "pool2", "--quiet")
    assert sigil("quantize", files.whole, "--out", out, *options) == 0
    assert capsys.readouterr() == ("", "")
    assert len(models.load(out).state_dict()["stage1.0.weight"][0].unique()) <= 15


def test_subspace_with_the_recording_of_the_run(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "attacked"
    options = ("--early", "1", "--late", "2-3", "--main-components", 4, "--components", 8, "--epochs", 1)
    more = ("--data", "digits", "--share", 0.05, "--key", files.key)
    assert sigil("subspace", files.run, "--out", out, *options, *more) == 0
    before, after, _, found = capsys.readouterr().out.splitlines()
    for line in (before, after):
        assert "accuracy" in line
        assert "WSR" in line
        assert " p = " in line
    assert found.endswith("of the span of the key's matrix.")
    assert isinstance(models.load(out / "client.safetensors"), models.Model)


def test_overwrite_shows_the_second_mark(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = tmp_path / "mallory.key"
    Key.generate("Mallory", shape=(8, 2, 2), bits=16, seed=bytes(32)).save(second)
    options = ("--second", second, "--data", "digits", "--steps", 1, "--share", 0.05)
    assert sigil("overwrite", files.run, "--out", tmp_path / "over", *options) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("second  accuracy ")


def test_extract_into_another_architecture(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "student"
    options = ("--student", "resnet18", "--width", 3, "--epochs", 1, "--share", 0.05, "--data", "digits")
    assert sigil("extract", files.run, "--out", out, *options, "--key", files.key) == 0
    printed = capsys.readouterr().out
    assert "another shape than the key" in printed
    assert printed.splitlines()[1].startswith("after   accuracy ")
    assert "WSR" not in printed.splitlines()[1]
    spec = models.read_spec(out / "client.safetensors")
    assert (spec.name, spec.width, spec.cut) == ("resnet18", 3, "layer3")


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("reverse --reversal 1 --rounds 1-2", True),
        ("read --gamma 1", True),
        ("read --way equalise", True),
        ("dodge --gamma 0.1", False),
        ("orthogonalise --initial WHOLE --way rotate", False),
    ],
)
def test_attacks_that_fine_tune(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, found: bool
) -> None:
    out = tmp_path / "attacked"
    name, *options = command.replace("WHOLE", str(files.whole)).split()
    how = ("--data", "digits", "--share", 0.05, "--epochs", 1, "--lr", 1e-3, "--key", files.key)
    assert sigil(name, files.run, "--out", out, *options, *how) == 0
    before, after, wrote, *rest = capsys.readouterr().out.splitlines()
    for line in (before, after):
        assert "accuracy" in line
        assert "WSR" in line
    assert wrote.startswith("Wrote ")
    assert len(rest) == found
    assert not found or rest[0].endswith("% lies in the span of the key's matrix.")
    given, made = (models.load(each / "client.safetensors").state_dict() for each in (files.run, out))
    assert not torch.equal(given["stage1.0.weight"], made["stage1.0.weight"])


@pytest.mark.parametrize("name", IN_TRAINING)
def test_what_belongs_to_training(name: str, files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert sigil(name, files.run, "--out", "x", "--snr", 0.1) == 2
    printed = capsys.readouterr()
    assert "train" in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("prune RUN --ratio 1.5", "between 0 and 1"),
        ("prune RUN --ratio 0.5 --scope half", "scope"),
        ("prune WHOLE --ratio 0.5 --part client", "two halves"),
        ("prune missing.safetensors --ratio 0.5", "missing.safetensors"),
        ("prune . --ratio 0.5", "client.safetensors"),
        ("quantize RUN --format int3", "int3"),
        ("permute WHOLE --cut pool9", "pool9"),
        ("permute RUN --cut pool1", "leave the cut out"),
        ("permute CLIENT", "both halves"),
        ("permute WHOLE --key KEY", "(8, 2, 2)"),
        ("permute RUN --key KEY --scale -1", "at least 0"),
        ("finetune RUN", "--data"),
        ("finetune RUN --data digits --steps 1 --epochs 1", "not both"),
        ("finetune RUN --data digits --kind first", "first"),
        ("finetune RUN --data digits --share 0", "share"),
        ("finetune RUN --data digitz", "digitz"),
        ("subspace WHOLE --recording RUN/recording --early 1 --late 2 --data digits", "recording"),
        ("subspace RUN --early 1 --late 9 --data digits", "rounds 1-3"),
        ("subspace RUN --early one --late 2 --data digits", "--early"),
        ("subspace RUN --early 1 --late 2-999999999999 --data digits", "--late"),
        ("subspace RUN --early 1 --data digits", "no late round"),
        ("subspace CLIENT --recording . --early 1 --late 2 --data digits", "recording"),
        ("reverse RUN", "--data"),
        ("reverse RUN --data digits --reversal -1", "reversal"),
        ("reverse RUN --data digits --rounds 9", "rounds 1-3"),
        ("reverse RUN --data digits --rounds two", "--rounds"),
        ("reverse WHOLE --recording . --data digits", "recording"),
        ("reverse RUN --data digits --steps 1 --epochs 1", "not both"),
        ("read RUN --data digits --way hear", "hear"),
        ("read RUN --data digits --optimizer lion", "lion"),
        ("dodge RUN --data digits --gamma nan", "gamma"),
        ("dodge CLIENT --data digits", "both halves"),
        ("orthogonalise RUN --data digits --initial RUN", "no run"),
        ("orthogonalise RUN --data digits --initial KEY", "reference"),
        ("orthogonalise RUN --data digits --initial WHOLE --strength 2", "between 0 and 1"),
        ("overwrite RUN --second OTHER --data digits", "make a key"),
        ("extract RUN --student STUDENT --data digits", "4 classes"),
        ("extract RUN --student alexnet --data digits", "alexnet"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {
        "RUN": files.run,
        "WHOLE": files.whole,
        "KEY": files.key,
        "CLIENT": files.run / "client.safetensors",
    }
    if "STUDENT" in command:
        places["STUDENT"] = files.run.parent / "student.safetensors"
        models.save(places["STUDENT"], models.build("vgg11", classes=4, width=4, channels=1, seed=0))
    if "OTHER" in command:
        places["OTHER"] = files.run.parent / "other.key"
        Key.generate("M", shape=(4, 4, 4), bits=8, seed=bytes(32)).save(places["OTHER"])
    arguments = command.split()
    for name, path in places.items():
        arguments = [part.replace(name, str(path)) for part in arguments]
    assert sigil(*arguments, "--out", "out") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("sigil: ")
    assert printed.err.count("\n") == 1
    assert word in printed.err
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_never_overwritten(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    content = files.whole.read_bytes()
    assert sigil("prune", files.whole, "--out", files.whole, "--ratio", 1) == 2
    assert sigil("prune", files.run, "--out", files.run, "--ratio", 1) == 2
    assert capsys.readouterr().err.count("never overwritten") == 2
    assert files.whole.read_bytes() == content


@pytest.mark.parametrize("name", NAMES)
def test_every_attack_teaches_by_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sigil(name, "--help") == 0
    out = capsys.readouterr().out
    assert out.count(f"sigil attack {name} ") >= 2
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80


def test_the_group_lists_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert sigil("--help") == 0
    out = capsys.readouterr().out
    for name in (*NAMES, *IN_TRAINING):
        assert f" {name} " in out
    assert out.count("  sigil attack ") >= 4


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_those_of_the_function(name: str) -> None:
    command = inspect.signature(getattr(attack_tuning if name in TUNING else attack, name)).parameters
    function = inspect.signature(getattr(attacks, name)).parameters
    shared = {
        option: parameter.default
        for option, parameter in function.items()
        if option in command and parameter.default is not parameter.empty
    }
    assert len(shared) >= 1
    for option, default in shared.items():
        assert command[option].default == default, option


def test_defaults_of_a_fine_tuning_are_those_of_tuning() -> None:
    options = inspect.signature(attack_tuning.open_tuning).parameters
    tuning = {field.name: field.default for field in fields(attacks.Tuning)}
    assert {name: options[name].default for name in tuning if name in options} == {
        name: default for name, default in tuning.items() if name in options
    }
