"""Halves are independent copies, and together they are the model again, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sigil import models
from sigil.errors import ModelError

CUTS = [(name, cut) for name in models.names() for cut in models.cut_points(name)]


@pytest.fixture(scope="module")
def wholes() -> dict[str, models.Model]:
    """Small models whose batch-norm statistics are not those of the start."""
    made = {}
    for name in models.names():
        made[name] = models.build(name, width=4, classes=5, seed=1)
        with torch.no_grad():
            made[name](images())
    return made


def images(size: int = 8) -> torch.Tensor:
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(size))


def memory(module: nn.Module) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in module.state_dict().values()}


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_halves_equal_the_whole_at_every_cut(wholes: dict[str, models.Model], name: str, cut: str) -> None:
    model = wholes[name].eval()
    client, server = models.split(model, cut)
    again = models.join(client, server)
    with torch.no_grad():
        expected = model(images())
        activation = client(images())
        kept = activation.clone()
        assert torch.equal(server(activation), expected)
        assert torch.equal(activation, kept)  # the server half does not write into its input
        assert torch.equal(again(images()), expected)

    assert list(client)[-1] is client.get_submodule(cut)
    assert len(client) + len(server) == len(model)
    assert not client.training
    assert not server.training
    assert not again.training

    state, union = model.state_dict(), client.state_dict() | server.state_dict()
    assert [*client.state_dict(), *server.state_dict()] == list(state) == list(again.state_dict())
    assert all(torch.equal(tensor, union[key]) for key, tensor in state.items())

    places = [memory(module) for module in (model, client, server, again)]
    assert len(set.union(*places)) == sum(map(len, places))


def test_without_copies_the_halves_are_the_models_own_rows() -> None:
    model = models.build("resnet18", width=4, seed=1)
    copied = models.split(model, "layer2")
    client, server = models.split(model, "layer2", copy=False)
    assert [*client, *server] == [*model]
    assert memory(client) | memory(server) == memory(model)
    assert (client.spec, server.spec) == tuple(half.spec for half in copied)
    assert list(client.state_dict()) == list(copied[0].state_dict())


@pytest.mark.parametrize("name", models.names())
def test_training_through_the_halves_is_training_the_whole(name: str) -> None:
    """Gradients and batch-norm statistics agree bit for bit, with the cut carried by hand."""
    model = models.build(name, width=4, seed=2)
    client, server = models.split(model, models.default_cut(name))
    model(images()).square().sum().backward()

    activation = client(images())
    received = activation.detach().requires_grad_()
    server(received).square().sum().backward()
    activation.backward(received.grad)

    halves = dict(client.named_parameters()) | dict(server.named_parameters())
    for parameter_name, parameter in model.named_parameters():
        assert torch.equal(halves[parameter_name].grad, parameter.grad), parameter_name
    buffers = dict(client.named_buffers()) | dict(server.named_buffers())
    assert all(torch.equal(buffers[key], buffer) for key, buffer in model.named_buffers())


def test_specs_and_input_shape_of_halves() -> None:
    model = models.build("resnet18", width=2, classes=4, channels=1, input_size=8, seed=0)
    client, server = models.split(model, "layer2")
    assert client.spec == models.ModelSpec("resnet18", 4, 2, 1, "client", "layer2")
    assert server.spec == models.ModelSpec("resnet18", 4, 2, 1, "server", "layer2")
    assert client.input_shape == (1, 8, 8)
    assert server.input_shape is None
    again = models.join(client, server)
    assert again.spec == model.spec
    assert again.input_shape == model.input_shape


def test_memory_layout_and_frozen_parameters_are_kept() -> None:
    model = models.build("vgg11", width=4, seed=0).to(memory_format=torch.channels_last)
    model.get_submodule("stage1").requires_grad_(False)
    client, _ = models.split(model, "pool2")
    weight = client.get_submodule("stage2.0").weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not any(parameter.requires_grad for parameter in client.get_submodule("stage1").parameters())


def test_wrong_pieces_are_refused() -> None:
    model = models.build("resnet18", width=2, seed=0)
    client, server = models.split(model, "layer2")
    with pytest.raises(ModelError, match="nearest is 'layer1'"):
        models.split(model, "layer_1")
    with pytest.raises(ModelError, match="a whole model was expected, not the client half at layer2"):
        models.split(client, "layer1")
    with pytest.raises(ModelError, match="a client half was expected, not the server half"):
        models.join(server, client)
    with pytest.raises(ModelError, match="cut a model of your own into two modules yourself"):
        models.split(nn.Sequential(nn.Linear(2, 2)), "0")
    for other in (
        models.split(model, "layer3")[1],
        models.split(models.build("resnet18", width=3, seed=0), "layer2")[1],
        models.split(models.build("resnet18", width=2, classes=9, seed=0), "layer2")[1],
    ):
        with pytest.raises(ModelError, match="does not fit"):
            models.join(client, other)


def test_activation_shape_changes_nothing() -> None:
    model = models.build("densenet121", width=2, seed=0)
    model.get_submodule("block1").eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    random = torch.random.get_rng_state()
    assert models.activation_shape(model, (3, 64, 64), cut="trans3") == (16, 2, 2)
    assert models.activation_shape(model, (3, 64, 64)) == (10,)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random)


def test_activation_shape_of_any_module() -> None:
    own = nn.Sequential(nn.Conv2d(3, 5, 3, stride=2), nn.BatchNorm2d(5), nn.Flatten()).double()
    assert models.activation_shape(own, (3, 9, 9)) == (80,)
    assert models.activation_shape(nn.Flatten(), [2, 3]) == (6,)
    client, server = models.split(models.build("vgg11", width=2, seed=0), "pool4")
    assert models.activation_shape(server, models.activation_shape(client, (3, 32, 32))) == (10,)
    assert models.activation_shape(client.to("meta"), (3, 32, 32)) == (16, 2, 2)


def test_activation_shape_says_what_does_not_fit() -> None:
    model = models.build("resnet18", width=2, seed=0)
    with pytest.raises(ModelError, match=r"does not take inputs of shape \(1, 8, 8\)") as caught:
        models.activation_shape(model, (1, 8, 8))
    assert "\n" not in str(caught.value)
    assert model.training  # restored in spite of the error
    with pytest.raises(ModelError, match="dimension of the input shape"):
        models.activation_shape(model, (3, 0, 8))
    with pytest.raises(ModelError, match="nearest is 'layer3'"):
        models.activation_shape(model, (3, 8, 8), cut="lyer3")
    with pytest.raises(ModelError, match="leave cut away"):
        models.activation_shape(nn.Flatten(), (3, 8, 8), cut="layer3")
    with pytest.raises(ModelError, match="returns a tuple"):
        models.activation_shape(nn.LSTM(3, 3), (4, 3))


@pytest.mark.parametrize("name", ["resnet18", "vgg11"])
def test_a_client_half_is_one_graph(name: str) -> None:
    client, _ = models.split(models.build(name, width=2, seed=0), models.default_cut(name))
    program = torch.export.export(client.eval(), (images(),))
    with torch.no_grad():
        assert torch.equal(program.module()(images()), client(images()))


def test_a_client_half_exports_to_onnx(wholes: dict[str, models.Model], tmp_path: Path) -> None:
    client, _ = models.split(wholes["resnet18"], "layer2")  # has a shortcut of both kinds
    path = tmp_path / "client.onnx"
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        client.eval(), (images(),), path, dynamo=True, dynamic_shapes=({0: batch},), verbose=False
    )
    import onnxruntime  # not above: every worker that collects the tests would wait for it

    session = onnxruntime.InferenceSession(path)
    two = images()[:2]
    (activation,) = session.run(None, {session.get_inputs()[0].name: two.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(activation, client(two).numpy(), rtol=1e-4, atol=1e-5)
