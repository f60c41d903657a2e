"""Copies for recipients: what they are, what fixes them, and what attacking simpler designs showed."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sigil
from sigil import imprint_reading, models
from sigil.errors import ConfigError, ModelError, OutputError, ShapeError, TrainingError
from sigil.imprint import Imprint, canonical, usual_strength, write_copy
from sigil.imprint_reading import deviations, log10_p_before, read

KEY = sigil.Key.generate("ACME", shape=(8, 4, 4), seed=bytes(32))
OTHER = sigil.Key.generate("Mallory", shape=(8, 4, 4), seed=bytes(range(32)))
NAME = "Hospital B"


def weights(seed: int = 0, size: int = 64) -> dict[str, Tensor]:
    return {"weight": torch.randn(size, size, generator=torch.Generator().manual_seed(seed))}


def half() -> models.Model:
    whole = models.build("resnet18", width=4, input_size=16, seed=0)
    return models.split(whole, "layer2")[0].eval()


def log10(copies: Imprint, suspect: dict[str, Tensor], name: str = NAME) -> float:
    reading = read(copies.state, suspect)
    return log10_p_before(reading.positive(copies.pattern(name)), reading.coins)


# What a copy is.


def test_a_copy_is_the_model_plus_a_little_of_the_pattern() -> None:
    copies = Imprint(KEY, weights(), strength=0.02)
    issued = copies.issue(NAME)
    spread = weights()["weight"].std(1, correction=0, keepdim=True)
    step = (issued["weight"] - weights()["weight"]) / spread
    assert torch.allclose(step, 0.005 * torch.from_numpy(copies.pattern(NAME)["weight"]).float(), atol=2e-5)
    assert float(step.std()) == pytest.approx(0.02, rel=0.05)


def test_a_module_gives_a_module_and_is_left_as_it_was() -> None:
    model = half()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    issued = Imprint(KEY, model).issue(NAME)
    assert isinstance(issued, models.Model)
    assert issued.spec == model.spec
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
        assert torch.equal(value, issued.state_dict()[name]) == (value.ndim < 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_number_formats_are_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    copies = Imprint(KEY, {"weight": weights()["weight"].to(dtype)})
    issued = copies.issue(NAME)
    assert issued["weight"].dtype == dtype
    assert log10(copies, issued) < -100
    copies.save(tmp_path / "copies")
    assert torch.equal(Imprint.load(tmp_path / "copies", KEY).issue(NAME)["weight"], issued["weight"])


def test_weights_under_two_names_carry_one_pattern(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 64, bias=False))
    model[2].weight = model[0].weight
    copies = Imprint(KEY, model)
    assert copies.carriers == ("0.weight",)
    issued = copies.issue(NAME)
    assert issued[0].weight is issued[2].weight
    assert not torch.equal(issued[0].weight, model[0].weight)
    copies.save(tmp_path / "copies")
    again = Imprint.load(tmp_path / "copies", KEY).issue(NAME)
    assert torch.equal(again["2.weight"], issued[0].weight)
    assert copies.is_of(model)


def test_the_strength_follows_from_the_number_of_weights() -> None:
    assert usual_strength(10_000) == 0.02
    assert usual_strength(11_000_000) == pytest.approx(22 / math.sqrt(11_000_000))
    assert usual_strength(10**10) == 0.005
    copies = Imprint(KEY, weights())
    assert copies.after_noise == pytest.approx(0.02 * 64)
    for wrong in (0.0, 0.5, math.nan):
        with pytest.raises(ConfigError, match="strength is"):
            Imprint(KEY, weights(), strength=wrong)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"bias": torch.randn(5000)}, "has 0 weights of two or more axes"),
        ({"weight": torch.randn(4, 4)}, "has 16 weights"),
        (nn.BatchNorm2d(2000), "has 0 weights"),
        ({"weight": torch.full((64, 64), math.nan)}, "not finite"),
        ({"weight": torch.randn(64, 64, dtype=torch.complex64)}, "is complex"),
        ({"weight": "text"}, "maps names to tensors"),
        ({"weight": torch.randn(64, 64).to_sparse()}, "dense tensor"),
        (7, "a module or a state dict is wanted"),
        ({"weight": torch.randint(0, 9, (64, 64))}, "has 0 weights"),
    ],
)
def test_a_model_that_cannot_carry_a_pattern_is_refused(model: Any, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        Imprint(KEY, model)


@pytest.mark.parametrize("name", ["", " B", "B\n", "B\x1b[31m", "A" * 129, "Hospit\u0430l", 7, None])
def test_a_recipient_has_a_name_that_can_be_printed_and_looks_like_no_other(name: Any) -> None:
    copies = Imprint(KEY, weights())
    with pytest.raises(ConfigError, match="recipient's name must"):
        copies.issue(name)
    assert not copies.copies


# 1. No alphabet of two: where two copies differ, their midpoint would be the owner's weight.


def middle(copies: list[Tensor]) -> Tensor:
    stacked = torch.stack(copies)
    return (stacked.amin(0) + stacked.amax(0)) / 2


def test_the_midpoint_of_ten_copies_gives_the_owner_s_weights_away_only_with_two_letters() -> None:
    ours = weights()["weight"]
    copies = Imprint(KEY, {"weight": ours})
    names = [f"Recipient {number}" for number in range(10)]
    patterns = [torch.from_numpy(copies.pattern(name)["weight"]).float() for name in names]
    naive = [ours + 0.02 * torch.where(pattern >= 0, 1.0, -1.0) for pattern in patterns]
    assert float(torch.isclose(middle(naive), ours, atol=1e-6).float().mean()) > 0.95
    mixed = middle([copies.issue(name)["weight"] for name in names])
    assert float(torch.isclose(mixed, ours, atol=1e-4).float().mean()) < 0.3
    for name in names:
        assert log10(copies, {"weight": mixed}, name) < -20


def test_a_weight_takes_many_values() -> None:
    pattern = Imprint(KEY, weights(size=256)).pattern(NAME)["weight"]
    values, counts = np.unique(pattern, return_counts=True)
    assert set(values.tolist()) <= set(range(-16, 17, 2))
    assert counts.max() / pattern.size < 0.21, "zero has the probability 0.196"
    assert float(pattern.astype(float).var()) == pytest.approx(16, rel=0.03)


# 2. A pattern is held: fresh ones over a model that stands still would be averaged away by one recipient.


def test_a_recipient_gets_the_same_copy_however_often_it_asks() -> None:
    copies = Imprint(KEY, weights(size=128))
    noise = 0.1 * torch.randn(128, 128, generator=torch.Generator().manual_seed(5))
    asked = [copies.issue(NAME)["weight"] for _ in range(40)]
    held = {"weight": torch.stack(asked).mean(0) + noise}
    assert all(torch.equal(asked[0], each) for each in asked)
    assert len(copies.copies) == 1
    assert log10(copies, held) < -60
    fresh = [copies.issue(f"{NAME}, round {number}")["weight"] for number in range(40)]
    naive = {"weight": torch.stack(fresh).mean(0) + noise}
    each = [log10(copies, naive, f"{NAME}, round {number}") for number in range(40)]
    assert min(each) > -9, "not even the best of forty patterns would name the recipient"


# 3. Only against its own model: the pattern follows from a digest of everything that the reader uses.


def test_a_model_made_to_fit_a_stranger_s_afterwards_gets_another_pattern() -> None:
    stranger = weights(seed=9)
    copies = Imprint(KEY, weights())
    pattern = copies.pattern(NAME)
    fitted = {"weight": stranger["weight"] - 0.02 * torch.from_numpy(pattern["weight"]).float()}
    reading = read(fitted, stranger)
    naive = deviations(reading.positive(pattern), reading.coins)
    assert naive > 50, "with a pattern that follows from key and name alone the stranger would be framed"
    assert log10(Imprint(KEY, fitted), stranger) > -4


def test_the_digest_covers_everything_that_is_read() -> None:
    model = half()
    digests = {Imprint(KEY, model).digest, Imprint(KEY, model, strength=0.01).digest}
    state = model.state_dict()
    for name, value in state.items():
        changed = half()
        if value.is_floating_point():
            changed.state_dict()[name].view(-1)[0].mul_(-1).sub_(1e-3)
        else:
            changed.state_dict()[name].add_(1)
        digests.add(Imprint(KEY, changed).digest)
    assert len(digests) == 2 + len(state)
    renamed = {f"x{name}": value for name, value in state.items()}
    assert len({Imprint(KEY, each).digest for each in (model, dict(state), renamed)}) == 3
    backwards = dict(reversed(list(state.items())))
    assert Imprint(KEY, backwards).digest == Imprint(KEY, dict(state)).digest


def test_the_version_of_the_rules_is_part_of_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Imprint(KEY, weights()).digest
    monkeypatch.setattr("sigil.imprint.VERSION", 2)
    assert Imprint(KEY, weights()).digest != before


def test_zeros_and_what_is_no_number_have_one_form_each() -> None:
    bits = torch.tensor([0x7FC00000, 0x7FC00001, -0x400000], dtype=torch.int32).view(torch.float32)
    same = canonical(bits).view(torch.int32)
    assert len(set(same.tolist())) == 1
    one, other = (
        {**weights(), "bias": torch.tensor([zero, nan])} for zero, nan in ((0.0, bits[0]), (-0.0, bits[1]))
    )
    assert Imprint(KEY, one).digest == Imprint(KEY, other).digest


def test_each_recipient_s_pattern_has_a_stream_of_its_own() -> None:
    copies = Imprint(KEY, weights())
    opened = KEY.imprint_stream(copies.digest, NAME).octets(0, 2 * 64 * 64)
    coins = np.unpackbits(np.frombuffer(opened, dtype=np.uint8)).reshape(-1, 16).sum(1).astype(int)
    assert np.array_equal(2 * coins - 16, copies.pattern(NAME)["weight"].reshape(-1))
    both = [copies.pattern(name)["weight"].astype(float).reshape(-1) for name in (NAME, "Clinic C")]
    assert abs(np.corrcoef(both)[0, 1]) < 0.07


# 5. Changes are averaged, not what was returned, and none that has to do with a pattern.


def test_changes_leave_the_patterns_out_of_the_next_model() -> None:
    copies = Imprint(KEY, weights())
    names = [f"Recipient {number}" for number in range(3)]
    learned = 0.05 * torch.randn(64, 64, generator=torch.Generator().manual_seed(6))
    returned = {name: {"weight": copies.issue(name)["weight"] + learned} for name in names}
    naive = {"weight": torch.stack([each["weight"] for each in returned.values()]).mean(0)}
    changes = [copies.change(name, each)["weight"] for name, each in returned.items()]
    following = {"weight": copies.state["weight"] + torch.stack(changes).mean(0).float()}
    # But for one of its 4,096 components, that along the pattern.
    kept = following["weight"] - copies.state["weight"]
    assert float((kept - learned).norm() / learned.norm()) < 0.05
    for name in names:
        assert log10(copies, naive, name) < -12
        assert log10(copies, following, name) > -4


def test_a_change_that_has_to_do_with_a_pattern_is_refused() -> None:
    copies = Imprint(KEY, weights())
    mine, other = copies.issue(NAME)["weight"], copies.issue("Clinic C")["weight"]
    learned = 0.01 * torch.randn(64, 64, generator=torch.Generator().manual_seed(7))
    copies.change(NAME, {"weight": mine + learned})
    with pytest.raises(TrainingError, match="has to do with the pattern of Clinic C"):
        copies.change(NAME, {"weight": mine + learned + (other - copies.state["weight"])})
    with pytest.raises(TrainingError, match="not finite"):
        copies.change(NAME, {"weight": mine * math.nan})
    with pytest.raises(ShapeError, match="other tensors"):
        copies.change(NAME, {"weight": mine[:3]})


def test_a_change_that_heals_its_own_copy_puts_nothing_of_the_pattern_into_the_next_model() -> None:
    """Averaged as it is, it would put −n there, of which somebody else could make +n."""
    copies = Imprint(KEY, weights())
    given = copies.issue(NAME)["weight"]
    learned = 0.02 * torch.randn(64, 64, generator=torch.Generator().manual_seed(8))
    change = learned - 0.3 * (given - copies.state["weight"])
    naive = {"weight": copies.state["weight"] - 20 * change}
    taken = copies.change(NAME, {"weight": given + change})["weight"].float()
    assert log10(copies, naive, NAME) < -12
    assert log10(copies, {"weight": copies.state["weight"] - 20 * taken}, NAME) > -2
    assert abs(copies.patterns((NAME,)).agreement({NAME: {"weight": taken}})[NAME][NAME]) < 1e-3


# The register.


def test_a_register_gives_the_same_copies_again_and_holds_no_secret(tmp_path: Path) -> None:
    key = OTHER
    copies = Imprint(key, half())
    first = copies.issue(NAME)
    copies.issue("Public release", public=True)
    copies.save(tmp_path / "copies")
    again = Imprint.load(tmp_path / "copies", key)
    assert again.copies == copies.copies
    assert (again.digest, again.strength, again.carriers) == (copies.digest, copies.strength, copies.carriers)
    assert isinstance(again.issue(NAME), models.Model)
    assert all(
        torch.equal(a, b) for a, b in zip(again.issue(NAME).parameters(), first.parameters(), strict=True)
    )
    assert [each.public for each in again.copies.values()].count(True) == 1
    content = b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file())
    secrets = [bytes(range(32)), key.imprint_stream(copies.digest, NAME).octets(0, 16)]
    assert not any(secret in content or secret.hex().encode() in content for secret in secrets)
    if os.name == "posix":
        assert (tmp_path / "copies").stat().st_mode & 0o077 == 0


def test_two_who_issue_at_the_same_time_lose_nobody(tmp_path: Path) -> None:
    Imprint(KEY, weights()).save(tmp_path)
    one, other = Imprint.load(tmp_path, KEY), Imprint.load(tmp_path, KEY)
    one.issue("A")
    other.issue("B")
    one.save(tmp_path)
    other.save(tmp_path)
    date = one.copies["A"].date
    late = Imprint(KEY, weights())
    late.issue("A")
    late.save(tmp_path)
    found = Imprint.load(tmp_path, KEY)
    assert sorted(found.copies) == ["A", "B"]
    assert found.copies["A"].date == date, "the first entry stays"


def test_a_register_of_another_key_or_model_is_refused(tmp_path: Path) -> None:
    copies = Imprint(KEY, weights())
    copies.issue(NAME)
    copies.save(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="belongs to another key"):
        Imprint.load(tmp_path, OTHER)
    with pytest.raises(ConfigError, match="belongs to another key"):
        Imprint(OTHER, weights()).save(tmp_path)
    with pytest.raises(ConfigError, match="is of another model"):
        Imprint(KEY, weights(seed=1)).save(tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (tmp_path / "owner.safetensors").unlink()
    write_copy(tmp_path / "owner.safetensors", weights(seed=1))
    with pytest.raises(ModelError, match="is not the model of this register"):
        Imprint.load(tmp_path, KEY)
    (tmp_path / "register.json").unlink()
    with pytest.raises(ConfigError, match="is another model"):
        Imprint(KEY, weights()).save(tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": 2}, "has version 2"),
        ({"strength": "strong"}, "is not a register"),
        ({"strength": 0.03}, "is not the model"),
        ({"carriers": ["weight", "weight"]}, "lists tensors"),
        ({"carriers": [["weight"]]}, "lists tensors"),
        ({"carriers": ["other"]}, "lists tensors"),
        ({"carriers": 7}, "is not a register"),
        ({"tied": {"weight": "weight"}}, "lists tensors"),
        ({"digest": "0" * 64}, "is not the model"),
        ({"digest": None}, "is not the model"),
        ({"key_check": "0" * 64}, "another seal"),
    ],
)
def test_a_register_that_was_changed_is_one_sentence(
    change: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    Imprint(KEY, weights()).save(tmp_path)
    place = tmp_path / "register.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | change))
    with pytest.raises((ConfigError, ModelError), match=sentence):
        Imprint.load(tmp_path, KEY)


def test_an_entry_that_was_changed_is_one_sentence(tmp_path: Path) -> None:
    copies = Imprint(KEY, weights())
    copies.issue(NAME)
    copies.save(tmp_path)
    (entry,) = (tmp_path / "copies").iterdir()
    sound = json.loads(entry.read_text())
    for wrong in (
        sound | {"recipient": "Clinic C"},
        sound | {"recipient": "\x1b[31m"},
        sound | {"recipient": 7},
        sound | {"public": "no"},
        sound | {"more": 1},
        sound | {"date": "2" * 5_000},
        {"recipient": NAME},
        [],
    ):
        entry.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError):
            Imprint.load(tmp_path, KEY)
    entry.write_text(json.dumps(sound | {"digest": "0" * 64}))
    with pytest.raises(ModelError, match="comes out otherwise"):
        Imprint.load(tmp_path, KEY).issue(NAME)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and links")
def test_no_link_is_followed_and_no_pipe_waited_for(tmp_path: Path) -> None:
    Imprint(KEY, weights()).save(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "register.json").symlink_to(tmp_path / "a" / "register.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        Imprint.load(tmp_path / "b", KEY)
    (tmp_path / "a" / "owner.safetensors").rename(tmp_path / "elsewhere")
    (tmp_path / "a" / "owner.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a link"):
        Imprint.load(tmp_path / "a", KEY)
    (tmp_path / "c").mkdir()
    os.mkfifo(tmp_path / "c" / "register.json")
    with pytest.raises(ConfigError):
        Imprint.load(tmp_path / "c", KEY)


def test_a_copy_is_never_written_over_anything(tmp_path: Path) -> None:
    for issued in (weights(), half()):
        place = tmp_path / f"{type(issued).__name__}.safetensors"
        write_copy(place, issued)
        before = place.read_bytes()
        with pytest.raises((OutputError, ModelError), match="exists"):
            write_copy(place, issued)
        assert place.read_bytes() == before


def test_the_coins_of_the_reader_are_those_of_the_pattern() -> None:
    assert imprint_reading.COINS == 16
