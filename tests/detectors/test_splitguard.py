"""SplitGuard: the score by hand, and the fake batches as a client sends them."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sigil.detectors import SplitGuard
from sigil.detectors.splitguard import Gathered, by_class, comparison, guard_score
from sigil.errors import DetectorError
from sigil.federation import Client, LabelServer, Recording, Server, Step, step
from sigil.federation.precision import Precision
from sigil.federation.recording import GradientRecorder
from sigil.federation.step import step_with_labels

CPU = Precision(torch.device("cpu"), bfloat16=False)
LABELS = torch.tensor([0, 1, 2, 3])


def gathered(*vectors: tuple[float, float]) -> Gathered:
    group = Gathered()
    for vector in vectors:
        group.add(np.array(vector, np.float32))
    return group


def test_the_score_by_hand() -> None:
    fake = gathered((0, 2), (0, 4))  # mean norm 3, mean (0, 3)
    first = gathered((1, 0), (3, 0))  # 2, (2, 0)
    second = gathered((0, 1))  # 1, (0, 1); all three regular ones: (4/3, 1/3)
    published = comparison(fake, first, second)  # half of each group: (1, 1/2)
    assert published["fake_angle"] == pytest.approx(math.atan(2))
    terms = comparison(fake, first, second, by_count=True)
    assert published == {**terms, "fake_angle": published["fake_angle"]}
    assert terms == pytest.approx(
        {
            "fake_angle": math.atan(4),
            "fake_distance": 1.5,
            "regular_angle": math.pi / 2,
            "regular_distance": 1.0,
        }
    )
    # x = (1.325818 · 1.5 − 1.570796 · 1) / 2.5 = 0.167172
    assert guard_score(**terms) == pytest.approx((1 / (1 + math.exp(-5 * 0.167172))) ** 2, abs=1e-6)


def test_a_batch_is_the_sums_over_its_classes() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    vector = by_class(rows, torch.tensor([1, 0, 1]), groups=3)
    assert vector.tolist() == [3.0, 4.0, 6.0, 8.0, 0.0, 0.0]
    shared = by_class(rows, torch.tensor([0, 199, 183]), groups=16).reshape(16, 2)  # of 200 classes
    assert shared[7].tolist() == [8.0, 10.0]


def test_a_common_shift_does_not_hide_what_the_labels_do() -> None:
    # A server half that begins with batch norm: the gradients of a batch sum to zero.
    torch.manual_seed(0)
    server = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4))
    activation = torch.randn(32, 6, requires_grad=True)
    labels = torch.arange(32) % 4
    nn.functional.cross_entropy(server(activation), labels).backward()
    assert activation.grad is not None
    assert float(activation.grad.sum(0).norm()) < 1e-6
    assert np.linalg.norm(by_class(activation.grad, labels, groups=4)) > 1e-2


def test_the_score_at_its_ends() -> None:
    assert guard_score(math.pi, 1.0, 0.0, 0.0) == pytest.approx((1 / (1 + math.exp(-5 * math.pi))) ** 2)
    assert guard_score(0.0, 0.0, math.pi, 1.0) == pytest.approx(0.0, abs=1e-9)
    assert guard_score(1.0, 0.0, 1.0, 0.0) == 0.25  # nothing to compare: x = 0
    assert comparison(gathered((0, 0)), gathered((1, 0)), gathered((1, 0)))["fake_angle"] == 0.0


def feed(detector: SplitGuard, *, scale: float = 1.0, react: bool = True, batches: int = 300) -> SplitGuard:
    """Gradients of one direction; to every tenth batch, a fake one, the server reacts or does not."""
    random = torch.Generator().manual_seed(0)
    for number in range(batches):
        fake = number >= detector.warmup and number % 10 == 0
        rows = 0.2 * torch.randn(4, 6, generator=random)
        rows[:, 0] += 1.0
        if fake and react:
            rows = 3 * rows.roll(1, dims=1)
        detector.update(scale * rows, LABELS, fake=fake)
    return detector


def test_a_server_that_reacts_to_wrong_labels_is_honest_and_one_that_does_not_is_not() -> None:
    honest, blind = feed(SplitGuard(4)), feed(SplitGuard(4), react=False)
    assert honest.score is not None
    assert honest.score > 0.95
    assert not honest.alarm
    assert blind.score is not None
    assert blind.score < 0.4
    assert blind.alarm
    # The first fake batch is number 21, and there must be ten scores.
    assert blind.first_alarm is not None
    assert blind.first_alarm == blind.curves["scored_step"][9]


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_the_scale_of_the_gradients_does_not_matter(scale: float) -> None:
    plain, scaled = feed(SplitGuard(4)), feed(SplitGuard(4), scale=scale)
    assert scaled.curves["score"] == pytest.approx(plain.curves["score"], rel=1e-4)


def test_gradients_of_the_warm_up_are_not_gathered() -> None:
    detector = SplitGuard(4, warmup=5)
    for _ in range(5):
        detector.update(1000 * torch.ones(4, 6), LABELS)
    assert json.loads(json.dumps(detector.state_dict()))["gathered"][1]["count"] == 0
    feed(detector, batches=50)
    assert detector.curves["regular_distance"][-1] < 10


def test_a_gradient_that_is_not_finite_is_left_out() -> None:
    detector = SplitGuard(4, warmup=0)
    detector.update(torch.full((4, 6), math.nan), LABELS, fake=True)
    assert feed(detector).curves["score"] == pytest.approx(
        feed(SplitGuard(4, warmup=0)).curves["score"], abs=0.05
    )


def steps(count: int, client: int = 0) -> list[Step]:
    return [Step(1 + number // 50, client, 1 + number % 50) for number in range(count)]


def test_labels_are_shifted_by_one_offset_after_the_warm_up_and_now_and_then() -> None:
    detector = SplitGuard(4)
    offsets = []
    for number, at in enumerate(steps(2000)):
        shifted = detector.on_labels(at, LABELS)
        (offset,) = set(((shifted - LABELS) % 4).tolist())  # the same for all samples
        assert set(shifted.tolist()) <= {0, 1, 2, 3}
        offsets.append(offset)
        fake = offset != 0
        assert (number >= 21) or not fake
        gradient = torch.ones(4, 6)
        assert (detector.on_gradient_received(at, gradient, shifted) is None) == fake
    assert 150 < np.count_nonzero(offsets) < 250
    counts = np.bincount(offsets)[1:]
    assert len(counts) == 3
    assert counts.min() > 40
    assert detector.fakes == {m: offset for m, offset in zip(steps(2000), offsets, strict=True) if offset}


def test_which_batches_are_fake_follows_from_the_seed_and_the_moment() -> None:
    def plan(seed: int) -> list[int]:
        detector = SplitGuard(4, seed=seed, warmup=0)
        return [detector.offset(at) for at in steps(200)]

    assert plan(1) == plan(1) != plan(2)
    whole = SplitGuard(4, seed=1, warmup=0)
    assert plan(1)[150:] == [whole.offset(at) for at in steps(200)[150:]]


def test_other_clients_are_left_alone() -> None:
    detector = SplitGuard(4, probability=1.0, warmup=0, client=1)
    at, gradient = Step(1, 0, 1), torch.ones(4, 6)
    assert detector.on_labels(at, LABELS) is LABELS
    assert detector.on_gradient_received(at, gradient, LABELS) is gradient
    assert detector.step == 0


def parties(detector: SplitGuard, *, recorder: GradientRecorder | None = None) -> tuple[Client, Server]:
    torch.manual_seed(0)
    client_half = nn.Sequential(nn.Linear(5, 6), nn.ReLU())
    server_half = nn.Linear(6, 4)
    observers = [detector] if recorder is None else [recorder, detector]
    client = Client(
        0, client_half, torch.optim.SGD(client_half.parameters(), lr=0.1), precision=CPU, observers=observers
    )
    optimizer = torch.optim.SGD(server_half.parameters(), lr=0.1)
    return client, LabelServer(server_half, optimizer, shape=(6,), precision=CPU)


def test_the_client_does_not_learn_from_a_fake_batch() -> None:
    client, server = parties(SplitGuard(4, probability=1.0, warmup=1))
    images = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    states = []
    for at in steps(3):
        step(client, server, images, LABELS, at=at)
        states.append(copy.deepcopy(client.half.state_dict()))
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    torch.testing.assert_close(states[0], states[2], rtol=0, atol=0)


def test_where_the_server_holds_the_labels_it_says_that_it_cannot_work() -> None:
    client, server = parties(SplitGuard(4))
    assert isinstance(server, LabelServer)
    with pytest.raises(DetectorError, match=r"federation\.mode=usfl"):
        step_with_labels(client, server, torch.randn(4, 5), LABELS, at=Step(1, 0, 1))


def test_a_replay_needs_recorded_fake_batches_and_then_is_the_same(tmp_path: Path) -> None:
    live = SplitGuard(4, probability=0.3, warmup=2, window=2)
    recorder = GradientRecorder(
        tmp_path, (6,), clients=[0]
    )  # before SplitGuard, which withholds fake batches
    client, server = parties(live, recorder=recorder)
    images = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    for at in steps(40):
        step(client, server, images, LABELS, at=at)
    recorder.on_round_end(1)
    recorder.close()
    assert len(live.curves["score"]) > 5
    recording = Recording(tmp_path)
    with pytest.raises(DetectorError, match=r"cannot judge a recording afterwards.*client observer"):
        SplitGuard(4).replay(recording)
    again = SplitGuard(4, probability=0.3, warmup=2, window=2).replay(recording, fakes=live.fakes)
    assert again.curves == live.curves


def test_an_interrupted_one_goes_on_exactly() -> None:
    whole, first, second = (SplitGuard(4, probability=0.3, warmup=2, window=2) for _ in range(3))
    random = torch.Generator().manual_seed(0)
    gradients = [torch.randn(4, 6, generator=random) for _ in range(60)]

    def run(detector: SplitGuard, start: int, stop: int) -> None:
        for at, gradient in list(zip(steps(60), gradients, strict=True))[start:stop]:
            labels = detector.on_labels(at, LABELS)
            detector.on_gradient_received(at, gradient, labels)

    run(whole, 0, 60)
    run(first, 0, 31)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    run(second, 31, 60)
    assert second.state_dict() == whole.state_dict()
    assert len(whole.curves["score"]) > 5


def test_one_class_cannot_be_shifted() -> None:
    with pytest.raises(DetectorError, match="at least 2"):
        SplitGuard(1)
