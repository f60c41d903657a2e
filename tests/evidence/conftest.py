"""Facts of verifications that never ran, with numbers that follow from each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sigil import statistics
from sigil.alignment import Alignment
from sigil.evidence.facts import Facts, gather
from sigil.key import Key
from sigil.report import PAPER_THRESHOLD, Report

SEED = bytes(range(100, 132))


@pytest.fixture
def make() -> Callable[..., tuple[Facts, Key]]:
    """Build facts from the share of probes that agree on average."""
    return _make


def _make(
    agreement: float = 0.98,
    *,
    bits: int = 50,
    probes: int = 512,
    tries: int = 1,
    alpha: float = 3e-7,
    owner: str = "ACME",
    file: str = "model.safetensors",
    description: str = "resnet18",
    command: str = "sigil verify model.safetensors --key owner.key",
    reference: str | None = None,
    aligned: bool = False,
) -> tuple[Facts, Key]:
    key = Key.generate(owner, shape=(8, 4, 4), bits=bits, seed=SEED)
    target = key.target.numpy().astype(int)
    chances = np.random.default_rng(0).beta(8 * agreement, 8 * (1 - agreement) + 1e-9, bits)
    agreed = np.random.default_rng(1).binomial(probes, chances)
    ones = np.where(target == 1, agreed, probes - agreed)
    tail = statistics.p_value(ones, target, probes)
    log10_p = statistics.correct(tail.log10_p, tries)
    wsr = int(agreed.sum()) / (bits * probes)
    report = Report(
        owned=log10_p <= math.log10(alpha),
        wsr=wsr,
        p_value=10.0**log10_p,
        log10_p=log10_p,
        exact=tail.exact,
        threshold=statistics.threshold(2 * ones - probes, probes=probes, alpha=alpha / tries),
        alpha=alpha,
        tries=tries,
        bits=bits,
        probes=probes,
        seed=0,
        bit_error=float(np.mean(2 * agreed < probes)),
        bit_shares=tuple((agreed / probes).tolist()),
        margins=(0.0,) * bits,
        paper_rule=wsr > PAPER_THRESHOLD,
        commitment=key.commitment,
        owner=key.owner,
        alignment=None
        if reference is None
        else Alignment(
            order=(),
            scale=(),
            agreement=0.75,
            sure=31,
            believed=aligned,
            source="initial weights",
            fingerprint=reference,
        ),
    )
    suspect: Any = SimpleNamespace(
        path=Path(file), sha256="0f" * 32, kind="safetensors", description=description
    )
    facts = gather(
        report,
        key,
        suspect=suspect,
        input_shape=(3, 32, 32),
        command=command,
        created=datetime(2026, 3, 1, 12, 30, 59, tzinfo=UTC),
    )
    return facts, key
