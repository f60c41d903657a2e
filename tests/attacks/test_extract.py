"""Distillation into a fresh student."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from harness.luck import Margin
from sigil import attacks, models
from sigil.data import Dataset, Split
from sigil.errors import AttackError


def student(**options: Any) -> models.Model:
    return models.build("vgg11", **({"classes": 10, "width": 8, "channels": 1, "seed": 5} | options))


def test_the_student_answers_like_the_teacher_and_never_sees_a_label(
    accurate: Any, more_digits: Dataset, margin: Margin
) -> None:
    from dataclasses import replace

    images, labels = more_digits.train.images, more_digits.train.labels
    wrong = replace(more_digits, train=Split(images, np.zeros_like(labels)))
    fresh = student()
    taught = attacks.extract(accurate.whole, fresh, wrong, epochs=10, batch_size=32)
    teacher, before, after = (
        attacks.measure(m, data=more_digits).accuracy for m in (accurate.whole, fresh, taught)
    )
    assert teacher is not None
    assert before is not None
    assert after is not None
    margin("teacher's accuracy", teacher, above=0.7)
    margin("accuracy before", before, below=0.3)
    margin("accuracy after", after, above=0.55)


def test_another_architecture_and_the_form_of_the_student(marked: Any, digits: Dataset) -> None:
    pupil = models.split(models.build("resnet18", classes=10, width=4, channels=1, seed=1), "layer1")
    taught = attacks.extract(marked.halves, pupil, digits, epochs=1)
    assert isinstance(taught, tuple)
    assert [half.spec for half in taught] == [half.spec for half in pupil]
    assert not torch.equal(taught[0].state_dict()["conv1.weight"], pupil[0].state_dict()["conv1.weight"])


@pytest.mark.parametrize(
    ("change", "word"), [({"classes": 4}, "4 classes"), ({"channels": 3}, "3 image channels")]
)
def test_a_student_of_another_kind(marked: Any, digits: Dataset, change: dict[str, int], word: str) -> None:
    with pytest.raises(AttackError, match=word):
        attacks.extract(marked.whole, student(**change), digits)


def test_other_bad_input(marked: Any, digits: Dataset) -> None:
    from dataclasses import replace

    with pytest.raises(AttackError, match="temperature"):
        attacks.extract(marked.whole, student(), digits, temperature=0)
    with pytest.raises(AttackError, match="channels"):
        attacks.extract(marked.whole, student(), replace(digits, shape=(3, 8, 8)))


def test_a_substitute_server_half_leaves_the_client_half_as_it_is(
    accurate: Any, more_digits: Dataset, margin: Margin
) -> None:
    spec = accurate.whole.spec
    own, kept = models.split(accurate.whole, models.default_cut(spec.name))
    fresh = models.build(spec.name, classes=10, width=spec.width, channels=spec.channels, seed=9)
    _, other = models.split(fresh, models.default_cut(spec.name))
    start = own, other
    client_half, server_half = attacks.extract(
        accurate.whole, start, more_digits, epochs=5, batch_size=32, part="server"
    )
    torch.testing.assert_close(client_half.state_dict(), own.state_dict(), rtol=0, atol=0)
    before, after = (
        attacks.measure(pair, data=more_digits).accuracy for pair in (start, (client_half, server_half))
    )
    assert before is not None
    assert after is not None
    margin("accuracy before", before, below=0.3)
    margin("accuracy after", after, above=0.7)
    first = next(iter(server_half.parameters()))
    assert not torch.equal(first, next(iter(kept.parameters())))


def test_an_unknown_part_is_refused(accurate: Any, more_digits: Dataset) -> None:
    with pytest.raises(AttackError, match="part"):
        attacks.extract(accurate.whole, accurate.whole, more_digits, part="client")  # type: ignore[arg-type]
