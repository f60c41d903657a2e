"""The injector against autograd of the loss it differentiates by hand."""

from __future__ import annotations

import gc
import warnings
import weakref
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from sigil.errors import ConfigError, ShapeError, SigilError
from sigil.injector import Injector
from sigil.keys.key import Key

SHAPES = st.one_of(
    st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 6), st.integers(1, 8)),
    st.tuples(st.integers(1, 40)),
)


def make_key(shape: tuple[int, ...], bits: int) -> Key:
    return Key.generate("ACME", shape=shape, bits=bits, seed=bytes(range(32)))


def by_autograd(key: Key, activation: Tensor, gradient: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """G_wm and G_final, straight from equations 1 to 3 of the paper, in float64."""
    leaf = activation.double().contiguous().requires_grad_()
    logits = leaf.flatten(1) @ key.matrix.double()
    loss = F.binary_cross_entropy_with_logits(logits, key.target.double().expand_as(logits))
    (mark,) = torch.autograd.grad(loss, leaf)
    main = gradient.double()
    factor = min(1.0, strength * float(main.norm()) / (float(mark.norm()) + 1e-12))
    return mark, main + factor * mark


def relative(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


@given(
    shape=SHAPES,
    bits=st.integers(1, 24),
    batch=st.integers(1, 9),
    strength=st.sampled_from([0.0, 0.01, 0.1, 1.0, 1e6]),
    magnitude=st.sampled_from([1e-6, 1e-2, 1.0, 1e3]),
    channels_last=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 2**31),
)
# Gradient and mark cancel: the sum is zero in float32, and rounding noise in float64.
@example(shape=(1, 1), bits=1, batch=1, strength=1.0, magnitude=1e-6, channels_last=(False, False), seed=1)
def test_equals_autograd_of_the_loss(
    shape: tuple[int, ...],
    bits: int,
    batch: int,
    strength: float,
    magnitude: float,
    channels_last: tuple[bool, bool],
    seed: int,
) -> None:
    key = make_key(shape, bits)
    generator = torch.Generator().manual_seed(seed)
    activation = torch.randn(batch, *shape, generator=generator)
    gradient = magnitude * torch.randn(batch, *shape, generator=generator)
    if len(shape) == 3:
        if channels_last[0]:
            activation = activation.to(memory_format=torch.channels_last)
        if channels_last[1]:
            gradient = gradient.to(memory_format=torch.channels_last)
    before = activation.clone(), gradient.clone()

    final = Injector(key, strength)(activation, gradient)

    mark, want = by_autograd(key, activation, gradient, strength)
    # Relative to what is added up and not to the sum, which may vanish.
    scale = max(float(gradient.double().norm()), float((want - gradient.double()).norm()))
    assert float((final.double() - want).norm()) < 1e-5 * scale
    # The sum could hide an error in the small part: the added part alone must be right too, as far as
    # float32 can hold it beside the gradient.
    added = final.double() - gradient.double()
    floor = 1e-6 * float(gradient.double().norm())
    assert float((added - (want - gradient.double())).norm()) < 1e-5 * float(mark.norm()) + floor
    # Axes of length 1 have strides without a meaning, so layouts are compared, not strides.
    assert final.is_contiguous() == gradient.is_contiguous()
    if len(shape) == 3:
        for layout in (torch.contiguous_format, torch.channels_last):
            expected = gradient.is_contiguous(memory_format=layout)
            assert final.is_contiguous(memory_format=layout) == expected
    assert torch.equal(activation, before[0])
    assert torch.equal(gradient, before[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_half_precision_is_the_float32_result_rounded(dtype: torch.dtype, channels_last: bool) -> None:
    key = make_key((16, 4, 4), 20)
    generator = torch.Generator().manual_seed(1)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    activation = torch.randn(64, 16, 4, 4, generator=generator).to(dtype, memory_format=layout)
    gradient = (1e-3 * torch.randn(64, 16, 4, 4, generator=generator)).to(dtype, memory_format=layout)

    final = Injector(key, 1.0)(activation, gradient)

    _, want = by_autograd(key, activation, gradient, 1.0)
    assert final.dtype is dtype
    assert relative(final, want) < 2 * torch.finfo(dtype).eps


def test_float16_coefficients_below_its_smallest_number_survive() -> None:
    key = make_key((8, 4, 4), 50)
    generator = torch.Generator().manual_seed(2)
    activation = torch.randn(256, 8, 4, 4, generator=generator).half()
    gradient = (1e-6 * torch.randn(256, 8, 4, 4, generator=generator)).half()
    final = Injector(key, 1.0)(activation, gradient)
    added = final.float() - gradient.float()
    assert 0.8 < float(added.norm() / gradient.float().norm()) < 1.2


def test_unusual_strides_are_kept() -> None:
    key = make_key((4, 6), 8)
    gradient = torch.randn(5, 6, 4).mT
    activation = torch.randn(6, 5, 4).permute(1, 2, 0)
    final = Injector(key, 0.5)(activation, gradient)
    assert final.stride() == gradient.stride()
    assert relative(final, by_autograd(key, activation, gradient, 0.5)[1]) < 1e-5


def test_clipping_is_exact_on_both_sides_of_one() -> None:
    key = make_key((32,), 8)
    activation = torch.randn(4, 32)
    mark, _ = by_autograd(key, activation, torch.ones(4, 32), 1.0)
    direction = torch.randn(4, 32)
    gradient = direction / direction.norm() * float(mark.norm())
    for strength in (0.3, 0.999, 1.001, 5.0):
        added = Injector(key, strength)(activation, gradient).double() - gradient.double()
        assert float(added.norm() / mark.norm()) == pytest.approx(min(1.0, strength), rel=1e-4)
    unclipped = Injector(key, 0.3, clip=False)(activation, gradient) - gradient
    assert relative(unclipped, mark) < 1e-5


def test_per_sample_clipping_bounds_every_sample() -> None:
    key = make_key((32,), 8)
    activation = torch.randn(6, 32)
    gradient = torch.randn(6, 32) * torch.logspace(-6, -2, 6)[:, None]
    added = Injector(key, 0.1, per_sample=True)(activation, gradient) - gradient
    assert torch.allclose(added.norm(dim=1), 0.1 * gradient.norm(dim=1), rtol=1e-3)
    mark, _ = by_autograd(key, activation, gradient, 0.1)
    cosines = F.cosine_similarity(added.double(), mark, dim=1)
    assert torch.allclose(cosines, torch.ones(6, dtype=torch.float64), atol=1e-3)


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf")])
def test_zero_or_broken_gradient_is_returned_as_it_is(bad: float) -> None:
    key = make_key((8, 2, 2), 6)
    activation = torch.randn(3, 8, 2, 2)
    gradient = torch.zeros(3, 8, 2, 2)
    gradient[0, 0, 0, 0] = bad
    final = Injector(key, 1.0, statistics=True)(activation, gradient)
    assert torch.equal(final.nan_to_num(7.0, 8.0), gradient.nan_to_num(7.0, 8.0))


@pytest.mark.parametrize("per_sample", [False, True])
def test_broken_activation_never_puts_nan_into_the_gradient(per_sample: bool) -> None:
    key = make_key((8, 2, 2), 6)
    activation = torch.randn(3, 8, 2, 2)
    activation[1, 0, 0, 0] = float("nan")
    gradient = torch.randn(3, 8, 2, 2)
    final = Injector(key, 1.0, per_sample=per_sample)(activation, gradient)
    assert bool(torch.isfinite(final).all())
    assert torch.equal(final[1], gradient[1])


def test_statistics_are_what_they_say_and_absent_when_not_asked_for() -> None:
    key = make_key((16, 2, 2), 10)
    activation, gradient = torch.randn(8, 16, 2, 2), 1e-3 * torch.randn(8, 16, 2, 2)
    silent = Injector(key, 0.25)
    silent(activation, gradient)
    assert silent.last is None

    injector = Injector(key, 0.25, statistics=True)
    final = injector(activation, gradient)
    assert torch.equal(final, silent(activation, gradient))
    mark, _ = by_autograd(key, activation, gradient, 0.25)
    got = injector.last
    assert got is not None
    assert got.main_norm == pytest.approx(float(gradient.norm()), rel=1e-5)
    assert got.watermark_norm == pytest.approx(float(mark.norm()), rel=1e-5)
    assert got.injected_norm == pytest.approx(0.25 * float(gradient.norm()), rel=1e-5)
    assert got.factor == pytest.approx(got.injected_norm / got.watermark_norm, rel=1e-5)
    cosine = F.cosine_similarity(gradient.double().flatten(), mark.flatten(), dim=0)
    assert got.cosine == pytest.approx(float(cosine), abs=1e-5)
    bits = (activation.flatten(1) @ key.matrix >= 0).float()
    assert got.wsr == pytest.approx(float((bits == key.target).float().mean()))


@pytest.mark.parametrize("per_sample", [False, True])
def test_the_cosine_of_a_mark_that_has_long_been_learned_is_a_cosine(per_sample: bool) -> None:
    torch.manual_seed(0)
    key = make_key((16, 2, 2), 10)
    right = torch.linalg.lstsq(key.matrix.T, 2 * key.target - 1).solution.view(1, 16, 2, 2)
    activation, gradient = 60 * right.expand(8, -1, -1, -1), torch.randn(8, 16, 2, 2)
    injector = Injector(key, 0.25, per_sample=per_sample, statistics=True)
    injector(activation, gradient)

    error = torch.sigmoid(activation.flatten(1).double() @ key.matrix.double() * (1 - 2 * key.target))
    mark = (error * (1 - 2 * key.target)) @ key.matrix.double().T / error.numel()
    assert mark.norm() < 1e-24  # its square is no number of single precision
    got = injector.last
    assert got is not None
    assert got.watermark_norm == pytest.approx(float(mark.norm()), rel=1e-4)
    wanted = (gradient.double().flatten() @ mark.flatten()) / (gradient.double().norm() * mark.norm())
    assert got.cosine == pytest.approx(float(wanted), abs=1e-4)


def test_attach_marks_the_clients_gradient_and_leaves_the_servers_alone() -> None:
    torch.manual_seed(0)
    key = make_key((4, 4, 4), 8)
    client, server = nn.Conv2d(3, 4, 3, padding=1), nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    images, labels = torch.randn(6, 3, 4, 4), torch.randint(5, (6,))

    def gradients(injector: Injector | None) -> tuple[Tensor, Tensor, Tensor]:
        client.zero_grad()
        server.zero_grad()
        activation = client(images)
        activation.retain_grad()
        if injector is not None:
            injector.attach(activation)
        F.cross_entropy(server(activation), labels).backward()
        assert activation.grad is not None
        assert client.weight.grad is not None
        linear = server[1]
        assert linear.weight.grad is not None
        return activation.grad.clone(), client.weight.grad.clone(), linear.weight.grad.clone()

    clean, marked = gradients(None), gradients(Injector(key, 0.5))
    want = Injector(key, 0.5)(client(images).detach(), clean[0])
    assert torch.allclose(marked[0], want, rtol=1e-5, atol=1e-8)
    assert not torch.equal(marked[1], clean[1])
    assert torch.equal(marked[2], clean[2])


def test_attach_works_on_a_received_leaf_and_its_handle_removes_it() -> None:
    key = make_key((4,), 4)
    injector = Injector(key, 1.0)
    activation = torch.randn(3, 4).requires_grad_()
    handle = injector.attach(activation)
    activation.sum().backward()
    assert activation.grad is not None
    assert torch.equal(activation.grad, injector(activation.detach(), torch.ones(3, 4)))
    handle.remove()
    activation.grad = None
    activation.sum().backward()
    assert torch.equal(activation.grad, torch.ones(3, 4))


def test_attach_keeps_nothing_alive() -> None:
    injector = Injector(make_key((4,), 4), 1.0)
    activation = torch.randn(3, 4).requires_grad_()
    injector.attach(activation)
    watcher = weakref.ref(activation)
    gc.disable()
    try:
        del activation
        assert watcher() is None
    finally:
        gc.enable()


def test_attach_says_when_the_activation_was_changed_in_place() -> None:
    injector = Injector(make_key((4,), 4), 1.0)
    activation = nn.Linear(2, 4)(torch.randn(3, 2))
    injector.attach(activation)
    with pytest.raises(SigilError, match="in place"):
        activation.relu_().sum().backward()


def test_bad_use_gives_one_sentence() -> None:
    key = make_key((4, 2, 2), 4)
    injector = Injector(key)
    good = torch.randn(2, 4, 2, 2)
    for activation, gradient in [
        (torch.randn(2, 4, 2, 3), torch.randn(2, 4, 2, 3)),
        (good, torch.randn(3, 4, 2, 2)),
        (torch.randn(0, 4, 2, 2), torch.randn(0, 4, 2, 2)),
        (torch.ones(2, 4, 2, 2, dtype=torch.long), good),
    ]:
        with pytest.raises(ShapeError):
            injector(activation, gradient)
    with pytest.raises(SigilError, match="requires_grad_"):
        injector.attach(torch.randn(2, 4, 2, 2))
    for strength in (-0.1, float("nan"), float("inf")):
        with pytest.raises(SigilError, match="strength"):
            Injector(key, strength)


def test_repr_tells_the_setting() -> None:
    assert "strength=0.25" in repr(Injector(make_key((4,), 4), 0.25))


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("exponent", [-36, -26, -13, -6, 0, 4, 12, 30])
def test_scaling_the_gradient_does_not_change_the_share_of_an_uncapped_mark(
    exponent: int, per_sample: bool
) -> None:
    key = make_key((8, 4, 4), 20)
    generator = torch.Generator().manual_seed(3)
    activation = torch.randn(16, 8, 4, 4, generator=generator)
    gradient = torch.randn(16, 8, 4, 4, generator=generator)
    injector = Injector(key, 0.1, cap=False, per_sample=per_sample)
    plain = injector(activation, gradient).double() - gradient.double()
    scaled = gradient * 10.0**exponent
    added = (injector(activation, scaled).double() - scaled.double()) * 10.0**-exponent
    # At 1e-36 the smallest entries lie in float32's range of reduced accuracy.
    assert relative(added, plain) < (1e-3 if exponent == -36 else 1e-5)
    assert float(plain.norm() / gradient.double().norm()) == pytest.approx(0.1, rel=1e-4)


def test_the_paper_s_cap_lets_a_large_gradient_outgrow_the_mark() -> None:
    key = make_key((8, 4, 4), 20)
    generator = torch.Generator().manual_seed(3)
    activation = torch.randn(16, 8, 4, 4, generator=generator)
    gradient = 1e4 * torch.randn(16, 8, 4, 4, generator=generator)
    capped = Injector(key, 0.1)(activation, gradient) - gradient
    assert float(capped.norm() / gradient.norm()) < 1e-3


def test_an_uncapped_mark_goes_on_where_every_bit_has_long_been_right() -> None:
    key = make_key((64,), 4)
    direction = key.matrix @ (2 * key.target - 1)
    gradient = torch.randn(8, 64, generator=torch.Generator().manual_seed(4))
    for size in (0.1, 0.5, 1.0):
        activation = (size * direction).expand(8, 64)
        added = Injector(key, 0.1, cap=False)(activation, gradient) - gradient
        assert float(added.norm() / gradient.norm()) == pytest.approx(0.1, rel=1e-3)
        assert float(added.mean(0) @ direction) < 0


class SharedKey:
    """A key whose clients carry every third bit."""

    shape, matrix, target = (
        (12,),
        torch.randn(12, 9, generator=torch.Generator().manual_seed(0)),
        torch.ones(9),
    )

    def share_of(self, client: int, clients: int, carriers_per_bit: int | None = None) -> Tensor:
        return torch.arange(9) % clients == client


def test_a_client_s_gradient_carries_its_share_of_the_bits_only() -> None:
    key = SharedKey()
    activation, gradient = torch.randn(5, 12), torch.randn(5, 12)
    added = Injector(key, 0.2, cap=False, share=(1, 3))(activation, gradient) - gradient
    own = key.matrix[:, 1::3]
    outside = added - (own @ torch.linalg.lstsq(own, added.mT).solution).mT
    assert float(outside.norm()) < 1e-5 * float(added.norm())
    assert float(added.norm() / gradient.norm()) == pytest.approx(0.2, rel=1e-4)


@pytest.mark.parametrize("share", [(3, 3), (-1, 3), (0, 0), (1.5, 3), (1,), "ab"])
def test_a_share_that_names_no_client_is_one_sentence(share: object) -> None:
    with pytest.raises(ConfigError, match="names no client"):
        Injector(SharedKey(), share=share)  # type: ignore[arg-type]


def trained(
    seed: int, *, scale: float = 1.0, scaler: bool = False, attach: bool = True, said: float | None = None
) -> tuple[nn.Module, Key]:
    """A small loop in which the cap decides; the loss is scaled by hand or by a GradScaler."""
    torch.manual_seed(seed)
    key = Key.generate("ACME", shape=(256,), bits=64, seed=bytes([seed]) * 32)
    client = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 256), nn.ReLU())
    server = nn.Linear(256, 4)
    optimizer = torch.optim.SGD([*client.parameters(), *server.parameters()], lr=0.5)
    scales = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=50, enabled=scaler)
    injector = Injector(key, 0.3)
    for _ in range(200):
        images = torch.randn(32, 16)
        labels = images[:, :4].argmax(1)
        activation = client(images)
        if attach:
            injector.attach(activation, loss_scale=said)
        else:  # the paper's algorithm, by hand
            activation.register_hook(partial(injector, activation.detach()))
        loss = F.cross_entropy(server(activation), labels)
        optimizer.zero_grad()
        if scaler:
            scales.scale(loss).backward()
            scales.step(optimizer)
            scales.update()
        else:
            (loss * scale).backward()
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad /= scale
            optimizer.step()
    return client, key


def rate(model: nn.Module, key: Key) -> float:
    with torch.no_grad():
        bits = model(torch.randn(512, 16, generator=torch.Generator().manual_seed(0))) @ key.matrix >= 0
    return float((bits == (key.target > 0.5)).float().mean())


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_loop_under_a_loss_scaler_is_the_unscaled_loop_bit_for_bit(seed: int) -> None:
    plain, key = trained(seed)
    assert rate(plain, key) > 0.85
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(trained(seed, scale=2.0**16, scaler=True)[0], plain)
    assert same(trained(seed, scale=2.0**16, said=2.0**16)[0], plain)
    # The cap decides in this loop: a scale that is too large gives another mark.
    assert not same(trained(seed, scale=2.0**16, said=2.0**17)[0], plain)


def test_an_unscaled_loop_is_the_papers_bit_for_bit_also_beside_a_foreign_scaler() -> None:
    foreign = torch.amp.GradScaler("cpu")
    assert same(trained(0)[0], trained(0, attach=False)[0])
    assert foreign.is_enabled()


def test_a_scale_that_cannot_be_found_warns_once_and_names_loss_scaling() -> None:
    with pytest.warns(UserWarning, match="loss scaling") as caught:
        model, key = trained(0, scale=2.0**16)
    assert len(caught) == 1
    assert rate(model, key) < 0.7


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("foreign", [False, True])
def test_no_size_of_a_clients_gradient_lowers_the_mark_or_lifts_it_above_the_strength(
    per_sample: bool, foreign: bool
) -> None:
    """A client chooses the size of its gradient; the mark is at least the paper's and at most strength."""
    scaler = torch.amp.GradScaler("cpu", enabled=foreign)
    key = make_key((64,), 16)
    injector, paper = Injector(key, 0.3, per_sample=per_sample), Injector(key, 0.3, per_sample=per_sample)
    generator = torch.Generator().manual_seed(0)
    # First a batch that looks scaled, then usual ones again, and sizes on both sides of every bound.
    for size in (1.0, 2.0**16, 1.0, 1e-3, 2.0**30, 1.0, 1e20, 1e-20, 100.0, 1.0):
        gradient = size * 0.01 * torch.randn(8, 64, generator=generator)
        activation = torch.randn(8, 64, generator=generator).requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            injector.attach(activation)
            activation.backward(gradient)
        assert activation.grad is not None
        main = gradient.double().norm()
        added = float((activation.grad.double() - gradient.double()).norm() / main)
        by_paper = float((paper(activation.detach(), gradient).double() - gradient.double()).norm() / main)
        assert by_paper - 1e-6 <= added <= 0.3 + 1e-6
        if size == 1.0:
            assert added == pytest.approx(by_paper, abs=1e-6)  # nothing is remembered against usual gradients
    assert scaler.is_enabled() == foreign


def test_a_scaler_is_looked_for_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = 0

    def count(size: float) -> None:
        nonlocal searches
        searches += 1

    monkeypatch.setattr("sigil.injector._scaler_behind", count)
    injector = Injector(make_key((64,), 16))
    for number in range(100):
        activation = torch.randn(8, 64).requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            injector.attach(activation)
            activation.backward(torch.randn(8, 64) * (1e6 if number % 2 else 1.0))
    assert 0 < searches <= 10


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_loss_scale_that_is_none_is_refused(wrong: float) -> None:
    injector = Injector(make_key((4,), 4))
    with pytest.raises(ConfigError, match=r"The loss scale is .*, but it must be a finite number above 0"):
        injector.attach(torch.randn(3, 4).requires_grad_(), loss_scale=wrong)
