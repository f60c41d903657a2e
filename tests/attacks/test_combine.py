"""Combination in a live training: the task cancels, and what is recorded is the mark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.luck import Margin
from sigil.attacks import Combine
from sigil.attacks.combine import Way
from sigil.data import Dataset
from sigil.errors import AttackError, LossError
from sigil.federation.federation import Federation
from sigil.federation.observers import Step
from sigil.federation.recording import GradientRecorder, Recording
from sigil.federation.settings import make
from sigil.keys.key import Key
from sigil.logit_gradients import check_logit_gradient

SHAPE = (8, 2, 2)
WAYS: tuple[Way, ...] = ("answers", "labels", "gradients")


def settings(*, width: int = 4, **changes: Any) -> Any:
    return make(
        {
            "model": {"name": "vgg11", "width": width, "cut": "pool2"},
            "federation": {"clients": 2, "rounds": 1, "local_epochs": 2, "batch_size": 24} | changes,
            "optimizer": {"warmup_rounds": 0, "lr": 0.01},
            "watermark": {"strength": 0.1},
            # What is left where the task cancels is smaller than what bfloat16 rounds off the task.
            "run": {"workers": 1, "precision": "float32"},
        }
    )


@pytest.mark.parametrize(("way", "size", "least"), [("answers", 64, 0.4), ("gradients", 24, 0.99)])
def test_what_is_recorded_lies_in_the_span_of_the_key(
    more_digits: Dataset, tmp_path: Path, margin: Margin, way: Any, size: int, least: float
) -> None:
    # Eight bits, as of a few bits all may be right by chance, and then there is no mark to record.
    shape = (32, 2, 2)
    key = Key.generate("ACME", shape=shape, bits=8, seed=bytes(32))
    asking = Combine(tmp_path / "combined", shape, classes=10, way=way, every=2)
    plain = GradientRecorder(tmp_path / "plain", shape, clients=[1])
    # A server that judges the loss refuses weighted gradients, as the next test shows.
    made = settings(width=16, batch_size=size, loss="any" if way == "gradients" else "cross-entropy")
    Federation(made, more_digits, key=key, client_observers=[asking, plain]).run_round()
    asking.close()
    plain.close()
    basis = torch.linalg.qr(key.matrix)[0]

    def inside(folder: str) -> float:
        """The share of the gradients' energy in the span of M; 8/128 by chance."""
        rows = torch.from_numpy(Recording(tmp_path / folder).gradients.copy())
        return float((rows @ basis).square().sum() / rows.square().sum())

    recorded = Recording(tmp_path / "combined")
    assert recorded.gradients.shape == (size // 10 * len(recorded), 128)
    assert [step.at.step % 2 for step in recorded.steps()] == [0] * len(recorded)
    margin("inside the span", inside("combined"), above=least)
    margin("inside by chance", inside("plain"), below=0.15)


def test_the_check_of_the_loss_refuses_weighted_gradients_alone(tmp_path: Path) -> None:
    logits = torch.randn(20, 10, generator=torch.Generator().manual_seed(0)).requires_grad_()
    at = Step(1, 0, 1)
    for way in WAYS:
        asking = Combine(tmp_path / way, SHAPE, classes=10, way=way, every=1)
        _, labels = asking.on_batch(at, torch.zeros(20, 1, 8, 8), torch.zeros(20, dtype=torch.long))
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels), logits)
        sent = asking.on_logit_gradient(at, gradient, logits=logits.detach(), labels=labels)
        assert sent.dtype == gradient.dtype
        if way == "gradients":
            with pytest.raises(LossError):
                check_logit_gradient(logits.detach(), sent)
        else:
            check_logit_gradient(logits.detach(), sent)


def test_drawn_labels_have_the_shares_of_the_softmax(tmp_path: Path) -> None:
    asking = Combine(tmp_path, SHAPE, classes=4, way="labels", copies=40, every=1)
    at = Step(1, 0, 1)
    softmax = torch.tensor([0.5, 0.25, 0.2, 0.05])
    logits = softmax.log().expand(40, -1)
    labels = torch.zeros(40, dtype=torch.long)
    sent = asking.on_logit_gradient(at, torch.zeros(40, 4), logits=logits, labels=labels)
    counts = (softmax - 40 * sent).round().sum(0)
    assert (counts - 40 * softmax).abs().max() < 1
    assert float(counts.sum()) == 40


def test_without_batch_norm_the_task_cancels_exactly(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    server = torch.randn(5, 32, generator=generator)
    asking = Combine(tmp_path, SHAPE, classes=5, every=1)
    at = Step(1, 0, 1)
    images, labels = asking.on_batch(at, torch.randn(12, 1, 8, 8, generator=generator), torch.arange(12) % 5)
    assert images.shape == (10, 1, 8, 8)
    assert torch.equal(images[0], images[4])
    assert labels.tolist() == [*range(5), *range(5)]
    activation = images.flatten(1)[:, :32]
    logits = (activation @ server.mT).requires_grad_()
    (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels), logits)
    assert asking.on_logit_gradient(at, gradient, logits=logits.detach(), labels=labels) is gradient
    mark = torch.randn(32, generator=generator)
    answer = (gradient @ server + mark).view(-1, *SHAPE)
    assert asking.on_gradient_received(at, answer, labels) is None
    asking.on_round_end(1)
    asking.close()
    rows = torch.from_numpy(Recording(tmp_path).gradients.copy())
    torch.testing.assert_close(rows, mark.expand(2, -1), rtol=1e-4, atol=1e-4)


def test_other_steps_and_clients_train_as_ever(tmp_path: Path) -> None:
    asking = Combine(tmp_path, SHAPE, classes=10, client=1, every=3)
    images, labels, answer = torch.randn(20, 1, 8, 8), torch.zeros(20, dtype=torch.long), torch.randn(20, 32)
    for at in (Step(1, 0, 3), Step(1, 1, 2)):
        assert asking.on_batch(at, images, labels) == (images, labels)
        assert asking.on_gradient_received(at, answer, labels) is answer


def test_a_recording_is_gone_on_with(tmp_path: Path) -> None:
    first, second = (Combine(tmp_path, SHAPE, classes=10) for _ in range(2))
    first.recorder.rows = 7
    second.load_state_dict(first.state_dict())
    assert second.recorder.rows == 7


def test_bad_input(more_digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(AttackError, match="classes"):
        Combine(tmp_path, SHAPE, classes=1)
    with pytest.raises(AttackError, match="every"):
        Combine(tmp_path, SHAPE, classes=10, every=0)
    with pytest.raises(AttackError, match="each label"):
        Combine(tmp_path, SHAPE, classes=10, copies=5)
    bad: Any = "sums"
    with pytest.raises(AttackError, match="sums"):
        Combine(tmp_path, SHAPE, classes=10, way=bad)
    key = Key.generate("ACME", shape=SHAPE, bits=2, seed=bytes(32))
    asking = Combine(tmp_path, SHAPE, classes=10)
    small = settings(batch_size=8)
    with pytest.raises(AttackError, match="no room"):
        Federation(small, more_digits, key=key, client_observers=[asking]).run_round()
