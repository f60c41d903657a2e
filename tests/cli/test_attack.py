"""`sigil attack` from the command line to its exit status and files."""

from __future__ import annotations

import functools
import inspect
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from sigil import attacks, models
from sigil.attacks.extract import EXTRACT
from sigil.attacks.finetune import FINETUNE
from sigil.cli import attack
from sigil.cli import main as program
from sigil.errors import AttackError
from sigil.federation.observers import Step
from sigil.federation.recording import GradientRecorder
from sigil.keys.key import Key

TUNING = ("reverse", "read", "dodge", "orthogonalise", "launder", "erase")
NAMES = ("finetune", "prune", "quantize", "subspace", "overwrite", "permute", "extract", *TUNING)
IN_TRAINING = ("noise", "starve", "combine")
OTHERS = (*IN_TRAINING, "own")


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
        ("launder --noise 0.5 --shape 0", False),
        ("erase --flatten 1 --noise 0.1 --orthogonalise 1 --initial WHOLE --norms frozen", False),
        ("finetune --optimizer adam --averaged 0.5 --logits 1 --labels 0", False),
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


OWN = """
import torch
from dataclasses import dataclass
from sigil.attacks.halves import same_kind, whole_copy

@dataclass
class Options:
    share: float

number = 7

@torch.no_grad()
def double(model, *, times: int = 1, seed=0):
    attacked = whole_copy(model)
    for weights in attacked.parameters():
        weights *= 2**times
    return same_kind(attacked, model)

def learn(model, images, word="none"):
    assert word == "hello", word
    assert len(images.train) == 86
    return double(model)

def nothing(model):
    return None

def erase(model):
    for half in model:
        for weights in half.parameters():
            weights.data.zero_()
    return model

def coarse(model):
    return tuple(half.half() for half in model)

def lost(model):
    return tuple(half.to("meta") for half in model)

def swap(model):
    return model[1], model[0]

def grow(model):
    model[0].more = torch.nn.Linear(3, 3)
    return model

def spoil(model):
    model[0].forward = lambda images: images
    next(model[1].parameters()).data.fill_(float("nan"))
    return model

def half(model):
    return model[0]

def fails(model):
    raise ValueError("no such thing\\nat all")

def leaves(model):
    raise SystemExit(0)

def three(model, images, more):
    return model
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file with code of the caller's own, beside which nothing may be imported or left."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "my.py").write_text(OWN)
    (folder / "torch.py").write_text("raise SystemError('this was not named')")
    return folder / "my.py"


def test_an_attack_of_ones_own(
    files: Files,
    own: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(own.parent)
    out = tmp_path / "doubled"
    command = (f"{own}:double", files.run, "--out", out, "--set", "times=2", "--key", files.key)
    assert sigil(*command) == 0
    before, after, wrote = capsys.readouterr().out.splitlines()
    assert "WSR" in before
    assert "WSR" in after
    assert wrote == f"Wrote {out / 'client.safetensors'} and {out / 'server.safetensors'}."
    given, made = (models.load(each / "client.safetensors").state_dict() for each in (files.run, out))
    assert torch.equal(4 * given["stage1.0.weight"], made["stage1.0.weight"])
    # One that works on what it is given, or with coarser numbers, changes the new model alone.
    for name in ("erase", "coarse"):
        assert sigil(f"{own}:{name}", files.run, "--out", tmp_path / name, "--key", files.key) == 0
        assert capsys.readouterr().out.splitlines()[0] == before
    # By its other name, of a whole model, and with the attacker's images.
    more = ("--set", "word=hello", "--data", "digits", "--share", 0.06, "--quiet")
    assert sigil("own", "my.py:learn", files.whole, "--out", tmp_path / "x.safetensors", *more) == 0
    assert sorted(file.name for file in own.parent.iterdir()) == ["my.py", "torch.py"]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("gone.py:double", "gone.py cannot be read: it does not exist"),
        ("FOLDER.py:double", "FOLDER.py is no file that can be read"),
        ("PIPE.py:double", "PIPE.py is no file that can be read"),
        ("my.py", "'my.py' does not name code of your own; write FILE.py:NAME"),
        ("my.txt:double", "'my.txt:double' does not name code of your own; write FILE.py:NAME"),
        ("my.py:", "write FILE.py:NAME"),
        ("my.py:a.b", "write FILE.py:NAME"),
        ("my.py:triple", "There is no triple in my.py"),
        ("my.py:number", "my.py:number is of the type int, but an attack is a function"),
        ("my.py:Options", "my.py:Options is of the type type, but an attack is a function"),
        ("my.py:double --set time=2", "unexpected keyword argument 'time'"),
        ("my.py:double --set times", "is not of the form NAME=VALUE"),
        ("my.py:learn", "--data"),
        ("my.py:learn --data digits --share 0.06", "my.py failed in line 20 (AssertionError: none)"),
        ("my.py:three --data digits", "missing a required argument: 'more'"),
        ("my.py:nothing", "my.py:nothing returned a NoneType, but an attack returns a model."),
        ("my.py:half", "my.py:half must return what it was given: client and server, in this order."),
        ("my.py:swap", "my.py:swap must return what it was given: client and server, in this order."),
        ("my.py:lost", "without values"),
        ("my.py:grow", "more.weight"),
        ("my.py:spoil", "not finite"),
        ("my.py:fails", "my.py failed in line 55 (ValueError: no such thing"),
        ("my.py:leaves", "my.py failed in line 58 (SystemExit: 0)"),
        ("bad.py:double", "bad.py failed in line 2 (SyntaxError: "),
        ("null.py:double", "null.py failed ("),
        ("lost.py:double", "lost.py failed in line 1 (ModuleNotFoundError: No module named 'beside')"),
        ("large.py:double", "large.py has more than 1,048,576 bytes"),
    ],
)
def test_what_is_wrong_with_an_own_attack_is_one_sentence(
    files: Files,
    own: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    sentence: str,
) -> None:
    monkeypatch.chdir(own.parent)
    Path("FOLDER.py").mkdir()
    os.mkfifo("PIPE.py")
    Path("bad.py").write_text("x = 1\ndef double(:\n")
    Path("null.py").write_bytes(b"x = 1\0")
    Path("lost.py").write_text("import beside\n")
    Path("beside.py").write_text("")
    Path("large.py").write_bytes(b"#" * (2**20 + 1))
    before = sorted(Path().iterdir())
    name, *options = command.split()
    assert sigil(name, files.run, "--out", "out", *options) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert sentence in printed.err
    assert sorted(Path().iterdir()) == before


def test_an_own_attack_is_never_written_over(files: Files, own: Path) -> None:
    content = own.read_text()
    assert sigil(f"{own}:double", files.whole, "--out", own) == 2
    assert own.read_text() == content


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
    for name in (*NAMES, *OTHERS):
        assert f" {name} " in out
    assert out.count("  sigil attack ") >= 4


# An extraction has no options but its student, which is no default, and its tuning, which the next test sees.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "extract"])
def test_defaults_are_those_of_the_function(name: str) -> None:
    group = typer.main.get_command(attack.app)
    command = {option.name: option for option in group.commands[name].params}  # type: ignore[attr-defined]
    function = inspect.signature(getattr(attacks, name)).parameters
    shared = {
        option: parameter.default
        for option, parameter in function.items()
        if option in command and parameter.default is not parameter.empty
    }
    assert len(shared) >= 1
    for option, default in shared.items():
        assert command[option].default == default, option


def test_a_command_takes_the_best_recipe_unless_the_attack_has_its_own(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {option.name: option for option in attack.TUNING}
    assert {*options} - {"share"} <= {field.name for field in fields(attacks.Tuning)}
    assert all(options[name].default is None for name in options if name not in ("share", "seed"))
    seen: dict[str, attacks.Tuning] = {}

    def stopping(name: str) -> Any:
        @functools.wraps(getattr(attacks, name))
        def stop(*given: Any, tuning: attacks.Tuning, **more: Any) -> None:
            seen[name] = tuning
            raise AttackError("enough")

        return stop

    own = {"finetune": FINETUNE, "extract": EXTRACT}
    for name in ("read", *own):
        monkeypatch.setattr(attacks, name, stopping(name))
        assert sigil(name, files.run, "--out", tmp_path / name, "--data", "digits", "--seed", 3) == 2
    kept = {name: replace(each, progress=None, checkpoint=None) for name, each in seen.items()}
    assert kept == {name: own.get(name, attacks.BEST).changed(seed=3) for name in seen}
    assert all(each.checkpoint is not None for each in seen.values())
