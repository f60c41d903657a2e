from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sigil.errors import TrainingError
from sigil.federation.averaging import AverageKind, OrderedAverage, WeightedAverage, make_average


@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(-100, 100, width=32)), min_size=1, max_size=20))
def test_mean_is_weighted_by_samples(clients: list[tuple[int, float]]) -> None:
    average = WeightedAverage()
    for samples, value in clients:
        average.add({"weight": torch.full((3,), value)}, weight=samples)
    total = sum(samples for samples, _ in clients)
    want = sum(samples * value for samples, value in clients) / total
    assert average.result()["weight"].tolist() == pytest.approx([want] * 3, rel=1e-6, abs=1e-6)


def test_batch_norm_statistics_and_counters_are_averaged_in_their_own_dtype() -> None:
    average = WeightedAverage()
    norm = torch.nn.BatchNorm2d(2)
    for samples, mean, batches in ((1, 0.0, 10), (3, 8.0, 20)):
        state = norm.state_dict()
        state["running_mean"] = torch.full((2,), mean)
        state["num_batches_tracked"] = torch.tensor(batches)
        average.add(state, weight=samples)
    result = average.result()
    assert result["running_mean"].tolist() == [6.0, 6.0]
    assert result["num_batches_tracked"].dtype is torch.long
    assert int(result["num_batches_tracked"]) == 18
    norm.load_state_dict(result)


def test_merging_two_means_is_the_mean_of_all() -> None:
    generator = torch.Generator().manual_seed(0)
    states = [{"w": torch.randn(5, generator=generator)} for _ in range(6)]
    whole, left, right = WeightedAverage(), WeightedAverage(), WeightedAverage()
    for index, state in enumerate(states):
        whole.add(state, weight=index + 1)
        (left if index % 2 else right).add(state, weight=index + 1)
    empty = WeightedAverage()
    empty.merge(left)
    empty.merge(right)
    empty.merge(WeightedAverage())
    assert torch.allclose(empty.result()["w"], whole.result()["w"], rtol=1e-6)
    # Merging must not make the merged one an alias of its part.
    before = left.result()["w"].clone()
    empty.add({"w": torch.ones(5)}, weight=100)
    assert torch.equal(left.result()["w"], before)


def test_what_was_added_is_not_changed_and_not_kept() -> None:
    average = WeightedAverage()
    state = {"w": torch.ones(2)}
    average.add(state, weight=2)
    state["w"].zero_()
    average.add(state, weight=2)
    assert average.result()["w"].tolist() == [0.5, 0.5]


def test_nothing_or_different_halves_cannot_be_averaged() -> None:
    average = WeightedAverage()
    with pytest.raises(TrainingError, match="nothing to average"):
        average.result()
    average.add({"w": torch.ones(1)}, weight=1)
    with pytest.raises(TrainingError, match="different tensors"):
        average.add({"v": torch.ones(1)}, weight=1)


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=12),
    st.sampled_from(["trimmed-mean", "median"]),
    st.randoms(),
)
def test_an_ordered_average_is_the_mean_between_the_ends_in_any_order(
    values: list[float], kind: AverageKind, random: Random
) -> None:
    results = []
    for _ in range(2):
        average = make_average(kind, trim=0.2)
        for value in values:
            average.add({"w": torch.tensor([value])}, weight=random.randrange(1, 100))
        results.append(average.result()["w"])
        random.shuffle(values)
    assert torch.equal(*results)
    ordered, count = sorted(values), len(values)
    ends = min(max(count // 5, 1), (count - 1) // 2) if kind == "trimmed-mean" else (count - 1) // 2
    middle = ordered[ends : count - ends]
    assert results[0].item() == pytest.approx(sum(middle) / len(middle), rel=1e-5, abs=1e-5)


def test_two_clients_of_ten_cannot_carry_a_trimmed_mean_away() -> None:
    average = OrderedAverage(0.2)
    for client in range(10):
        average.add({"w": torch.tensor([1e30 if client < 2 else client / 10])}, weight=1)
    assert 0.2 <= average.result()["w"].item() <= 0.9


def test_an_ordered_average_keeps_counters_whole_and_merges_in_order() -> None:
    left, right = OrderedAverage(0.5), OrderedAverage(0.5)
    for position, count in enumerate((1, 5, 9, 20)):
        (left if position % 2 else right).add({"n": torch.tensor(count)}, weight=1)
    left.merge(right)
    result = left.result()["n"]
    assert result.dtype is torch.long
    assert int(result) == 7


def test_an_ordered_average_copies_what_it_keeps() -> None:
    average, state = OrderedAverage(0.5), {"w": torch.ones(2)}
    average.add(state, weight=1)
    state["w"].zero_()
    assert average.result()["w"].tolist() == [1.0, 1.0]
    with pytest.raises(TrainingError, match="different tensors"):
        average.add({"v": torch.ones(1)}, weight=1)
    with pytest.raises(TrainingError, match="nothing to average"):
        OrderedAverage(0.5).result()
