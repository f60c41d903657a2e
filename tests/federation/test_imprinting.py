"""Copies for the clients of a training: what they get, what is averaged, and that nothing else changes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import sigil
from harness.training import changed
from sigil.errors import ConfigError, ModelError
from sigil.federation import Federation, Settings
from sigil.federation.averaging import State
from sigil.federation.from_settings import load_data, what_a_key_states
from sigil.federation.imprinting import MOVED, Imprinting
from sigil.federation.judging import Update, UpdateJudge
from sigil.federation.run import train
from sigil.federation.trainer import RoundStart
from sigil.imprint import MOST_DEVIATIONS, Imprint
from sigil.models import Model

SMALL = {
    "model": {"name": "vgg11", "width": 16, "cut": "pool2"},
    "data": {"train_limit": 120, "test_limit": 40},
    "federation": {"clients": 3, "rounds": 4, "local_epochs": 1, "batch_size": 16, "imprint": True},
    "optimizer": {"lr": 0.05, "warmup_rounds": 0, "lr_min": 1e-4},
    "watermark": {"strength": 0.3, "bits": 64, "scheme": "paper"},
    "run": {"device": "cpu", "workers": 1, "seed": 3},
}
"""Four rounds of three clients on some digits, each with its own copy; the rate is falling fast."""


def settings(**changes: Any) -> Settings:
    return changed(SMALL, **changes)


@pytest.fixture(scope="module")
def key() -> sigil.Key:
    stated = what_a_key_states(settings())
    return sigil.Key.generate("ACME", bits=64, seed=bytes(32), scheme="paper", **stated)


@pytest.fixture(scope="module")
def finished(key: sigil.Key, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(settings(), tmp_path_factory.mktemp("runs") / "whole", key=key).folder


def blocks(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "imprints").iterdir())


def federation(key: sigil.Key, **changes: Any) -> Federation:
    chosen = settings(**changes)
    return Federation(chosen, load_data(chosen), key=key)


def test_each_block_has_a_register_with_its_model_and_every_client(finished: Path, key: sigil.Key) -> None:
    rows = sigil.federation.open_run(finished).metrics
    assert [row["imprint"] for row in rows] == sorted(row["imprint"] for row in rows)
    assert blocks(finished) == sorted({row["imprint"] for row in rows})
    assert blocks(finished)[0].startswith("round-00001-")
    for block in blocks(finished):
        copies = Imprint.load(finished / "imprints" / block, key)
        assert set(copies.copies) == {"client 0", "client 1", "client 2"}
        assert block.endswith(copies.digest[:12])


def test_patterns_are_held_until_the_model_has_moved(key: sigil.Key) -> None:
    start = federation(key)
    half, state = start.training.halves.client, start.client_state
    assert isinstance(half, Model)
    imprinting = Imprinting(key, half, clients=2, folder=None)
    first = imprinting.begin(1, state)
    near = {name: value * (1 + 0.5 * MOVED) if value.ndim > 1 else value for name, value in state.items()}
    assert imprinting.begin(2, near) is first
    assert imprinting.block.startswith("round-00001-")
    far = {name: value * (1 + 2 * MOVED) if value.ndim > 1 else value for name, value in state.items()}
    second = imprinting.begin(3, far)
    assert imprinting.block.startswith("round-00003-")
    for name, one in first.pattern("client 0").items():
        assert (one != second.pattern("client 0")[name]).mean() > 0.5


def test_a_client_that_changes_nothing_leaves_the_model_as_it_was_bit_for_bit(key: sigil.Key) -> None:
    start = federation(key)
    imprinting = start.imprinting
    assert imprinting is not None
    begun = RoundStart(
        1, 0.1, start.client_state, start.server_state, imprinting.begin(1, start.client_state)
    )
    for client in range(3):
        given = begun.given(client, begun.client)
        assert not torch.equal(given["stage1.0.weight"], begun.client["stage1.0.weight"])
        back = begun.taken(client, begun.client, given)
        assert all(torch.equal(back[name], value) for name, value in begun.client.items())
        assert back.keys() == begun.client.keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"average": "median"},
        {"average": "trimmed-mean"},
        {"server_halves": "shared"},
        {"mode": "sfl"},
        {"mode": "sl"},
    ],
    ids=lambda change: "-".join(change.values()),
)
def test_in_every_mode_clients_that_learn_nothing_change_nothing(
    key: sigil.Key, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a rate of nearly zero only the statistics of batch normalisation move, and no pattern remains."""
    slow = federation(
        key, federation=changes, optimizer={"lr": 1e-30, "lr_min": 0.0, "momentum": 0.0, "weight_decay": 0.0}
    )
    before = {name: value.clone() for name, value in slow.client_state.items()}
    slow.run_round()
    slow.run_round()
    for name, value in slow.client_state.items():
        if value.ndim > 1:
            assert torch.equal(value, before[name]), name
    slow.close()


def test_interrupted_it_ends_bit_identical(finished: Path, key: sigil.Key, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    class Stopping(sigil.federation.progress.Progress):
        def on_round(self, row: Any) -> None:
            if row["round"] == 3:
                raise Stop

    folder = tmp_path / "stopped"
    with pytest.raises(Stop):
        train(settings(), folder, key=key, progress=Stopping())
    # A newest checkpoint that is damaged: the block that was begun after the one before is found again.
    shutil.rmtree(folder / "checkpoint" / "round-00003")
    train(settings(), folder, key=key)
    for name in ("client.safetensors", "server.safetensors"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()
    assert blocks(folder) == blocks(finished)


def test_two_workers_train_what_one_process_trains(finished: Path, key: sigil.Key, tmp_path: Path) -> None:
    """The averages of two processes are added in another order, so that the last digits may differ."""
    two = train(settings(run={"workers": 2, "threads": 1}), tmp_path / "two", key=key)
    again = train(settings(run={"workers": 2, "threads": 1}), tmp_path / "again", key=key)
    name = "client.safetensors"
    assert (two.folder / name).read_bytes() == (again.folder / name).read_bytes()
    one, other = (sigil.models.load(folder / name).state_dict() for folder in (finished, two.folder))
    for tensor, value in one.items():
        torch.testing.assert_close(other[tensor], value, rtol=1e-3, atol=1e-4)


def test_the_model_is_as_good_as_without_and_carries_no_pattern(finished: Path, key: sigil.Key) -> None:
    model = sigil.models.load(finished / "client.safetensors")
    for block in blocks(finished):
        found = sigil.trace(model, key, finished / "imprints" / block)
        assert not found.found


def test_a_copy_that_leaks_in_any_round_names_its_client(key: sigil.Key, tmp_path: Path) -> None:
    """What a client trained from its copy still names it; the next global model names nobody."""
    training = federation(key)
    training.imprinting = Imprinting(
        key, training.training.halves.client, clients=3, folder=tmp_path / "imprints"
    )
    for number in range(1, 4):
        patterns = training.imprinting.begin(number, training.client_state)
        leaked = patterns.give("client 1", training.client_state)
        found = sigil.trace(leaked, key, tmp_path / "imprints")
        assert found.named == ("client 1",)
        training.run_round()
        assert not sigil.trace(training.client_state, key, tmp_path / "imprints").found
    training.close()


def test_a_change_that_carries_a_pattern_is_refused(key: sigil.Key) -> None:
    start = federation(key)
    assert start.imprinting is not None
    patterns = start.imprinting.begin(1, start.client_state)
    begun = RoundStart(1, 0.1, start.client_state, start.server_state, patterns)
    halves = start.training.halves
    judge = UpdateJudge(halves.client, halves.server, start.settings)

    def trained(seed: int, pattern: str | None, share: float) -> State:
        generator = torch.manual_seed(seed)
        state = {name: value.clone() for name, value in start.client_state.items()}
        along = patterns.pattern(pattern) if pattern else {}
        for name, step in patterns.steps.items():
            noise = torch.randn(state[name].shape, generator=generator)
            spread = torch.from_numpy(step).reshape(-1, *[1] * (noise.ndim - 1)).float()
            state[name] += spread * (4 * noise + share * torch.as_tensor(along.get(name, 0.0)))
        return state

    # Client 2 leans against its own pattern, as training heals a copy: that is taken off.
    given = patterns.give("client 2", start.client_state)
    leaning = {
        name: value + given[name] - start.client_state[name]
        for name, value in trained(2, "client 2", -0.5).items()
    }
    states = {
        0: trained(0, None, 0.0),
        1: trained(1, "client 2", 0.3),
        2: begun.taken(2, start.client_state, leaning),
    }
    updates = {client: Update(state, start.server_state, 8) for client, state in states.items()}
    found = judge.findings(begun, updates)
    assert {client: finding.fault.value for client, finding in found.items()} == {1: "pattern"}
    assert "the pattern of client 2" in found[1].sentence
    assert not judge.findings(RoundStart(1, 0.1, start.client_state, start.server_state), updates)
    changes = {
        f"client {client}": {name: states[client][name] - start.client_state[name] for name in patterns.steps}
        for client in (0, 2)
    }
    reached = patterns.agreement(changes)
    assert max(map(abs, reached["client 0"].values())) < MOST_DEVIATIONS / 2
    assert abs(reached["client 2"]["client 2"]) < 0.01


def test_what_chance_explains_stays_in_a_change(key: sigil.Key) -> None:
    """To take it off, as was done once, would put the pattern in."""
    start = federation(key)
    assert start.imprinting is not None
    patterns = start.imprinting.begin(1, start.client_state)
    generator = torch.manual_seed(0)
    noise = {
        name: torch.randn(shape, generator=generator).double() for name, shape in patterns.shapes.items()
    }
    assert all(value is noise[name] for name, value in patterns.without("client 2", noise).items())


def test_honest_changes_that_lean_towards_others_are_not_refused(key: sigil.Key) -> None:
    """Late in a block they lean by more than chance, and by more the more weights there are."""
    wide = Imprint(key, {"weight": torch.randn(512, 1024, generator=torch.manual_seed(0))})
    patterns = wide.patterns(["client 0", "client 1"])
    noise = torch.randn(512, 1024, generator=torch.manual_seed(1)).double()
    pattern = torch.from_numpy(patterns.pattern("client 1")["weight"]) / 4
    leaning = {share: {"weight": noise + share * pattern} for share in (0.034, 0.07)}
    assert patterns.agreement({"client 0": leaning[0.034]})["client 0"]["client 1"] > 3 * MOST_DEVIATIONS
    assert not patterns.carried({"client 0": leaning[0.034]})
    assert "the pattern of client 1" in patterns.carried({"client 0": leaning[0.07]})["client 0"]


def test_bad_input_is_one_sentence(key: sigil.Key) -> None:
    chosen = settings(watermark={"strength": 0.0})
    data = load_data(chosen)
    with pytest.raises(ConfigError, match=r"there is no key; give one or set federation\.imprint to false"):
        Federation(chosen, data)
    tiny = federation(key, model={"width": 4, "cut": "pool1"}, watermark={"strength": 0.0})
    with pytest.raises(ModelError, match="at least 1,024"):
        tiny.run_round()
