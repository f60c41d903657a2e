"""Trace a leaked model to a client: a lead for the owner, not a proof.

Under the scheme "shares" a client's gradients carry its own part of the bits. Until it is averaged, its
local model agrees with these bits better than the global model that it started from. :func:`trace` compares
a suspect with the agreement of all global models that the owner recorded (:mod:`sigil.tracing.record`) and
ranks the clients (:mod:`sigil.tracing.contrast`).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor

from sigil import arguments
from sigil.data.inputs import Array, Inputs, Normalisation, check_normalisation, open_inputs
from sigil.errors import ConfigError, SuspectError, shown
from sigil.keys.key import Key
from sigil.seeds import derive
from sigil.tracing import contrast
from sigil.tracing.record import AgreementRecord, read_record
from sigil.verdict.arguments import as_key, asked_shape, check_suspect
from sigil.verdict.readings import Kind, Reading
from sigil.verdict.verification import read_mark

LEVEL: Final = 1e-3
"""A client is named at this p, after the number of clients."""
MARKED: Final = 1e-3
"""A model whose mark is not even this unlikely by chance is none of this training's, or of its beginning."""
# Mean difference of a bit's agreement up to which a suspect is called the global model itself.
SAME: Final = 0.005


@dataclass(frozen=True)
class ClientTrace:
    """One client: how much better its bits agree than the recorded model's, and how unlikely that is.

    ``gain`` is the mean difference of agreement of its own bits minus that of all others, ``statistic`` the
    t-value that is ranked by, ``p`` the share of drawn sets of bits with as large a value, times the number
    of clients.
    """

    client: int
    gain: float
    statistic: float
    p: float
    fingerprint: str | None = None


@dataclass(frozen=True)
class Trace:
    """What a trace found; it gives a lead and proves nothing.

    ``named`` is the client that stands out, if one does; ``ranking`` has all clients, likeliest first.
    ``round`` is the recorded global model that is nearest to the suspect and ``difference`` the mean distance
    of a bit's agreement from it; ``is_global`` says that it is that model, as far as can be read. ``marked``
    says whether the suspect carries the mark at all; nobody is named if it does not.
    """

    named: int | None
    ranking: tuple[ClientTrace, ...]
    round: int
    difference: float
    marked: bool
    kind: Kind
    draws: int
    level: float = LEVEL

    @property
    def is_global(self) -> bool:
        """Whether the suspect cannot be told from a recorded global model."""
        return self.marked and self.named is None and self.difference <= SAME

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain JSON values."""
        return dataclasses.asdict(self) | {"is_global": self.is_global}


def trace(
    suspect: Callable[[Tensor], Tensor] | str | os.PathLike[str],
    key: Key | str | os.PathLike[str],
    record: AgreementRecord | str | os.PathLike[str] | None = None,
    inputs: Inputs | Array | Tensor | str | os.PathLike[str] | None = None,
    *,
    normalisation: Normalisation | None = None,
    input_shape: Sequence[int] | None = None,
    level: float = LEVEL,
    batch_size: int = 64,
) -> Trace:
    """Rank the clients of a training by how likely a suspect is the local model of each.

    ``suspect`` and ``key`` are as for :func:`sigil.verify`. ``record`` is the directory of the run, in which
    the owner's side recorded every global model; for a key file ``DIR.key`` it is ``DIR`` if left out.
    ``inputs`` are the test images of the training, the same set
    in the same order; without them the mark is read on noise, which tells clients apart less well.

    A client is named if its p, after the number of clients, is at most ``level``. That is a lead: anybody who
    holds a client's model or gradients can make a model that names it.
    """
    record = _beside(key) if record is None else record
    key = as_key(key)
    check_suspect(suspect)
    if normalisation is not None:
        check_normalisation(normalisation)
    input_shape = None if input_shape is None else arguments.sizes("input shape", input_shape)
    batch_size = arguments.whole("batch_size", batch_size, least=1)
    known = record if isinstance(record, AgreementRecord) else read_record(record)
    _check_record(known, key)
    if not 0.0 < arguments.number("The level", level, "a number between 0 and 1") < 1.0:
        raise ConfigError(f"The level is {level}, but it must be a number between 0 and 1.")
    if isinstance(suspect, str | os.PathLike):
        from sigil.suspect import open_suspect

        suspect = open_suspect(suspect, key=key, input_shape=input_shape)
    entries: tuple[str, ...] = getattr(suspect, "entries", ("",))
    if len(entries) > 1:
        listed = ", ".join(shown(name) for name in entries)
        raise SuspectError(
            f"The suspect's file holds {len(entries)} models ({listed}), and a trace is of one: choose with "
            "--entry (entry of open_suspect)."
        )
    kind: Kind = "noise" if inputs is None else "inputs"
    opened = None
    if inputs is not None:
        shape = asked_shape(suspect, key, inputs, input_shape)
        opened = open_inputs(inputs, shape=shape)
        if known.inputs_digest != opened.digest:
            raise ConfigError(
                "These are not the inputs that the global models were recorded on; give the test images of "
                "the training, or none to read the mark on noise."
            )
        if normalisation is not None:
            opened = opened.normalised(normalisation)
    readings = read_mark(
        suspect,
        key,
        opened,
        input_shape=input_shape,
        probes=known.counted.get("noise"),
        batch_size=batch_size,
    )
    reading = next((each for each in readings if each.kind == kind), readings[0])
    return compare(reading, key, known, level=level)


def compare(
    reading: Reading,
    key: Key,
    record: AgreementRecord,
    *,
    level: float = LEVEL,
    draws: int | None = None,
) -> Trace:
    """Rank the clients by a reading of the suspect on the inputs that were recorded.

    `draws` is the number of sets of bits that stand for chance; without it, as many as the level needs.
    """
    kind = reading.kind
    total = record.counted.get(kind, 0)
    recorded = {number: counts[kind] for number, counts in record.rounds.items() if kind in counts}
    if not recorded:
        raise ConfigError(f"The record holds no global model that was read on {kind}.")
    if not reading.readable or reading.count != total:
        raise ConfigError(f"The suspect gives no answers on {kind} that could be compared with the record.")
    shares = np.stack(
        [
            key.share_of(client, record.clients, record.carriers_per_bit).numpy()
            for client in range(record.clients)
        ]
    )
    agreeing = np.array([round(share * total) for share in reading.bit_shares])
    rounds = {number: contrast.stabilised(counts, total) for number, counts in recorded.items()}
    values = contrast.stabilised(agreeing.tolist(), total)
    number = contrast.nearest(values, rounds)
    basis = contrast.regressors(number, rounds)
    statistics = contrast.contrasts(values, basis, shares)
    seed = derive(0, "trace", key.commitment)
    found, draws = contrast.p_values(values, basis, shares, seed=seed, draws=draws)
    change = (agreeing - np.array(recorded[number])) / total
    ranking = sorted(
        (
            ClientTrace(
                client=client,
                gain=_gain(change, own),
                statistic=float(statistics[client]),
                p=min(1.0, record.clients * float(found[client])),
                fingerprint=None if record.roster is None else record.roster.get(client),
            )
            for client, own in enumerate(shares)
        ),
        key=lambda each: (-each.statistic, each.client),
    )
    marked = reading.log10_p_before <= math.log10(MARKED)
    first = ranking[0]
    return Trace(
        named=first.client if marked and first.p <= level else None,
        ranking=tuple(ranking),
        round=number,
        difference=float(np.abs(change).mean()),
        marked=marked,
        kind=kind,
        draws=draws,
        level=level,
    )


def _gain(change: contrast.Floats, own: Any) -> float:
    if not own.any() or own.all():
        return 0.0
    return float(change[own].mean() - change[~own].mean())


def _beside(key: object) -> Path:
    """The run's directory beside a key that `sigil train` made, DIR for DIR.key."""
    if isinstance(key, str | os.PathLike) and Path(key).with_suffix("").is_dir() and Path(key).suffix:
        return Path(key).with_suffix("")
    raise ConfigError(
        "There is no run beside the key: give the directory of the run that made the model as record."
    )


def _check_record(record: AgreementRecord, key: Key) -> None:
    if record.commitment != key.commitment:
        raise ConfigError("The record belongs to a training with another key; give the run of this key.")
    if record.bits != key.bits:
        raise ConfigError(
            f"The record has {record.bits} bits and the key {key.bits}; one of them was changed."
        )
