"""Whose copy is it: disguises, mixtures, levels and words."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import sigil
from sigil import attacks, models
from sigil.attacks.permute import disguise_spaces
from sigil.errors import ConfigError, SuspectError
from sigil.imprint import Imprint, write_copy
from sigil.suspect import open_suspect, open_weights
from sigil.tracing import ORDERS, QUESTIONS, trace

KEY = sigil.Key.generate("ACME", shape=(8, 4, 4), seed=bytes(32))
NAMES = ("Hospital B", "Clinic C", "Institute D", "Practice E")
WHOLE = models.build("resnet18", width=8, input_size=16, seed=0).eval()
HALF, SERVER = models.split(WHOLE, "layer3")


def issued(model: Any, names: tuple[str, ...] = NAMES) -> Imprint:
    copies = Imprint(KEY, model)
    for name in names:
        copies.issue(name)
    return copies


COPIES = issued(HALF)
WEIGHTS = {"weight": torch.randn(128, 128, generator=torch.Generator().manual_seed(0))}
PLAIN = issued(WEIGHTS, tuple(f"Recipient {number}" for number in range(24)))


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_names_its_recipient_and_nobody_else(name: str) -> None:
    outcome = trace(COPIES.issue(name), KEY, COPIES, level="court")
    assert outcome.named == (name,)
    assert outcome.found
    assert outcome.recipients[0].name == name
    assert all(abs(each.deviations) < 4 for each in outcome.recipients[1:])
    assert outcome.weights == COPIES.weights


@pytest.mark.parametrize("seed", [10, 11, 12, None], ids=lambda seed: f"stranger {seed}" if seed else "owner")
def test_a_stranger_and_the_owner_s_own_copy_name_nobody(seed: int | None) -> None:
    stranger = models.split(models.build("resnet18", width=8, seed=seed), "layer3")[0]
    outcome = trace(HALF if seed is None else stranger, KEY, COPIES)
    assert outcome.named == ()
    assert not outcome.found
    assert all(each.log10_p > -3 for each in outcome.recipients)
    assert str(outcome).startswith("The suspect is not shown to contain any of the 4 copies")


def hidden(half: models.Model) -> models.Model:
    """A whole model that computes the same with all its channels reordered and scaled, inside blocks too."""
    whole = models.join(half, SERVER).eval()
    random = torch.Generator().manual_seed(1)
    for block in ("layer1.0", "layer2.1", "layer3.0"):
        size = whole.get_submodule(f"{block}.conv1").weight.shape[0]
        order = torch.randperm(size, generator=random)
        scale = torch.rand(size, generator=random).double() + 0.5
        disguise_spaces(whole, [block], order=order, scale=scale)
    for cut in models.cut_points("resnet18"):
        whole = attacks.permute(whole, cut=cut, seed=4)
    return whole.eval()


def test_reordered_and_scaled_channels_are_put_back() -> None:
    suspect = hidden(COPIES.issue("Clinic C"))
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        same = models.join(COPIES.issue("Clinic C"), SERVER).eval()(images)
        assert torch.allclose(suspect.eval()(images), same, atol=1e-3), "the disguise changes nothing"
    outcome = trace(suspect, KEY, COPIES, level="court")
    assert outcome.named == ("Clinic C",)
    assert outcome.recipients[0].restored


def test_names_that_a_wrapper_or_a_thief_changed_do_not_matter() -> None:
    state = COPIES.issue("Clinic C").state_dict()
    wrapped = {f"module.net.{name}": value for name, value in state.items()}
    assert trace(wrapped, KEY, COPIES).recipients[0].restored is False
    assert trace(wrapped, KEY, COPIES).named == ("Clinic C",)
    renamed = {f"t{place}": value for place, value in enumerate(state.values())}
    assert trace(renamed, KEY, COPIES, level="court").named == ("Clinic C",)
    plain = {"renamed": PLAIN.issue("Recipient 7")["weight"], "other": torch.randn(128, 128)}
    assert trace(plain, KEY, PLAIN, level="court").named == ("Recipient 7",)


def test_layers_that_took_each_other_s_names_do_not_matter() -> None:
    """Noise, so that the layers which kept their names do not name the recipient by themselves."""
    random = torch.Generator().manual_seed(3)
    state, shapes = dict(COPIES.issue("Clinic C").state_dict()), {}
    for name, value in state.items():
        if value.ndim == 4:
            shapes.setdefault(value.shape, []).append(name)
            state[name] = value + 0.3 * value.std() * torch.randn(value.shape, generator=random)
    lying = state | {
        name: state[other]
        for names in shapes.values()
        for name, other in zip(names, names[1:] + names[:1], strict=True)
    }
    plain, restored = (trace(each, KEY, COPIES).recipients[0] for each in (state, lying))
    assert restored.name == plain.name == "Clinic C"
    assert restored.restored
    assert restored.deviations > 0.9 * plain.deviations


def test_reordered_channels_of_a_network_of_one_s_own_are_put_back() -> None:
    net = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 48, 3), nn.ReLU(), nn.Conv2d(48, 16, 3))
    )
    copies = issued(net)
    suspect = copies.issue("Clinic C")
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for tensor in (suspect[0].weight, suspect[0].bias):
            tensor.copy_(tensor[order])
        suspect[2].weight.copy_(suspect[2].weight[:, order])
        order = torch.randperm(48, generator=torch.Generator().manual_seed(1))
        for tensor in (suspect[2].weight, suspect[2].bias):
            tensor.copy_(tensor[order])
        suspect[4].weight.copy_(suspect[4].weight[:, order])
    assert trace(suspect, KEY, copies).named == ()
    outcome = trace(suspect, KEY, copies, level="court", input_shape=(3, 12, 12))
    assert outcome.named == ("Clinic C",)
    assert outcome.recipients[0].restored
    assert trace(nn.Sequential(nn.Conv2d(3, 32, 3)), KEY, copies, input_shape=(3, 12, 12)).named == ()


@pytest.mark.parametrize("model", [WHOLE, SERVER], ids=["whole", "server half"])
def test_whole_models_and_server_halves(model: models.Model, tmp_path: Path) -> None:
    copies = issued(model)
    suspect = copies.issue("Clinic C")
    write_copy(tmp_path / "suspect.safetensors", suspect)
    copies.save(tmp_path / "copies")
    outcome = trace(tmp_path / "suspect.safetensors", KEY, tmp_path / "copies", level="court")
    assert outcome.named == ("Clinic C",)
    if model is WHOLE:  # its client half alone is enough
        assert trace(models.split(suspect, "layer2")[0], KEY, copies).named == ("Clinic C",)


def test_every_kind_of_file_is_read(tmp_path: Path) -> None:
    suspect = COPIES.issue("Clinic C")
    whole = models.join(suspect, SERVER)
    COPIES.save(tmp_path / "copies")
    torch.save(whole.state_dict(), tmp_path / "a.pt")
    save_file(dict(suspect.state_dict()), tmp_path / "b.safetensors")
    models.save(tmp_path / "c.safetensors", whole)
    for name in ("a.pt", "b.safetensors", "c.safetensors"):
        outcome = trace(tmp_path / name, KEY, tmp_path / "copies", level="court")
        assert outcome.named == ("Clinic C",), name
        assert outcome.sha256 == open_weights(tmp_path / name, ["fc.weight"]).sha256
    opened = open_suspect(tmp_path / "a.pt", cut="layer3")
    assert trace(opened, KEY, COPIES).named == ("Clinic C",)


def test_a_copy_behind_another_model_is_found_and_every_model_of_a_file_is_a_try(tmp_path: Path) -> None:
    """A thief may put any number of models into one file, the stolen one last or under names of its own."""
    decoy, stolen = HALF.state_dict(), COPIES.issue("Clinic C").state_dict()
    behind = {f"x{place}": tensor for place, tensor in enumerate(stolen.values())}
    for number, (held, entries) in enumerate(
        (
            ({"a": decoy, "b": stolen}, ("a", "b")),
            ({"a": decoy, "b": decoy, "c": stolen}, ("a", "c")),  # the same numbers twice are one model
            ({"a": decoy, "b": behind}, ("a", "all else")),
        )
    ):
        torch.save(held, tmp_path / f"{number}.pt")
        outcome = trace(tmp_path / f"{number}.pt", KEY, COPIES)
        assert (outcome.named, outcome.entries, outcome.unread) == (("Clinic C",), entries, 0)
        assert outcome.tries == 2
    small = issued({"weight": torch.randn(64, 64, generator=torch.manual_seed(0))}, ("Clinic C",))
    many = {f"m{number}": {"weight": torch.full((64, 64), float(number))} for number in range(20)}
    torch.save(many, tmp_path / "many.pt")
    outcome = trace(tmp_path / "many.pt", KEY, small)
    assert (len(outcome.entries), outcome.unread, outcome.named) == (17, 4, ())
    assert "not read" in str(outcome)


@pytest.mark.slow
def test_a_graph_without_names_is_read(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    place = tmp_path / "suspect.onnx"
    program = torch.onnx.export(
        COPIES.issue("Clinic C").eval(), (torch.zeros(1, 3, 16, 16),), dynamo=True, verbose=False
    )
    assert program is not None
    program.save(str(place))
    end = program.model.graph.outputs[0].name
    assert trace(place, KEY, COPIES, at=end, level="court").named == ("Clinic C",)


# 6. What p is multiplied by.


def test_levels_multiply_by_what_was_tried_and_a_court_s_by_2_to_the_128_more() -> None:
    suspect = {
        "weight": WEIGHTS["weight"] + torch.randn(128, 128, generator=torch.Generator().manual_seed(3))
    }
    suspect = {"weight": 0.5 * suspect["weight"] + 0.5 * PLAIN.issue("Recipient 7")["weight"]}
    owner, court, tried = (
        trace(suspect, KEY, PLAIN, **more)  # type: ignore[arg-type]
        for more in ({}, {"level": "court"}, {"tries": 1_000})
    )
    for first, second, third in zip(owner.recipients, court.recipients, tried.recipients, strict=True):
        assert first.log10_p_before == second.log10_p_before == third.log10_p_before
        paid = math.log10(24 * ORDERS * QUESTIONS)
        assert first.log10_p == pytest.approx(min(0, first.log10_p_before + paid))
        assert second.log10_p == pytest.approx(min(0, first.log10_p_before + paid + 128 * math.log10(2)))
        assert third.log10_p == pytest.approx(min(0, first.log10_p_before + paid + 3))
    assert owner.log10_level == pytest.approx(math.log10(3e-7))


def noisy(size: float, seed: int = 4) -> dict[str, Tensor]:
    noise = size * torch.randn(128, 128, generator=torch.Generator().manual_seed(seed))
    return {"weight": PLAIN.issue("Recipient 7")["weight"] + noise}


def test_what_convinces_the_owner_need_not_convince_a_court() -> None:
    suspect = noisy(0.25)
    assert trace(suspect, KEY, PLAIN).named == ("Recipient 7",)
    assert trace(suspect, KEY, PLAIN, level="court").named == ()


# 7. Words.


def test_it_says_whose_copy_and_not_who_passed_it_on() -> None:
    outcome = trace(noisy(0.25), KEY, PLAIN)
    text = str(outcome)
    assert text.startswith("The suspect contains the copy that was made for Recipient 7 on 2")
    assert "Who passed it on is not shown" in text
    assert "the owner, who can make every copy" in text
    assert "leaked" not in text
    assert "corrected" in text
    assert set(outcome.to_dict()) >= {
        "recipients",
        "coalition",
        "named",
        "found",
        "level",
        "log10_level",
        "tries",
    }
    assert outcome.to_dict()["recipients"][0]["name"] == "Recipient 7"


# 8. Several copies at once.


def test_a_mixture_that_names_nobody_alone_is_found_by_its_best_subset() -> None:
    mixed = torch.stack([PLAIN.issue(f"Recipient {number}")["weight"] for number in range(8)]).mean(0)
    suspect = {"weight": mixed + 0.07 * torch.randn(128, 128, generator=torch.Generator().manual_seed(5))}
    outcome = trace(suspect, KEY, PLAIN)
    assert outcome.coalition is not None
    assert outcome.coalition.contained
    inside = {f"Recipient {number}" for number in range(8)}
    assert len(inside.intersection(outcome.coalition.names)) >= 6
    assert outcome.coalition.log10_p < outcome.recipients[0].log10_p
    assert "as a group" in str(outcome)
    # The sum over everybody, without looking for a subset, would lose the root of 24 / 8.
    everybody = sum(each.deviations for each in outcome.recipients) / math.sqrt(24)
    few = sum(each.deviations for each in outcome.recipients if each.name in inside) / math.sqrt(8)
    assert everybody < 0.8 * few


def test_copies_that_were_averaged_are_named_each() -> None:
    names = [f"Recipient {number}" for number in (3, 11, 20)]
    mixed = torch.stack([PLAIN.issue(name)["weight"] for name in names]).mean(0)
    outcome = trace({"weight": mixed}, KEY, PLAIN, level="court")
    assert sorted(outcome.named) == sorted(names)
    assert outcome.coalition is not None
    assert sorted(outcome.coalition.names) == sorted(names)


def test_somebody_contained_alone_draws_nobody_else_into_a_coalition() -> None:
    assert trace(PLAIN.issue("Recipient 7"), KEY, PLAIN).coalition is None


# 9. What was made public.


def test_the_register_says_what_was_made_public_and_the_words_say_what_else_would_explain_it() -> None:
    copies = Imprint(KEY, WEIGHTS)
    public = copies.issue("Public release", public=True)
    outcome = trace(public, KEY, copies)
    assert outcome.recipients[0].public
    assert "made public, so finding it says nothing about anybody" in str(outcome)
    assert "An older common ancestor that was public would explain it too." in str(outcome)


# Bad input.


def test_a_suspect_with_other_shapes_is_refused() -> None:
    for suspect in ({"weight": torch.randn(9, 9)}, {}, {"bias": torch.randn(5)}, nn.Linear(3, 3)):
        with pytest.raises(SuspectError, match="no weights in the shapes of the owner's copy"):
            trace(suspect, KEY, PLAIN)


@pytest.mark.parametrize(
    ("suspect", "sentence"),
    [
        (7, "shows no weights"),
        (None, "shows no weights"),
        (lambda batch: batch, "shows no weights"),
        ({1: torch.zeros(1)}, "maps names to tensors"),
        ({"weight": "text"}, "maps names to tensors"),
        ({"weight": torch.randn(128, 128).to_sparse()}, "dense tensor"),
        ("missing.safetensors", "missing.safetensors"),
    ],
)
def test_what_is_no_suspect_is_one_sentence(suspect: Any, sentence: str) -> None:
    with pytest.raises(SuspectError, match=sentence):
        trace(suspect, KEY, PLAIN)


def test_values_that_are_not_finite_name_nobody_and_crash_nothing() -> None:
    few = issued(WEIGHTS)
    for value in (math.nan, math.inf, -math.inf, 1e38):
        outcome = trace({"weight": torch.full((128, 128), value)}, KEY, few)
        assert not outcome.found
    half = copy.deepcopy(COPIES.issue("Clinic C"))
    with torch.no_grad():
        next(half.parameters())[0, 0] = math.nan
    assert trace(half, KEY, COPIES).named == ("Clinic C",)


def test_other_keys_levels_and_empty_registers_are_refused(tmp_path: Path) -> None:
    other = sigil.Key.generate("Mallory", shape=(8, 4, 4), seed=bytes(range(32)))
    with pytest.raises(ConfigError, match="belongs to another key"):
        trace(WEIGHTS, other, PLAIN)
    with pytest.raises(ConfigError, match="one of owner, court"):
        trace(WEIGHTS, KEY, PLAIN, level="everybody")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tries"):
        trace(WEIGHTS, KEY, PLAIN, tries=0)
    with pytest.raises(ConfigError, match="names no recipient yet"):
        trace(WEIGHTS, KEY, Imprint(KEY, WEIGHTS))
    with pytest.raises(ConfigError, match="does not exist"):
        trace(WEIGHTS, KEY, tmp_path)


def test_going_beyond_a_copy_away_from_a_later_model_of_the_training_blames_nobody_else(
    tmp_path: Path,
) -> None:
    """Training heals copies; if that were averaged, who goes away from later models would have +n of all."""
    random = torch.Generator().manual_seed(0)
    first = {"weight": torch.randn(256, 256, generator=random)}
    names = ("client 0", "client 1")
    block = issued(first, names)
    copies = {name: block.issue(name)["weight"] for name in names}
    learned = 0.01 * torch.randn(256, 256, generator=random)
    returned = {name: mine + learned - 0.3 * (mine - first["weight"]) for name, mine in copies.items()}
    naive = torch.stack([returned[name] - copies[name] for name in names]).mean(0)
    taken = torch.stack([block.change(name, {"weight": returned[name]})["weight"] for name in names]).mean(0)
    block.save(tmp_path / "imprints" / "round-00001-a")
    for far in (1.0, 2.0, 8.0):
        assert len(trace({"weight": copies["client 0"] - far * naive}, KEY, block).named) == 2
        for register in (block, tmp_path):
            outcome = trace({"weight": copies["client 0"] - far * taken}, KEY, register)
            assert outcome.named == ("client 0",)
            assert outcome.recipients[1].deviations < 4
    assert not trace({"weight": first["weight"] - 8 * taken}, KEY, tmp_path).found


@pytest.mark.parametrize(("share", "named"), [(0.04, False), (0.2, True)])
def test_what_another_client_might_put_into_a_suspect_names_nobody_in_a_training(
    tmp_path: Path, share: float, named: bool
) -> None:
    first = {"weight": torch.randn(256, 256, generator=torch.Generator().manual_seed(0))}
    block = issued(first, ("client 0", "client 1"))
    own, other = (block.issue(name)["weight"] - first["weight"] for name in ("client 0", "client 1"))
    made = {"weight": first["weight"] + own + share * other}
    block.save(tmp_path / "round-00001-a")
    assert trace(made, KEY, block).named == ("client 0", "client 1")
    for place in (tmp_path, tmp_path / "round-00001-a"):
        outcome = trace(made, KEY, place)
        assert ("client 1" in outcome.named) == named
        assert outcome.recipients[0].name == "client 0"
        assert outcome.recipients[0].contained
        # It is a bound on what chance explains, and never below p itself.
        assert all(each.log10_p > each.log10_p_before for each in outcome.recipients)
