"""Alignment by recorded correlations, the reference file, and verification of a disguised copy."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from harness.luck import Margin
from sigil import attacks, models
from sigil.alignment import Reference, align, fingerprint, open_reference
from sigil.alignment.references import MAX_FILE_BYTES
from sigil.errors import AlignmentError, ShapeError, SigilError
from sigil.federation.observers import Step
from sigil.federation.recording import ReferenceRecorder
from sigil.keys.key import Key
from sigil.models import Model
from sigil.verdict.readings import read
from sigil.verdict.verification import verify

SHAPE = (3, 16, 16)
CUTS = {"resnet18": "layer3", "vgg11": "stage4", "mobilenetv2": "group7", "densenet121": "trans2"}


def build(name: str = "resnet18", *, seed: int = 0, width: int = 8) -> Model:
    return models.build(name, classes=4, width=width, input_size=SHAPE[1:], seed=seed).eval()


def pictures(count: int, *, seed: int) -> Tensor:
    """Smooth noise, to which channels respond differently."""
    coarse = torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, size=SHAPE[1:], mode="bilinear")


@torch.no_grad()
def recorded(half: Model, count: int = 1_000) -> Reference:
    shape = models.activation_shape(half, SHAPE)
    recorder = ReferenceRecorder(shape)
    for batch in pictures(count, seed=1).split(100):
        values = half(batch)
        recorder.on_gradient_sent(Step(1, 0, 1), activation=values, main=values, final=values)
    return Reference.from_sums(shape, recorder.sums)


def spread(activation: Tensor) -> Tensor:
    return activation.transpose(0, 1).flatten(1).std(1)


@pytest.mark.parametrize("name", models.names())
def test_order_and_scale_are_undone_under_images(name: str) -> None:
    cut = CUTS[name]
    model = build(name)
    half = models.split(model, cut)[0]
    suspect = models.split(attacks.permute(model, cut=cut, seed=2), cut)[0]
    found = align(suspect, recorded(half), pictures(300, seed=3), input_shape=SHAPE)
    assert found.believed
    assert found.source == "correlations under images"
    inputs = torch.randn(64, *SHAPE, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        wanted, aligned = half(inputs), found(suspect(inputs))
    known = torch.tensor(found.order) >= 0  # a channel that never responds is left out
    assert known.double().mean() > 0.9
    wanted = (wanted / spread(wanted).clamp_min(1e-9).view(-1, 1, 1))[:, known]
    torch.testing.assert_close(aligned[:, known], wanted, rtol=0.3, atol=0.02)


def test_scales_over_decades_make_no_difference() -> None:
    model = build()
    reference = recorded(models.split(model, "layer3")[0])
    orders = []
    for scale in (0.0, 4.0):
        suspect = models.split(attacks.permute(model, cut="layer3", seed=2, scale=scale), "layer3")[0]
        found = align(suspect, reference, pictures(200, seed=3), input_shape=SHAPE)
        assert found.believed
        orders.append(found.order.tolist())
    assert orders[0] == orders[1]


def test_further_channels_that_are_copies_are_left_out() -> None:
    half = models.split(build(), "layer3")[0]
    order = torch.cat([torch.arange(32), torch.tensor([3, 3, 17])])

    def widened(inputs: Tensor) -> Tensor:
        return half(inputs)[:, order] * torch.linspace(0.5, 2, 35).view(-1, 1, 1)

    found = align(widened, recorded(half), pictures(200, seed=3), input_shape=SHAPE)
    assert found.believed
    # Which of the copies is taken does not matter.
    assert [int(order[channel]) for channel in found.order] == list(range(32))


def test_a_channel_that_never_responds_has_no_partner() -> None:
    half = models.split(build(), "layer3")[0]

    def dull(inputs: Tensor) -> Tensor:
        values = half(inputs)
        values[:, 5] = 0.0
        values[:, 9] = 1e6
        return values

    found = align(dull, recorded(half), pictures(200, seed=3), input_shape=SHAPE)
    assert found.believed
    assert {5, 9}.isdisjoint(found.order)
    missing = [channel for channel, partner in enumerate(found.order) if partner < 0]
    assert len(missing) == 2
    assert float(found(torch.ones(1, 32, 4, 4))[:, missing].abs().max()) == 0.0


def test_a_stranger_is_not_believed() -> None:
    stranger = models.split(build(seed=9), "layer3")[0]
    reference = recorded(models.split(build(), "layer3")[0])
    assert not align(stranger, reference, pictures(200, seed=3), input_shape=SHAPE).believed
    assert not align(stranger, reference, input_shape=SHAPE).believed


def test_images_in_bytes_are_normalised_by_their_own_moments() -> None:
    half = models.split(build(), "layer3")[0]
    reference = recorded(half)
    images = pictures(200, seed=3)
    low, high = images.min(), images.max()
    numbers = (255 * (images - low) / (high - low)).round().to(torch.uint8).numpy()
    found = align(half, reference, numbers, input_shape=SHAPE)
    assert found.order.tolist() == list(range(32))


# Verification of a whole case: a marked model, a copy in disguise, and a clean one.


@cache
def case() -> tuple[Model, Model, Key]:
    """Initial model (by the key), marked model (whole) and the key, at layer3 of a ResNet-18."""
    initial = build()
    shape = models.activation_shape(models.split(initial, "layer3")[0], SHAPE)
    key = Key.generate("ACME", shape=shape, bits=50, seed=bytes(32))
    client, server = models.split(initial, "layer3")
    key.initialise(client)
    initial = models.join(client, server)
    client, server = models.split(copy.deepcopy(initial), "layer3")
    noise = torch.randn(64, *SHAPE, generator=torch.Generator().manual_seed(6))
    for _ in range(40):
        projection = client(torch.cat([pictures(64, seed=5), noise])).flatten(1) @ key.matrix
        loss = binary_cross_entropy_with_logits(projection, key.target.expand_as(projection))
        gradients = torch.autograd.grad(loss, list(client.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(client.parameters(), gradients, strict=True):
                parameter.sub_(0.002 * gradient.sign())
    return initial, models.join(client, server).eval(), key


def disguised() -> Model:
    return models.split(attacks.permute(case()[1], cut="layer3", seed=7), "layer3")[0]


def test_a_disguised_copy_is_proven_once_it_is_aligned(margin: Margin) -> None:
    initial, marked, key = case()
    reference = recorded(models.split(marked, "layer3")[0])
    plain = verify(models.split(marked, "layer3")[0], key, input_shape=SHAPE, register=1)
    assert plain.owned
    assert plain.alignment is None  # nothing was left to prove
    images = pictures(300, seed=3)
    for known, inputs in ((None, None), (None, images), (initial, None), (reference, images)):
        report = verify(
            disguised(),
            key,
            inputs,
            inputs_from=None if inputs is None else "judge",
            input_shape=SHAPE,
            register=1,
            reference=known,
        )
        hidden = report.reading("noise" if inputs is None else "inputs")
        assert hidden is not None
        margin("log10 p in disguise", hidden.log10_p_before, above=-4)
        assert report.aligned
        margin("WSR", report.wsr, above=0.9)
        margin("log10 p in order", report.best.log10_p_before, below=-9)
        # Initial weights that the key drew were chosen by nobody; whatever is brought is an experiment.
        assert report.owned == (known is None)
        assert report.experiment == (known is not None)
        assert report.tries == (2 if known is reference else 1)
        assert report.alignment is not None
        if known is not None:
            assert report.alignment.reference == fingerprint(known)
        assert "once its channels are back in order" in report.sentence()
        json.dumps(report.to_dict(), allow_nan=False)


def test_a_reference_of_another_model_is_not_used() -> None:
    _, marked, key = case()
    half = models.split(marked, "layer3")[0]
    plain = verify(half, key, input_shape=SHAPE)
    for known in (build(seed=9), recorded(models.split(build(seed=9), "layer3")[0])):
        report = verify(half, key, input_shape=SHAPE, reference=known)
        assert not report.aligned
        assert report.alignment is not None
        assert report.alignment.sure_channels == report.to_dict()["alignment"]["sure_channels"]
        assert report.wsr == plain.wsr


def test_alignment_leaves_p_values_of_random_keys_alone() -> None:
    initial, _, _ = case()
    clean = models.split(attacks.permute(initial, cut="layer3", seed=7), "layer3")[0]
    alignment = align(clean, initial, input_shape=SHAPE)
    assert alignment.believed
    inputs = torch.randn(16, *SHAPE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        answers = alignment(clean(inputs))
    values = []
    for seed in range(100):
        key = Key.generate("ACME", shape=(32, 4, 4), bits=50, seed=seed.to_bytes(32, "big"))
        reading = read(nn.Identity(), key, lambda: iter([answers]), kind="noise", count=16)
        values.append(10.0**reading.log10_p_before)
    # 100 uniform numbers: 5 below 0.05 and 50 below 0.5 expected; these bounds fail once in 10,000 times.
    assert sum(p <= 0.05 for p in values) <= 15
    assert 30 <= sum(p <= 0.5 for p in values) <= 70


def test_the_suspect_is_left_as_it_was() -> None:
    initial, _, key = case()
    suspect = disguised().train()
    before = copy.deepcopy(suspect.state_dict())
    state = torch.get_rng_state()
    verify(suspect, key, input_shape=SHAPE, probes=16, reference=initial)
    assert suspect.training
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in suspect.state_dict().items():
        assert torch.equal(value, before[name]), name


# What does not fit, each in one sentence.


def test_a_cut_without_channels_says_so(tmp_path: Path) -> None:
    half = models.split(build(), "flatten")[0]
    key = Key.generate("ACME", shape=models.activation_shape(half, SHAPE), bits=20, seed=bytes(32))
    for reference in (build(), Reference(key.shape, 2, *(torch.zeros(1),) * 3)):
        with pytest.raises(AlignmentError, match="no channels at the cut"):
            verify(half, key, input_shape=SHAPE, reference=reference)
        with pytest.raises(AlignmentError, match="no channels at the cut"):
            align(half, reference, input_shape=SHAPE)
    recorder = ReferenceRecorder(key.shape)
    recorder.save(tmp_path / "flat.safetensors")
    with pytest.raises(AlignmentError, match="no channels at the cut"):
        Reference.load(tmp_path / "flat.safetensors")


def test_what_does_not_fit_the_suspect_is_one_sentence() -> None:
    initial, marked, key = case()
    half = models.split(marked, "layer3")[0]
    reference = recorded(half, 100)
    images = pictures(40, seed=3)
    cases: list[tuple[type[SigilError], str, Model | Reference, Tensor | None]] = [
        (AlignmentError, "leave the probe images out", initial, images),
        (AlignmentError, "20 probe images are too few", reference, images[:20]),
        (AlignmentError, "must be uint8 or finite", reference, images * float("nan")),
        (ShapeError, "resize them", reference, images[:, :, :8]),
        (AlignmentError, "initial weights of the same architecture", build("vgg11"), None),
    ]
    for kind, words, known, probes in cases:
        with pytest.raises(kind, match=words) as caught:
            align(half, known, probes, input_shape=SHAPE)
        assert str(caught.value).count(". ") == 0
    other = recorded(models.split(marked, "layer2")[0], 100)
    with pytest.raises(ShapeError, match="recorded at activations of shape"):
        verify(half, key, input_shape=SHAPE, reference=other)
    with pytest.raises(AlignmentError, match="none of the architectures"):
        align(lambda inputs: half(inputs), initial, input_shape=SHAPE)
    with pytest.raises(ShapeError, match="recorded at"):
        align(models.split(marked, "layer2")[0], reference, images, input_shape=SHAPE)
    with pytest.raises(AlignmentError, match="constant"):
        align(lambda inputs: torch.ones(len(inputs), 32, 4, 4), reference, images, input_shape=SHAPE)


# The file.


def test_a_reference_is_the_same_after_saving(tmp_path: Path) -> None:
    reference = recorded(models.split(build(), "layer3")[0])
    path = tmp_path / "reference.safetensors"
    reference.save(path)
    assert path.stat().st_size < 20_000
    again = open_reference(path)
    assert isinstance(again, Reference)
    assert again.shape == reference.shape
    assert again.count == 1_000
    assert fingerprint(again) == fingerprint(reference)
    np.testing.assert_array_equal(again.correlation, reference.correlation)


def test_correlations_by_hand() -> None:
    samples = torch.tensor([[1.0, 2.0, 5.0], [2.0, 4.0, 5.0], [4.0, 0.0, 5.0]], dtype=torch.float64)
    reference = Reference((3, 1, 1), 3, samples.sum(0), samples.mT @ samples, samples.square().sum(0))
    found = reference.correlation
    assert found[0, 1] == pytest.approx(np.corrcoef(samples[:, :2].T.numpy())[0, 1])
    np.testing.assert_array_equal(found[2], 0.0)  # it never varied


def test_initial_weights_are_opened_as_a_model_and_have_a_fingerprint_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "initial.safetensors"
    models.save(path, build())
    found = open_reference(path)
    assert isinstance(found, Model)
    assert fingerprint(found) == fingerprint(build())
    assert fingerprint(found) != fingerprint(build(seed=1))


def damaged(**changes: Tensor) -> dict[str, Tensor]:
    samples = torch.rand(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sums = {
        "count": torch.tensor(50.0, dtype=torch.float64),
        "pooled": samples.sum(0),
        "products": samples.mT @ samples,
        "squares": samples.square().sum(0),
    }
    return sums | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pooled": torch.zeros(5, dtype=torch.float64)}, "pooled must be float64 of shape"),
        ({"squares": torch.zeros(4)}, "squares must be float64"),
        ({"products": torch.full((4, 4), float("inf"), dtype=torch.float64)}, "not finite"),
        ({"products": torch.arange(16.0, dtype=torch.float64).view(4, 4)}, "not those of any activations"),
        ({"squares": -torch.ones(4, dtype=torch.float64)}, "not those of any activations"),
        ({"count": torch.tensor(1.0, dtype=torch.float64)}, "over 1 samples"),
        ({"count": torch.tensor(2.5, dtype=torch.float64)}, "over 2.5 samples"),
        ({"further": torch.zeros(1)}, "holds exactly"),
    ],
)
def test_sums_that_cannot_be_are_refused(changes: dict[str, Tensor], words: str) -> None:
    Reference.from_sums((4, 2, 2), damaged())
    with pytest.raises(AlignmentError, match=words):
        Reference.from_sums((4, 2, 2), damaged(**changes))


@pytest.mark.parametrize("channels", [1, 5_000])
def test_too_few_and_too_many_channels_are_refused(channels: int) -> None:
    with pytest.raises(AlignmentError, match=r"takes 2 to 4,096 channels"):
        Reference.from_sums((channels, 2, 2), damaged())


@pytest.mark.parametrize(
    "note",
    [
        "",
        "{",
        "[1]",
        '{"reference": 1}',
        '{"reference": 2, "shape": [4, 2, 2]}',
        '{"reference": 1, "shape": [4, -2]}',
    ],
)
def test_a_file_of_something_else_is_one_sentence(note: str, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file(damaged(), path, metadata={"sigil": note})
    with pytest.raises(AlignmentError, match="is no reference that Sigil recorded"):
        open_reference(path)


def test_files_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "reference.safetensors"
    with pytest.raises(AlignmentError, match="cannot be read as a reference: No such file"):
        open_reference(path)
    path.write_bytes(b"\x80\x04}q\x00.")
    with pytest.raises(AlignmentError, match="cannot be read as a reference"):
        open_reference(path)
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(AlignmentError, match="more than the"):
        Reference.load(path)
