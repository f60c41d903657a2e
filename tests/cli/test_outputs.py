"""No command writes over what it reads, over another of its outputs, or over what Sigil did not write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from harness.commands import Command
from sigil import files
from sigil.cli import outputs
from sigil.cli.main import app, main
from sigil.errors import OutputError
from sigil.federation.run import train
from sigil.federation.settings import make
from sigil.keys.key import Key

SETTINGS = {
    "model": {"name": "resnet18", "width": 4, "cut": "layer2"},
    "data": {"name": "digits", "train_limit": 40, "test_limit": 20},
    "federation": {"clients": 1, "rounds": 1, "local_epochs": 1, "batch_size": 16},
    "watermark": {"strength": 0.0},
    "record": {"clients": [0]},
    "run": {"threads": 1, "workers": 1, "precision": "float32"},
}

ATTACKS = {
    "finetune": "--data digits --steps 1",
    "prune": "--ratio 0.5",
    "quantize": "--format int8",
    "subspace": "--early 1 --data digits",
    "overwrite": "--second owner.key --data digits",
    "permute": "",
    "extract": "--data digits",
    "reverse": "--data digits",
    "read": "--data digits",
    "dodge": "--data digits",
    "orthogonalise": "--initial suspect.safetensors --data digits",
    "launder": "--data digits",
    "erase": "--flatten 1 --data digits",
}

# Every output option: the command with OUT in the place of what the option names, and whether that is a
# file or a folder. A file given here as OUT exists; the command must refuse it.
OUTPUTS = {
    "key stamp --query": ("key stamp waiting.key --query OUT", "file"),
    "key seal SEALED": ("key seal waiting.key OUT --token words.txt", "file"),
    "key new FILE": ("key new OUT --owner A --shape 8,2,2 --passphrase-file words.txt", "file"),
    "verify --report": ("verify suspect.safetensors --key owner.key --report OUT", "file"),
    "verify --evidence": ("verify suspect.safetensors --key owner.key --evidence OUT", "file"),
    "trace --report": ("trace suspect.safetensors --key owner.key --run run --report OUT", "file"),
    "trace --evidence": ("trace suspect.safetensors --key owner.key --run run --evidence OUT", "file"),
    "attack own --out": ("attack my.py:attack suspect.safetensors --out OUT", "file"),
    "issue --out": ("issue suspect.safetensors --to B --out OUT --key owner.key --register new", "file"),
    "issue --register": (
        "issue suspect.safetensors --to B --out copy.safetensors --key owner.key --register OUT",
        "folder",
    ),
    "train --out": ("train --out OUT --key owner.key", "folder"),
    "serve --out": ("serve --out OUT --key owner.key", "folder"),
    "demo --out": ("demo --out OUT", "folder"),
    "detect --out": ("detect run --detector gradient-scrutinizer --out OUT", "picture"),
    "data partition --out": ("data partition digits --out OUT", "picture"),
    "card --out": ("card run --out OUT", "file"),
    "report --out": ("report run --out OUT", "file"),
    "data fetch --data-dir": ("data fetch cifar10 --base-url http://127.0.0.1:9 --data-dir OUT", "folder"),
    **{
        f"attack {name} --out": (f"attack {name} suspect.safetensors --out OUT {more}", "file")
        for name, more in ATTACKS.items()
    },
}

# Options and arguments that name files or folders which the command only reads.
READ = {
    "--key",
    "--passphrase-file",
    "--token",
    "--initial",
    "--tsa-root",
    "--reference",
    "--reference-file",
    "--register",  # trace: what issue wrote
    "--copies",
    "--run",
    "--data-dir",
    "--sign-with",
    "--config",
    "--server",
    "--recording",
    "--second",
    "--suspect",
    "SUSPECT",
    "MODEL",
    "RUN",
    "FOLDER...",
    "FOLDER",  # join: the folder that the owner handed over
    "FILE",  # key show, commit and reference
    "F.json",
}

# What is changed in place, between two marks that the page must have; the reproduction tests it.
EDITED = {"report --summary"}


def path_parameters(command: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every parameter of every command that names a file or folder: the command and the parameter."""
    for below, each in getattr(command, "commands", {}).items():
        if below != "reproduce":  # comes with another package, where it has its tests
            yield from path_parameters(each, f"{name} {below}".strip())
    for parameter in command.params:
        if "path" in type(parameter.type).__name__.lower() or parameter.name in ("out", "report", "evidence"):
            options = [option for option in parameter.opts if option.startswith("--")]
            yield name, options[0] if options else parameter.metavar


def test_every_option_that_names_a_file_is_known() -> None:
    """A new option fails here until it is in one of the lists above, and so has its tests."""
    found = {f"{command} {option}" for command, option in path_parameters(typer.main.get_command(app))}
    assert len(found) > 40
    unknown = {entry for entry in found if entry not in OUTPUTS and entry.rsplit(" ", 1)[1] not in READ}
    assert unknown == EDITED
    assert set(OUTPUTS) <= found


@pytest.fixture(scope="module")
def things(case: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the commands read."""
    folder = tmp_path_factory.mktemp("things")
    shutil.copy(case.key_file, folder / "owner.key")
    shutil.copy(case.marked, folder / "suspect.safetensors")
    (folder / "words.txt").write_text("sesame\n")
    Key.generate("ACME", shape=(8, 2, 2), seed=bytes(32), seal="rfc3161").save(folder / "waiting.key")
    (folder / "notes.html").write_text("<!DOCTYPE html>\n<html><title>By hand</title></html>\n")
    (folder / "notes.png").write_bytes(b"\x89PNG\r\n\x1a\n by hand")
    (folder / "my.py").write_text("def attack(halves):\n    return halves\n")
    train(make(SETTINGS), folder / "run")
    return folder


@pytest.fixture(autouse=True)
def here(things: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    shutil.copytree(things, folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("SIGIL_DATA", raising=False)
    return folder


FORCED = [
    name for name in OUTPUTS if name.startswith(("key new", "verify", "detect", "data partition", "report"))
]
FOREIGN = ("owner.key", "suspect.safetensors", "words.txt", "notes.html", "notes.png", "run/run.json")


@pytest.mark.parametrize(
    ("option", "force"), [(name, "") for name in OUTPUTS] + [(name, " --force") for name in FORCED]
)
def test_nothing_is_destroyed(option: str, force: str, unchanged: Command) -> None:
    """Inputs, files by hand, and other names of them; with --force where the command has it."""
    line, _ = OUTPUTS[option]
    os.link("suspect.safetensors", "hard.html")
    os.symlink("suspect.safetensors", "soft.png")
    for name in (*FOREIGN, "./run/../words.txt", "hard.html", "soft.png"):
        if (option, force, name) != ("key new FILE", " --force", "owner.key"):  # has its own test
            unchanged((line + force).replace("OUT", name))


@pytest.mark.parametrize("option", OUTPUTS)
def test_impossible_places_are_refused_before_the_work(option: str, unchanged: Command) -> None:
    line, kind = OUTPUTS[option]
    if kind == "folder":
        unchanged(line.replace("OUT", "owner.key/below/it"))
        return
    end = ".png" if kind == "picture" else ".html"
    Path(f"folder{end}").mkdir()
    os.mkfifo(f"pipe{end}")
    os.symlink("nowhere", f"dangling{end}")
    for name in (f"missing/x{end}", f"folder{end}", f"pipe{end}", f"dangling{end}", "x" * 300 + end):
        unchanged(line.replace("OUT", name))
    assert not os.path.lexists("nowhere")


@pytest.mark.parametrize(
    "line",
    [
        "verify suspect.safetensors --key owner.key --report owner.key",
        "verify suspect.safetensors --key owner.key --report suspect.safetensors",
        "verify suspect.safetensors --key owner.key --report x --evidence x",
        "report run --out owner.key",
        # the same under other names
        "verify suspect.safetensors --key owner.key --report x.html --evidence X.html",
        "verify suspect.safetensors --key owner.key --report run/../x --evidence ./x",
        "verify suspect.safetensors --key owner.key --report -",
        "report run --out run/client.safetensors",
        "report run --out run/metrics.jsonl --force",
        "attack prune suspect.safetensors --ratio 0.5 --out copy --key .copy.attack",
        "train --out fresh --key fresh/client.safetensors",
        "train --out fresh --config fresh/checkpoint/round-00001/my.toml",
        "serve --out fresh --key fresh.network/owner.json",
    ],
)
def test_refusals_by_name(line: str, unchanged: Command) -> None:
    for name in (".copy.attack", "fresh/client.safetensors", "fresh.network/owner.json"):
        Path(name).parent.mkdir(exist_ok=True)
        shutil.copy("owner.key", name)
    Path("fresh/checkpoint/round-00001").mkdir(parents=True)
    Path("fresh/checkpoint/round-00001/my.toml").write_text("")
    unchanged(line)


def test_a_folder_that_is_no_run_is_left_alone(unchanged: Command) -> None:
    for name in ("client.safetensors", "checkpoint/round-1/mine"):
        place = Path("other") / name
        place.parent.mkdir(parents=True)
        shutil.copy("suspect.safetensors", place)
        for command in ("train", "serve"):
            assert "is not a run" in unchanged(f"{command} --out other --key owner.key")
        shutil.rmtree("other")
    Path("other").mkdir()
    Path("other/run.json").write_text('{"mine": 1}')
    assert "cannot be read as a run" in unchanged("train --out other --key owner.key")
    Path("fresh.network").mkdir()
    Path("fresh.network/owner.json").write_text("mine")
    assert "was not made by" in unchanged("serve --out fresh --key owner.key")


def test_demo_leaves_pages_by_hand_alone(unchanged: Command) -> None:
    for name in ("report.html", "marked.html"):
        Path("story").mkdir()
        shutil.copy("notes.html", f"story/{name}")
        assert "is not a page that Sigil wrote" in unchanged("demo --out story")
        shutil.rmtree("story")


def test_own_pages_are_replaced_by_force_only(capsys: pytest.CaptureFixture[str], unchanged: Command) -> None:
    line = "report run --out page.html"
    assert main(line.split()) == 0
    assert files.PAGE.matches("page.html")
    capsys.readouterr()
    assert "give --force" in unchanged(line)
    old = Path("page.html").stat().st_ino
    assert main([*line.split(), "--force"]) == 0
    assert Path("page.html").stat().st_ino != old
    verify = "verify suspect.safetensors --key owner.key --report page.html"
    capsys.readouterr()
    assert "give --force" in unchanged(verify)
    assert main([*verify.split(), "--force"]) == 0
    assert "ownership" in Path("page.html").read_text("utf-8").lower()
    assert not [path for path in Path().iterdir() if path.name.endswith(".tmp")]


def test_the_page_of_a_run_is_drawn_again_in_its_place(
    capsys: pytest.CaptureFixture[str], unchanged: Command
) -> None:
    assert main(["report", "run"]) == 0
    assert main(["report", "run"]) == 0
    shutil.copy("notes.html", "run/report.html")
    capsys.readouterr()
    assert "is not a page that Sigil wrote" in unchanged("report run")


@pytest.mark.parametrize("end", ["png", "svg", "pdf"])
def test_own_pictures_are_replaced_by_force_only(
    end: str, capsys: pytest.CaptureFixture[str], unchanged: Command
) -> None:
    line = f"data partition digits --out who.{end}"
    assert main(line.split()) == 0
    capsys.readouterr()
    assert "give --force" in unchanged(line)
    assert main([*line.split(), "--force"]) == 0


def test_a_replaced_key_is_kept() -> None:
    new = ["key", "new", "owner.key", "--owner", "A", "--shape", "8,2,2", "--force"]
    kept = []
    for name in ("owner.key.old", "owner.key.old2"):
        kept.append((name, Path("owner.key").read_bytes()))
        assert main(new) == 0
        assert Path(name).stat().st_mode & 0o777 == 0o600
    assert all(Path(name).read_bytes() == content for name, content in kept)
    assert Path("owner.key").read_bytes() not in [content for _, content in kept]


def test_outputs_of_other_spellings_are_one_file(tmp_path: Path) -> None:
    one, other = tmp_path / "caf\u00e9.html", tmp_path / "CAFE\u0301.html"
    with pytest.raises(OutputError, match="are the same file"):
        outputs.check(outputs.File("--a", one), outputs.File("--b", other))
    outputs.check(outputs.File("--a", one), outputs.File("--b", tmp_path / "tea.html"))
