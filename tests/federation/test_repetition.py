"""Samples that are sent again: counted, told from the next local epoch, and refused on request."""

from __future__ import annotations

import pytest
import torch

from sigil.errors import RepetitionError
from sigil.federation.repetition import MEMORY, Repetitions, projection

SHAPE = (8, 4, 4)


def batch(seed: int, samples: int = 32) -> torch.Tensor:
    return torch.rand(samples, *SHAPE, generator=torch.Generator().manual_seed(seed))


def seen(**options: bool | int) -> Repetitions:
    return Repetitions(projection(torch.ones(3), 128), **options)  # type: ignore[arg-type]


def test_different_samples_are_no_repetitions() -> None:
    watch = seen()
    assert sum(watch.count(batch(number)) for number in range(300)) == 0


@pytest.mark.parametrize("noise", [0.0, 1e-6, 2e-3])
def test_copies_within_a_batch_are_counted(noise: float) -> None:
    copies = batch(0)
    copies[10:19] = copies[9]
    copies += noise * torch.randn(copies.shape, generator=torch.Generator().manual_seed(1))
    assert seen().count(copies) == 9


def test_a_batch_of_nothing_but_copies_is_counted() -> None:
    assert seen().count(batch(0)[:1].expand(16, *SHAPE)) == 15


def test_the_order_in_memory_does_not_matter() -> None:
    watch = seen()
    first = batch(0).to(memory_format=torch.channels_last)
    assert (watch.count(first), watch.count(first.clone(memory_format=torch.preserve_format))) == (0, 32)


def test_asking_every_batch_twice_is_counted_but_the_next_epoch_is_not() -> None:
    honest, twice = seen(epochs=2), seen(epochs=2)
    for _ in range(2):
        order = torch.randperm(160, generator=torch.Generator().manual_seed(0))
        for part in order.split(32):
            assert honest.count(batch(0, 160)[part]) == 0
    for number in range(5):
        twice.count(batch(number))
        twice.count(batch(number))
    assert honest.total == 0
    assert twice.total == 4 * 32  # one repeated batch is taken for the second epoch


def test_a_second_epoch_of_which_only_a_part_is_recognised_is_no_repetition() -> None:
    """Between two epochs the weights move, and some activations less than others."""
    watch = seen(epochs=2, refuse=True)
    order = torch.Generator().manual_seed(0)
    samples = batch(0, 160)
    for part in torch.randperm(160, generator=order).split(32):
        watch.count(samples[part])
    moved = samples + 0.1 * torch.randn(samples.shape, generator=order)
    moved[::4] = samples[::4]
    for part in torch.randperm(160, generator=order).split(32):
        watch.count(moved[part])
    assert watch.total <= 4


def test_a_natural_double_does_not_pass_for_the_next_epoch() -> None:
    watch = seen(epochs=2)
    watch.count(batch(0))
    double = batch(1)
    double[0] = batch(0)[5]
    assert watch.count(double) == 1
    assert watch.count(batch(0)) == 0  # the second epoch
    assert watch.count(batch(0)) == 32


def test_refusing_tolerates_a_few_doubles() -> None:
    watch = seen(refuse=True)
    few, many = batch(0), batch(1)
    few[1:3] = few[0]
    many[1:10] = many[0]
    assert watch.count(few) == 2
    with pytest.raises(RepetitionError, match=r"9 of the 32 samples .* sent before in this epoch"):
        watch.count(many)


def test_memory_is_bounded() -> None:
    watch = seen()
    for number in range(5):
        watch.count(batch(number, MEMORY // 4))
    assert len(watch._known) == MEMORY


def test_the_projection_follows_from_the_secret() -> None:
    one, other = torch.ones(3), torch.tensor([1.0, 1.0, 2.0])
    assert torch.equal(projection(one, 5), projection(one, 5))
    assert not torch.equal(projection(one, 5), projection(other, 5))
