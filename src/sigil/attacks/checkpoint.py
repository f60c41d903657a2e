"""The state of an attack that trains, in one safetensors file, so that it survives an interruption."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sigil import files
from sigil.data import Dataset
from sigil.errors import AttackError


def digest(model: nn.Module) -> str:
    """SHA-256 of the names and values of all tensors of a model."""
    return files.digest(part for named in model.state_dict().items() for part in named)


def settings_digest(model: nn.Module, data: Dataset, *settings: object) -> str:
    """What must be equal for an interrupted attack to be gone on with: settings, labels and weights."""
    about = (settings, data.name, data.train.images.shape, data.augment, digest(model))
    return files.digest([repr(about), data.train.labels.tobytes()])


class AttackCheckpoint:
    """Weights, optimizer state and number of finished steps of one attack."""

    def __init__(self, path: Path, settings_digest: str) -> None:
        self.path = Path(path)
        self.settings_digest = settings_digest
        if not self.path.parent.is_dir():
            raise AttackError(f"The checkpoint {path} cannot be written: {self.path.parent} is no directory.")

    def write(self, model: nn.Module, optimizer: torch.optim.Optimizer, done: int) -> None:
        """Replace the file; a reader sees the old one or the new one."""
        tensors = {f"model/{name}": value.contiguous() for name, value in model.state_dict().items()}
        for index, values in optimizer.state_dict()["state"].items():
            for name, value in values.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{index}/{name}"] = value.contiguous()
        about = {"settings_digest": self.settings_digest, "done": done}
        with files.draft(self.path, replace=True) as place:
            save_file(tensors, place, metadata={"sigil": json.dumps(about)})

    def read(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Load the state into model and optimizer; returns the finished steps, 0 if there is none."""
        if not self.path.exists():
            return 0
        try:
            with safe_open(self.path, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("sigil", "{}"))
                if about.get("settings_digest") != self.settings_digest:
                    return 0
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError):
            return 0
        model.load_state_dict(
            {name.removeprefix("model/"): value for name, value in tensors.items() if name[0] == "m"}
        )
        parameters = [value for group in optimizer.param_groups for value in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            kind, _, rest = name.partition("/")
            if kind == "optimizer":
                index, _, field = rest.partition("/")
                state.setdefault(int(index), {})[field] = _laid_out(value, parameters[int(index)])
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
        return int(about["done"])

    def remove(self) -> None:
        """The attack is over."""
        self.path.unlink(missing_ok=True)


def _laid_out(value: Tensor, parameter: Tensor) -> Tensor:
    """A saved tensor in the parameter's memory layout, which optimizers take for granted."""
    return torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value
