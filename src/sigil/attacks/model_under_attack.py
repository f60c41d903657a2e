"""One attack from files to files: what is attacked, with what data and key, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sigil import models
from sigil.attacks.checks import check_fits, check_positive, check_share
from sigil.attacks.files import check_target, open_model, save_model
from sigil.attacks.halves import Halves, cut_of
from sigil.attacks.measurement import Measurement, client_part, measure
from sigil.attacks.training import share
from sigil.data import Dataset
from sigil.data.subsets import stratified
from sigil.errors import AttackError
from sigil.keys.key import Key
from sigil.models import Model


@dataclass(frozen=True)
class AttackResult:
    """The files of an attacked model, and its worth before and after."""

    files: list[Path]
    before: Measurement
    after: Measurement


@dataclass(frozen=True)
class ModelUnderAttack:
    """A suspect opened for an attack; everything that can be wrong with the input was checked by then."""

    model: Model | Halves
    out: Path
    key: Key | None
    data: Dataset | None
    cut: str

    @classmethod
    def open(
        cls,
        suspect: Path,
        out: Path,
        *,
        server: Path | None = None,
        key: Key | None = None,
        data: Dataset | None = None,
        cut: str | None = None,
    ) -> ModelUnderAttack:
        """Read the suspect and check that key, data and target fit it; nothing is written."""
        model = open_model(suspect, server=server)
        check_target(out, directory=isinstance(model, tuple))
        first = model[0] if isinstance(model, tuple) else model
        if first.spec.part == "client" and cut not in (None, first.spec.cut):
            raise AttackError(
                f"The halves were cut at {first.spec.cut!r}, not at {cut!r}; leave the cut out."
            )
        opened = cls(model, out, key, data, cut_of(model, cut))
        if data is not None:
            check_fits(first, data)
        if key is not None:
            shape = opened.activation_shape(model, opened.cut)
            if shape != key.shape:
                raise AttackError(
                    f"The key is for activations of {key.shape}, but the suspect cut at {opened.cut!r} gives "
                    f"{shape}; give the key of this cut."
                )
        return opened

    @property
    def checkpoint(self) -> Path:
        """Where an attack that trains keeps its state; the same command goes on from it."""
        return self.out.with_name(f".{self.out.name}.attack")

    def activation_shape(self, model: Model | Halves, cut: str) -> tuple[int, ...]:
        """The shape of one sample's activation at a cut of a model, for the images of this data set."""
        first = model[0] if isinstance(model, tuple) else model
        shape = self.data.shape if self.data is not None else first.input_shape
        if shape is None:
            raise AttackError("The suspect does not say what images it takes; give its data set with --data.")
        return models.activation_shape(client_part(first, cut), shape)

    def attackers_data(self, part: float, *, seed: int) -> Dataset:
        """The training images that the attacker holds: a share, every class in its proportion."""
        check_share("attacker's share", part)
        check_positive("attacker's share", part)
        if self.data is None:
            raise AttackError("This attack trains on images of the attacker's own; name them with --data.")
        labels = self.data.train.labels
        return share(self.data, stratified(labels, max(2, round(part * len(labels))), seed=seed))

    def finish(self, attacked: Model | Halves, *, cut: str | None = None) -> AttackResult:
        """Write the attacked model and measure both; ``cut`` is where to look for the mark in the new one.

        A new model whose activation has another shape than the key cannot carry the mark, and no report is
        made of it.
        """
        files = save_model(self.out, attacked)
        place = cut or self.cut
        fits = self.key is not None and self.activation_shape(attacked, place) == self.key.shape
        return AttackResult(
            files,
            before=measure(self.model, data=self.data, key=self.key, cut=self.cut),
            after=measure(attacked, data=self.data, key=self.key if fits else None, cut=place),
        )
