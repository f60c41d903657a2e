"""What settings become: data and parts, halves, batches, optimizers, learning rates, a whole training.

All of it follows from the settings (and the data) alone. So everybody who builds it, the owner, a worker
process or a client on another machine, begins alike, and the same seed gives the same weights.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sigil import data, eager, models
from sigil.errors import ConfigError
from sigil.federation.observers import ClientObserver, ServerObserver, Step
from sigil.federation.precision import Precision, choose
from sigil.federation.repetition import Repetitions, projection
from sigil.federation.server import LabelServer, Server
from sigil.federation.settings import Settings, WatermarkSettings
from sigil.injector import Injector, Secret
from sigil.keys.key import Key
from sigil.logit_gradients import Loss
from sigil.models.spec import architecture
from sigil.seeds import derive, generator

log = logging.getLogger("sigil.federation")

# From this many clients on, a share is small enough to protect the rest.
ENOUGH_CLIENTS: Final = 4
STRENGTHS: Final = {"paper": 0.1, "shares": 0.3}


def resolve(settings: Settings, key: Key | None) -> Settings:
    """The settings with the scheme, the strength and the imprints that "auto" and "none" stand for.

    Under the scheme "paper" every client's gradient carries all bits, capped as the paper has it. Under
    "shares" a client's gradient carries only the bits that the key deals out to it, without the cap, and only
    the average carries all of them: what one client learns of the mark from its gradients is its own share.
    What the key states decides; settings that say otherwise are refused.
    """
    mark = settings.watermark
    scheme = mark.scheme
    if scheme == "auto":
        scheme = automatic(settings) if key is None else key.fields.scheme
    elif key is not None and key.fields.scheme != scheme:
        raise ConfigError(
            f"watermark.scheme is {scheme!r}, but the key states {key.fields.scheme!r}; leave the setting "
            "out or give a key that states the same."
        )
    if scheme == "shares" and settings.federation.mode == "sl":
        raise ConfigError(
            "Under the scheme shares only the average of the clients carries the whole mark, but "
            'federation.mode "sl" averages none; give a key of the scheme paper, or another mode.'
        )
    if scheme == "paper" and mark.carriers_per_bit is not None:
        raise ConfigError(
            "watermark.carriers_per_bit belongs to the scheme shares, but here every client carries all bits."
        )
    if scheme == "paper" and mark.scheme == "auto" and automatic(settings) == "shares":
        log.info(
            "the key states the scheme paper, so every client's gradients carry the whole mark; a key of "
            "the scheme shares would keep most of it from each"
        )
    strength = STRENGTHS[scheme] if mark.strength is None else mark.strength
    federation = settings.federation
    return settings.model_copy(
        update={
            "watermark": mark.model_copy(update={"scheme": scheme, "strength": strength}),
            "federation": federation.model_copy(update={"imprint": bool(federation.imprint)}),
        }
    )


def automatic(settings: Settings) -> Literal["paper", "shares"]:
    """The scheme of a training whose key and settings state none."""
    federation = settings.federation
    averaged = federation.mode != "sl" and federation.clients >= ENOUGH_CLIENTS
    return "shares" if averaged and settings.marked else "paper"


def load_data(settings: Settings, data_dir: Path | None = None) -> data.Dataset:
    """The data set of a training with these settings, reduced as they say."""
    return data.load(data_dir=data_dir, **settings.data.model_dump(exclude={"augment"}))


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
            precision.move(half)
    return Halves(client_half, server_half, cut, shape)


def what_a_key_states(settings: Settings, data_dir: Path | None = None) -> dict[str, Any]:
    """What a key for a training with these settings can state: arguments of `Key.generate`.

    All that is stated is nobody's choice afterwards: the model and its cut, the shape and normalisation of
    its inputs, and the test images to read the mark on, if there are enough of them.
    """
    dataset = data.load(settings.data.name, data_dir=data_dir, classes=settings.data.classes)
    halves = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape)
    inputs = data.Inputs.of_test(dataset)
    return {
        "shape": halves.shape,
        "model": settings.model.name,
        "width": settings.model.width or architecture(settings.model.name).STANDARD_WIDTH,
        "classes": dataset.classes,
        "cut": halves.cut,
        "input_shape": dataset.shape,
        "normalisation": (dataset.mean, dataset.std),
        "inputs_digest": None if inputs is None else inputs.digest,
    }


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
        return eager.Adam(parameters, lr=lr, weight_decay=optimizer.weight_decay, fused=fused)
    return eager.SGD(
        parameters, lr=lr, momentum=optimizer.momentum, weight_decay=optimizer.weight_decay, fused=fused
    )


def scheduled_rate(settings: Settings, round_number: int) -> float:
    """Learning rate of round 1, 2, … of a training: linear warm-up, then cosine (paper, appendix B).

    Rises linearly to the highest at the last round of the warm-up, then falls as a half cosine to the lowest.

    >>> [round(scheduled_rate(Settings(), number), 4) for number in (1, 5, 80)]
    [0.02, 0.1, 0.0001]
    """
    optimizer, rounds = settings.optimizer, settings.federation.rounds
    if round_number <= optimizer.warmup_rounds:
        return optimizer.lr * round_number / optimizer.warmup_rounds
    warm = max(optimizer.warmup_rounds, 1)
    progress = (round_number - warm) / max(1, rounds - warm)
    return optimizer.lr_min + 0.5 * (optimizer.lr - optimizer.lr_min) * (1 + math.cos(math.pi * progress))


@dataclass
class Training:
    """All that a training is made of: assembled once, and given whole to all who take part in it.

    In one process, in several and across machines, servers are made here and nowhere else. `settings` name
    the scheme and the strength that the key and the number of clients decided on. `halves` are live: training
    and measuring in this process load weights into them. `secret` is what is embedded: the key, or the part
    of it that an injector needs; nothing without a mark. `server_factory`, called like :class:`Server`, puts
    another server in the honest one's place. Observers may be added until the first round.
    `initial_weights` says what drew those of the client half; `one_server_half` that clients train one server
    half in turn.
    """

    settings: Settings
    dataset: data.Dataset
    precision: Precision
    halves: Halves
    key: Key | None = None
    secret: Secret | None = None
    server_factory: Callable[..., Server] | None = None
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
        server_factory: Callable[..., Server] | None = None,
    ) -> Training:
        """Make everything from the settings, the data and the key.

        The clients' half begins with the weights that the key draws, if it draws any, so that descent from
        them can be shown later. Those that follow from the seed show none: anybody can draw them.
        """
        secret = key if settings.marked else None
        settings = resolve(settings, secret)
        precision = choose(settings.run.device, settings.run.precision)
        halves = build_halves(
            settings, classes=dataset.classes, input_shape=dataset.shape, precision=precision
        )
        if settings.marked and secret is None:
            raise ConfigError(
                "watermark.strength is above 0, but there is no key to embed; give a key or set it to 0."
            )
        if secret is not None and secret.shape != halves.shape:
            raise ConfigError(
                f"The key is for activations of {secret.shape}, but {settings.model.name} cut at "
                f"{halves.cut!r} gives {halves.shape}; make a key with that shape."
            )
        training = cls(settings, dataset, precision, halves, key, secret, server_factory)
        if secret is not None and secret.fields.initialiser is not None:
            secret.initialise(halves.client)
            training.initial_weights = "key"
        elif secret is not None:
            log.info(
                "the key draws no initial weights, so that no model's descent from this training can be shown"
            )
        return training

    @classmethod
    def of_client(cls, settings: Settings, dataset: data.Dataset) -> Training:
        """What a client elsewhere makes for itself: the same with its own data, and nothing of a mark."""
        return cls.prepare(settings.model_copy(update={"watermark": WatermarkSettings(strength=0)}), dataset)

    def __post_init__(self) -> None:
        federation = self.settings.federation
        self.loss = Loss(
            kind=federation.loss,
            smoothing=federation.label_smoothing,
            mixing=federation.label_mixing,
            reduction=federation.loss_reduction,
        )
        self.one_server_half = federation.mode == "sl" or federation.server_halves == "shared"
        self._injectors: dict[int, Injector] = {}
        if self.settings.watermark.scheme == "shares":
            self._injector(0)  # says at once if the bits cannot be dealt out like this
        hidden = torch.tensor([derive(self.settings.run.seed, "repetitions")])
        self._projection = projection(
            hidden if self.secret is None else self.secret.matrix[:1], math.prod(self.halves.shape)
        )

    @cached_property
    def parts(self) -> list[npt.NDArray[np.int64]]:
        """The indices of the training images that each client holds where the data are here."""
        return client_parts(self.settings, self.dataset)

    @property
    def images_per_round(self) -> int:
        """Training images that a round goes through."""
        return sum(map(len, self.parts)) * self.settings.federation.local_epochs

    def local_batches(
        self, client: int, *, indices: npt.NDArray[np.int64], round_number: int
    ) -> Iterator[tuple[Step, Tensor, Tensor]]:
        """The batches of one client in one round: (step, images (N, C, H, W), labels (N,)) each time.

        `indices` are the training images that the client holds. Order and augmentation follow from the seed,
        the round and the client alone; torch's global random stream is set from them as well.
        """
        settings, dataset = self.settings, self.dataset
        batches = data.Batches(
            dataset.train.images,
            dataset.train.labels,
            indices,
            batch_size=settings.federation.batch_size,
            mean=dataset.mean,
            std=dataset.std,
            augment=dataset.augment if settings.data.augment else "none",
            **self.precision.place,
        )
        order = generator(settings.run.seed, "batches", round_number, client)
        # Layers with randomness of their own (dropout) draw from torch's global stream.
        torch.manual_seed(derive(settings.run.seed, "layers", round_number, client))
        count = 0
        for _ in range(settings.federation.local_epochs):
            for images, labels in batches.epoch(order):
                count += 1
                at = Step(round_number, client, count)
                for observer in self.client_observers:
                    images, labels = observer.on_batch(at, images, labels)
                yield at, images, labels

    def fresh_optimizer(self, half: nn.Module, lr: float) -> torch.optim.Optimizer:
        """The optimizer with which a half begins a round."""
        return fresh_optimizer(half, lr, settings=self.settings, precision=self.precision)

    def make_server(
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
        return (self.server_factory or honest)(
            half,
            optimizer,
            shape=self.halves.shape,
            precision=self.precision,
            injector=self._injector(client),
            observers=observers,
            round=round_number,
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
        if self.secret is None:
            return None
        mark, clients = self.settings.watermark, self.settings.federation.clients
        assert mark.strength is not None
        shares = mark.scheme == "shares"
        carrier = client if shares else 0
        if carrier not in self._injectors:
            self._injectors[carrier] = Injector(
                self.secret,
                mark.strength,
                clip=mark.clip,
                cap=not shares and self.loss.kind == "cross-entropy",
                share=(client, clients) if shares else None,
                carriers_per_bit=mark.carriers_per_bit,
                per_sample=mark.per_sample,
            )
        return self._injectors[carrier]
