"""What client 0 can do as a thief, and what both proofs show of the model afterwards."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sigil import attacks, origin
from sigil.alignment import initial_half
from sigil.attacks.halves import Halves
from sigil.attacks.training import Tuning
from sigil.data import Dataset
from sigil.errors import ExperimentError
from sigil.federation.precision import choose
from sigil.federation.recording import Recording
from sigil.federation.run import Run
from sigil.keys.key import Key
from sigil.models import Model
from sigil_reproduction.runner.attacked import attackers_share, marks
from sigil_reproduction.runner.scales import PerScale
from sigil_reproduction.runner.store import Store

READINGS = {"noise": "", "images": "_inputs", "origin": "_origin"}
# Epochs of Adam at 5e-4 in batches of 32 for all attacks that fine-tune but the adaptive one.
EPOCHS = PerScale(4, smoke=1)


@dataclass(frozen=True)
class Attacker:
    """Client 0 of a training: the finished model, its own images, the run's folder, and how it fine-tunes."""

    halves: Halves
    own: Dataset
    folder: Path
    tuning: Tuning

    @property
    def recording(self) -> Recording:
        """The gradients that it was sent, of a training that kept them."""
        return Recording(self.folder / "recording")

    def reverse(self, reversal: float, gamma: float = 10.0) -> Halves:
        return attacks.reverse(
            self.halves, self.recording, self.own, reversal=reversal, gamma=gamma, tuning=self.tuning
        )[0]

    def read(self, **options: Any) -> Halves:
        return attacks.read(self.halves, self.own, tuning=self.tuning, **options)[0]

    def overwrite_with(self, other: Key) -> Halves:
        """Embed another random mark by an injector at full strength."""
        tuning = self.tuning
        return attacks.overwrite(
            self.halves,
            self.own,
            other,
            epochs=tuning.epochs,
            batch_size=tuning.batch_size,
            seed=tuning.seed,
            precision=tuning.precision,
        )


@dataclass(frozen=True)
class Thief(Attacker):
    """Client 0 of a run, who has the initial weights too."""

    run: Run
    store: Store
    initial: Model

    @classmethod
    def of(cls, run: Run, store: Store, *, epochs: int | None = None, rate: float | None = None) -> Self:
        """Client 0 of a run that has a recording; it fine-tunes for the scale's epochs unless told."""
        settings = run.settings
        tuning = Tuning(
            lr=rate or Tuning.lr,
            epochs=epochs or EPOCHS.at(store.scale),
            seed=settings.run.seed,
            precision=choose(settings.run.device, settings.run.precision),
        )
        own = attackers_share(store.dataset(settings), settings)
        initial = initial_half(run.folder, store.key(run))
        return cls(run.halves(), own, run.folder, tuning, run, store, initial)

    def reverse(self, reversal: float, gamma: float = 10.0) -> Halves:
        recording = self.recording
        if gamma and recording.partial and recording.mean(recording.rounds) is None:
            raise ExperimentError(
                f"The recording in {self.run.folder} keeps a share of the gradients and no sums, and a thief "
                "adds up all of them; train again."
            )
        return super().reverse(reversal, gamma)

    def orthogonalise(self, halves: Halves, **options: Any) -> Halves:
        return attacks.orthogonalise(halves, self.own, self.initial, tuning=self.tuning, **options)

    def dodge(self, gamma: float) -> Halves:
        return attacks.dodge(self.halves, self.own, gamma=gamma, tuning=self.tuning)

    def overwrite(self) -> Halves:
        key = self.store.key(self.run)
        assert key is not None
        secret = hashlib.sha256(f"another owner, seed {self.run.settings.run.seed}".encode()).digest()
        return self.overwrite_with(Key.generate("Mallory", shape=key.shape, bits=key.bits, seed=secret))

    def origin_of(self, attacked: Halves) -> origin.Origin:
        """What the origin test finds in a model."""
        known = self.initial.state_dict()
        return origin.compare(
            attacked[0].state_dict(),
            {name: tuple(value.shape) for name, value in known.items() if value.ndim >= 2},
            lambda name, shape: known[name],
        )

    def left(self, attacked: Halves) -> dict[str, Any]:
        """What an attack has left: accuracy, the mark on noise and on images, the origin."""
        found = self.origin_of(attacked)
        return marks(attacked, self.run, self.store) | {
            "wsr_origin": 100 * found.share,
            "log10_p_origin": found.log10_p,
            "answers_origin": {"count": found.tested, "right": found.agreeing},
        }
