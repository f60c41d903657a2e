"""One attack from files to files: what is attacked, with what data and key, and what became of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from sigil import files, models
from sigil.alignment import open_reference
from sigil.attacks.halves import Halves, check_fits, check_positive, check_share, cut_of, whole_copy
from sigil.attacks.training import share
from sigil.data import Dataset, Inputs
from sigil.data.partitions import stratified
from sigil.errors import AttackError
from sigil.federation.federation import accuracy
from sigil.federation.precision import Precision, choose
from sigil.keys.key import Key
from sigil.models import Model
from sigil.verdict.report import Report
from sigil.verdict.verification import verify

CLIENT, SERVER = "client.safetensors", "server.safetensors"


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

    def finish(
        self, attacked: Model | Halves, *, cut: str | None = None
    ) -> tuple[list[Path], Measurement, Measurement]:
        """Write the attacked model; returns its files, and what the model was worth before and after.

        ``cut`` is where to look for the mark in the new one. If its activation has another shape there than
        the key, it cannot carry the mark, and no report is made of it.
        """
        files = save_model(self.out, attacked)
        cut = cut or self.cut
        fits = self.key is not None and self.activation_shape(attacked, cut) == self.key.shape
        before = measure(self.model, data=self.data, key=self.key, cut=self.cut)
        return files, before, measure(attacked, data=self.data, key=self.key if fits else None, cut=cut)


@dataclass(frozen=True)
class Measurement:
    """Accuracy on the test images and the verification of the mark; None where it was not asked for."""

    accuracy: float | None
    report: Report | None


def measure(
    model: Model | Halves,
    *,
    data: Dataset | None = None,
    key: Key | None = None,
    cut: str | None = None,
    probes: int | None = None,
    seed: int | None = None,
    precision: Precision | None = None,
) -> Measurement:
    """Measure a model: accuracy on ``data.test`` if data is given, the mark of ``key`` if a key is.

    Accuracy needs a whole model or both halves and is None for a client half alone. ``cut`` is where the
    mark is: none is where the halves meet, or for a whole model the paper's cut. The model is unchanged.
    """
    copied = whole_copy(model, or_half=True)
    if data is not None:
        check_fits(copied, data)
    report = None
    if key is not None:
        shape = data.shape if data is not None else copied.input_shape
        if shape is None:
            raise AttackError("The model does not say what images it takes; give the data set as well.")
        client = client_part(copied, cut_of(model, cut))
        inputs = None if data is None else Inputs.of_test(data)
        report = verify(client, key, inputs, input_shape=shape, probes=probes, seed=seed)
    right = None
    if data is not None and copied.spec.part == "whole":
        precision = precision or choose()
        precision.move(copied)
        right = accuracy(copied, nn.Identity(), data, precision=precision)
    return Measurement(right, report)


def client_part(model: Model, cut: str) -> nn.Module:
    """The part of a model that ends at the cut; a client half is that already."""
    return models.split(model, cut)[0] if model.spec.part == "whole" else model


def open_model(path: Path, *, server: Path | None = None) -> Model | Halves:
    """Read what is to be attacked.

    ``path`` is a directory with ``client.safetensors`` and ``server.safetensors`` (a run's, for example), the
    file of a whole model, or that of a client half. With ``server``, the file of its server half, a client
    half becomes a pair; without it stays alone.
    """
    if path.is_dir():
        if server is not None:
            raise AttackError(f"{path} is a directory and holds both halves; leave the server half out.")
        return _fitting(_half(path / CLIENT, "client"), _half(path / SERVER, "server"))
    model = models.load(path)
    if model.spec.part == "server":
        raise AttackError(f"{path} holds a server half, which carries no mark; give the client half first.")
    if server is None:
        return model
    if model.spec.part == "whole":
        raise AttackError(f"{path} holds a whole model; leave the server half out.")
    return _fitting(model, _half(server, "server"))


def open_initial(path: Path, key: Key | None = None) -> Model:
    """The weights that a training began with: a model file, or the directory of the finished run.

    A client was sent them; from a run's directory they follow by the run's ``key``, if that drew them.
    """
    reference = open_reference(path, key=key)
    if not isinstance(reference, Model):
        raise AttackError(f"{path} holds no weights; give a model file or the directory of a finished run.")
    return reference


def check_target(path: Path, *, directory: bool) -> None:
    """Raise unless :func:`save_model` could write there without replacing anything.

    A pair of halves needs a directory, which may exist; one model needs a file, which may not.
    """
    try:
        is_directory = path.is_dir()
    except OSError:  # a name that is too long, say, about which files.check finds the words
        is_directory = False
    if directory and os.path.lexists(path) and not is_directory:
        raise AttackError(f"{path} is a file, but both halves need a directory; choose another name.")
    if directory and is_directory:
        for name in (CLIENT, SERVER):
            files.check(path / name, kind="model", raises=AttackError)
    elif is_directory:
        raise AttackError(f"{path} exists, and a model is never overwritten; choose another name.")
    else:
        files.check(path, kind="model", raises=AttackError)


def save_model(path: Path, model: Model | Halves) -> list[Path]:
    """Write a model to a file, or a pair of halves to a directory; returns the files."""
    if not isinstance(model, tuple):
        models.save(path, model, replace=False)
        return [path]
    path.mkdir(exist_ok=True)
    places = [path / CLIENT, path / SERVER]
    for file, half in zip(places, model, strict=True):
        models.save(file, half, replace=False)
    return places


def _half(path: Path, part: str) -> Model:
    model = models.load(path)
    if model.spec.part != part:
        raise AttackError(f"{path} should hold a {part} half, but holds the {model.spec}.")
    return model


def _fitting(client_half: Model, server_half: Model) -> Halves:
    models.join(client_half, server_half)  # raises if they are not of one model
    return client_half, server_half
