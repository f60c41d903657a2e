"""The owner's side of a training across machines: whom to ask, how long to wait, what to average.

:class:`RemoteTrainer` trains the rounds of a federation whose clients are elsewhere. Everything else stays as
it is in one process: the schedule, the metrics, the checkpoints, the run's directory. What carries tasks to
clients and results back is a :class:`Messenger`: Flower in a run, threads in a test.

A round, for the clients that are there when it begins::

    open the round, send every client its task          the global half, a ticket, where to connect
    until each client is done or given up:
        a client whose process started anew            gets its task again, unless it goes on by itself
        a client that could not do it                  gets its task again, a few times, after a pause
        a client that has gone for `wait` seconds      is given up, while more than `minimum` are left
        a client that is there and does not begin      is given up too, but not before `START_SECONDS`
        a client that does not deliver its half        likewise; all of that ends after `round_seconds`
        a client that broke a rule                     is out of the run
    judge what came back                               what cannot come of training is left out; again: out
    average the halves of those that are done          weighted by the images that the server counted
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import torch

from sigil.errors import ConfigError, NetworkError
from sigil.federation.averaging import State
from sigil.federation.from_settings import Training
from sigil.federation.judging import Update, UpdateJudge
from sigil.federation.settings import BehaviourSettings
from sigil.federation.trainer import RoundStart, RoundSums, Tick
from sigil.transport.certificates import ServerCredentials
from sigil.transport.client import RoundTask, RoundUpdate
from sigil.transport.limits import Limits, Reason
from sigil.transport.metrics import ClientNow, Metrics
from sigil.transport.rounds import RoundOutcome
from sigil.transport.service import SplitService
from sigil.transport.session import Status
from sigil.transport.wire import Wire

if TYPE_CHECKING:
    from sigil.transport.flower.https_front import HttpsFront

log = logging.getLogger("sigil.transport")

# Losses are float32; with more, a client could make the round's mean infinite, which JSON cannot say.
_LARGEST_LOSS: Final = torch.finfo(torch.float32).max

POLL_SECONDS = 0.3
# A client's node sends a sign of life every three seconds: after three times nobody is there any more.
HEARD_SECONDS = 9.0
# While all clients of a round train, no half is ready, and each question costs the SuperLink milliseconds.
ASK_SECONDS = 3.0
PAUSE_SECONDS = 3.0
MAX_FAILURES = 5
# A client that is there may have to read its data before it connects for the first time in a round, and may
# have a slow line for its half after the last step.
START_SECONDS = 120.0
# A client may be asked again, but not without end: this many halves may it send in a round, and bytes beside.
_ANSWERS, _MARGIN = 8, 1 << 24
# In this many rounds may a client's update be left out of the average; then the client is out as well.
MAX_LEFT_OUT = 3
_LOST = (Status.LOST, Status.EXPELLED)


@dataclass(frozen=True)
class Excess:
    """What comes in place of an answer that has more bytes than it may have."""

    limit: int


class Messenger(Protocol):
    """Carries tasks to clients and their results back; clients are known by their index."""

    def present(self) -> Mapping[int, str]:
        """The clients that are there now, each with a text that changes when its process starts anew."""

    def send(self, client: int, task: RoundTask) -> None:
        """Ask a client to train a round."""

    def receive(self) -> list[tuple[int, RoundUpdate | Excess | None]]:
        """What has come back since the last call; None from a client that could not do its task.

        It waits for nobody.
        """


@dataclass(frozen=True)
class NetworkSettings:
    """With whom the owner trains across machines, where they meet, and how long a round waits.

    `clients` maps each client's index to the fingerprint of its certificate; `public` is the address under
    which clients reach the split service, which itself listens on `listen`, both "host:port" (none: they are
    the same). `held` is a socket that keeps the port of `listen` from others until the service listens there
    itself, for the first round. A round needs `minimum` clients (none: all but those that are out), and waits
    for a client that has gone for `wait` seconds (none: as long as it takes).
    """

    clients: Mapping[int, str]
    credentials: ServerCredentials
    listen: str
    minimum: int | None = None
    public: str | None = None
    held: socket.socket | None = None
    wait: float | None = None
    wire: Wire = "float32"
    limits: Limits = field(default_factory=Limits)
    front: HttpsFront | None = None
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        check_minimum(self.minimum, len(self.clients))
        self.metrics.clients.set(len(self.clients))


def check_minimum(minimum: int | None, clients: int) -> None:
    """Refuse rounds that need more clients than there are."""
    if minimum is not None and not 1 <= minimum <= clients:
        raise ConfigError(
            f"A round was to need {minimum} clients, but there are {clients}; choose 1 to {clients}."
        )


_WORDS = {
    Status.EXPECTED: "expected",
    Status.CONNECTED: "training",
    Status.ABSENT: "expected back",
    Status.FINISHED: "finished",
    Status.LOST: "given up",
    Status.EXPELLED: "out",
}
_NOT_HERE = ("lost", "absent", "given up", "out")


class Presence:
    """Keeps the metrics' list of clients up to date, and says whom a round waits for and what to do about it.

    After `wait` seconds a round goes on without a client that is lost, if `minimum` others are there.
    """

    def __init__(
        self,
        metrics: Metrics,
        clients: Collection[int],
        *,
        wait: float | None = None,
        minimum: int | None = None,
    ) -> None:
        self._metrics = metrics
        self._clients = sorted(clients)
        self._wait = wait
        self._minimum = len(self._clients) if minimum is None else minimum
        self._looked = time.monotonic()
        self._began: dict[int, float] = {}
        self._speeds: dict[int, float] = {}
        self._lost: dict[int, float] = {}
        self._known: set[int] = set()
        self._last = {client: ClientNow(client, "absent", 0, 0.0) for client in self._clients}

    @property
    def waiting(self) -> bool:
        """Whether a client is lost and nobody trains meanwhile."""
        return bool(self._lost) and all(now.state != "training" for now in self._last.values())

    def gathered(
        self, number: int, present: Collection[int], out: Collection[int], gone: Collection[int] = ()
    ) -> None:
        """Before a round: who is there, and without whom it goes on."""
        self._looked = time.monotonic()
        self._began.clear()
        awaited = [client for client in self._clients if client not in gone]
        self._tell(number, dict.fromkeys(present, "here"), present, out, awaited)

    def trained(
        self,
        number: int,
        progress: Mapping[int, tuple[Status, int]],
        present: Collection[int],
        out: Collection[int],
        delivered: Collection[int] = (),
    ) -> None:
        """In a round: where each of its clients stands, its images so far, and whose half has come."""
        now = time.monotonic()
        words = {}
        for client, (status, count) in progress.items():
            absent = status in (Status.EXPECTED, Status.ABSENT, Status.FINISHED) and client not in present
            if not absent or client in delivered:
                words[client] = _WORDS[status]
            # A short round may begin and end between two looks.
            done = status is Status.FINISHED and count != self._last[client].images
            if done or status is Status.CONNECTED:
                began = self._began.setdefault(client, self._looked)
                self._speeds[client] = count / (now - began) if now > began else 0.0
        self._looked = now
        images = {client: count for client, (_, count) in progress.items()}
        self._tell(number, words, present, out, progress.keys(), images)

    def _tell(
        self,
        number: int,
        words: dict[int, str],
        present: Collection[int],
        out: Collection[int],
        awaited: Collection[int],
        images: Mapping[int, int] | None = None,
    ) -> None:
        self._known |= set(present) | words.keys()
        # One that was never there is not missed, as it has yet to be started, nor one that was given up.
        missed = self._known & set(awaited)
        states = {
            client: "out" if client in out else words.get(client, "lost" if client in missed else "absent")
            for client in self._clients
        }
        left = sum(states[client] not in _NOT_HERE for client in awaited)
        for client, word in states.items():
            self._note(number, client, left, lost=word == "lost", back=client in present)
            count = self._last[client].images if images is None else images.get(client, 0)
            speed = self._speeds.get(client, 0.0) if word in ("training", "finished") else 0.0
            self._last[client] = ClientNow(client, word, count, round(speed, 1))
        self._metrics.now = tuple(self._last.values())
        self._metrics.joined.set(len(set(present) & set(self._clients)))
        self._metrics.banner = " ".join(self._sentence(number, client, left) for client in self._lost)

    def _note(self, number: int, client: int, left: int, *, lost: bool, back: bool) -> None:
        if lost and client not in self._lost:
            self._lost[client] = time.time()
            log.warning("%s", self._sentence(number, client, left))
        elif not lost and client in self._lost:
            seconds = time.time() - self._lost.pop(client)
            if back:
                log.warning("Client %d is back after %.0f seconds.", client, seconds)

    def _sentence(self, number: int, client: int, left: int) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self._lost[client]))
        lost = f"Client {client} has been lost since {since}, and round {number} waits for it"
        if self._wait is not None and left >= self._minimum:
            return f"{lost}, {self._wait:g} seconds at most."
        again = f"{lost}; to go on, start it again (sigil join …/clients/{client:04d})"
        return f"{again}, or this command with --minimum {left} --wait 10." if left else f"{again}."


class RemoteTrainer:
    """Trains rounds with clients elsewhere: halves travel by messenger, batches by the split service."""

    def __init__(self, training: Training, *, messenger: Messenger, network: NetworkSettings) -> None:
        settings = training.settings
        if settings.record.clients or settings.behaviour != BehaviourSettings():
            raise ConfigError(
                "What clients record or do beside training is theirs to say; leave the sections record and "
                "behaviour out for a training across machines."
            )
        mark, clients = settings.watermark, settings.federation.clients
        if settings.marked and mark.scheme == "shares" and set(network.clients) != set(range(clients)):
            raise ConfigError(
                f"Under the scheme shares the clients are numbered 0 to {clients - 1} before the first "
                f"round, but the roster holds {len(network.clients)} with other numbers; let "
                "federation.clients and the roster agree."
            )
        self.training = training
        self.messenger = messenger
        self.network = network
        self._service: SplitService | None = None
        self._judge = UpdateJudge(training.halves.client, training.halves.server, settings)
        self._presence = Presence(
            network.metrics, network.clients.keys(), wait=network.wait, minimum=network.minimum
        )
        self._left_out: Counter[int] = Counter()
        self._banned: set[int] = set()
        # Clients that were given up, with the process that was: another one may take part again, and so
        # may this one when it is heard of.
        self._gone: dict[int, str | None] = {}

    def close(self) -> None:
        """End the split service."""
        if self._service is not None:
            self._service.close()

    @property
    def service(self) -> SplitService:
        """The split service, started at the first use: by then all observers are known."""
        if self._service is None:
            network = self.network
            if network.held is not None:
                network.held.close()
            self._service = SplitService(
                self.training,
                credentials=network.credentials,
                address=network.listen,
                # Whom to wait for, and how long, is decided here.
                limits=replace(network.limits, return_seconds=None),
                metrics=network.metrics,
                wire=network.wire,
            ).start()
        return self._service

    def train(self, start: RoundStart, *, tick: Tick | None = None) -> RoundSums:
        """Train one round with the clients that are there when it begins."""
        service = self.service
        here = self._gather(start.number)
        if absent := sorted(self.network.clients.keys() - here.keys()):
            log.info("round %d begins without client %s", start.number, ", ".join(map(str, absent)))
        fingerprints = {client: self.network.clients[client] for client in here}
        tickets = service.open_round(start.number, start.server, lr=start.lr, clients=fingerprints)
        if self.network.front is not None:
            half = sum(value.nbytes for value in start.client.values())
            limit = self.network.limits.front_bytes_per_round
            self.network.front.begin_round(_ANSWERS * half + _MARGIN if limit is None else limit)
        tasks = {
            client: RoundTask(
                round=start.number,
                address=self.network.public or service.address,
                ticket=ticket,
                lr=start.lr,
                client_state=start.given(client, start.client),
                wire=self.network.wire,
            )
            for client, ticket in tickets.items()
        }
        updates = self._conduct(tasks, here, tick)
        outcome = service.wait_round(timeout=0, minimum=0)
        self._ban(outcome)
        done = [client for client in outcome.finished if client in updates]
        if len(done) < self._minimum:
            raise NetworkError(
                f"Only {len(done)} of {len(here)} clients did round {start.number} as agreed, but "
                f"{self._minimum} must; the last checkpoint is kept: start again with other clients "
                "or a smaller --minimum."
            )
        taken = {
            client: replace(
                updates[client],
                client_state=start.taken(client, start.client, updates[client].client_state),
            )
            for client in done
        }
        return self._sums(start, outcome, taken)

    @property
    def _minimum(self) -> int:
        """How many clients a round needs."""
        if self.network.minimum is not None:
            return self.network.minimum
        return max(1, len(self.network.clients) - len(self._banned))

    def _heard(self, listed: Mapping[int, str]) -> dict[int, str]:
        """The clients that are there; Flower still lists one that was killed for most of a minute."""
        front = self.network.front
        silent = set() if front is None else set(front.silent(HEARD_SECONDS))
        return {
            client: process
            for client, process in listed.items()
            if self.network.clients.get(client) not in silent
        }

    def _gather(self, number: int) -> dict[int, str]:
        """Wait for the clients of a round: for all that may come, or for `minimum` after `wait` seconds."""
        network = self.network
        began = time.monotonic()
        told = False
        while True:
            for client, _ in self._receive():
                self._gone.pop(client, None)
            present = self._heard(self.messenger.present())
            for client, process in present.items():
                if client in self._gone and self._gone[client] != process:
                    del self._gone[client]
            self._presence.gathered(number, present.keys(), self._banned, self._gone.keys())
            expected = network.clients.keys() - self._banned - self._gone.keys()
            here = {client: present[client] for client in sorted(expected & present.keys())}
            patient = network.wait is None or time.monotonic() - began < network.wait
            if len(here) >= self._minimum and (len(here) == len(expected) or not patient):
                self._gone |= dict.fromkeys(expected - here.keys())
                return here
            if len(network.clients) - len(self._banned) < self._minimum:
                raise NetworkError(
                    f"{len(self._banned)} of {len(network.clients)} clients are out, and the rest are fewer "
                    f"than the {self._minimum} that a round needs; the last checkpoint is kept: start again "
                    "with a smaller --minimum."
                )
            if not told:
                log.info("waiting for clients: %d of %d are here", len(here), len(expected))
                told = True
            time.sleep(POLL_SECONDS)
            network.metrics.waited(POLL_SECONDS)

    def _conduct(
        self, tasks: dict[int, RoundTask], processes: dict[int, str], tick: Tick | None
    ) -> dict[int, RoundUpdate]:
        """Send the tasks and see the round through; returns what the clients brought back."""
        seen = dict.fromkeys(tasks, time.monotonic())
        first: dict[int, float] = {}
        again: dict[int, float] = {}
        failures: Counter[int] = Counter()
        updates: dict[int, RoundUpdate] = {}
        dropped: set[int] = set()
        counted, asked = 0, -math.inf
        listed: Mapping[int, str] = {}
        number = next(iter(tasks.values())).round
        for client, task in tasks.items():
            self.messenger.send(client, task)
        while True:
            time.sleep(POLL_SECONDS)
            if self._presence.waiting:
                self.network.metrics.waited(POLL_SECONDS)
            now = time.monotonic()
            progress = self.service.progress()
            statuses = {client: status for client, (status, _) in progress.items()}
            if now >= asked + ASK_SECONDS or any(
                status is not Status.CONNECTED for client, status in statuses.items() if client not in dropped
            ):
                asked, listed, received = now, self.messenger.present(), self._receive()
            else:
                received = []  # all are at it: there is no half yet, and nobody to look for
            present = self._heard(listed)
            for client, update in received:
                if client not in tasks or client in dropped:
                    self._gone.pop(client, None)  # a sign of life: the next round may count on it
                elif update is None:
                    failures[client] += 1
                    again[client] = now + PAUSE_SECONDS
                elif self._fits(client, update, tasks[client].client_state):
                    updates[client] = update
            if tick is not None:
                before, counted = counted, sum(images for _, images in progress.values())
                tick(counted - before)
            self._presence.trained(number, progress, present.keys(), self._banned, updates.keys())
            dropped |= self._banned
            left = {c for c, s in statuses.items() if c not in dropped and not _over(s, c in updates)}
            if not left:
                return updates
            for client in sorted(left):
                if client in present and present[client] != processes[client]:
                    processes[client] = present[client]
                    again[client] = now + PAUSE_SECONDS
                if statuses[client] is Status.CONNECTED:
                    seen[client] = now
                if statuses[client] is not Status.EXPECTED:
                    first.setdefault(client, now)
                late = now - first.get(client, now) > (self.network.limits.round_seconds or math.inf)
                rest = [c for c, s in statuses.items() if c not in dropped and s not in _LOST]
                # On its way to the split service, or with its half on its way from there to the messenger.
                busy = statuses[client] in (Status.EXPECTED, Status.FINISHED) and client in present
                patience = math.inf if self.network.wait is None else self.network.wait
                silent = now - seen[client] > (max(patience, START_SECONDS) if busy else patience)
                if failures[client] >= MAX_FAILURES or late or (silent and len(rest) > self._minimum):
                    log.warning("the round goes on without client %d", client)
                    dropped.add(client)
                    self._gone[client] = processes[client]
                    self.service.give_up(client)
                elif client in present and now >= again.get(client, math.inf):
                    del again[client]
                    # One that is at work again was not started anew: only its messages were lost for a while.
                    if statuses[client] is not Status.CONNECTED:
                        if not failures[client]:
                            log.info("client %d came back and is asked again", client)
                        updates.pop(client, None)
                        self.messenger.send(client, tasks[client])

    def _receive(self) -> list[tuple[int, RoundUpdate | None]]:
        """What has come back from clients that sent no more than they may; the others are out."""
        answers: list[tuple[int, RoundUpdate | None]] = []
        for client, update in self.messenger.receive():
            if isinstance(update, Excess):
                self._put_out(client, f"answered with more than the {update.limit} bytes of its half")
            else:
                answers.append((client, update))
        if self.network.front is not None:
            over = set(self.network.front.over_allowance())
            for client, fingerprint in self.network.clients.items():
                if fingerprint in over and client not in self._banned:
                    self._put_out(client, "sent more bytes in one round than it may")
        return answers

    def _put_out(self, client: int, why: str) -> None:
        log.warning("client %d %s, and is out", client, why)
        self._banned.add(client)

    def _fits(self, client: int, update: RoundUpdate, ours: State) -> bool:
        """Whether what a client sent is its half: the same tensors, and numbers in them."""
        theirs = update.client_state
        fits = (
            abs(update.loss) <= _LARGEST_LOSS
            and ours.keys() == theirs.keys()
            and all(
                value.shape == ours[name].shape
                and value.dtype == ours[name].dtype
                and (not value.is_floating_point() or bool(torch.isfinite(value).all()))
                for name, value in theirs.items()
            )
        )
        if not fits:
            self._put_out(client, "sent something else than its half")
        return fits

    def _ban(self, outcome: RoundOutcome) -> None:
        for client, result in outcome.clients.items():
            # A bad connection is not held against a client.
            if result.status is Status.EXPELLED and result.reason is not Reason.RECONNECTS:
                self._banned.add(client)

    def _sums(
        self, start: RoundStart, outcome: RoundOutcome, updates: Mapping[int, RoundUpdate]
    ) -> RoundSums:
        """The averages, in the order of the clients: bit for bit those of a training in one process."""
        left_out = self._outliers(start, outcome, updates)
        done = sorted(updates.keys() - left_out.keys())
        if not done:
            raise NetworkError(
                f"No update of round {start.number} could be averaged (the lines above say why); the last "
                "checkpoint is kept: start again with other clients."
            )
        missing = sorted(self.network.clients.keys() - set(done))
        sums = RoundSums.begin(self.training.settings, missing=missing)
        sums.left_out = left_out
        for client in done:
            update, counted = updates[client], outcome.clients[client]
            assert counted.state is not None
            sums.client.add(update.client_state, weight=counted.weight)
            sums.server.add(counted.state, weight=counted.weight)
            sums.loss += update.loss * counted.steps
            sums.steps += counted.steps
            sums.images += counted.images
            sums.injections += counted.injections
            if counted.repeated:
                sums.repeated[client] = counted.repeated
        return sums

    def _outliers(
        self, start: RoundStart, outcome: RoundOutcome, updates: Mapping[int, RoundUpdate]
    ) -> dict[int, str]:
        """The clients whose update is not averaged, each with the reason; counts and tells them."""
        judged = {}
        for client, update in updates.items():
            counted = outcome.clients[client]
            assert counted.state is not None
            judged[client] = Update(update.client_state, counted.state, counted.steps)
        findings = self._judge.findings(start, judged)
        for client, finding in sorted(findings.items()):
            self._left_out[client] += 1
            self.network.metrics.refused(finding.fault)
            log.warning(
                "the update of client %d is left out of round %d: %s", client, start.number, finding.sentence
            )
            if self._left_out[client] >= MAX_LEFT_OUT:
                self._banned.add(client)
                log.warning("client %d is out: %d of its updates were left out", client, MAX_LEFT_OUT)
        return {client: finding.fault.value for client, finding in findings.items()}


def _over(status: Status, brought: bool) -> bool:
    """Whether there is nothing more to expect of a client."""
    return status in _LOST or (status is Status.FINISHED and brought)
