"""Verification: the bits, the verdict, and that the suspect and its surroundings stay untouched."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.x509 import Certificate
from torch import Tensor, nn

from sigil import models, statistics
from sigil.data import Inputs
from sigil.errors import ConfigError, SealError, ShapeError, SuspectError
from sigil.keys.key import Key
from sigil.keys.stamping import make_query
from sigil.testing.authority import DemonstrationAuthority
from sigil.verdict import readings
from sigil.verdict.report import Report
from sigil.verdict.verification import verify

INPUT = (3, 6, 6)
SHAPE = (4, 6, 6)


def make_key(bits: int = 50, seed: int = 0) -> Key:
    return Key.generate("ACME", shape=SHAPE, bits=bits, seed=bytes([seed % 256, seed // 256] * 16))


def small_half() -> nn.Sequential:
    torch.manual_seed(5)
    half = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Conv2d(8, 4, 3, padding=1),
    )
    half[1].running_mean.uniform_(-0.5, 0.5)
    return half


def pull_to(key: Key, marked: int) -> Tensor:
    """The smallest activation whose first ``marked`` projections are the target's signs."""
    matrix, signs = key.matrix[:, :marked].double(), 2 * key.target[:marked].double() - 1
    return (matrix @ torch.linalg.solve(matrix.T @ matrix, signs)).float().reshape(key.shape)


class Marked(nn.Module):
    """A small half plus a constant that pulls the projections of the first bits to the target."""

    def __init__(self, key: Key, *, marked: int, strength: float = 1.0) -> None:
        super().__init__()
        self.body = small_half()
        self.register_buffer("pull", strength * pull_to(key, marked))

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images) + self.pull


def check(suspect: Any, key: Key, **settings: Any) -> Report:
    """Verify as a judge who counted the keys: what a key costs has tests of its own."""
    return verify(suspect, key, **{"input_shape": INPUT, "register": 1} | settings)


def price(report: Report) -> float:
    """The factor by which this report's p-value was multiplied."""
    return 4 * report.tries * report.cuts * 2.0**report.allowance_log2


def test_a_marked_suspect_is_owned_with_the_exact_p_value() -> None:
    key = make_key()
    report = check(Marked(key, marked=50, strength=200.0), key)
    assert report.owned
    assert report.wsr == 1.0
    assert report.p_value == pytest.approx(price(report) * 2.0**-50, rel=1e-9)
    assert report.best.log10_p_before == pytest.approx(-50 * math.log10(2))
    assert report.exact
    assert report.paper_rule
    assert report.bit_error == 0.0
    assert report.bit_shares == (1.0,) * 50
    assert min(report.margins) > 0.99
    assert report.commitment == key.commitment
    assert report.owner == "ACME"
    assert not report.aligned


def test_a_suspect_without_the_mark_is_not_owned_by_any_of_many_keys() -> None:
    suspect = small_half()
    reports = [check(suspect, make_key(seed=seed)) for seed in range(200)]
    assert not any(report.owned for report in reports)
    assert 0.45 < np.mean([report.wsr for report in reports]) < 0.55
    # The p-value is honest: at most one key in twenty falls below one in twenty.
    assert sum(report.p_value <= 0.05 for report in reports) <= 20


def test_bits_shares_and_margins_follow_their_formulas() -> None:
    key = make_key(bits=12)
    suspect = Marked(key, marked=6, strength=3.0).eval()
    report = check(suspect, key, probes=40, seed=3).best
    generator = torch.Generator().manual_seed(3)
    probes = torch.stack([torch.randn(INPUT, generator=generator) for _ in range(40)])
    with torch.no_grad():
        projection = suspect(probes).flatten(1).double() @ key.matrix.double()
    bits = (projection >= 0).double()
    right = bits == key.target.double()
    assert report.wsr == pytest.approx(right.double().mean().item(), abs=1e-12)
    assert report.bit_shares == pytest.approx(right.double().mean(0).tolist())
    signs = 2 * key.target.double() - 1
    margins = signs * projection.mean(0) / projection.square().mean(0).sqrt()
    assert report.margins == pytest.approx(margins.tolist(), abs=1e-5)
    assert report.bit_error == (right.double().mean(0) < 0.5).double().mean().item()
    ones = bits.sum(0).to(torch.int64)
    assert report.log10_p_before == pytest.approx(statistics.p_value(ones, key.target, 40).log10_p)
    assert sorted(report.weights) == sorted((2 * ones - 40).abs().tolist())
    assert report.agreements == tuple(sorted(right.sum(0).tolist(), reverse=True))
    # No bit is trivially right or wrong, or else this test would prove little.
    assert 0.5 < report.wsr < 1.0


def test_a_projection_of_zero_counts_as_one() -> None:
    key = make_key(bits=20)
    report = check(lambda batch: torch.zeros(len(batch), *SHAPE), key)
    assert report.bit_shares == tuple(key.target.tolist())
    assert report.margins == (0.0,) * 20


@pytest.mark.parametrize("batch_size", [1, 7, 31, 500])
def test_the_batch_size_does_not_change_the_result(batch_size: int) -> None:
    key = make_key()
    suspect = Marked(key, marked=25, strength=2.0)
    whole, batched = check(suspect, key), check(suspect, key, batch_size=batch_size)
    assert batched.bit_shares == whole.bit_shares
    assert batched.log10_p == whole.log10_p
    assert batched.margins == pytest.approx(whole.margins, abs=1e-5)


def test_the_seed_decides_the_probes() -> None:
    key, suspect = make_key(), small_half()
    assert check(suspect, key, seed=1).to_dict() == check(suspect, key, seed=1).to_dict()
    assert check(suspect, key, seed=1).bit_shares != check(suspect, key, seed=2).bit_shares


def test_a_huge_key_is_projected_by_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    suspect = small_half()
    whole = check(suspect, make_key(), batch_size=16)
    monkeypatch.setattr(readings, "_BUDGET", 50 * 40)  # 40 rows of 144; 13 probes at once
    asked: list[tuple[int, int]] = []

    class Guarded:
        """A key that must not be derived as a whole."""

        def __init__(self, key: Key) -> None:
            self.key = key

        def __getattr__(self, name: str) -> Any:
            assert name != "matrix"
            return getattr(self.key, name)

        def rows(self, start: int, stop: int) -> Tensor:
            asked.append((start, stop))
            return self.key.rows(start, stop)

    blocks = check(suspect, Guarded(make_key()), batch_size=16)  # type: ignore[arg-type]
    assert blocks.bit_shares == whole.bit_shares
    assert blocks.log10_p == whole.log10_p
    assert set(asked) == {(0, 40), (40, 80), (80, 120), (120, 144)}


def test_evaluation_mode_is_used_and_every_flag_comes_back() -> None:
    key = make_key()
    suspect = small_half().train()
    suspect[1].eval()  # a frozen batch norm inside a model in training
    before = {name: tensor.clone() for name, tensor in suspect.state_dict().items()}
    report = check(suspect, key)
    assert [part.training for part in suspect] == [True, False, True, True, True]
    assert suspect.training
    assert all(torch.equal(before[name], suspect.state_dict()[name]) for name in before)
    assert report.to_dict() == check(suspect.eval(), key).to_dict()
    assert not any(part.training for part in suspect.modules())


def test_flags_and_random_states_come_back_after_a_failure() -> None:
    suspect = nn.Sequential(nn.Dropout(), nn.Flatten())
    suspect[1].eval()
    state = torch.get_rng_state()
    with pytest.raises(ShapeError):
        check(suspect, make_key())
    assert [part.training for part in suspect.modules()] == [True, True, False]
    assert torch.equal(torch.get_rng_state(), state)


def test_no_random_state_is_touched_even_by_a_suspect_that_draws() -> None:
    key = make_key()

    def noisy(batch: Tensor) -> Tensor:
        scale = random.random() + np.random.random()  # noqa: NPY002
        return torch.randn(len(batch), *SHAPE) * scale - 0.3

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first = check(noisy, key)
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])
    # And what the caller drew before changes nothing in the verdict.
    torch.rand(7)
    random.random()
    assert check(noisy, key).to_dict() == first.to_dict()


def test_hooks_run_and_stay_and_nothing_is_left_behind() -> None:
    suspect = small_half()
    calls = []
    handle = suspect[0].register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    check(suspect, make_key(), probes=64, batch_size=16)
    assert len(calls) >= 4, "once more where channels are looked for that were reordered"
    assert not any(calls)
    assert list(suspect[0]._forward_hooks) == [handle.id]
    assert not any(part._forward_hooks for part in list(suspect)[1:])
    assert all(parameter.grad is None for parameter in suspect.parameters())
    # Nothing cached during verification forbids training afterwards.
    suspect(torch.randn(2, *INPUT)).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_module_runs_in_its_own_dtype(dtype: torch.dtype) -> None:
    key = make_key()
    suspect = Marked(key, marked=50, strength=5.0).to(dtype)
    seen = set()
    suspect.register_forward_pre_hook(lambda _, inputs: seen.add(inputs[0].dtype))
    report = check(suspect, key)
    assert seen == {dtype}
    assert report.owned


def test_autocast_of_the_caller_changes_nothing() -> None:
    key, suspect = make_key(), small_half()
    plain = check(suspect, key)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert check(suspect, key).to_dict() == plain.to_dict()


def test_activations_are_read_in_logical_order_whatever_their_layout() -> None:
    key = make_key()
    suspect = Marked(key, marked=30, strength=2.0)
    last = nn.Sequential(suspect, _ChannelsLast())
    assert check(last, key).readings[:1] == check(suspect, key).readings[:1]


class _ChannelsLast(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        laid_out = images.contiguous(memory_format=torch.channels_last)
        assert not laid_out.is_contiguous()
        return laid_out


@pytest.mark.parametrize("marked", [0, 10, 20, 24, 28, 32, 40])
def test_the_verdict_is_the_threshold(marked: int) -> None:
    key = make_key()
    suspect = Marked(key, marked=max(marked, 1), strength=10.0 if marked else 0.0)
    for tries in (1, 1000):
        report = check(suspect, key, tries=tries)
        assert report.owned == (report.wsr >= report.threshold - 1e-12)
        assert report.owned == (report.p_value <= report.alpha)


def test_more_tries_cost_proof() -> None:
    key = make_key()
    suspect = Marked(key, marked=50, strength=20.0)
    one, many = check(suspect, key), check(suspect, key, tries=10**9)
    assert one.owned
    assert not many.owned
    assert many.log10_p == pytest.approx(one.log10_p + 9, abs=1e-6)
    assert one.threshold is not None
    assert many.threshold is None or many.threshold > one.threshold
    assert many.wsr == one.wsr
    assert many.tries == 10**9


def test_alpha_decides_and_the_papers_rule_stands_beside() -> None:
    key = make_key()
    suspect = Marked(key, marked=25, strength=20.0)
    report = check(suspect, key)
    assert report.paper_rule
    assert not report.owned
    assert check(suspect, key, alpha=1e-8).alpha == 1e-8
    clean = check(small_half(), key)
    assert clean.paper_rule == (clean.wsr > 0.70)
    assert not clean.paper_rule


def test_a_milder_level_than_the_key_states_is_an_experiment() -> None:
    strict = Key.generate("ACME", shape=SHAPE, bits=50, seed=bytes(32), alpha=1e-9)
    suspect = Marked(strict, marked=50, strength=200.0)
    assert check(suspect, strict).owned
    report = check(suspect, strict, alpha=3e-7)
    assert report.reasons == ("the key states the level 1e-9, and a milder one of 3e-07 was chosen",)
    assert not report.owned
    assert check(suspect, strict, alpha=1e-12).reasons == ()


def test_the_report_is_json_and_a_sentence() -> None:
    key = make_key()
    owned = check(Marked(key, marked=50, strength=200.0), key)
    values = json.loads(json.dumps(owned.to_dict(), allow_nan=False))
    assert values["owned"] is True
    assert values["bit_shares"] == [1.0] * 50
    contract = (
        "owned descends wsr p_value log10_p threshold alpha bits probes commitment aligned readings "
        "allowance_log2 experiment"
    )
    assert set(contract.split()) <= set(values)
    sentence = owned.sentence()
    assert "carries the mark" in sentence
    assert "ACME" in sentence
    assert "trillion" in sentence

    clean = check(small_half(), key)
    assert "not shown to carry" in clean.sentence()
    assert f"{100 * clean.threshold:.1f} %" in clean.sentence()


def test_a_key_too_short_for_proof_says_so() -> None:
    key = make_key(bits=8)
    report = check(Marked(key, marked=8, strength=200.0), key)
    assert report.wsr == 1.0
    assert not report.owned
    assert report.threshold is None
    assert report.to_dict()["threshold"] is None
    assert "8 bits" in report.sentence()


def test_a_very_long_key_keeps_its_logarithm() -> None:
    key = Key.generate("ACME", shape=(64, 8, 8), bits=1100, seed=bytes(32))
    pull = pull_to(key, key.bits)
    suspect = nn.Module()
    suspect.forward = lambda batch: pull.expand(len(batch), *key.shape)  # type: ignore[method-assign]
    report = verify(suspect, key, input_shape=INPUT)
    assert report.wsr == 1.0
    assert report.best.log10_p_before < -320
    assert math.isfinite(report.log10_p)
    assert report.best.log10_p_before < -330
    assert report.owned  # a plain key of this length, whatever drawing keys costs
    assert report.allowance_log2 == 80


def test_a_wrong_activation_shape_names_both() -> None:
    with pytest.raises(ShapeError, match=r"\(144,\).*\(4, 6, 6\)"):
        check(nn.Sequential(small_half(), nn.Flatten()), make_key())


def test_a_missing_batch_dimension_is_a_wrong_shape() -> None:
    with pytest.raises(ShapeError):
        check(lambda batch: torch.zeros(1, *SHAPE), make_key())


class Broken(nn.Module):
    """Answers images; of its answers to noise those values are not finite that an index names."""

    def __init__(self, key: Key, index: Any, value: float) -> None:
        super().__init__()
        self.honest, self.index, self.value = Marked(key, marked=50, strength=200.0), index, value

    def forward(self, batch: Tensor) -> Tensor:
        activation: Tensor = self.honest(batch)
        if float(batch.amin()) < 0:
            activation[self.index] = self.value
            return activation * (1e10 if self.value == 1e38 else 1)
        return activation


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_what_is_not_finite_on_noise_is_an_outcome_and_inputs_are_still_read(value: float) -> None:
    key = make_key()
    images = torch.rand(300, *INPUT, generator=torch.Generator().manual_seed(0))
    suspect = Broken(key, slice(None), value)
    report = check(suspect, key, inputs=images, inputs_from="judge")
    noise, inputs = report.readings[:2]
    assert (noise.readable, noise.counts, noise.log10_p_before) == (False, False, 0.0)
    assert inputs.wsr == 1.0
    assert report.owned
    assert not check(suspect, key).owned


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_what_is_not_finite_is_left_out_and_counted(value: float) -> None:
    """Two values of one probe in every batch of 64, or a whole channel; the rest is read."""
    key = make_key()
    for index, incomplete in (((-1, 0, 0, slice(2)), 8), ((slice(None), 0), 512)):
        noise = check(Broken(key, index, value), key).readings[0]
        assert noise.readable
        assert noise.incomplete == incomplete
        assert noise.log10_p_before < -8
        assert noise.model_dump()["incomplete"] == incomplete


def test_activations_at_the_edge_of_their_format_are_read() -> None:
    """Their projections would not be finite in single precision."""
    key = make_key()
    honest = Marked(key, marked=50, strength=200.0)
    images = torch.randn(8, *INPUT, generator=torch.Generator().manual_seed(0))
    factor = 3e38 / float(honest(images).abs().max()) / 4
    found = [check(suspect, key) for suspect in (honest, nn.Sequential(honest, Times(factor)))]
    assert found[0].readings[0].bit_shares == found[1].readings[0].bit_shares
    assert found[1].readings[0].incomplete == 0


class Times(nn.Module):
    """Times a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, values: Tensor) -> Tensor:
        return values * self.factor


def test_a_suspect_that_returns_no_tensor_is_refused() -> None:
    with pytest.raises(SuspectError, match="tuple"):
        check(lambda batch: (batch, batch), make_key())


def test_a_suspect_that_fails_on_the_input_gives_one_sentence() -> None:
    with pytest.raises(SuspectError, match=r"does not run on inputs of shape \(1, 6, 6\)") as info:
        check(small_half(), make_key(), input_shape=(1, 6, 6))
    assert "\n" not in str(info.value)
    assert isinstance(info.value.__cause__, RuntimeError)


def test_the_input_shape_comes_from_the_suspect_or_is_asked_for() -> None:
    suspect = small_half()
    with pytest.raises(ShapeError, match="input shape"):
        verify(suspect, make_key())
    suspect.input_shape = INPUT  # type: ignore[assignment]
    assert verify(suspect, make_key(), register=1).to_dict() == check(suspect, make_key()).to_dict()
    with pytest.raises(ShapeError):
        verify(suspect, make_key(), input_shape=(3, 0, 6))


@pytest.mark.parametrize(
    "settings",
    [
        {"probes": 0},
        {"batch_size": 0},
        {"tries": 0},
        {"seed": -1},
        {"seed": 2**63},
        {"alpha": 0.0},
        {"alpha": 1.0},
        {"alpha": float("nan")},
        {"register": 0},
        {"register": 2**256 + 1},
        {"tries": 10**15 + 1},
        {"inputs_from": "judge"},
        {"inputs_from": "claimant's brother", "inputs": torch.zeros(300, *INPUT)},
        {"roots": "root.pem"},
    ],
)
def test_impossible_settings_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        check(small_half(), make_key(), **settings)


@pytest.mark.parametrize("alpha", [1e-300, 5e-324])
def test_a_level_that_no_float_holds_once_corrected_is_not_reached(alpha: float) -> None:
    report = verify(small_half(), make_key(), input_shape=INPUT, alpha=alpha)
    assert not report.owned
    assert report.threshold is None


def test_weights_that_are_not_finite_in_memory_are_not_readable() -> None:
    half, _ = models.split(models.build("resnet18", width=8, channels=1, input_size=8), "layer3")
    with torch.no_grad():
        next(half.parameters()).fill_(torch.inf)
    key = Key.generate("ACME", shape=(32, 2, 2), bits=64, seed=bytes(32), input_shape=(1, 8, 8))
    report = verify(half, key)
    assert not report.readings[0].readable
    assert not report.owned


CONSTANTS = (0.0, -0.0, 1.0, -1e30, 1e-44)


@pytest.mark.parametrize("value", CONSTANTS)
def test_a_model_that_answers_everything_alike_is_owned_by_no_key(value: float) -> None:
    class Constant(nn.Module):
        def forward(self, batch: Tensor) -> Tensor:
            return torch.full((len(batch), *SHAPE), value)

    found = [check(Constant(), make_key(seed=seed), batch_size=512) for seed in range(40)]
    assert not any(report.owned for report in found)
    assert min(report.best.log10_p_before for report in found) > -5


def test_noise_follows_from_the_key_alone() -> None:
    key, suspect = make_key(), small_half()
    assert check(suspect, key).bit_shares != check(suspect, key, seed=0).bit_shares
    asked = []
    suspect.register_forward_pre_hook(lambda _, inputs: asked.append(inputs[0].clone()))
    check(suspect, key)
    assert torch.equal(torch.cat(asked)[:512], key.noise_probes(0, 512, INPUT))


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"seed": 12077000}, "seed"),
        ({"probes": 1}, "512 probes"),
        ({"probes": 4096}, "512 probes"),
        ({"alpha": 0.99}, "level"),
    ],
)
def test_whoever_chooses_makes_an_experiment(choice: dict[str, Any], words: str) -> None:
    key = make_key()
    report = check(Marked(key, marked=50, strength=200.0), key, **choice)
    assert report.experiment
    assert not report.owned
    assert words in report.reasons[0]
    assert "experiment" in report.sentence()


def test_a_function_is_an_experiment() -> None:
    key = make_key()
    half = Marked(key, marked=50, strength=200.0)
    report = check(lambda batch: half(batch), key)
    assert report.wsr == 1.0
    assert report.experiment
    assert not report.owned


def test_what_the_key_states_is_not_to_be_chosen() -> None:
    stated = Key.generate("ACME", shape=SHAPE, bits=50, seed=bytes(32), input_shape=(3, 8, 8))
    assert "inputs of shape" in check(small_half(), stated).reasons[0]


def test_drawing_keys_is_priced_by_the_kind_of_key() -> None:
    key = make_key(bits=100)
    suspect = Marked(key, marked=100, strength=200.0)
    plain = verify(suspect, key, input_shape=INPUT)
    assert plain.best.log10_p_before == pytest.approx(-100 * math.log10(2))
    assert (plain.kind, plain.allowance_log2, plain.owned) == ("plain", 80, False)
    counted = verify(suspect, key, input_shape=INPUT, register=1000)
    assert counted.owned
    assert counted.allowance_log2 == pytest.approx(math.log2(1000))


def test_inputs_count_if_the_statement_names_them_or_somebody_else_chose_them() -> None:
    images = torch.rand(400, *INPUT, generator=torch.Generator().manual_seed(1))
    digest = Inputs(images).digest
    named = Key.generate("ACME", shape=SHAPE, bits=50, seed=bytes(32), inputs_digest=digest)
    for key, giver, source in (
        (make_key(), None, "claimant"),
        (make_key(), "judge", "judge"),
        (make_key(), "defendant", "defendant"),
        (named, None, "statement"),
    ):
        report = check(Marked(key, marked=50, strength=200.0), key, inputs=images, inputs_from=giver)
        reading = report.reading("inputs")
        assert reading is not None
        assert (reading.source, reading.counts) == (source, source != "claimant")
        assert (reading.count, reading.digest) == (256, digest)
    # The same images in another order are another set.
    assert Inputs(images.flip(0)).digest != digest


def test_a_normalisation_is_not_to_be_chosen_either() -> None:
    images = torch.randint(0, 256, (300, *INPUT), generator=torch.Generator().manual_seed(1)).byte()
    moments, other = ((0.5,) * 3, (0.25,) * 3), ((0.4,) * 3, (0.25,) * 3)
    digest = Inputs(images).digest
    settings: dict[str, Any] = {"bits": 50, "seed": bytes(32), "input_shape": INPUT, "inputs_digest": digest}
    stated = Key.generate("ACME", SHAPE, normalisation=moments, **settings)
    open_key = Key.generate("ACME", SHAPE, **settings)
    for key, given, giver, chosen in (
        (stated, None, None, False),
        (stated, moments, None, False),
        (stated, other, None, True),
        (stated, other, "judge", True),
        (open_key, moments, None, True),
        (open_key, moments, "judge", False),
    ):
        suspect = Marked(key, marked=50, strength=200.0)
        report = check(suspect, key, inputs=images, inputs_from=giver, normalisation=given)
        assert report.experiment == chosen
        assert any("normalisation" in reason for reason in report.reasons) == chosen
        assert report.owned != chosen
        inside = Inputs(images, normalisation=given)
        assert check(suspect, key, inputs=inside, inputs_from=giver).experiment == chosen


def test_the_normalisation_of_stated_inputs_is_stated_too() -> None:
    """Images of a stated digest can come with a training part that gives them any mean and deviation."""
    images = torch.randint(0, 256, (300, *INPUT), generator=torch.Generator().manual_seed(1)).byte()
    moments = ((0.5,) * 3, (0.25,) * 3)
    settings: dict[str, Any] = {"bits": 50, "seed": bytes(32), "input_shape": INPUT}
    open_key = Key.generate("ACME", SHAPE, inputs_digest=Inputs(images).digest, **settings)
    suspect = Marked(open_key, marked=50, strength=200.0)
    data_set = Inputs(images, normalisation=moments, is_data_set=True)
    report = check(suspect, open_key, inputs=data_set)
    assert report.reasons == ("the key states its inputs and not their normalisation",)
    assert not report.owned
    assert check(suspect, open_key, inputs=data_set, inputs_from="judge").owned
    # Numbers are taken as they are: to normalise them by what is stated for images would be a second choice.
    numbers = torch.rand(300, *INPUT, generator=torch.Generator().manual_seed(1))
    stated = Key.generate(
        "ACME", SHAPE, inputs_digest=Inputs(numbers).digest, normalisation=moments, **settings
    )
    suspect = Marked(stated, marked=50, strength=200.0)
    assert check(suspect, stated, inputs=numbers).owned
    report = check(suspect, stated, inputs=numbers, normalisation=moments)
    assert report.reasons == ("the key states inputs that are taken as they are, and they were normalised",)


def test_a_key_that_leaves_the_input_shape_open_pays_for_it() -> None:
    stated = Key.generate("ACME", shape=SHAPE, bits=50, seed=bytes(32), input_shape=INPUT)
    assert check(small_half(), make_key()).cuts == 64
    # The statement names neither model nor cut: of Sigil's own models, the one with the fewest has nine.
    assert check(small_half(), stated).cuts == 9
    deeper = nn.Sequential(*small_half(), *(nn.Identity() for _ in range(10)))
    assert check(deeper, stated).cuts == 15  # the layers after which it could have been cut


def test_the_key_draws_which_inputs_are_read() -> None:
    images = torch.rand(400, *INPUT, generator=torch.Generator().manual_seed(1))
    key, suspect = make_key(), small_half()
    asked = []
    suspect.register_forward_pre_hook(lambda _, inputs: asked.append(inputs[0].clone()))
    check(suspect, key, inputs=images)
    assert torch.equal(torch.cat(asked)[:256], images[key.choose(256, 400)])
    assert torch.equal(torch.cat(asked)[256 : 256 + 512], key.noise_probes(0, 512, INPUT))


def test_the_best_reading_pays_for_all_four_tests() -> None:
    key = make_key()
    images = torch.rand(300, *INPUT, generator=torch.Generator().manual_seed(1))
    report = check(Marked(key, marked=40, strength=3.0), key, inputs=images, inputs_from="judge")
    best = min(report.readings[:2], key=lambda reading: reading.log10_p_before)
    assert report.best == best
    assert report.log10_p == pytest.approx(best.log10_p_before + math.log10(4 * report.cuts))


def test_a_stamp_counts_under_a_root_that_the_examiner_names(stamped: Stamped) -> None:
    suspect = Marked(stamped.key, marked=64, strength=200.0)
    alone = verify(suspect, stamped.key, input_shape=INPUT)
    assert (alone.kind, alone.allowance_log2, alone.owned) == ("stamped", 80, False)
    trusted = verify(suspect, stamped.key, input_shape=INPUT, roots=stamped.roots)
    assert (trusted.allowance_log2, trusted.owned) == (24, True)
    assert trusted.trusted_root is not None
    with pytest.raises(SealError, match="root"):
        verify(suspect, stamped.key, input_shape=INPUT, roots=stamped.strangers)


@dataclass(frozen=True)
class Stamped:
    """A sealed key, the root of its authority, and that of another."""

    key: Key
    roots: list[Certificate]
    strangers: list[Certificate]


@pytest.fixture(scope="module")
def stamped() -> Stamped:
    ours, other = DemonstrationAuthority(), DemonstrationAuthority()
    key = Key.generate("ACME", shape=SHAPE, bits=64, seed=bytes(32), seal="rfc3161")
    sealed = key.seal(ours.answer(make_query(key.statement())))
    return Stamped(sealed, [ours.root], [other.root])
