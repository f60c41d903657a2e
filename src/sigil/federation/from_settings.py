"""What settings become: data and shares, halves, batches, optimizers, learning rates, servers.

All of it follows from the settings (and the data) alone. So everybody who builds it, the owner, a worker
process or a client on another machine, begins alike, and the same seed gives the same weights.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sigil import data, models, optimizers
from sigil.errors import ConfigError
from sigil.federation.observers import ClientObserver, ServerObserver, Step
from sigil.federation.precision import Precision, choose
from sigil.federation.repetition import Repetitions, projection
from sigil.federation.scheme import resolve
from sigil.federation.seeds import derive, generator
from sigil.federation.server import LabelServer, Server
from sigil.federation.settings import ModelSettings, Settings
from sigil.injector import Injector, Secret
from sigil.keys.key import Key
from sigil.logit_gradients import Loss
from sigil.models.spec import architecture

log = logging.getLogger("sigil.federation")


def load_data(settings: Settings, data_dir: Path | None = None) -> data.Dataset:
    """The data set of a training with these settings, reduced as they say."""
    chosen = settings.data
    return data.load(
        chosen.name,
        data_dir=data_dir,
        train_limit=chosen.train_limit,
        test_limit=chosen.test_limit,
        classes=chosen.classes,
    )


def client_parts(settings: Settings, dataset: data.Dataset) -> list[npt.NDArray[np.int64]]:
    """The indices of the training images that each client holds."""
    federation = settings.federation
    return data.partition(
        np.asarray(dataset.train.labels),
        clients=federation.clients,
        kind=federation.partition,
        beta=federation.beta,
        sigma=federation.sigma,
        seed=derive(settings.run.seed, "partition") % 2**32,
    )


@dataclass(frozen=True)
class Halves:
    """A network at the start of its training, cut in two; `shape` is that of one sample at the cut."""

    client: nn.Module
    server: nn.Module
    cut: str
    shape: tuple[int, ...]


def build_halves(
    settings: Settings,
    *,
    classes: int,
    input_shape: tuple[int, int, int],
    precision: Precision | None = None,
) -> Halves:
    """Build the network of the settings for images (C, H, W) = `input_shape` and cut it.

    With a `precision` both halves are on its device and in its memory layout.
    """
    cut = settings.model.cut or models.default_cut(settings.model.name)
    whole = models.build(
        settings.model.name,
        classes=classes,
        width=settings.model.width,
        channels=input_shape[0],
        input_size=input_shape[1:],
        seed=derive(settings.run.seed, "weights"),
    )
    client_half, server_half = models.split(whole, cut, copy=False)
    shape = models.activation_shape(client_half, input_shape)
    if precision is not None:
        for half in (client_half, server_half):
            half.to(device=precision.device, memory_format=precision.layout)  # type: ignore[call-overload]
    return Halves(client_half, server_half, cut, shape)


def draw_initial_weights(settings: Settings, key: Key | None, halves: Halves) -> Literal["key", "seed"]:
    """Give the client half the owner's initial weights, if a mark is trained with a key that draws them.

    Otherwise it keeps those that follow from the seed, which anybody can draw: no descent from them can be
    shown. Says which of the two it is.
    """
    if key is None or not settings.marked:
        return "seed"
    if key.fields.initialiser is None:
        log.info(
            "the key draws no initial weights, so that no model's descent from this training can be shown"
        )
        return "seed"
    key.initialise(halves.client)
    return "key"


def cut_shape(settings: Settings, data_dir: Path | None = None) -> tuple[int, ...]:
    """Shape of one sample's activation at the cut of a training with these settings."""
    dataset = data.load(settings.data.name, data_dir=data_dir, classes=settings.data.classes)
    return _cut_shape(settings.model, dataset.classes, dataset.shape)


@cache
def _cut_shape(model: ModelSettings, classes: int, input_shape: tuple[int, int, int]) -> tuple[int, ...]:
    """Kept, as one process asks for the same few models again and again, and each must be built to know."""
    return build_halves(Settings(model=model), classes=classes, input_shape=input_shape).shape


def what_a_key_states(settings: Settings, data_dir: Path | None = None) -> dict[str, Any]:
    """What a key for a training with these settings can state: arguments of `Key.generate`.

    All that is stated is nobody's choice afterwards: the model and its cut, the shape and normalisation of
    its inputs, and the test images to read the mark on, if there are enough of them.
    """
    dataset = data.load(settings.data.name, data_dir=data_dir, classes=settings.data.classes)
    halves = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape)
    enough = len(dataset.test) >= data.LEAST_INPUTS
    return {
        "shape": halves.shape,
        "model": settings.model.name,
        "width": settings.model.width or architecture(settings.model.name).standard_width,
        "classes": dataset.classes,
        "cut": halves.cut,
        "input_shape": dataset.shape,
        "normalisation": (dataset.mean, dataset.std),
        "inputs_digest": data.Inputs(dataset.test.images).digest if enough else None,
    }


def agreed_loss(settings: Settings) -> Loss:
    """The loss that server and clients of a training with these settings agree on."""
    federation = settings.federation
    return Loss(
        kind=federation.loss,
        smoothing=federation.label_smoothing,
        mixing=federation.label_mixing,
        reduction=federation.loss_reduction,
    )


def local_batches(
    settings: Settings,
    dataset: data.Dataset,
    *,
    indices: npt.NDArray[np.int64],
    round_number: int,
    client: int,
    precision: Precision,
    observers: Sequence[ClientObserver] = (),
) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """The batches of one client in one round: (step, images (N, C, H, W), labels (N,)) each time.

    `indices` are the training images that the client holds. Order and augmentation follow from the seed,
    the round and the client alone; torch's global random stream is set from them as well.
    """
    seed = settings.run.seed
    batches = data.Batches(
        dataset.train.images,
        dataset.train.labels,
        indices,
        batch_size=settings.federation.batch_size,
        mean=dataset.mean,
        std=dataset.std,
        augment=dataset.augment if settings.data.augment else "none",
        device=precision.device,
        memory_format=precision.layout,
    )
    order = generator(seed, "batches", round_number, client)
    # Layers with randomness of their own (dropout) draw from torch's global stream.
    torch.manual_seed(derive(seed, "layers", round_number, client))
    count = 0
    for _ in range(settings.federation.local_epochs):
        for images, labels in batches.epoch(order):
            count += 1
            at = Step(round_number, client, count)
            for observer in observers:
                images, labels = observer.on_batch(at, images, labels)
            yield at, images, labels


def fresh_optimizer(
    half: nn.Module, lr: float, *, settings: Settings, precision: Precision
) -> torch.optim.Optimizer:
    """The optimizer with which a half begins a round."""
    optimizer = settings.optimizer
    fused = precision.device.type in ("cpu", "cuda")
    parameters = [value for value in half.parameters() if value.requires_grad]
    if not parameters:
        # A half without weights (a cut right before the last pooling, say) has nothing to update.
        parameters = [nn.Parameter(torch.zeros((), device=precision.device))]
    if optimizer.name == "adam":
        return optimizers.Adam(parameters, lr=lr, weight_decay=optimizer.weight_decay, fused=fused)
    return optimizers.SGD(
        parameters, lr=lr, momentum=optimizer.momentum, weight_decay=optimizer.weight_decay, fused=fused
    )


def scheduled_rate(settings: Settings, round_number: int) -> float:
    """Learning rate of a round of a training with these settings."""
    optimizer = settings.optimizer
    return learning_rate(
        round_number,
        rounds=settings.federation.rounds,
        base=optimizer.lr,
        minimum=optimizer.lr_min,
        warmup_rounds=optimizer.warmup_rounds,
    )


def learning_rate(
    round_number: int, *, rounds: int, base: float, minimum: float, warmup_rounds: int
) -> float:
    """Learning rate of round 1, 2, …, `rounds`: linear warm-up, then cosine (paper, appendix B).

    Rises linearly to `base` at round `warmup_rounds`, then falls as a half cosine to `minimum` at the last.

    >>> [round(learning_rate(r, rounds=80, base=0.1, minimum=1e-4, warmup_rounds=5), 4) for r in (1, 5, 80)]
    [0.02, 0.1, 0.0001]
    """
    if round_number <= warmup_rounds:
        return base * round_number / warmup_rounds
    progress = (round_number - max(warmup_rounds, 1)) / max(1, rounds - max(warmup_rounds, 1))
    return minimum + 0.5 * (base - minimum) * (1 + math.cos(math.pi * progress))


class ServerMaker:
    """Makes the server of each client: its half, its optimizer, and the injector for its gradients.

    In one process, in several and across machines, servers are made here and nowhere else. `secret` is the
    key, or the part of it that an injector needs. `kind`, called like :class:`Server`, puts another server in
    the honest one's place. Its :attr:`settings` name the scheme and the strength that the key and the number
    of clients decided on.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        secret: Secret | None,
        halves: Halves,
        precision: Precision,
        kind: Callable[..., Server] | None = None,
    ) -> None:
        key = secret if isinstance(secret, Key) and settings.marked else None
        self.settings = settings = resolve(settings, key)
        self.loss = agreed_loss(settings)
        self.shape = halves.shape
        self.precision = precision
        self.kind = kind
        if settings.marked and secret is None:
            raise ConfigError(
                "watermark.strength is above 0, but there is no key to embed; give a key or set it to 0."
            )
        if settings.marked and secret is not None and secret.shape != halves.shape:
            raise ConfigError(
                f"The key is for activations of {secret.shape}, but {settings.model.name} cut at "
                f"{halves.cut!r} gives {halves.shape}; make a key with that shape."
            )
        self._secret = secret if settings.marked else None
        self._injectors: dict[int, Injector] = {}
        if settings.watermark.scheme == "shares":
            self._injector(0)  # says at once if the bits cannot be dealt out like this
        hidden = torch.tensor([derive(settings.run.seed, "repetitions")])
        self._projection = projection(
            hidden if self._secret is None else self._secret.matrix[:1], math.prod(halves.shape)
        )

    def make(
        self,
        client: int,
        half: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        round_number: int,
        observers: Sequence[ServerObserver] = (),
    ) -> Server:
        """The server of client 0, 1, … for one round, which trains `half`."""
        federation = self.settings.federation
        honest = Server if federation.mode == "usfl" else LabelServer
        return (self.kind or honest)(
            half,
            optimizer,
            shape=self.shape,
            precision=self.precision,
            injector=self._injector(client),
            observers=observers,
            round_number=round_number,
            client=client,
            statistics_every=self.settings.watermark.statistics_every,
            loss=self.loss,
            repetitions=Repetitions(
                self._projection,
                epochs=federation.local_epochs,
                refuse=federation.repeated_activations == "refuse",
            ),
        )

    def _injector(self, client: int) -> Injector | None:
        """The injector for the gradients of one client of several, or none if there is no mark.

        Where every client's gradients carry all bits, all share one injector and what it has computed of M.
        The cap of the paper is safe only where the server can judge logit gradients.
        """
        if self._secret is None:
            return None
        mark, clients = self.settings.watermark, self.settings.federation.clients
        assert mark.strength is not None
        shares = mark.scheme == "shares"
        carrier = client if shares else 0
        if carrier not in self._injectors:
            self._injectors[carrier] = Injector(
                self._secret,
                mark.strength,
                clip=mark.clip,
                cap=not shares and self.loss.kind == "cross-entropy",
                share=(client, clients) if shares else None,
                carriers_per_bit=mark.carriers_per_bit,
                per_sample=mark.per_sample,
            )
        return self._injectors[carrier]


@dataclass
class Training:
    """All that a training is made of before its first round.

    `halves` are live: training and measuring in this process load weights into them. Observers may be added
    until the first round. `initial_weights` says what drew those of the client half.
    """

    settings: Settings
    dataset: data.Dataset
    precision: Precision
    halves: Halves
    parts: list[npt.NDArray[np.int64]]
    servers: ServerMaker
    key: Key | None = None
    client_observers: list[ClientObserver] = field(default_factory=list)
    server_observers: list[ServerObserver] = field(default_factory=list)
    initial_weights: Literal["key", "seed"] = "seed"

    @classmethod
    def prepare(
        cls,
        settings: Settings,
        dataset: data.Dataset,
        *,
        key: Key | None = None,
        server_kind: Callable[..., Server] | None = None,
    ) -> Training:
        """Make everything from the settings, the data and the key.

        The clients' half begins with the weights that the key draws, if it draws any, so that descent from
        them can be shown later.
        """
        precision = choose(settings.run.device, settings.run.precision)
        halves = build_halves(
            settings, classes=dataset.classes, input_shape=dataset.shape, precision=precision
        )
        return cls(
            settings=settings,
            dataset=dataset,
            precision=precision,
            halves=halves,
            parts=client_parts(settings, dataset),
            servers=ServerMaker(settings, secret=key, halves=halves, precision=precision, kind=server_kind),
            key=key,
            initial_weights=draw_initial_weights(settings, key, halves),
        )

    @property
    def images_per_round(self) -> int:
        """Training images that a round goes through."""
        return sum(map(len, self.parts)) * self.settings.federation.local_epochs
