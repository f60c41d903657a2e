"""State dicts that hold the same weights in another form are read as what they are; each way is counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from harness.held_out import FILES
from sigil import models
from sigil.errors import SuspectError
from sigil.keys.key import Key
from sigil.suspect import entries, open_suspect, rewritten
from sigil.verdict.verification import verify

CUTS = {"resnet18": "layer2", "vgg11": "stage3", "mobilenetv2": "group2", "densenet121": "block1"}
State = dict[str, Tensor]


def half_of(name: str, seed: int = 0) -> models.Model:
    """A client half whose batch norms are not the initial ones."""
    half = models.split(models.build(name, width=4, seed=seed), CUTS[name])[0].eval()
    generator = torch.Generator().manual_seed(seed)
    for tensor_name, tensor in half.state_dict().items():
        if tensor.ndim == 1:
            values = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(values.abs() + 0.5 if tensor_name.endswith(("var", "weight")) else values)
    return half


def stated(name: str) -> dict[str, Any]:
    return {"architecture": name, "width": 4, "cut": CUTS[name]}


def read_alike(path: Path, half: models.Model, images: Tensor, **options: Any) -> list[str]:
    """The entries of a file that compute what the half computes."""
    with torch.no_grad():
        wanted = half(images)
        return [
            each.entry
            for each in open_suspect(path, **options).each()
            if torch.allclose(each(images), wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
        ]


def floats(half: models.Model) -> State:
    return {name: tensor for name, tensor in half.state_dict().items() if tensor.ndim}


def renamed(state: State, prefix: str = "p") -> State:
    return {f"{prefix}{number}": tensor.clone() for number, tensor in enumerate(state.values())}


def folded(half: models.Model) -> State:
    """Each convolution with the bias that its batch norm leaves it, one after the other."""
    state, (_, norms) = floats(half), rewritten.layout(half.spec)
    for norm, (layer, epsilon) in norms.items():
        gamma, beta, mean, variance = (state.pop(f"{norm}.{word}") for word in rewritten._NORM)
        factor = gamma / (variance + epsilon).sqrt()
        bias = state.pop(f"{layer}.bias", torch.zeros(len(factor)))
        both = {f"{layer}.weight": state[f"{layer}.weight"] * factor.view(-1, 1, 1, 1)}
        both[f"{layer}.bias"] = beta + (bias - mean) * factor
        pairs = ([*both.items()] if key == f"{layer}.weight" else [(key, state[key])] for key in list(state))
        state = dict(pair for each in pairs for pair in each)
    return state


def biased(half: models.Model) -> State:
    """Convolutions with a bias that their batch norms take away again."""
    made: State = {}
    state, (_, norms) = floats(half), rewritten.layout(half.spec)
    for name, tensor in state.items():
        made[name] = tensor.clone()
        layer = name.removesuffix(".weight")
        norm = next((norm for norm, (before, _) in norms.items() if before == layer), None)
        if norm is not None and f"{layer}.bias" not in state:
            made[f"{layer}.bias"] = torch.full((len(tensor),), 100.0)
            state[f"{norm}.running_mean"] = state[f"{norm}.running_mean"] + 100.0
    return made


def weight_normed(half: models.Model) -> State:
    made: State = {}
    for name, tensor in floats(half).items():
        if tensor.ndim == 4:
            made[f"{name}_g"] = tensor.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            made[f"{name}_v"] = 3 * tensor
        else:
            made[name] = tensor
    return made


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("resnet18", "weight_g and weight_v"),
        ("mobilenetv2", "parametrizations"),
        *((name, "batch norms folded in") for name in models.names()),
        ("densenet121", "renamed tensors"),
        ("vgg11", "kernels as matrices"),
    ],
)
def test_other_forms_of_the_held_out_family_are_read(
    name: str, form: str, images: Tensor, tmp_path: Path
) -> None:
    half = half_of(name)
    FILES[form](half, tmp_path / "copy")
    entry = "p000 (in order)" if form == "renamed tensors" else ""
    assert open_suspect(tmp_path / "copy", **stated(name)).entries == (entry,)
    assert read_alike(tmp_path / "copy", half, images, **stated(name)) == [entry]


# What a thief can store without names, in the order of the model.
SEQUENCES: dict[str, Callable[[models.Model], State]] = {
    "plain": floats,
    "folded": folded,
    "biased": biased,
    "length and direction": weight_normed,
    "kernels as vectors": lambda half: {name: tensor.flatten() for name, tensor in floats(half).items()},
    "statistics as images": lambda half: {
        name: tensor.view(1, -1, 1, 1) if tensor.ndim == 1 else tensor
        for name, tensor in floats(half).items()
    },
    "the whole model": lambda half: {**floats(half), "head": torch.zeros(10, 64), "rest": torch.zeros(64)},
    "scalars between": lambda half: {
        key: value
        for name, tensor in floats(half).items()
        for key, value in ((name, tensor), (f"{name} count", torch.zeros(3, 5, 7)))
    },
}


@pytest.mark.parametrize(("form", "name"), [*zip(SEQUENCES, 2 * models.names(), strict=True)])
def test_tensors_without_names_are_read_by_their_sizes_in_order(
    name: str, form: str, images: Tensor, tmp_path: Path
) -> None:
    half = half_of(name)
    state = renamed(SEQUENCES[form](half))
    torch.save(state, tmp_path / "copy.pt")
    assert read_alike(tmp_path / "copy.pt", half, images, **stated(name)) == ["p0 (in order)"]


def test_lists_of_parameters_and_of_buffers_are_read(images: Tensor, tmp_path: Path) -> None:
    """As libraries store averages of weights: {"shadow_params": […], "buffers": […]}."""
    half, content = half_of("resnet18"), {}
    content["shadow_params"] = [parameter.detach() for parameter in half.parameters()]
    content["buffers"] = list(half.buffers())
    torch.save(content, tmp_path / "average.pt")
    found = read_alike(tmp_path / "average.pt", half, images, **stated("resnet18"))
    assert found == ["shadow_params.0 (in order)"]


def test_tensors_without_names_are_sorted_by_the_numbers_in_them(images: Tensor, tmp_path: Path) -> None:
    """Safetensors are stored in the order of their names, 10 before 2."""
    half, entry = half_of("resnet18"), "p0 (by name)"
    save_file(renamed(folded(half)), tmp_path / "copy.safetensors")
    assert read_alike(tmp_path / "copy.safetensors", half, images, **stated("resnet18")) == [entry]
    chosen = open_suspect(tmp_path / "copy.safetensors", entry=entry, **stated("resnet18"))
    assert chosen.entries == (entry,)


def test_what_pytorch_stores_for_parametrised_and_pruned_layers_is_read(
    images: Tensor, tmp_path: Path
) -> None:
    half, plain = half_of("vgg11"), half_of("vgg11")
    convolutions = [layer for layer in half.modules() if isinstance(layer, nn.Conv2d)]
    for layer in convolutions[:2]:
        parametrizations.weight_norm(layer)
    for layer in convolutions[2:]:
        prune.l1_unstructured(layer, "weight", 0.5)  # type: ignore[no-untyped-call]
    torch.save(half.state_dict(), tmp_path / "copy.pt")
    assert read_alike(tmp_path / "copy.pt", half, images, **stated("vgg11")) == [""]
    assert not read_alike(tmp_path / "copy.pt", plain, images, **stated("vgg11"))


def test_a_bias_beside_a_batch_norm_is_read_with_and_without(images: Tensor, tmp_path: Path) -> None:
    """A loader may use it or not, and who made the file need not say."""
    half = half_of("resnet18")
    torch.save(biased(half), tmp_path / "used.pt")
    decoy = {**half.state_dict(), "conv1.bias": torch.full((4,), 100.0)}
    torch.save(decoy, tmp_path / "unused.pt")
    for file, entry in (("used", "(with biases)"), ("unused", "")):
        path = tmp_path / f"{file}.pt"
        assert read_alike(path, half, images, **stated("resnet18")) == [entry]
        assert open_suspect(path, **stated("resnet18")).entries == ("", "(with biases)")
        assert open_suspect(path, entry="(with biases)", **stated("resnet18")).entries == ("(with biases)",)


def test_stolen_weights_without_names_are_found_beside_a_stranger_with_names(
    images: Tensor, tmp_path: Path
) -> None:
    half, stranger = half_of("resnet18"), half_of("resnet18", seed=9)
    torch.save({**stranger.state_dict(), **renamed(folded(half))}, tmp_path / "copy.pt")
    suspect = open_suspect(tmp_path / "copy.pt", **stated("resnet18"))
    assert suspect.entries == ("", "p0 (in order)")
    assert read_alike(tmp_path / "copy.pt", half, images, **stated("resnet18")) == ["p0 (in order)"]


def test_each_reading_counts_as_a_try_and_is_named(tmp_path: Path) -> None:
    half = half_of("vgg11")
    shape = models.activation_shape(half, (3, 16, 16))
    key = Key.generate(
        "ACME", shape=shape, bits=64, seed=bytes(32), input_shape=(3, 16, 16), model="vgg11", **_of("vgg11")
    )
    both = renamed(floats(half)) | renamed(folded(half_of("vgg11", seed=5)), "q")
    torch.save(both, tmp_path / "copy.pt")
    report = verify(tmp_path / "copy.pt", key, register=1)
    assert report.tries == 2
    assert report.suspect.entries == ("p0 (in order)", "q0 (in order)")


def _of(name: str) -> dict[str, Any]:
    return {"width": 4, "cut": CUTS[name]}


def test_more_models_without_names_than_are_read_are_counted(tmp_path: Path) -> None:
    half = models.split(models.build("vgg11", width=4, seed=0), "stage2")[0]
    state = {f"{turn}.{number}": one for turn in range(20) for number, one in enumerate(_copies(half))}
    torch.save(state, tmp_path / "copy.pt")
    suspect = open_suspect(tmp_path / "copy.pt", architecture="vgg11", width=4, cut="stage2")
    assert len(suspect.entries) == entries.MAX_ENTRIES
    assert suspect.unread == 4


def _copies(half: models.Model) -> list[Tensor]:
    return [tensor.clone() for tensor in floats(half).values()]


@pytest.mark.parametrize("options", [{}, {"architecture": "resnet18"}, stated("resnet18")])
def test_what_is_no_known_model_in_any_form_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(8, 27), (8,), (16, 8, 3, 3), (16,), (4, 3, 3, 3), (4,), (4, 3, 3, 3), (108,), (768, 2304)]
    state = {f"layer{n}.weight_g": torch.randn(s, generator=generator) for n, s in enumerate(shapes)}
    torch.save(state | {"layer0.weight_v": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(SuspectError, match="holds 10 tensors"):
        open_suspect(tmp_path / "other.pt", **options)
