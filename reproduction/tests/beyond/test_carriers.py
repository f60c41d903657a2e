"""Marks for research: the injected gradient is that of their loss, and carriers know nothing of the bits."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from sigil.attacks.read import over_positions
from sigil_reproduction.beyond.carriers import Kind, Mark

SHAPE = (8, 4, 4)
KINDS = {
    "random": Kind(bits=32),
    "channel-wise": Kind("channels", bits=32),
    "covariance": Kind("covariance", "before", bits=32, waits=1),
    "running centre": Kind("covariance", "running", bits=32, waits=1),
    "half gated": Kind(gated=0.5, bits=32),
    "level": Kind(bits=32, level=True),
}


def made(kind: Kind) -> Mark:
    mark = Mark(kind, SHAPE, clients=2, seed=0)
    if not mark.ready:
        draws = torch.Generator().manual_seed(1)
        for _ in range(40):
            mark.watch(torch.rand(2, *SHAPE, generator=draws))
        mark.measure()
    return mark


@pytest.mark.parametrize("name", KINDS)
def test_the_gradient_is_that_of_the_loss_at_the_wanted_strength(name: str) -> None:
    draws = torch.Generator().manual_seed(2)
    mark, activation = made(KINDS[name]), torch.rand(16, *SHAPE, generator=draws)
    main = torch.randn(16, *SHAPE, generator=draws)
    added = mark.inject(activation, main, client=1) - main
    assert torch.isclose(added.norm(), 0.3 * main.norm(), rtol=1e-4)
    flat = activation.flatten(1).requires_grad_()
    own = mark.carrier_of == 1
    # The running means begin with those of the first batch.
    means = (flat @ mark.matrix).mean(0).detach(), (flat @ mark.gate).mean(0).detach()
    centre = means[0] if mark.kind.centre == "running" else mark.centre
    rough = over_positions(flat.detach().mean(0).view(SHAPE)).flatten() if mark.kind.level else 0.0
    y, _ = mark.oriented(flat - rough, centre, means)
    loss = F.binary_cross_entropy_with_logits(y[:, own], mark.target[own].expand(16, -1))
    (expected,) = torch.autograd.grad(loss, flat)
    assert torch.cosine_similarity(added.flatten(), expected.flatten(), dim=0) > 0.9999


@pytest.mark.parametrize("name", KINDS)
def test_carriers_centres_and_gates_do_not_depend_on_the_bits(name: str) -> None:
    mark, other = made(KINDS[name]), Mark(KINDS[name], SHAPE, clients=2, seed=0)
    other.target = 1 - other.target
    if not other.ready:
        draws = torch.Generator().manual_seed(1)
        for _ in range(40):
            other.watch(torch.rand(2, *SHAPE, generator=draws))
        other.measure()
    for part in ("matrix", "centre", "gate", "gated", "carrier_of"):
        assert torch.equal(getattr(mark, part), getattr(other, part))


def test_the_channel_wise_carriers_are_constant_over_positions() -> None:
    maps = made(KINDS["channel-wise"]).matrix.unflatten(0, SHAPE)
    assert torch.equal(maps, maps[:, :1, :1].expand_as(maps))
