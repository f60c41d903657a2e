"""What the owner keeps of each round's global model: for every bit, how many of its answers agree.

It is one small file, ``agreement.json``, in the directory of a run with the scheme "shares". Counts say
nothing about the key's matrix or bits, and clients are sent none of it. They are counted on the first noise
probes of the key and, if there are enough test images, on those that the key draws from them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sigil import arguments, files
from sigil.errors import ConfigError, TrainingError
from sigil.verdict.readings import Reading

FILE: Final = "agreement.json"
VERSION: Final = 1
_MOST_BYTES: Final = 1 << 28

Counts = Mapping[str, tuple[int, ...]]
"""By kind of reading, ``noise`` or ``inputs``: for each bit, how many answers agree with the key."""


@dataclass(frozen=True)
class AgreementRecord:
    """The agreement of the global models of a training, by round; round 0 is before the first.

    ``counted`` is how many answers each kind of reading has, ``inputs_digest`` that of the set they were
    drawn from. ``roster`` maps clients to the fingerprints of their certificates, where they had any.
    """

    commitment: str
    clients: int
    carriers_per_bit: int
    bits: int
    counted: Mapping[str, int] = field(default_factory=dict)
    inputs_digest: str | None = None
    roster: Mapping[int, str] | None = None
    rounds: Mapping[int, Counts] = field(default_factory=dict)

    def added(self, round_number: int, readings: tuple[Reading, ...]) -> AgreementRecord:
        """The record with one more round."""
        readable = [reading for reading in readings if reading.readable and reading.bit_shares]
        counts: Counts = {
            str(reading.kind): tuple(round(share * reading.count) for share in reading.bit_shares)
            for reading in readable
        }
        digest = next((reading.digest for reading in readable if reading.kind == "inputs"), None)
        return AgreementRecord(
            self.commitment,
            self.clients,
            self.carriers_per_bit,
            self.bits,
            {**self.counted, **{reading.kind: reading.count for reading in readable}},
            digest or self.inputs_digest,
            self.roster,
            {**self.rounds, round_number: counts},
        )

    def until(self, round_number: int) -> AgreementRecord:
        """The record without the rounds after this one."""
        kept = {number: counts for number, counts in self.rounds.items() if number <= round_number}
        return AgreementRecord(**{**self.__dict__, "rounds": kept})

    def write(self, path: Path) -> None:
        """Write the record, atomically."""
        content = {"version": VERSION} | self.__dict__
        files.write(path, json.dumps(content) + "\n", replace=True, raises=TrainingError)


def read_record(place: str | os.PathLike[str]) -> AgreementRecord:
    """The record in the directory of a run, or in a file."""
    given = arguments.path("record of a training", place)
    path = given
    try:
        path = given / FILE if given.is_dir() else given
        if path.exists() and not path.is_file():
            raise ValueError("a pipe would be waited for")
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError("too large")
        return _parse(json.loads(path.read_text()))
    except FileNotFoundError:
        raise ConfigError(
            f"There is no {path}, in which a training with the scheme shares records its global models; give "
            "the directory of the run that made the model."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{path} cannot be read as the record of a training; give the directory of a run of Sigil's."
        ) from None


def _parse(content: dict[str, Any]) -> AgreementRecord:
    if content["version"] != VERSION:
        raise ValueError("another version")
    bits, clients = int(content["bits"]), int(content["clients"])
    counted = {str(kind): int(count) for kind, count in content["counted"].items()}
    rounds: dict[int, Counts] = {}
    for number, counts in content["rounds"].items():
        rounds[int(number)] = {
            str(kind): tuple(int(value) for value in values) for kind, values in counts.items()
        }
        for kind, values in rounds[int(number)].items():
            if len(values) != bits or not all(0 <= value <= counted[kind] for value in values):
                raise ValueError("counts that cannot be")
    roster = content["roster"]
    return AgreementRecord(
        commitment=str(content["commitment"]),
        clients=clients,
        carriers_per_bit=int(content["carriers_per_bit"]),
        bits=bits,
        counted=counted,
        inputs_digest=None if content["inputs_digest"] is None else str(content["inputs_digest"]),
        roster=None if roster is None else {int(client): str(name) for client, name in roster.items()},
        rounds=dict(sorted(rounds.items())),
    )
