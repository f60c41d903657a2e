"""The owner's rounds with clients elsewhere: here threads take Flower's place."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.processes import free_pair
from harness.replay import replay
from sigil.errors import ConfigError, NetworkError
from sigil.federation import Federation
from sigil.federation.averaging import State
from sigil.federation.run import train
from sigil.transport import Limits, RoundTask, RoundUpdate, ServerCredentials, SplitService, owner
from sigil.transport.listening import listen_on
from sigil.transport.owner import Excess, NetworkSettings, RemoteTrainer


class Killed(Exception):
    """A client's process ends in the middle of a round."""


class Threads:
    """A messenger whose clients are threads; `fate` may make one fail, die, be silent or answer otherwise."""

    def __init__(self, net: Any, fate: Callable[[int, RoundTask, int], Any] | None = None) -> None:
        self.net = net
        self.fate = fate or (lambda client, task, attempt: None)
        self.processes = dict.fromkeys(net.fingerprints, "first")
        self.asked: list[tuple[int, int]] = []
        self.died = threading.Event()
        self.mute = threading.Event()
        self.delivered = 0
        self.answers: queue.SimpleQueue[tuple[int, RoundUpdate | None]] = queue.SimpleQueue()

    def present(self) -> dict[int, str]:
        return dict(self.processes)

    def send(self, client: int, task: RoundTask) -> None:
        self.asked.append((task.round, client))
        attempt = self.asked.count((task.round, client))
        threading.Thread(target=self._work, args=(client, task, attempt), daemon=True).start()

    def receive(self) -> list[tuple[int, RoundUpdate | None]]:
        found = []
        while not self.answers.empty():
            found.append(self.answers.get())
        return found

    def _work(self, client: int, task: RoundTask, attempt: int) -> None:
        fate = self.fate(client, task, attempt)
        if fate == "unable":
            self.answers.put((client, None))
        elif fate == "killed":
            with contextlib.suppress(Killed):
                self.net.train(task, client, tick=_die)
            self.died.set()
        elif fate != "deaf":
            update = self.net.train(task, client)
            if fate == "mute":
                self.mute.set()
                return
            self.answers.put((client, fate(update) if callable(fate) else update))
            self.delivered += 1


def _die(images: int) -> None:
    raise Killed


def network(net: Any, **changes: Any) -> NetworkSettings:
    values: dict[str, Any] = {
        "clients": net.fingerprints,
        "credentials": ServerCredentials.load(net.folder),
        "listen": "127.0.0.1:0",
        "minimum": len(net.fingerprints),
    }
    return NetworkSettings(**{**values, **changes})


def alone(net: Any, participants: list[list[int]]) -> tuple[State, State]:
    """The same training in one process, with only these clients in each round."""
    local = replay(net.settings, net.dataset, key=net.key, participants=participants)
    return local.client_state, local.server_state


def same(ours: State, theirs: State) -> bool:
    return (
        all(torch.equal(ours[name], value) for name, value in theirs.items()) and ours.keys() == theirs.keys()
    )


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(owner, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(owner, "START_SECONDS", 3.0)


@pytest.fixture
def remote(net: Any) -> Any:
    """Makes a remote federation and closes it in the end."""
    made: list[Federation] = []

    def make(messenger: Threads, **changes: Any) -> Federation:
        trainer = partial(RemoteTrainer, messenger=messenger, network=network(net, **changes))
        federation = Federation(net.settings, net.dataset, key=net.key, trainer=trainer)
        made.append(federation)
        return federation

    yield make
    for federation in made:
        federation.close()


def test_the_port_of_the_service_is_kept_until_it_listens_there(net: Any, remote: Any) -> None:
    """Hours may pass before the first round, and the system may give a port that is free to anybody."""
    held = listen_on("127.0.0.1", free_pair())
    address = f"127.0.0.1:{held.getsockname()[1]}"
    federation = remote(Threads(net), listen=address, held=held)
    assert held.fileno() >= 0
    federation.run_round()
    assert held.fileno() == -1
    assert federation._trainer.service.address == address


def test_progress_counts_every_image_of_a_round_once(net: Any, remote: Any) -> None:
    ticks: list[int] = []
    federation = remote(Threads(net))
    for _ in range(2):
        ticks.clear()
        result = federation.run_round(tick=ticks.append)
        assert sum(ticks) == result.images > 0
        assert min(ticks) >= 0


class Gate:
    """A front that counts nothing and is told who went too far."""

    def __init__(self) -> None:
        self.allowances: list[int] = []
        self.over: set[str] = set()
        self.quiet: set[str] = set()

    def silent(self, seconds: float) -> set[str]:
        return self.quiet

    def begin_round(self, allowance: int) -> None:
        self.allowances.append(allowance)

    def over_allowance(self) -> set[str]:
        return self.over


def test_the_messenger_is_left_alone_while_all_clients_train(
    net: Any, remote: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "ASK_SECONDS", 3600.0)
    looks, asked, spared = Counter[str](), Counter[str](), []
    together = threading.Barrier(len(net.fingerprints))
    progress = SplitService.progress

    def look(service: SplitService) -> Any:
        looks["done"] += 1
        return progress(service)

    monkeypatch.setattr(SplitService, "progress", look)

    class Held(Threads):
        """All clients are in the middle of their rounds until the owner has looked at them five times."""

        def present(self) -> dict[int, str]:
            asked["done"] += 1
            return super().present()

        def _work(self, client: int, task: RoundTask, attempt: int) -> None:
            begun = False

            def tick(images: int) -> None:
                nonlocal begun
                if not begun:
                    begun = True
                    together.wait(300)
                    before, until = asked["done"], looks["done"] + 5
                    while looks["done"] < until:
                        time.sleep(0.01)
                    spared.append(asked["done"] - before)
                    together.wait(300)

            self.answers.put((client, self.net.train(task, client, tick=tick)))

    federation = remote(Held(net))
    assert federation.run_round().missing == ()
    assert len(spared) == len(net.fingerprints)
    assert max(spared) <= 1, "the look that was under way when the last client began"
    assert same(federation.client_state, alone(net, [[0, 1, 2]])[0])


def test_a_client_whose_answer_is_too_large_is_named_and_out(
    net: Any, remote: Any, caplog: pytest.LogCaptureFixture
) -> None:
    messenger = Threads(
        net, lambda client, task, attempt: (lambda update: Excess(70)) if client == 1 else None
    )
    federation = remote(messenger, minimum=1)
    federation.run_round()
    assert "client 1 answered with more than the 70 bytes of its half, and is out" in caplog.text
    federation.run_round()
    assert (2, 1) not in messenger.asked
    assert same(federation.client_state, alone(net, [[0, 2], [0, 2]])[0])


def test_a_client_that_sends_too_much_to_the_front_is_named_and_out(
    net: Any, remote: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    def greedy(client: int, task: RoundTask, attempt: int) -> str | None:
        if client != 1:
            return None
        gate.over.add(net.fingerprints[1])
        return "deaf"

    federation = remote(Threads(net, greedy), minimum=1, front=gate)
    federation.run_round()
    federation.run_round()
    assert caplog.text.count("client 1 sent more bytes in one round than it may, and is out") == 1
    half = sum(value.nbytes for value in federation.client_state.values())
    assert gate.allowances == [8 * half + 2**24] * 2
    assert same(federation.client_state, alone(net, [[0, 2], [0, 2]])[0])


def test_a_killed_client_is_not_counted_on_although_the_messenger_still_does(
    net: Any, remote: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower lists one for most of a minute: a round began with it, and `wait` was not kept."""
    gate = Gate()
    gate.quiet.add(net.fingerprints[1])
    messenger = Threads(net)
    federation = remote(messenger, minimum=1, wait=0.0, front=gate)
    federation.run_round()
    assert (1, 1) not in messenger.asked
    gate.quiet.clear()
    federation.run_round()
    assert (2, 1) in messenger.asked, "it is there again"
    gate.quiet.add(net.fingerprints[1])
    federation.run_round()
    assert "Client 1 has been lost since" in caplog.text
    assert "round 3 waits for it, 0 seconds at most" in caplog.text
    assert (3, 1) not in messenger.asked


def test_a_round_ends_in_time_whatever_becomes_of_a_clients_half(
    net: Any, remote: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that had done all its steps and never delivered its half was waited for, for hours."""
    messenger = Threads(net, lambda client, task, attempt: "mute" if client == 1 else None)
    federation = remote(messenger, minimum=1, limits=Limits(round_seconds=5000))

    def now() -> float:
        # The others have delivered long ago; only now the clock comes to the end of the round.
        waiting = messenger.mute.is_set() and messenger.delivered >= 2 and messenger.answers.empty()
        return time.monotonic() + (10_000 if waiting else 0)

    monkeypatch.setattr(owner, "time", SimpleNamespace(monotonic=now, sleep=time.sleep))
    result = federation.run_round()
    assert result.missing == (1,)
    assert same(federation.client_state, alone(net, [[0, 2]])[0])


def test_a_run_across_the_network_is_the_run_in_one_process(net: Any, tmp_path: Path) -> None:
    trainer = partial(RemoteTrainer, messenger=Threads(net), network=network(net))
    there = train(net.settings, tmp_path / "there", key=net.key, trainer=trainer)
    here = train(net.settings, tmp_path / "here", key=net.key)
    for name in ("client.safetensors", "server.safetensors"):
        assert (there.folder / name).read_bytes() == (here.folder / name).read_bytes()
    for ours, theirs in zip(there.metrics, here.metrics, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"seconds", "images_per_second"}:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-12)


def _carrying_a_pattern(net: Any, key: Any) -> Callable[[RoundUpdate], RoundUpdate]:
    """A client that knows another's pattern, as nobody but the owner does, and puts it into its change."""

    def forge(update: RoundUpdate) -> RoundUpdate:
        federation = Federation(net.settings, net.dataset, key=key)
        assert federation.imprinting is not None
        patterns = federation.imprinting.begin(1, federation.client_state)
        state = {name: value.clone() for name, value in update.client_state.items()}
        for name, value in patterns.give("client 2", federation.client_state).items():
            if value.ndim > 1:
                state[name] += 2 * (value - federation.client_state[name])
        return replace(update, client_state=state)

    return forge


def test_with_a_copy_for_each_client_it_is_the_run_in_one_process_too(make_net: Any, tmp_path: Path) -> None:
    """Also if a client is away for a round, with robust averages, and if one carries a pattern."""
    for average in ("mean", "median"):
        net = make_net(
            model={"width": 16},
            federation={"imprint": True, "average": average},
            optimizer={"lr": 0.02},
        )
        trainer = partial(RemoteTrainer, messenger=Threads(net), network=network(net))
        there = train(net.settings, tmp_path / f"there-{average}", key=net.key, trainer=trainer)
        here = train(net.settings, tmp_path / f"here-{average}", key=net.key)
        for name in ("client.safetensors", "server.safetensors"):
            assert (there.folder / name).read_bytes() == (here.folder / name).read_bytes()
        blocks = [sorted(path.name for path in (run.folder / "imprints").iterdir()) for run in (there, here)]
        assert blocks[0] == blocks[1] != []
    for fate, participants in ((None, [[0, 2]]), (_carrying_a_pattern(net, net.key), [[0, 2]])):
        messenger = Threads(net, lambda client, *_, fate=fate: fate if client == 1 else None)
        if fate is None:
            del messenger.processes[1]
        trainer = partial(RemoteTrainer, messenger=messenger, network=network(net, minimum=2, wait=0.1))
        federation = Federation(net.settings, net.dataset, key=net.key, trainer=trainer)
        try:
            result = federation.run_round()
        finally:
            federation.close()
        assert result.missing == (1,)
        assert result.left_out == ({} if fate is None else {1: "pattern"})
        assert same(federation.client_state, alone(net, participants)[0])


def test_a_client_that_is_killed_and_comes_back_changes_nothing(net: Any, remote: Any) -> None:
    messenger = Threads(net, lambda client, task, attempt: "killed" if (client, attempt) == (1, 1) else None)
    federation = remote(messenger)

    def come_back() -> None:
        messenger.died.wait(300)
        messenger.processes[1] = "second"

    thread = threading.Thread(target=come_back)
    thread.start()
    result = federation.run_round()
    thread.join()
    assert messenger.asked.count((1, 1)) == 2
    assert result.missing == ()
    client_state, server_state = alone(net, [[0, 1, 2]])
    assert same(federation.client_state, client_state)
    assert same(federation.server_state, server_state)


def test_a_round_goes_on_without_a_lost_client_until_it_starts_anew(net: Any, remote: Any) -> None:
    messenger = Threads(net, lambda client, task, attempt: "killed" if client == 2 else None)
    federation = remote(messenger, minimum=2, wait=3.0)
    assert federation.run_round().missing == (2,)
    client_state, server_state = alone(net, [[0, 1]])
    assert same(federation.client_state, client_state)
    assert same(federation.server_state, server_state)
    # It still looks present, but the owner does not wait for that process again; for another one it does.
    assert federation.run_round().missing == (2,)
    assert (2, 2) not in messenger.asked
    messenger.fate = lambda client, task, attempt: None
    messenger.processes[2] = "second"
    assert federation.run_round().missing == ()


def test_a_client_that_was_away_too_long_takes_part_again_when_it_is_heard_of(net: Any, remote: Any) -> None:
    messenger = Threads(net, lambda client, task, attempt: "deaf" if (client, task.round) == (2, 1) else None)
    federation = remote(messenger, minimum=2, wait=3.0)
    assert federation.run_round().missing == (2,)
    messenger.answers.put((2, None))
    assert federation.run_round().missing == ()


def test_a_client_that_never_connects_is_given_up_too(net: Any, remote: Any) -> None:
    federation = remote(Threads(net, lambda client, *_: "deaf" if client == 0 else None), minimum=2, wait=3.0)
    assert federation.run_round().missing == (0,)


def test_without_enough_clients_a_round_waits(net: Any, remote: Any) -> None:
    messenger = Threads(net, lambda client, task, attempt: "killed" if client == 2 and attempt == 1 else None)
    federation = remote(messenger, minimum=3, wait=0.1)
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(federation.run_round()))
    thread.start()
    assert messenger.died.wait(300)
    time.sleep(1.0)
    assert thread.is_alive(), "it waits, long after its patience, because all three are needed"
    messenger.processes[2] = "second"
    thread.join(300)
    assert outcome[0].missing == ()


def test_a_client_that_cannot_is_asked_again_and_then_left_out(net: Any, remote: Any) -> None:
    messenger = Threads(net, lambda client, task, attempt: "unable" if client == 1 else None)
    federation = remote(messenger, minimum=2)
    assert federation.run_round().missing == (1,)
    assert messenger.asked.count((1, 1)) == owner.MAX_FAILURES


def _reshaped(update: RoundUpdate) -> RoundUpdate:
    state = dict(update.client_state)
    name = next(iter(state))
    return replace(update, client_state=state | {name: state[name][:1]})


def _poisoned(update: RoundUpdate) -> RoundUpdate:
    state = {name: value.clone() for name, value in update.client_state.items()}
    next(iter(state.values())).view(-1)[0] = float("nan")
    return replace(update, client_state=state)


def _smaller(update: RoundUpdate) -> RoundUpdate:
    return replace(update, client_state={})


def _absurd_loss(update: RoundUpdate) -> RoundUpdate:
    """Finite, but not in a sum: the round's mean would be infinite, and the metrics no JSON."""
    return replace(update, loss=1e308)


@pytest.mark.parametrize("forge", [_reshaped, _poisoned, _smaller, _absurd_loss])
def test_what_is_not_a_half_does_not_enter_the_average(net: Any, remote: Any, forge: Any) -> None:
    messenger = Threads(net, lambda client, *_: forge if client == 0 else None)
    federation = remote(messenger, minimum=2)
    assert federation.run_round().missing == (0,)
    client_state, server_state = alone(net, [[1, 2]])
    assert same(federation.client_state, client_state)
    assert same(federation.server_state, server_state)
    federation.run_round()
    assert (2, 0) not in messenger.asked, "who does that is out of the run"


def _scaled(update: RoundUpdate) -> RoundUpdate:
    """A finite lie: the half a million times over."""
    state = {
        name: value * 1e6 if value.is_floating_point() else value
        for name, value in update.client_state.items()
    }
    return replace(update, client_state=state)


def _negative_variance(update: RoundUpdate) -> RoundUpdate:
    state = {
        name: -value if name.endswith("running_var") else value for name, value in update.client_state.items()
    }
    return replace(update, client_state=state)


@pytest.mark.parametrize(("forge", "reason"), [(_scaled, "rate"), (_negative_variance, "variance")])
def test_an_update_that_training_cannot_have_made_is_left_out_and_counted(
    net: Any, remote: Any, forge: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    messenger = Threads(net, lambda client, *_: forge if client == 0 else None)
    federation = remote(messenger, minimum=None)
    result = federation.run_round()
    assert result.left_out == {0: reason}
    assert result.missing == (0,)
    client_state, server_state = alone(net, [[1, 2]])
    assert same(federation.client_state, client_state)
    assert same(federation.server_state, server_state)
    counted = federation._trainer.network.metrics.text()
    assert f'sigil_left_out_updates_total{{reason="{reason}"}} 1.0' in counted
    assert "the update of client 0 is left out of round 1" in caplog.text


def test_a_client_whose_updates_are_left_out_again_and_again_is_out(net: Any, remote: Any) -> None:
    messenger = Threads(net, lambda client, *_: _scaled if client == 0 else None)
    federation = remote(messenger, minimum=None)
    for number in range(1, owner.MAX_LEFT_OUT + 1):
        federation.run_round()
        assert (number, 0) in messenger.asked
    assert federation.run_round().missing == (0,)
    assert (owner.MAX_LEFT_OUT + 1, 0) not in messenger.asked


def test_a_round_of_nothing_but_outliers_ends_with_a_sentence(net: Any, remote: Any) -> None:
    federation = remote(Threads(net, lambda *_: _scaled), minimum=None)
    before = federation.client_state
    with pytest.raises(NetworkError, match=r"No update of round 1 could be averaged"):
        federation.run_round()
    assert same(federation.client_state, before)


def test_the_robust_averages_are_the_same_across_the_network(make_net: Any) -> None:
    for average in ("trimmed-mean", "median"):
        robust = make_net(federation={"average": average})
        trainer = partial(RemoteTrainer, messenger=Threads(robust), network=network(robust))
        federation = Federation(robust.settings, robust.dataset, key=robust.key, trainer=trainer)
        try:
            federation.run_round()
        finally:
            federation.close()
        client_state, server_state = alone(robust, [[0, 1, 2]])
        assert same(federation.client_state, client_state)
        assert same(federation.server_state, server_state)


def test_the_weights_are_the_servers_count_not_the_clients_word(net: Any, remote: Any) -> None:
    boast = Threads(net, lambda *_: lambda update: replace(update, images=10**9, steps=10**6))
    federation = remote(boast)
    federation.run_round()
    assert same(federation.client_state, alone(net, [[0, 1, 2]])[0])


def test_too_few_honest_clients_end_the_run_with_a_sentence(net: Any, remote: Any) -> None:
    federation = remote(Threads(net, lambda client, *_: _smaller if client == 0 else None))
    with pytest.raises(NetworkError, match=r"Only 2 of 3 clients did round 1 as agreed, but 3 must"):
        federation.run_round()
    with pytest.raises(NetworkError, match=r"1 of 3 clients are out"):
        federation.run_round()


def test_a_slow_client_is_waited_for_as_long_as_its_steps_keep_the_limit(net: Any, remote: Any) -> None:
    """A pause longer than the step limit costs the client its progress, not its place."""
    paused: list[int] = []

    class Slow(Threads):
        def _work(self, client: int, task: RoundTask, attempt: int) -> None:
            def tick(images: int) -> None:
                if client == 0 and not paused:
                    paused.append(1)
                    time.sleep(2.5)

            self.answers.put((client, self.net.train(task, client, tick=tick)))

    federation = remote(Slow(net), limits=Limits(step_seconds=1.0), minimum=2, wait=30.0)
    assert federation.run_round().missing == ()
    assert same(federation.client_state, alone(net, [[0, 1, 2]])[0])


def test_settings_that_cannot_be_met_are_refused(net: Any) -> None:
    with pytest.raises(ConfigError, match="choose 1 to 3"):
        network(net, minimum=4)
    settings = net.settings.model_copy(
        update={"record": net.settings.record.model_copy(update={"clients": (0,)})}
    )
    with pytest.raises(ConfigError, match="record and behaviour"):
        Federation(
            settings,
            net.dataset,
            key=net.key,
            trainer=partial(RemoteTrainer, messenger=Threads(net), network=network(net)),
        )
