"""The core works alone, and what needs more says the one line that installs it."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from sigil import extras
from sigil.cli.main import main
from sigil.errors import MissingExtraError

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MOST_PACKAGES = 40

# Finds no module in site-packages but those of the distributions that the core requires.
ALONE = """
import json, sys
from importlib.machinery import PathFinder

allowed = set(json.loads(sys.argv[1]))

class CoreFinder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target)
        place = "" if spec is None else str(spec.origin or list(spec.submodule_search_locations or []))
        return None if "site-packages" in place and name.partition(".")[0] not in allowed else spec

sys.meta_path[sys.meta_path.index(PathFinder)] = CoreFinder
"""
THREE_LINES = """
import torch, sigil
from torch import nn

torch.manual_seed(0)
client = nn.Sequential(nn.Flatten(), nn.Linear(192, 1024), nn.ReLU())
server = nn.Linear(1024, 10)
key = sigil.Key.generate(owner="ACME", shape=(1024,), bits=128, seed=bytes(32))
injector = sigil.Injector(key, strength=1.0)
parameters = [*client.parameters(), *server.parameters()]
for _ in range(60):
    activation = client(torch.randn(16, 3, 8, 8))
    injector.attach(activation)
    nn.functional.cross_entropy(server(activation), torch.randint(10, (16,))).backward()
    with torch.no_grad():
        for parameter in parameters:
            parameter -= 0.5 * parameter.grad / parameter.grad.norm()
            parameter.grad = None
report = sigil.verify(client, key, input_shape=(3, 8, 8))
assert report.owned, report.wsr
key.save("owner.key")
"""
COMMANDS = """
from pathlib import Path
from sigil import models
from sigil.cli.main import main

half, _ = models.split(models.build("resnet18", width=4, input_size=8, seed=1), "layer3")
models.save("half.safetensors", half)
assert main(["key", "new", "own.key", "--owner", "ACME", "--shape", "16,2,2", "--bits", "8"]) == 0
assert main(["key", "commit", "own.key"]) == 0
verify = ["verify", "half.safetensors", "--key", "own.key"]
assert main([*verify, "--report", "p.html", "--evidence", "c.json"]) == 1
assert main(["evidence", "check", "c.json", "--key", "own.key"]) == 0
Path("graph.onnx").write_bytes(b"\\x08\\x08\\x12\\x07pytorch" + bytes(64))
verify[1] = "graph.onnx"
for arguments in (["train"], ["demo"], ["serve"], ["join", "x"], verify):
    assert main(arguments) == 2, arguments
"""


def required(names: Iterable[str]) -> set[str]:
    """The distributions that these require, themselves included, by their normalised names."""
    found: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        wanted = [{"extra": ""}, *({"extra": extra} for extra in requirement.extras)]
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if (name in found and not requirement.extras) or not any(
            requirement.marker is None or requirement.marker.evaluate(each) for each in wanted
        ):
            continue
        found.add(name)
        for line in metadata.requires(name) or []:
            more = Requirement(line)
            if more.marker is None or any(more.marker.evaluate(each) for each in wanted):
                more.marker = None
                waiting.append(more)
    return found


@functools.cache
def core_modules() -> list[str]:
    """The modules at the top of the distributions that the core requires."""
    found = set()
    for name in required(PROJECT["dependencies"]):
        for file in metadata.files(name) or []:
            found.add(file.parts[0].partition(".")[0])
    return sorted(found)


def alone(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ALONE + program, json.dumps(core_modules())]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_core_is_small() -> None:
    beside = required(PROJECT["dependencies"]) - required(["torch"])
    assert 10 <= len(beside) <= MOST_PACKAGES, sorted(beside)


def test_nothing_in_the_core_is_bounded_from_above_but_torch() -> None:
    bounded = [line for line in PROJECT["dependencies"] if "<" in line or "==" in line or "~=" in line]
    assert bounded == ["torch>=2.6,<2.14"]


def test_every_extra_says_which_modules_it_brings() -> None:
    offered = set(PROJECT["optional-dependencies"]) - {"all", "dev", "docs"}
    assert offered == set(extras.EXTRAS)
    assert PROJECT["name"] == extras.DISTRIBUTION
    for modules in extras.EXTRAS.values():
        assert not set(modules) & set(core_modules()), "the core itself brings it"


@pytest.mark.slow
def test_three_lines_mark_and_verify_with_the_core_alone(tmp_path: Path) -> None:
    ended = alone(THREE_LINES, tmp_path)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_commands_work_with_the_core_alone_and_others_name_their_extra(tmp_path: Path) -> None:
    ended = alone(COMMANDS, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [line for line in ended.stderr.splitlines() if "pip install" in line]
    wanted = ["train", "train", "network", "network", "onnx"]
    assert [re.search(r"pip install 'sigil-watermark\[(\w+)\]'", line)[1] for line in lines] == wanted  # type: ignore[index]


def test_a_missing_module_that_no_extra_brings_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere")

    monkeypatch.setattr("sigil.cli.train.extras.need", lambda extra: broken())
    assert main(["demo"]) == 70
    assert "bug in Sigil" in capsys.readouterr().err


def test_need_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.EXTRAS, "train", ("numpy", "a_module_that_does_not_exist"))
    with pytest.raises(MissingExtraError, match=r"a_module_that_does_not_exist.*sigil-watermark\[train\]'"):
        extras.need("train")
