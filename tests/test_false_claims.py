"""What a false claimant who has read the source tries: keys and references that were made to fit.

Records that were invented and commitments that were copied are in tests/cli/test_evidence.py, time stamps
that were altered in tests/keys/seal.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import scipy  # loads scipy.optimize, which takes a second, only where it is used
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sigil import models, verify
from sigil.alignment import Reference, layers_of
from sigil.attacks.permute import disguise
from sigil.errors import EvidenceError
from sigil.evidence import check
from sigil.evidence.repeating import repeat
from sigil.keys.key import Key
from sigil.keys.stamping import make_query
from sigil.models import Model
from sigil.origin import compare
from sigil.rules import ALPHA, TESTS
from sigil.suspect import Suspect, open_into, open_suspect
from sigil.testing.authority import DemonstrationAuthority
from sigil.verdict.envelope import sign

INPUT = (1, 8, 8)


class Constant(nn.Module):
    """An innocent model that gives one answer to everything."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.register_buffer("answer", answer)

    def forward(self, batch: Tensor) -> Tensor:
        answer: Tensor = self.get_buffer("answer")
        return answer.expand(len(batch), *answer.shape)


def fitting(key: Key) -> Constant:
    """A model that answers every bit as the key says: what no grinding of seeds can do better."""
    signs = 2 * key.target - 1
    return Constant(torch.linalg.lstsq(key.matrix.T, signs[:, None]).solution[:, 0])


def stamped(waiting: Key, authority: DemonstrationAuthority) -> Key:
    return waiting.seal(authority.answer(make_query(waiting.to_be_stamped().statement())))


@pytest.mark.parametrize(("bits", "kinds"), [(24, ()), (50, ()), (51, ("stamped",)), (107, ("both",))])
def test_seeds_ground_before_committing(bits: int, kinds: tuple[str, ...]) -> None:
    """24 bits that fitted three strangers' classifiers, the best of 1.5 million seeds, made them owned."""
    authority = DemonstrationAuthority()
    plain = Key.generate("Eve", (128,), bits=bits, seed=bytes(32), input_shape=INPUT)
    for key, roots in ((plain, None), (stamped(plain, authority), [authority.root])):
        report = verify(fitting(key), key, roots=roots)
        assert report.wsr == 1.0
        # What the verdict was before keys that could have been drawn were priced.
        assert TESTS * 10**report.best.log10_p_before <= ALPHA
        assert report.owned == (key.kind in kinds or "both" in kinds)


def test_a_stamp_counts_under_a_root_that_the_examiner_names_only() -> None:
    """An authority of one's own stamps as often as one likes."""
    authority = DemonstrationAuthority()
    key = stamped(Key.generate("Eve", (128,), bits=64, seed=bytes(32), input_shape=INPUT), authority)
    trusted = verify(fitting(key), key, roots=[authority.root])
    nobody = verify(fitting(key), key)
    assert (trusted.allowance_log2, trusted.owned) == (24, True)
    assert (nobody.allowance_log2, nobody.owned) == (80, False)


def base_model() -> Model:
    """A public base model that has nothing to do with anybody's key."""
    model = models.build("resnet18", classes=4, width=16, channels=1, input_size=8, seed=3)
    return model.eval()


def fitted_reference(base: Model, key: Key) -> Model:
    """The base model, its channels reordered and scaled so that they suit a key: one linear assignment."""
    half, _ = models.split(copy.deepcopy(base), "layer3")
    with torch.no_grad():
        answers = half(torch.randn(256, *INPUT, generator=torch.Generator().manual_seed(1)))
    spread = answers.transpose(0, 1).flatten(1).std(1).clamp_min(1e-6)
    maps = answers.mean(0).flatten(1) / spread[:, None]
    wanted = (key.matrix @ (2 * key.target - 1)).view(len(maps), -1)
    _, matched = scipy.optimize.linear_sum_assignment((wanted @ maps.T).numpy(), maximize=True)
    order = torch.from_numpy(matched)
    model = copy.deepcopy(base)
    disguise(model, "layer3", order=order, scale=1 / spread[order].double())
    return model


@pytest.fixture(scope="module")
def innocent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Key]:
    """A model that somebody fine-tuned from the base, the reference that was made to fit, and the key."""
    folder = tmp_path_factory.mktemp("innocent")
    base = base_model()
    half, _ = models.split(copy.deepcopy(base), "layer3")
    shape = models.activation_shape(half, INPUT)
    key = Key.generate(
        "Eve", shape, bits=32, seed=bytes(32), input_shape=INPUT, model="resnet18", cut="layer3"
    )
    models.save(folder / "reference.safetensors", fitted_reference(base, key))
    with torch.no_grad():
        generator = torch.Generator().manual_seed(2)
        for parameter in half.parameters():
            parameter += 0.01 * parameter.abs().mean() * torch.randn(parameter.shape, generator=generator)
    models.save(folder / "suspect.safetensors", half)
    return folder / "suspect.safetensors", folder / "reference.safetensors", key


def test_a_reference_made_to_fit(innocent: tuple[Path, Path, Key], tmp_path: Path) -> None:
    """It put every fine-tune of a public base model "back in order": owned, with 96.7 % of the answers."""
    suspect_file, reference, key = innocent
    suspect = open_suspect(suspect_file)
    # One statement in a closed register: only what follows keeps the forgery from being proof.
    report = verify(suspect, key, register=1, reference=reference)
    forged = report.reading("noise", aligned=True)
    assert forged is not None
    assert forged.wsr > 0.9
    assert 4 * 10**forged.log10_p_before <= ALPHA
    assert (report.owned, report.experiment) == (False, True)
    assert "brought by the claimant" in report.reasons[0]
    report.save_page(tmp_path / "page.html")
    assert "shared ancestry at most" in (tmp_path / "page.html").read_text("utf-8")

    # The claimant leaves the reasons out, and signs what is left.
    lie = report.model_copy(update={"reasons": (), "owned": True})
    found = check(sign(lie, key.signing_key())).report
    with pytest.raises(EvidenceError, match="does not give what the evidence says"):
        repeat(found, key, suspect, register=1)  # type: ignore[arg-type]


def test_correlations_made_to_fit() -> None:
    """The same with "recorded" correlations: with 256 channels a stranger's model was owned by a plain key.

    84.8 % of 256 bits, p = 10^-42.6 before correction for 2^80 keys.
    """
    base = base_model()
    half, _ = models.split(copy.deepcopy(base), "layer3")
    shape = models.activation_shape(half, INPUT)
    key = Key.generate(
        "Eve", shape, bits=64, seed=bytes(32), input_shape=INPUT, model="resnet18", cut="layer3"
    )
    fitted, _ = models.split(fitted_reference(base, key), "layer3")
    with torch.no_grad():
        noise = torch.randn(1_024, *INPUT, generator=torch.Generator().manual_seed(9))
        answers = fitted.eval()(noise).double().flatten(2)
        for parameter in half.parameters():
            parameter *= 1.001
    pooled = answers.mean(2)
    reference = Reference.from_sums(
        shape,
        {
            "count": torch.tensor(float(len(noise)), dtype=torch.float64),
            "pooled": pooled.sum(0),
            "products": pooled.T @ pooled,
            "squares": answers.square().mean(2).sum(0),
        },
    )
    report = verify(half, key, register=1, reference=reference)
    forged = report.reading("noise", aligned=True)
    assert forged is not None
    assert 2 * TESTS * 10**forged.log10_p_before <= ALPHA
    assert (report.owned, report.experiment, report.tries) == (False, True, 2)


def test_a_key_without_initial_weights_cannot_claim_them(innocent: tuple[Path, Path, Key]) -> None:
    suspect_file, reference, drawn = innocent
    key = Key(dataclasses.replace(drawn.fields, initialiser=None), bytes(32))
    suspect = open_suspect(suspect_file)
    facts = verify(suspect, key, register=1, reference=reference)
    verdict = facts.model_copy(update={"reasons": ()})
    owned = verdict.model_copy(update={"owned": verdict.log10_p <= -6.6})
    with pytest.raises(EvidenceError, match="put in order by something that its key did not draw"):
        check(sign(owned, key.signing_key()))


def test_a_suspect_that_is_a_function_proves_nothing() -> None:
    key = Key.generate("Eve", (128,), bits=128, seed=bytes(32), input_shape=INPUT)
    model = fitting(key)
    report = verify(lambda batch: model(batch), key)
    assert (report.wsr, report.owned, report.experiment) == (1.0, False, True)


class Chain(nn.Module):
    """A stranger's convolutions, under names that the claimant chose."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(7)
        for name in names:
            layer = nn.Conv2d(8, 8, 3, padding=1, bias=False)
            with torch.no_grad():
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=random))
            self.add_module(name, layer)

    def forward(self, batch: Tensor) -> Tensor:
        for layer in self.children():
            batch = layer(batch).relu()
        return batch


def suiting_names(key: Key, weights: Sequence[Tensor], tries: int) -> list[str]:
    """For each layer the one of many names for which the key draws the weights that suit it most."""

    def p(name: str, weight: Tensor) -> float:
        return compare(
            {"weight": weight},
            {"weight": (8, 8, 3, 3)},
            lambda *_: key.initial(f"{name}.weight", weight.shape),
        ).log10_p

    return [
        min((f"layer{place}_{number}" for number in range(tries)), key=lambda name: p(name, weight))
        for place, weight in enumerate(weights)
    ]


@pytest.mark.parametrize("way", ["in memory", "a file", "stated for other names"])
def test_names_of_layers_that_were_chosen_to_suit(way: str, tmp_path: Path) -> None:
    """Ten layers with the best of 60 names each descended: log10 p was -11.8 corrected; -6.5 proves it."""
    stranger = Chain([f"layer{place}" for place in range(10)])
    stated = layers_of(stranger, (8, 6, 6)) if way == "stated for other names" else None
    key = Key.generate("Eve", (8, 6, 6), bits=64, seed=bytes(32), input_shape=(8, 6, 6), model=stated)
    renamed = Chain(suiting_names(key, [layer.weight for layer in stranger.children()], tries=60))
    suspect: nn.Module | Suspect = renamed
    if way == "a file":  # whose names the claimant could choose
        save_file(renamed.state_dict(), tmp_path / "suspect.safetensors")
        suspect = open_into(tmp_path / "suspect.safetensors", renamed)
    report = verify(suspect, key, register=1)
    assert not report.descends
    assert report.log10_p_origin == 0.0
