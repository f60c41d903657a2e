"""Traces of made-up readings: who is named, what is called global, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sigil.errors import ConfigError
from sigil.keys.key import Key
from sigil.tracing.leak import compare, trace
from sigil.tracing.record import AgreementRecord, read_record
from sigil.verdict.readings import Reading

CLIENTS, BITS, COUNT = 8, 64, 256


@pytest.fixture(scope="module")
def key() -> Key:
    return Key.generate("ACME", shape=(8, 4, 4), bits=BITS, seed=bytes(range(32)), scheme="shares")


def reading(shares: np.ndarray, *, log10_p: float = -9.0, kind: str = "inputs") -> Reading:
    counts = np.rint(COUNT * np.clip(shares, 0, 1)) / COUNT
    return Reading(
        kind=kind,  # type: ignore[arg-type]
        count=COUNT,
        wsr=float(counts.mean()),
        log10_p_before=log10_p,
        digest="d" * 64 if kind == "inputs" else None,
        bit_shares=tuple(counts.tolist()),
    )


def models_of_rounds() -> dict[int, np.ndarray]:
    start = 0.6 + 0.1 * np.random.default_rng(0).standard_normal(BITS)
    return {number: start + 0.03 * number for number in range(6)}


@pytest.fixture(scope="module")
def record(key: Key) -> AgreementRecord:
    made = AgreementRecord(key.commitment, CLIENTS, 1, BITS)
    for number, shares in models_of_rounds().items():
        made = made.added(number, (reading(shares), reading(shares - 0.05, kind="noise")))
    return made


def leaked(key: Key, client: int) -> np.ndarray:
    own = key.share_of(client, CLIENTS).numpy()
    noise = 0.03 * np.random.default_rng(client).standard_normal(BITS)
    return models_of_rounds()[3] + noise + 0.2 * own


def test_a_local_model_names_its_client(key: Key, record: AgreementRecord) -> None:
    for client in range(CLIENTS):
        found = compare(reading(leaked(key, client)), key, record)
        assert found.named == client == found.ranking[0].client
        assert found.ranking[0].p <= 1e-3
        assert found.ranking[0].gain > 0.1
        assert not found.is_global


def test_a_global_model_is_called_global(key: Key, record: AgreementRecord) -> None:
    for number, shares in models_of_rounds().items():
        found = compare(reading(shares), key, record)
        assert (found.named, found.is_global, found.round) == (None, True, number)
        assert found.difference == 0.0


def test_a_changed_global_model_names_nobody_and_is_not_called_global(
    key: Key, record: AgreementRecord
) -> None:
    changed = models_of_rounds()[3] + 0.05 * np.random.default_rng(4).standard_normal(BITS)
    found = compare(reading(changed), key, record)
    assert found.named is None
    assert not found.is_global


def test_a_model_without_the_mark_names_nobody(key: Key, record: AgreementRecord) -> None:
    found = compare(reading(leaked(key, 2), log10_p=-1.0), key, record)
    assert found.named is None
    assert not found.marked
    assert not found.is_global


def test_the_roster_is_shown_with_the_clients(key: Key, record: AgreementRecord) -> None:
    known = dataclasses.replace(record, roster={client: f"{client:064x}" for client in range(CLIENTS)})
    found = compare(reading(leaked(key, 5)), key, known)
    assert found.ranking[0].fingerprint == f"{5:064x}"
    assert json.loads(json.dumps(found.to_dict()))["named"] == 5


def test_records_survive_the_disk_and_lose_later_rounds(record: AgreementRecord, tmp_path: Path) -> None:
    record.write(tmp_path / "agreement.json")
    assert read_record(tmp_path) == record
    assert list(record.until(2).rounds) == [0, 1, 2]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content | {"version": 2},
        lambda content: content | {"bits": 63},
        lambda content: content | {"rounds": {"1": {"inputs": [COUNT + 1] * BITS}}},
        lambda content: content | {"rounds": {"1": {"unheard": [0] * BITS}}},
        lambda content: {},
        lambda content: [],
    ],
)
def test_damaged_records_are_refused(damage, record: AgreementRecord, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "agreement.json"
    record.write(path)
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    with pytest.raises(ConfigError, match="cannot be read as the record"):
        read_record(path)


class Half(nn.Module):
    input_shape = (8, 4, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch


def test_a_record_of_another_key_other_inputs_and_no_record_are_refused(
    key: Key, record: AgreementRecord, tmp_path: Path
) -> None:
    other = Key.generate("ACME", shape=(8, 4, 4), bits=BITS, seed=bytes(32), scheme="shares")
    with pytest.raises(ConfigError, match="another key"):
        trace(Half(), other, record)
    with pytest.raises(ConfigError, match="not the inputs that the global models were recorded on"):
        trace(Half(), key, record, torch.zeros(300, 8, 4, 4))
    with pytest.raises(ConfigError, match=r"There is no .*agreement\.json"):
        trace(Half(), key, tmp_path)
    with pytest.raises(ConfigError, match="level"):
        trace(Half(), key, record, level=1.0)


def test_the_public_name_is_the_function() -> None:
    import sigil
    import sigil.tracing.leak  # importing modules must not hide it

    assert callable(sigil.trace)
    assert sigil.trace is sigil.tracing.leak.trace
