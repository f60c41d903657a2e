"""What a key derives beside M and b: probes, choices, shares and initial weights."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest
import scipy  # loads scipy.stats, which takes a second, only where it is used
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sigil import models
from sigil.errors import ConfigError, ShapeError
from sigil.keys.draws import KeyStream
from sigil.keys.key import Key


def make(number: int = 0, **changes: Any) -> Key:
    seed = number.to_bytes(32, "big")
    return Key.generate(**{"owner": "ACME", "shape": (8, 4, 4), "bits": 60, "seed": seed} | changes)


# Noise probes.


@given(st.integers(0, 40), st.integers(0, 40))
def test_probes_are_the_same_whatever_part_is_asked_for(first: int, second: int) -> None:
    start, stop = sorted((first, second))
    whole = make().noise_probes(0, 40, (3, 4, 5))
    assert torch.equal(make().noise_probes(start, stop, (3, 4, 5)), whole[start:stop])


def test_probes_are_standard_normal_and_the_keys_own() -> None:
    probes = make().noise_probes(0, 256, (3, 16, 16))
    assert probes.dtype == torch.float32
    assert probes.shape == (256, 3, 16, 16)
    assert scipy.stats.kstest(probes.double().numpy().ravel(), "norm").pvalue > 1e-3
    assert (probes != make(1).noise_probes(0, 256, (3, 16, 16))).float().mean() > 0.99
    assert not torch.equal(probes[0].flatten()[:60], make().matrix[0])


def test_probes_of_the_stated_shape() -> None:
    key = make(input_shape=(1, 8, 8))
    assert torch.equal(key.noise_probes(0, 2), key.noise_probes(0, 2, (1, 8, 8)))
    with pytest.raises(ConfigError, match="states no input shape"):
        make().noise_probes(0, 2)
    with pytest.raises(ConfigError, match="input shape"):
        key.noise_probes(0, 2, (0,))
    with pytest.raises(ShapeError, match="Probes 3 to 2"):
        key.noise_probes(3, 2)


# Choices.


@given(st.integers(0, 300), st.integers(0, 300))
def test_choices_are_different_and_in_range(first: int, second: int) -> None:
    count, population = sorted((first, second))
    chosen = make().choose(count, population).tolist()
    assert len(chosen) == len(set(chosen)) == count
    assert all(0 <= index < population for index in chosen)


def test_a_longer_choice_begins_with_the_shorter_one() -> None:
    assert make().choose(50, 60_000).tolist() == make().choose(90, 60_000).tolist()[:50]
    assert make().choose(9, 10**12).tolist() != make().choose(9, 10**12, "inputs/test").tolist()


def test_every_choice_is_equally_likely() -> None:
    counts = Counter(tuple(make(number).choose(2, 4).tolist()) for number in range(2_400))
    assert len(counts) == 12
    assert scipy.stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_words_that_would_favour_small_numbers_are_skipped() -> None:
    class Words(KeyStream):
        def words(self, start: int, count: int) -> Any:
            return np.array([2**64 - 1, 5, 2], dtype=np.uint64)

    assert Words(bytes(32)).choose(1, 3) == [2]  # 2**64 - 1 is a multiple of 3, past the last full turn


@pytest.mark.parametrize(
    ("count", "population", "purpose"),
    [(3, 2, "inputs"), (-1, 2, "inputs"), (1, 2**60, "inputs"), (1, 2, "target")],
)
def test_impossible_choices_are_refused(count: int, population: int, purpose: str) -> None:
    with pytest.raises(ConfigError):
        make().choose(count, population, purpose)


# Shares.


@given(st.data())
def test_every_bit_is_carried_as_often_and_clients_carry_alike(data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, 12))
    carriers = data.draw(st.integers(1, clients))
    key = make(bits=data.draw(st.integers(1, 80)))
    masks = torch.stack([key.share_of(client, clients, carriers) for client in range(clients)])
    assert masks.dtype == torch.bool
    assert (masks.sum(dim=0) == carriers).all()
    loads = masks.sum(dim=1)
    assert loads.max() - loads.min() <= 1


def test_no_two_clients_carry_the_same_bits() -> None:
    """A cyclic rule would give pairs of clients identical shares, which is one share less to collect."""
    key = make(bits=128)
    masks = torch.stack([key.share_of(client, 10, 2) for client in range(10)]).double()
    common = masks @ masks.T
    assert common.fill_diagonal_(0).max() < 12  # 2.8 are expected


def test_shares_as_stated() -> None:
    key = make(scheme="shares", carriers_per_bit=3)
    assert key.fields.share_rule == "balanced-3"
    assert torch.equal(key.share_of(1, 6), key.share_of(1, 6, 3))
    with pytest.raises(ConfigError, match="states 3 carriers"):
        key.share_of(1, 6, 2)
    for client, clients, carriers in ((6, 6, 3), (-1, 6, 3), (0, 2, 3), (0, 5_000, 3)):
        with pytest.raises(ConfigError, match="is impossible"):
            key.share_of(client, clients, carriers)


# Initial weights.


def test_a_model_gets_the_weights_of_its_names() -> None:
    key = make()
    model = models.build("resnet18", width=4, seed=1)
    names = key.initialise(model)
    state = model.state_dict()
    assert set(names) == {name for name, tensor in state.items() if tensor.dim() >= 2}
    for name in names:
        assert torch.equal(state[name], key.initial(name, state[name].shape))
    other = models.build("resnet18", width=4, seed=2)
    key.initialise(other)
    assert all(torch.equal(a, b) for a, b in zip(state.values(), other.state_dict().values(), strict=True))


def test_halves_get_the_weights_of_the_whole() -> None:
    whole = models.build("resnet18", width=4)
    client, server = models.split(copy.deepcopy(whole), "layer2")
    for module in (whole, client, server):
        make().initialise(module)
    parts = client.state_dict() | server.state_dict()
    assert parts.keys() == whole.state_dict().keys()
    assert all(torch.equal(parts[name], tensor) for name, tensor in whole.state_dict().items())


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "mobilenetv2", "densenet121"])
def test_weights_are_spread_as_the_models_own(name: str) -> None:
    drawn, usual = (models.build(name, width=8, seed=0) for _ in range(2))
    make().initialise(drawn)
    biases = {name for name, layer in drawn.named_modules() if isinstance(layer, nn.Linear)}
    for (path, new), old in zip(drawn.state_dict().items(), usual.state_dict().values(), strict=True):
        if new.dim() >= 2 and new.numel() > 2_000:
            assert new.std() == pytest.approx(old.std().item(), rel=0.1), path
            assert abs((new > 0).double().mean().item() - 0.5) < 4 * 0.5 / new.numel() ** 0.5, path
        elif new.dim() < 2 and path.rpartition(".")[0] not in biases:
            assert torch.equal(new, old), path  # ones and zeros, as usual


def test_every_eighth_entry_is_drawn_like_the_rest() -> None:
    for shape in ((64, 32, 3, 3), (64, 128)):
        entries = make().initial("a.weight", shape).flatten()
        assert (entries[7::8] != 0).all()
        assert (entries != 0).all()
        assert entries[7::8].std() == pytest.approx(entries.std().item(), rel=0.05)


def test_layers_of_all_kinds() -> None:
    shared = nn.Linear(6, 6)
    module = nn.Sequential(
        nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), shared, shared, nn.LayerNorm(6), nn.ConvTranspose2d(2, 2, 2)
    ).to(torch.bfloat16)
    module[1].running_mean.fill_(5)
    make().initialise(module)
    assert module[0].bias is not None
    assert (module[0].bias == 0).all()
    assert (module[1].running_mean == 0).all()
    assert torch.equal(module[2].weight, make().initial("2.weight", (6, 6)).to(torch.bfloat16))
    assert make().initialise(module) == ("0.weight", "2.weight", "5.weight")


def test_initial_weights_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="no convolution and no linear"):
        make().initialise(nn.ReLU())
    for shape in ((3,), (), (0, 3), (2**20, 2**20)):
        with pytest.raises(ConfigError, match="two axes"):
            make().initial("a.weight", shape)
    with pytest.raises(ConfigError, match="states no initial weights"):
        make(initialiser=None).initial("a.weight", (2, 2))
