"""Modes, averaging and observers of the federation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.luck import Margin
from harness.training import changed
from sigil import data
from sigil.errors import ConfigError, DataError
from sigil.federation.federation import Federation
from sigil.federation.from_settings import scheduled_rate
from sigil.federation.messages import CutGradient, LogitGradient
from sigil.federation.observers import ClientObserver, ServerObserver, Step
from sigil.federation.recording import GradientRecorder, Recording, ReferenceRecorder
from sigil.federation.server import LabelServer, Server
from sigil.federation.settings import Settings
from sigil.federation.trainer import LocalTrainer, RoundStart
from sigil.keys.key import Key

SMALL = {
    "model": {"name": "resnet18", "width": 4, "cut": "layer3"},
    "data": {"name": "digits"},
    "federation": {"clients": 3, "rounds": 2, "local_epochs": 1, "batch_size": 16},
    "optimizer": {"warmup_rounds": 0, "lr": 0.05},
    "watermark": {"strength": 0.0, "bits": 8},
    "run": {"workers": 1},
}


def settings(**sections: dict[str, Any]) -> Settings:
    return changed(SMALL, **sections)


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    return data.load("digits", train_limit=120, test_limit=60)


def key() -> Key:
    return Key.generate("ACME", shape=(16, 2, 2), bits=8, seed=bytes(32))


def test_v1_averages_what_each_client_would_learn_alone(digits: data.Dataset) -> None:
    federation = Federation(settings(), digits)
    start = RoundStart(1, scheduled_rate(settings(), 1), federation.client_state, federation.server_state)
    alone = [LocalTrainer(federation.training).train(start, clients=[index]) for index in range(3)]
    federation.run_round()
    sizes = [len(part) for part in federation.training.parts]
    for half in ("client", "server"):
        states = [getattr(sums, half).result() for sums in alone]
        got = getattr(federation, f"{half}_state")
        for name, value in got.items():
            if value.is_floating_point():
                parts = zip(sizes, states, strict=True)
                want = sum(size * state[name].double() for size, state in parts) / sum(sizes)
                torch.testing.assert_close(value, want.float(), rtol=1e-5, atol=1e-6)


def test_v2_and_sl_pass_the_server_half_on(digits: data.Dataset) -> None:
    shared = Federation(settings(federation={"server_halves": "shared"}), digits)
    turns = Federation(settings(federation={"mode": "sl"}), digits)
    average = Federation(settings(), digits)
    for federation in (shared, turns, average):
        federation.run_round()
    steps = "layer4.0.bn1.num_batches_tracked"
    # 120 images in batches of 16, three clients: 9 steps in all, 3 each.
    assert int(shared.server_state[steps]) == int(turns.server_state[steps]) == 9
    assert int(average.server_state[steps]) == 3
    first = "bn1.num_batches_tracked"
    assert int(shared.client_state[first]) == 3
    assert int(turns.client_state[first]) == 9


@pytest.mark.parametrize("mode", ["usfl", "sfl", "sl"])
@pytest.mark.parametrize("server_halves", ["per-client", "shared"])
def test_every_mode_learns_the_mark(mode: str, server_halves: str, margin: Margin) -> None:
    chosen = settings(
        federation={"mode": mode, "server_halves": server_halves, "rounds": 4},
        watermark={"strength": 1.0, "statistics_every": 1, "bits": 16},
    )
    more_digits = data.load("digits", train_limit=300, test_limit=60)
    secret = Key.generate("ACME", shape=(16, 2, 2), bits=16, seed=bytes(32))
    federation = Federation(chosen, more_digits, key=secret)
    results = [federation.run_round() for _ in range(4)]
    found = federation.read_mark(secret)[0]
    margin("WSR", found.wsr, above=0.9)
    margin("log10 p", found.log10_p_before, below=-3)  # what is learned, and not what was there before
    assert results[-1].injection["injected_norm"] <= results[-1].injection["main_norm"] * 1.0001
    assert 0.0 <= federation.accuracy() <= 1.0


def test_sfl_and_usfl_are_the_same_training(digits: data.Dataset) -> None:
    states = []
    for mode in ("usfl", "sfl"):
        federation = Federation(settings(federation={"mode": mode}), digits)
        federation.run_round()
        states.append(federation.client_state)
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-4, atol=1e-6)


def test_the_callers_random_state_is_untouched(digits: data.Dataset) -> None:
    torch.manual_seed(5)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    federation = Federation(settings(), digits)
    federation.run_round()
    federation.accuracy()
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002


class Watch(ServerObserver):
    def __init__(self) -> None:
        self.rounds: list[str] = []
        self.steps: list[Step] = []
        self.added = 0.0

    def on_round_start(self, round_number: int) -> None:
        self.rounds.append(f"start {round_number}")

    def on_round_end(self, round_number: int) -> None:
        self.rounds.append(f"end {round_number}")

    def on_gradient_sent(self, at: Step, *, activation: Tensor, main: Tensor, final: Tensor) -> None:
        self.steps.append(at)
        self.added = max(self.added, float((final - main).norm() / main.norm()))


class Count(ClientObserver):
    def __init__(self) -> None:
        self.labels = 0

    def on_gradient_received(self, at: Step, gradient: Tensor, labels: Tensor) -> Tensor:
        self.labels += len(labels)
        return gradient


def test_observers_see_every_step_at_its_moment(digits: data.Dataset) -> None:
    watch, count = Watch(), Count()
    # In float32: bfloat16 rounds the sum to 8 bits, and what it differs by is no longer the mark alone.
    chosen = settings(watermark={"strength": 0.25}, federation={"clients": 2}, run={"precision": "float32"})
    federation = Federation(chosen, digits, key=key(), server_observers=[watch], client_observers=[count])
    federation.run_round()
    federation.run_round()
    assert watch.rounds == ["start 1", "end 1", "start 2", "end 2"]
    steps = [(m.round, m.client, m.step) for m in watch.steps]
    assert steps == [(r, c, s) for r in (1, 2) for c in (0, 1) for s in (1, 2, 3, 4)]
    assert 0 < watch.added <= 0.2501
    assert count.labels == 2 * 120


def test_reference_holds_the_statistics_of_the_last_round(digits: data.Dataset, tmp_path: Path) -> None:
    seen: list[Tensor] = []

    class Keep(ServerObserver):
        def on_round_start(self, round_number: int) -> None:
            seen.clear()

        def on_gradient_sent(self, at: Step, *, activation: Tensor, main: Tensor, final: Tensor) -> None:
            seen.append(activation.clone())

    reference = ReferenceRecorder((16, 2, 2))
    federation = Federation(settings(), digits, server_observers=[reference, Keep()])
    federation.run_round()
    federation.run_round()
    activations = torch.cat(seen).double()
    pooled = activations.mean((2, 3))
    assert float(reference.sums["count"]) == 120
    torch.testing.assert_close(reference.sums["pooled"], pooled.sum(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(reference.sums["products"], pooled.mT @ pooled, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        reference.sums["squares"], activations.square().mean((2, 3)).sum(0), rtol=1e-4, atol=1e-4
    )
    reference.save(tmp_path / "reference.safetensors")
    assert (tmp_path / "reference.safetensors").stat().st_size < 10_000


def test_recording_keeps_what_was_asked_for_and_no_more(digits: data.Dataset, tmp_path: Path) -> None:
    recorder = GradientRecorder(tmp_path, (16, 2, 2), clients=[1], rounds=[2], share=0.5)
    seen: list[tuple[Tensor, Tensor]] = []

    class Keep(ClientObserver):
        def on_gradient_received(self, at: Step, gradient: Tensor, labels: Tensor) -> Tensor:
            if (at.round, at.client) == (2, 1) and at.step % 2 == 0:
                seen.append((gradient.clone(), labels.clone()))
            return gradient

    federation = Federation(settings(federation={"clients": 2}), digits, client_observers=[recorder, Keep()])
    federation.run_round()
    federation.run_round()
    federation.close()
    recording = Recording(tmp_path)
    steps = list(recording.steps())
    assert recording.rounds == [2]
    assert [(s.at.client, s.at.step) for s in steps] == [(1, 2), (1, 4)]
    for step, (gradient, labels) in zip(steps, seen, strict=True):
        # float32 holds every bfloat16 exactly, so this is an equality in either number format.
        assert np.array_equal(step.gradients, gradient.float().flatten(1).numpy())
        assert np.array_equal(step.labels, labels.numpy())
    assert list(recording.steps(client=0)) == []
    assert len(list(recording.steps(rounds=[2], client=1))) == 2


def test_recording_stops_at_its_limit_and_goes_on_after_an_interruption(tmp_path: Path) -> None:
    width = 2**16
    gradient, labels = torch.ones(2, width), torch.zeros(2, dtype=torch.long)
    recorder = GradientRecorder(tmp_path, (width,), clients=[0], limit_mb=1)
    recorder.on_gradient_received(Step(1, 0, 1), gradient, labels)
    recorder.on_round_end(1)
    state = recorder.state_dict() | {"steps": list(recorder.steps)}
    recorder.on_gradient_received(Step(2, 0, 1), 2 * gradient, labels)  # lost with the process
    recorder.close()

    again = GradientRecorder(tmp_path, (width,), clients=[0], limit_mb=1)
    again.load_state_dict(state)
    again.on_gradient_received(Step(2, 0, 1), 3 * gradient, labels)
    again.on_gradient_received(Step(2, 0, 2), 4 * gradient, labels)  # past the limit
    again.on_round_end(2)
    again.close()
    recording = Recording(tmp_path)
    assert recording.full
    assert [float(step.gradients[0, 0]) for step in recording.steps()] == [1.0, 3.0]


def test_a_missing_or_short_recording_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"record.clients=\[0\]"):
        Recording(tmp_path)
    index = {"shape": [4], "rows": 3, "full": False, "steps": [[1, 0, 1, 0, 3]], "summed": [], "share": 1.0}
    (tmp_path / "index.json").write_text(json.dumps(index | {"whole_rounds": 0}))
    (tmp_path / "gradients.f32").write_bytes(b"1234")
    (tmp_path / "labels.i64").write_bytes(b"12345678")
    with pytest.raises(DataError, match="shorter"):
        Recording(tmp_path)


def test_workers_are_refused_where_clients_must_take_turns(digits: data.Dataset) -> None:
    for federation_settings in ({"mode": "sl"}, {"server_halves": "shared"}):
        chosen = settings(federation=federation_settings, run={"workers": 2})
        with pytest.raises(ConfigError, match="take turns"):
            Federation(chosen, digits).run_round()
    with pytest.raises(ConfigError, match="observer"):
        Federation(settings(run={"workers": 2}), digits, client_observers=[Count()]).run_round()


@pytest.mark.parametrize("mode", ["usfl", "sfl", "sl"])
@pytest.mark.parametrize("server_halves", ["per-client", "shared"])
def test_every_client_has_a_server_of_its_own(digits: data.Dataset, mode: str, server_halves: str) -> None:
    """Also where they share one half and its optimizer: a server knows whom it serves, and in which round."""
    made: list[Server] = []

    def kind(*arguments: Any, **options: Any) -> Server:
        made.append((Server if mode == "usfl" else LabelServer)(*arguments, **options))
        return made[-1]

    chosen = settings(federation={"mode": mode, "server_halves": server_halves}, watermark={"strength": 0.5})
    federation = Federation(chosen, digits, key=key(), server_factory=kind)
    federation.run_round()
    federation.run_round()
    assert sorted((server.round, server.client) for server in made) == [
        (r, c) for r in (1, 2) for c in range(3)
    ]
    assert [server.steps for server in made] == [3] * 6
    assert all(server.injector is not None and len(server.injections) == 1 for server in made)
    optimizers = {id(server.optimizer) for server in made}
    assert len(optimizers) == (2 if mode == "sl" or server_halves == "shared" else 6)


def test_another_server_can_take_the_honest_ones_place(digits: data.Dataset) -> None:
    class Silent(Server):
        """Returns nothing but zeros, so no client learns."""

        def backward(self, message: LogitGradient) -> CutGradient:
            return CutGradient(torch.zeros_like(super().backward(message).values))

    chosen = settings(optimizer={"weight_decay": 0.0})
    federation = Federation(chosen, digits, server_factory=Silent)
    before = {name: value.clone() for name, value in federation.client_state.items()}
    federation.run_round()
    for name, value in federation.client_state.items():
        if name.endswith("weight"):
            torch.testing.assert_close(value, before[name], rtol=1e-6, atol=0)
    with pytest.raises(ConfigError, match=r"run.workers must"):
        Federation(settings(run={"workers": 2}), digits, server_factory=Silent).run_round()
