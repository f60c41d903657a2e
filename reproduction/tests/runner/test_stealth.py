"""What the stealth experiments share: the trainings they ask for, and live ones on small digits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from sigil.attacks.fsha import FSHA
from sigil.detectors import GradientScrutinizer, SplitGuard, SplitOut
from sigil_reproduction.paper import table5_adaptive as adaptive
from sigil_reproduction.runner import scales, stealth, watched_live
from sigil_reproduction.runner.experiment import Measured
from sigil_reproduction.runner.store import Cell, Result, Store

SMOKE = scales.get("smoke")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("stealth")
    return Store("smoke", results=folder / "results", runs=folder / "runs")


def test_recorded_trainings_are_those_of_other_experiments() -> None:
    wanted = {cell.trainings[0] for cell in adaptive.cells(scales.get("cpu"), [0])}
    own = {
        stealth.recorded(scales.get("cpu"), 0, "layer3", watermark) for watermark in stealth.MARKED.values()
    }
    assert own == wanted
    deeper = stealth.recorded(scales.get("cpu"), 0, "layer4", stealth.SERVERS["unclipped"])
    assert (deeper.model.cut, deeper.watermark.clip, deeper.record.clients) == ("layer4", False, (0,))


def test_a_training_of_the_papers_steps_is_asked_for_only_where_the_scale_has_one() -> None:
    assert stealth.PAPER_STEPS in stealth.settings_names(scales.get("cpu"))
    assert stealth.PAPER_STEPS not in stealth.settings_names(scales.get("paper"))
    assert stealth.recorded(scales.get("cpu"), 0, stealth.PAPER_STEPS, {}).federation.clients == 2


def test_an_honest_server_is_recorded_with_three_seeds_at_both_cuts() -> None:
    cpu = scales.get("cpu")
    asked = stealth.asked(cpu, [4])
    assert len(asked) == len(set(asked))
    assert {entry for entry in asked if entry[0] != 4} == {
        (seed, cut, "honest") for seed in (5, 6) for cut in stealth.CUTS
    }
    # Those who ask for three seeds get no more.
    assert set(stealth.asked(cpu, [4, 5, 6])) == {
        (seed, *rest) for seed in (4, 5, 6) for first, *rest in asked if first == 4
    }


def test_the_honest_band_reaches_from_the_lowest_to_the_highest_seed() -> None:
    def result(*scores: float) -> Result:
        rows = {"scored_step": [50, 100, 150][: len(scores)], "score": list(scores)}
        return Result("layer4 honest", 0, {}, {"splitout": {"curves": rows}})

    results = {
        ("layer4 honest", 0): result(0.5, 0.9, 0.7),
        ("layer4 honest", 1): result(0.6, 0.8),  # shorter by one score
        ("layer3 honest", 0): result(0.0, 0.0),
    }
    cells = [Cell("splitout", name, seed, ()) for name, seed in results]
    figure, (axis, other) = plt.subplots(1, 2)
    stealth.honest_band(axis, Measured(cells, results), "layer4", "splitout", times=10)
    corners = {tuple(corner) for corner in axis.collections[0].get_paths()[0].vertices.tolist()}
    assert corners == {(50, 5), (50, 6), (100, 8), (100, 9)}
    assert axis.get_legend_handles_labels()[1] == ["honest, 2 seeds"]
    stealth.honest_band(other, Measured(cells, results), "layer3", "splitout")
    assert not other.collections  # one seed is no band
    plt.close(figure)


@pytest.mark.parametrize(
    ("make", "limit", "clients", "expected"),
    [
        # Fifty, or as many as there are images.
        (stealth.splitout, 240, 2, 50),
        (stealth.splitout, 80, 4, 20),
        # At least ten. 20, 80 and 200 images per client: one, five and twelve full batches in an epoch.
        (stealth.splitout_by_batch, 80, 4, 10),
        (stealth.splitout_by_batch, 160, 2, 10),
        (stealth.splitout_by_batch, 400, 2, 12),
    ],
)
def test_how_many_local_gradients_splitout_has(
    store: Store, make: Callable[..., SplitOut], limit: int, clients: int, expected: int
) -> None:
    settings = SMOKE.settings(
        seed=0, data={"train_limit": limit}, federation={"clients": clients}, watermark={"strength": 0.0}
    )
    detector = make(settings, store.dataset(settings), amsgrad=True)
    assert detector.state_dict()["local"][0] == expected


def test_outliers_of_a_run_are_given_for_a_batch_of_256(store: Store) -> None:
    run = store.train(stealth.recorded(SMOKE, 0, "layer3", {"strength": 0.1}))
    detector = stealth.splitout(run.settings, store.dataset(run.settings), amsgrad=True)
    detector.replay(stealth.recording_of(run))
    share = sum(detector.curves["outliers"]) / sum(detector.curves["judged"])
    assert sum(detector.curves["judged"]) == 40  # two rounds over 20 images
    assert stealth.outliers_per_batch(run, store) == pytest.approx(256 * share)
    assert stealth.outliers_per_batch(run, store, batch=16) == pytest.approx(16 * share)


def test_fake_batches_are_hidden_from_the_other_detectors(store: Store) -> None:
    settings = SMOKE.settings(
        seed=0,
        data={"train_limit": 160},
        federation={"clients": 2, "rounds": 4},
        watermark={"strength": 0.0},
    )
    federation, (guard, scrutinizer, pooled, out, by_batch) = watched_live.watch(settings, store)
    assert isinstance(guard, SplitGuard)
    assert isinstance(scrutinizer, GradientScrutinizer)
    assert isinstance(pooled, stealth.PooledScrutinizer)
    assert isinstance(out, SplitOut)
    assert isinstance(by_batch, stealth.SplitOutByBatch)
    assert by_batch.curves["judged"] == [1] * by_batch.step
    assert guard.step == stealth.steps(settings, store.dataset(settings)) == 20
    assert len(guard.fakes) > 2
    assert scrutinizer.step == pooled.step == out.step == by_batch.step == guard.step - len(guard.fakes)
    assert scrutinizer.every == 2
    assert federation.round == 4


def test_pooled_batches_are_judged_as_one() -> None:
    random = torch.Generator().manual_seed(0)
    gradients = torch.randn(512, 6, generator=random)
    labels = torch.randint(10, (512,), generator=random)
    one, pooled = GradientScrutinizer(every=1), stealth.PooledScrutinizer(every=1)
    for start in range(0, 512, 256):
        one.update(gradients[start : start + 256], labels[start : start + 256])
    for start in range(0, 512, 16):
        pooled.update(gradients[start : start + 16], labels[start : start + 16])
    assert pooled.curves["scored_step"] == [32]  # the second 256 against the first
    for name in ("same", "different", "score"):
        assert pooled.curves[name] == pytest.approx(one.curves[name])


def attacker() -> FSHA:
    return FSHA(torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0)), (4, 4, 4), width=4)


def test_the_quality_of_a_perfect_and_of_a_blind_reconstruction() -> None:
    images = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    perfect = watched_live.quality(attacker(), images, images)
    assert perfect == {"error": 0.0, "nearest": 100.0, "chance": 10.0}
    average = attacker().public.mean(0).expand(10, -1, -1, -1)
    blind = watched_live.quality(attacker(), average, images)
    assert blind["error"] == pytest.approx(1.0)
    assert blind["nearest"] == pytest.approx(10.0)  # always the same image


def test_reconstruction_leaves_the_clients_half_as_it_is() -> None:
    half = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 4, stride=2, padding=1), torch.nn.BatchNorm2d(4)).eval()
    before = {name: value.clone() for name, value in half.state_dict().items()}
    seen = watched_live.reconstruct(attacker(), half, torch.rand(5, 1, 8, 8))
    assert seen.shape == (5, 1, 8, 8)
    torch.testing.assert_close(half.state_dict(), before, rtol=0, atol=0)


def test_public_images_are_normalised_like_the_clients(store: Store) -> None:
    settings = SMOKE.settings(seed=0, watermark={"strength": 0.0})
    dataset = store.dataset(settings)
    images = stealth.normalised(dataset, dataset.test.images[:3])
    expected = (np.asarray(dataset.test.images[:3]) / 255 - dataset.mean[0]) / dataset.std[0]
    np.testing.assert_allclose(images.numpy(), expected, atol=1e-5)
    made = watched_live.make_attacker(settings, dataset, strength=0.5)
    assert len(made.public) == len(dataset.test)
    assert made.strength == 0.5


def test_a_binned_curve_keeps_its_mean_and_is_short() -> None:
    assert stealth.binned([]) == []
    assert stealth.binned([1.0, 2.0]) == [1.0, 2.0]
    values = list(np.linspace(0, 1, 640))
    short = stealth.binned(values)
    assert len(short) == 64
    assert np.mean(short) == pytest.approx(0.5, abs=1e-3)


def test_a_sparse_recording_is_judged_at_the_clients_own_steps(store: Store) -> None:
    # 20 images in batches of 4 are five steps a round; every other one is kept, and the first round whole.
    settings = SMOKE.settings(
        seed=0,
        federation={"rounds": 3, "batch_size": 4},
        watermark={"strength": 0.0},
        record={"clients": [0], "share": 0.4, "whole_rounds": 1},
    )
    run = store.train(settings)

    class Loud(GradientScrutinizer):
        def look(self, rows: torch.Tensor, labels: torch.Tensor) -> float:
            return 0.0

    sparse, whole = (stealth.replayed(Loud(), run, store, whole=each) for each in (False, True))
    assert sparse["curves"]["scored_step"] == [3, 5, 8, 10, 13, 15]
    assert (sparse["first_alarm"], sparse["steps"]) == (3, 6)
    assert whole["curves"]["scored_step"] == [1, 2, 3, 4, 5]
    assert (whole["first_alarm"], whole["steps"]) == (1, 5)


def test_a_summary_is_small_and_says_what_happened(store: Store, tmp_path: Path) -> None:
    detector = SplitOut([torch.eye(10) / 10])
    for length in (0.0, 9.0, 9.0, 0.0):
        detector.update(length * torch.eye(10)[:4] / 4, torch.zeros(4, dtype=torch.int64))
    found = stealth.summary(detector)
    assert (found["alarm"], found["first_alarm"], found["suspicious"], found["outliers"]) == (True, 2, 50, 50)
    assert (found["lowest"], found["highest"], found["score"]) == (0.0, 1.0, 0.0)
    empty = stealth.summary(GradientScrutinizer())
    assert (empty["score"], empty["mean"], empty["alarm"]) == (None, None, False)
