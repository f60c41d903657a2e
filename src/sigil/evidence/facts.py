"""The facts of one verification: what the evidence page shows and what the evidence file signs.

None of it is secret. What is left out on purpose: the seed, the matrix M, the bits b, and the order
of the bits. A list of agreements in the key's order would answer, for every column of M, a question
that the maker of the suspect has chosen; sorted, it says no more than the test needs.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

if TYPE_CHECKING:
    from sigil.key import Key
    from sigil.report import Report
    from sigil.suspect import Suspect

MAX_BITS = 65_536
MAX_PROBES = 10**9

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Line = Annotated[str, StringConstraints(max_length=2_000)]
Moment = Annotated[
    str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")
]
Name = Annotated[str, StringConstraints(max_length=200)]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1, le=2**31)]


class _Strict(BaseModel):
    """Refuses unknown names, missing names and values of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Verdict(_Strict):
    """The outcome of the test and the numbers that it follows from."""

    owned: bool
    wsr: Share
    log10_p: Annotated[float, Field(le=0.0, allow_inf_nan=False)]
    exact: bool
    alpha: Annotated[float, Field(gt=0.0, lt=1.0, allow_inf_nan=False)]
    threshold: Share | None
    tries: Annotated[int, Field(ge=1, le=10**15)]
    bits: Annotated[int, Field(ge=1, le=MAX_BITS)]
    probes: Annotated[int, Field(ge=1, le=MAX_PROBES)]
    probe_seed: Annotated[int, Field(ge=0, lt=2**63)]
    agreements: Annotated[tuple[int, ...], Field(min_length=1, max_length=MAX_BITS)]
    paper_rule: bool

    @property
    def weights(self) -> list[int]:
        """|w_j| = |2 a_j - N|, where a_j of N probes agree with the target at bit j."""
        return [abs(2 * count - self.probes) for count in self.agreements]

    @property
    def statistic(self) -> int:
        """T = sum of 2 a_j - N, so that WSR = 1/2 + T / (2 N k)."""
        return sum(2 * count - self.probes for count in self.agreements)

    @property
    def right_bits(self) -> int:
        """How many bits are read correctly by more than half of the probes."""
        return sum(2 * count > self.probes for count in self.agreements)


class AlignmentFacts(_Strict):
    """What the suspect's channels were compared with, and whether they were put in order by it.

    `reference` is the fingerprint of what the owner showed (`sigil.alignment.fingerprint`). Where `used` is
    false too few channels were recognised, and the suspect was examined as it is.
    """

    compared: Name
    reference: Hash
    sure_channels: Annotated[int, Field(ge=0, le=2**31)]
    agreement: Annotated[float, Field(allow_inf_nan=False)]
    used: bool


class KeyFacts(_Strict):
    """What may be known of the owner's key."""

    owner: Name
    commitment: Hash
    statement: Line
    shape: Annotated[tuple[Size, ...], Field(min_length=1, max_length=16)]


class SuspectFacts(_Strict):
    """Which file was examined, and how."""

    file: Line
    sha256: Hash
    kind: Name
    description: Line
    input_shape: Annotated[tuple[Size, ...], Field(min_length=1, max_length=16)]


class Software(_Strict):
    """The versions that computed the outcome."""

    sigil: Name
    torch: Name
    numpy: Name
    python: Name
    platform: Name


class Facts(_Strict):
    """All that one run of `sigil verify` found."""

    format: Literal["sigil-evidence"] = "sigil-evidence"
    version: Literal[1] = 1
    created: Moment
    command: Annotated[str, StringConstraints(max_length=20_000)]
    verdict: Verdict
    alignment: AlignmentFacts | None
    key: KeyFacts
    suspect: SuspectFacts
    software: Software


def gather(
    report: Report,
    key: Key,
    *,
    suspect: Suspect,
    input_shape: Sequence[int],
    command: str,
    created: datetime | None = None,
) -> Facts:
    """Collect the facts of one verification; `created` is the present moment if not given.

    `input_shape` is that of the probes, `command` the line that repeats the verification.
    """
    moment = (created or datetime.now(UTC)).astimezone(UTC)
    return Facts(
        created=moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=_text(command, limit=20_000),
        verdict=Verdict(
            owned=report.owned,
            wsr=report.wsr,
            log10_p=report.log10_p,
            exact=report.exact,
            alpha=report.alpha,
            threshold=report.threshold if report.threshold <= 1.0 else None,
            tries=report.tries,
            bits=report.bits,
            probes=report.probes,
            probe_seed=report.seed,
            agreements=_agreements(report.bit_shares, report.probes),
            paper_rule=report.paper_rule,
        ),
        alignment=_alignment(report),
        key=KeyFacts(
            owner=key.owner,
            commitment=key.commitment,
            statement=key.statement(),
            shape=key.shape,
        ),
        suspect=SuspectFacts(
            file=_text(suspect.path.name),
            sha256=suspect.sha256,
            kind=suspect.kind,
            description=_text(suspect.description),
            input_shape=tuple(input_shape),
        ),
        software=software(),
    )


def software() -> Software:
    """The versions of everything that takes part in the computation."""
    import numpy
    import torch

    return Software(
        sigil=metadata.version("sigil"),
        torch=str(torch.__version__),
        numpy=numpy.__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
    )


def _alignment(report: Report) -> AlignmentFacts | None:
    found = report.alignment
    if found is None:
        return None
    return AlignmentFacts(
        compared=found.source,
        reference=found.fingerprint,
        sure_channels=found.sure,
        agreement=found.agreement,
        used=found.believed,
    )


def _agreements(shares: Sequence[float], probes: int) -> tuple[int, ...]:
    """Shares back to whole numbers of probes, largest first: the key's order stays secret."""
    return tuple(sorted((round(share * probes) for share in shares), reverse=True))


def _text(text: str, limit: int = 2_000) -> str:
    """Names from outside may be long or hold bytes that are not text; the evidence holds neither."""
    return text.encode("utf-8", "replace").decode("utf-8")[:limit]
