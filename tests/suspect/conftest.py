"""One small model in every format, and payloads that run code when they are unpickled."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from sigil import models

INPUT = (3, 16, 16)
CUT = "pool2"


@pytest.fixture(scope="session")
def model() -> models.Model:
    """A whole VGG-11 of width 4 with batch-norm statistics that are not the initial ones."""
    model = models.build("vgg11", width=4, seed=0, input_size=16)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in model.state_dict().items():
        if name.endswith("running_mean"):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return model.eval()


@pytest.fixture(scope="session")
def half(model: models.Model) -> models.Model:
    """Its client half: (3, 16, 16) to (8, 4, 4)."""
    return models.split(model, CUT)[0].eval()


@pytest.fixture(scope="session")
def images() -> torch.Tensor:
    return torch.randn(5, *INPUT, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="session")
def exported(half: models.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "half.pt2"
    program = torch.export.export(half, (torch.zeros(2, *INPUT),))
    torch.export.save(program, path)
    return path


@pytest.fixture(scope="session")
def graph(model: models.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole model as ONNX, for batches of two."""
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.zeros(2, *INPUT),), str(path), dynamo=False)
    return path


@pytest.fixture
def stored(half: models.Model, exported: Path, graph: Path, tmp_path: Path) -> Callable[[str], Path]:
    """The half in a file of a kind: safetensors, state dict, legacy, exported or onnx."""

    def store(kind: str) -> Path:
        if kind in ("exported", "onnx"):
            return exported if kind == "exported" else graph
        path = tmp_path / ("half.safetensors" if kind == "safetensors" else "state.pt")
        if kind == "safetensors":
            models.save(path, half)
        else:
            torch.save(half.state_dict(), path, _use_new_zipfile_serialization=kind != "legacy")
        return path

    return store


class Payload:
    """Calls ``function(argument)`` when it is unpickled."""

    def __init__(self, function: Callable[[str], object], argument: str) -> None:
        self.function, self.argument = function, argument

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return self.function, (self.argument,)


@pytest.fixture(params=["system", "eval", "exec"])
def exploit(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Payload, Path]:
    """A payload and the file that appears if it ever runs."""
    marker = tmp_path / "executed"
    python = f"open({str(marker)!r}, 'w').close()"
    if request.param == "system":
        return Payload(os.system, f"touch '{marker}'"), marker
    return Payload(eval if request.param == "eval" else exec, python), marker


@pytest.fixture
def rewrite() -> Callable[..., None]:
    """Copy a zip archive with some entries replaced or added, none compressed."""

    def rewrite(source: Path, target: Path, entries: Mapping[str, bytes]) -> None:
        with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
            root = old.namelist()[0].partition("/")[0]
            named = {f"{root}/{name}": content for name, content in entries.items()}
            for name in [*old.namelist(), *(set(named) - set(old.namelist()))]:
                new.writestr(name, named[name] if name in named else old.read(name))

    return rewrite
