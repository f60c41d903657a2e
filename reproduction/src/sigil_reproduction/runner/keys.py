"""Keys of experiments: fixed by a seed, so that everything repeats. They protect nothing.

A training has an ordinary key that states what an owner's would: model, cut, shape and normalisation of the
inputs, and the test images to read the mark on. Models that are older than such keys keep the (M, b) that
they were trained with: the paper's mark as it is in the paper, bare of any statement, or a key that states no
more than its shape. A run names its key by the commitment in ``run.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sigil.errors import ExperimentError
from sigil.federation.from_settings import resolve, what_a_key_states
from sigil.federation.run import Run
from sigil.federation.settings import Settings
from sigil.keys.draws import KeyStream
from sigil.keys.key import Key
from sigil.keys.length import default_bits
from sigil.keys.statement import KeyFields, length_prefixed

OWNER: Final = "Sigil experiments"
_BARE: Final = b"sigil key v1"


class BareKey(Key):  # type: ignore[misc]  # nobody else derives a key in another way
    """The paper's (M, b): drawn from a seed, a name, a shape and a length, and bound by no statement."""

    __slots__ = ()

    def __init__(self, owner: str, shape: tuple[int, ...], bits: int, seed: bytes) -> None:
        super().__init__(KeyFields(owner=owner, shape=shape, bits=bits, initialiser=None), seed)

    @property
    def commitment(self) -> str:
        """By which the runs name it."""
        return hashlib.sha256(self._encoded("commitment") + self._seed).hexdigest()

    def save(
        self, path: str | os.PathLike[str], *, passphrase: str | None = None, overwrite: bool = False
    ) -> None:
        """Refused: a key file holds what a statement binds, so that another (M, b) would be read from it."""
        raise ExperimentError(
            "The paper's bare (M, b) has no key file; make it again from the settings of its run."
        )

    def _stream(self, purpose: str) -> KeyStream:
        derived = HKDF(algorithm=SHA256(), length=32, salt=_BARE, info=self._encoded(purpose))
        return KeyStream(derived.derive(self._seed))

    def _encoded(self, purpose: str) -> bytes:
        """What M, b and probes are derived with; each integer has eight bytes."""
        sizes = b"".join(size.to_bytes(8, "big") for size in self.shape)
        parts = (_BARE, (1).to_bytes(8, "big"), self.owner.encode(), sizes, self.bits.to_bytes(8, "big"))
        return b"".join(map(length_prefixed, (*parts, purpose.encode())))


def stated(settings: Settings, data_dir: Path | None = None) -> Key:
    """The key of a new training with these settings: all that can be stated is."""
    return _made(_stated, settings, data_dir)


def early(settings: Settings, data_dir: Path | None = None) -> Key:
    """The key that a training with these settings had when experiments' keys stated nothing."""
    return _made(_early, settings, data_dir)


def of_run(run: Run, data_dir: Path | None = None) -> Key | None:
    """The key that a run was trained with, if it was marked: the one whose commitment it states."""
    commitment = json.loads((run.folder / "run.json").read_text("utf-8"))["commitment"]
    if commitment is None:
        return None
    for make in (stated, early):
        key = make(run.settings, data_dir)
        if key.commitment == commitment:
            return key
    raise ExperimentError(f"The run in {run.folder} has the key of no experiment; train it again.")


def _made(make: Callable[[Settings, Path | None], Key], settings: Settings, data_dir: Path | None) -> Key:
    return _cached(make, settings.model_dump_json(), data_dir)


@cache
def _cached(make: Callable[[Settings, Path | None], Key], settings: str, data_dir: Path | None) -> Key:
    return make(Settings.model_validate_json(settings), data_dir)


def _stated(settings: Settings, data_dir: Path | None) -> Key:
    mark = resolve(settings, None).watermark
    return Key.generate(
        OWNER,
        **what_a_key_states(settings, data_dir),
        bits=mark.bits,
        scheme="shares" if mark.scheme == "shares" else "paper",
        carriers_per_bit=mark.carriers_per_bit,
        seed=_seed(settings),
    )


def _early(settings: Settings, data_dir: Path | None) -> Key:
    shape, mark = what_a_key_states(settings, data_dir)["shape"], resolve(settings, None).watermark
    if mark.scheme == "shares":
        return Key.generate(
            OWNER,
            shape=shape,
            bits=mark.bits,
            seed=_seed(settings),
            scheme="shares",
            carriers_per_bit=mark.carriers_per_bit,
        )
    return BareKey(OWNER, shape, settings.watermark.bits or default_bits(shape), _seed(settings))


def _seed(settings: Settings) -> bytes:
    return hashlib.sha256(f"sigil experiment key, seed {settings.run.seed}".encode()).digest()
