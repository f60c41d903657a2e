"""The optimizers: PyTorch's to the bit, without what PyTorch imports for its compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from sigil import eager
from sigil.errors import ShapeError

KINDS = {
    "sgd": (eager.SGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 5e-4}),
    "fused sgd": (eager.SGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 5e-4, "fused": True}),
    "adam": (eager.Adam, torch.optim.Adam, {"weight_decay": 5e-4, "amsgrad": True}),
    "fused adam": (eager.Adam, torch.optim.Adam, {"fused": True}),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_they_train_as_pytorchs_to_the_bit(kind: str) -> None:
    """Also from a state that was kept in between, and without recording their own steps for gradients."""
    ours, theirs, arguments = KINDS[kind]
    found = []
    for make in (ours, theirs):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        inputs = torch.randn(5, 16, 4)
        optimizer = make(model.parameters(), lr=0.05, **arguments)
        for number, batch in enumerate(inputs):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), torch.arange(16) % 3).backward()
            optimizer.step()
            if number == 2:
                kept = optimizer.state_dict()
                optimizer = make(model.parameters(), lr=0.01, **arguments)
                optimizer.load_state_dict(kept)
                assert optimizer.param_groups[0]["lr"] == 0.05
        assert all(value.is_leaf and value.requires_grad for value in model.parameters())
        found.append([value.detach().clone() for value in model.parameters()])
    assert all(map(torch.equal, *found))


def test_hooks_are_called_and_gradients_forgotten() -> None:
    model = nn.Linear(2, 2)
    optimizer = eager.SGD(model.parameters(), lr=0.1)
    heard: list[str] = []
    optimizer.register_step_post_hook(lambda *arguments: heard.append("step"))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert heard == ["step"]
    optimizer.zero_grad()
    assert model.weight.grad is None


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
def test_a_given_gradient_goes_back_to_the_bit(precision: torch.dtype) -> None:
    """Also with a hook on the output, which sees and replaces it as in PyTorch's own pass."""
    found = []
    for back in (eager.backward, torch.Tensor.backward):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).to(precision)
        images = torch.randn(4, 3, 6, 6, dtype=precision).to(memory_format=torch.channels_last)
        images.requires_grad_()
        output = model(images)
        seen: list[Tensor] = []
        output.register_hook(lambda gradient, seen=seen: seen.append(gradient) or 1.5 * gradient)
        back(output, torch.randn(output.shape).to(precision))
        found.append([*seen, images.grad, *(value.grad for value in model.parameters())])
    assert len(found[0]) == 6
    assert all(map(torch.equal, *found))


def test_a_gradient_of_another_shape_is_refused() -> None:
    """Autograd itself would add up a larger one until it fits."""
    with pytest.raises(ShapeError, match=r"\(2, 4, 3\).*\(4, 3\)"):
        eager.backward(nn.Linear(2, 3)(torch.ones(4, 2)), torch.ones(2, 4, 3))


def test_the_compiler_is_not_loaded() -> None:
    program = (
        "import sys, torch; from sigil.eager import Adam, SGD, backward\n"
        "for make in (SGD, Adam):\n"
        "    model = torch.nn.Linear(2, 2); optimizer = make(model.parameters(), lr=0.1)\n"
        "    optimizer.zero_grad(); backward(model(torch.ones(1, 2)), torch.ones(1, 2)); optimizer.step()\n"
        "    optimizer.load_state_dict(optimizer.state_dict())\n"
        "assert not {'torch._dynamo', 'sympy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
