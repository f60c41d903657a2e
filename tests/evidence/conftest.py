"""Reports of verifications that never ran, with numbers that follow from each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sigil import statistics
from sigil.keys.key import Key
from sigil.keys.stamping import make_query
from sigil.origin import OCTILES, Origin
from sigil.rules import ALPHA
from sigil.suspect import Suspect
from sigil.testing.authority import DemonstrationAuthority
from sigil.verdict.report import (
    AlignmentFacts,
    KeyFacts,
    Kind,
    Opened,
    Reading,
    Report,
    Software,
    Source,
    SuspectFacts,
    best_of,
    harmless,
)
from sigil.verdict.verification import _facts

SEED = bytes(range(100, 132))
AUTHORITIES = {name: DemonstrationAuthority(name) for name in ("Demonstration", "Trusted")}
STAMPED_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def make() -> Callable[..., tuple[Report, Key]]:
    """Build a report from the share of answers that agree on average."""
    return _make


@pytest.fixture
def authority() -> DemonstrationAuthority:
    """The authority that stamps the keys of `make(stamped=True)`."""
    return AUTHORITIES["Trusted"]


def _make(
    agreement: float = 0.98,
    *,
    bits: int = 128,
    probes: int = 512,
    tries: int = 1,
    cuts: int = 1,
    alpha: float = ALPHA,
    register: int | None = None,
    owner: str = "ACME",
    stamped: bool = False,
    authority: str = "Trusted",
    file: str = "model.safetensors",
    sha256: str = "0f" * 32,
    description: str = "resnet18",
    command: str = "sigil verify model.safetensors --key owner.key",
    reference: str | None = None,
    compared: str = "correlations under images",
    aligned: bool = False,
    on_inputs: float | None = None,
    source: Source = "judge",
    origin: float | None = None,
    readable: bool = True,
    seed: int | None = None,
    reasons: tuple[str, ...] = (),
    seed_bytes: bytes = SEED,
    stated: dict[str, Any] | None = None,
) -> tuple[Report, Key]:
    key = Key.generate(
        owner,
        shape=(8, 4, 4),
        bits=bits,
        seed=seed_bytes,
        probes=max(probes, 256),
        **{"inputs_digest": "ab" * 32, "cut": "layer3", "input_shape": (3, 32, 32)} | (stated or {}),
    )
    if stamped:
        query = make_query(key.to_be_stamped().statement())
        key = key.seal(AUTHORITIES[authority].answer(query, moment=STAMPED_AT))
    if probes < 256:
        reasons = (*reasons, "too few probes")
    if seed is not None:
        reasons = (*reasons, "the seed of the noise was chosen")
    if alpha > ALPHA:
        reasons = (*reasons, "the level is not one of proof")
    readings = [_reading(key, agreement, probes, kind="noise", readable=readable)]
    if on_inputs is not None:
        readings.append(_reading(key, on_inputs, 256, kind="inputs", source=source, digest="ab" * 32))
    if aligned:
        readings.append(_reading(key, 1.0, probes, kind="noise", aligned=True))
    if origin is not None:
        tested = (1_250,) * OCTILES
        counted = Origin((round(origin * 1_250),) * OCTILES, tested, (), ())
        found = Reading(
            kind="origin",
            count=counted.count,
            wsr=counted.share,
            log10_p_before=counted.log10_p,
            agreements=counted.agreeing + counted.tested,
        )
        readings.append(found)
    report = _report(
        key, tuple(readings), tries, cuts, alpha, register, seed, reasons, reference, compared, aligned
    )
    opened = Suspect(Path(file), "safetensors", description, sha256, None, None, lambda batch: batch)
    suspect = _facts(opened, (3, 32, 32), Opened())
    return report.model_copy(update={"suspect": suspect, "command": harmless(command, limit=20_000)}), key


def _reading(
    key: Key,
    agreement: float,
    count: int,
    *,
    kind: Kind,
    source: Source = "key",
    digest: str | None = None,
    aligned: bool = False,
    readable: bool = True,
) -> Reading:
    if not readable:
        return Reading(kind=kind, count=count, wsr=0.5, log10_p_before=0.0, readable=False)
    target = key.target.numpy().astype(int)
    chances = np.random.default_rng(0).beta(8 * agreement, 8 * (1 - agreement) + 1e-9, key.bits)
    agreed = np.random.default_rng(1).binomial(count, chances)
    tail = statistics.p_value(np.where(target == 1, agreed, count - agreed), target, count)
    return Reading(
        kind=kind,
        count=count,
        wsr=int(agreed.sum()) / (key.bits * count),
        log10_p_before=tail.log10_p,
        exact=tail.exact,
        aligned=aligned,
        source=source,
        digest=digest,
        agreements=tuple(sorted(agreed.tolist(), reverse=True)),
    )


def _report(
    key: Key,
    readings: tuple[Reading, ...],
    tries: int,
    cuts: int,
    alpha: float,
    register: int | None,
    seed: int | None,
    reasons: tuple[str, ...],
    reference: str | None,
    compared: str,
    aligned: bool,
) -> Report:
    """The arithmetic of `sigil.verify`, for readings that were never made."""
    if reference is not None and compared != "initial weights":
        tries *= 2  # correlations are a further thing that could have been chosen
        reasons = (*reasons, "the reference was brought") if aligned else reasons
    allowance = float(key.allowance_log2) if register is None else math.log2(register)
    price = math.log10(4) + math.log10(tries) + math.log10(cuts) + allowance * math.log10(2)
    best = best_of(readings)
    corrected = min(0.0, best.log10_p_before + price) if best.counts or reasons else 0.0
    origin = next((one.log10_p_before for one in readings if one.kind == "origin"), 0.0)
    descent = min(0.0, origin + price)
    sound = not reasons and alpha <= ALPHA
    needed = best.threshold(10.0 ** (math.log10(alpha) - price))
    return Report(
        owned=sound and best.counts and corrected <= math.log10(alpha),
        descends=sound and descent <= math.log10(alpha),
        readings=readings,
        log10_p=corrected,
        log10_p_origin=descent,
        alpha=alpha,
        tries=tries,
        cuts=cuts,
        allowance_log2=allowance,
        bits=key.bits,
        threshold=needed if needed <= 1 else None,
        register_count=register,
        seed=seed,
        reasons=reasons,
        alignment=None
        if reference is None
        else AlignmentFacts(
            compared=compared, reference=reference, sure_channels=31, agreement=0.75, used=aligned
        ),
        key=KeyFacts.of(key),
        suspect=SuspectFacts(file="", sha256=None, kind="", description="", input_shape=(1,)),
        created="2026-03-01T12:30:59Z",
        software=Software.here(),
    )
