"""The facts of one verification: what the evidence page shows and what the evidence file signs.

None of it is secret. What is left out on purpose: the seed, the matrix M, the bits b, and the order
of the bits. A list of agreements in the key's order would answer, for every column of M, a question
that the maker of the suspect has chosen; sorted, it says no more than the test needs.
"""

from __future__ import annotations

import base64
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
)

from sigil.origin import OCTILES
from sigil.rules import MOST_CUTS, MOST_STATEMENTS, TESTS, Price
from sigil.verdict.readings import Kind, Reading, Source
from sigil.verdict.report import PAPER_THRESHOLD, best_of
from sigil.version import __version__

if TYPE_CHECKING:
    from sigil.keys.key import Key
    from sigil.suspect import Suspect
    from sigil.verdict.report import Report

MAX_READINGS = 8
MAX_BITS = 65_536
MAX_COUNT = 10**9

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Line = Annotated[str, StringConstraints(max_length=2_000)]
Statement = Annotated[str, StringConstraints(max_length=4_000)]
Command = Annotated[str, StringConstraints(max_length=20_000)]
Moment = Annotated[
    str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")
]
Name = Annotated[str, StringConstraints(max_length=200)]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1, le=2**31)]
Shape = Annotated[tuple[Size, ...], Field(min_length=1, max_length=16)]
Level = Annotated[float, Field(gt=0.0, lt=1.0, allow_inf_nan=False)]
Log10 = Annotated[float, Field(le=0.0, allow_inf_nan=False)]
Tries = Annotated[int, Field(ge=1, le=10**17)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Bits = Annotated[int, Field(ge=1, le=MAX_BITS)]


class Strict(BaseModel):
    """Refuses unknown names, missing names and values of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class AlignmentFacts(Strict):
    """What the suspect's channels were compared with, and whether they were put in order by it.

    `reference` is the fingerprint of what the owner showed (`sigil.alignment.fingerprint`). Where `used` is
    false too few channels were recognised, and the suspect was examined as it is.
    """

    compared: Name
    reference: Hash
    sure_channels: Annotated[int, Field(ge=0, le=2**31)]
    agreement: Annotated[float, Field(allow_inf_nan=False)]
    used: bool


class SuspectFacts(Strict):
    """Which file was examined, and how.

    `entry` says which of the models in the file the verdict is about, if it does not hold just one. All
    `entries` that were read or could have been are counted among the tries; of the `unread` nothing was read.
    """

    file: Line
    sha256: Hash
    kind: Name
    description: Line
    input_shape: Shape
    entry: Line | None = None
    entries: Annotated[int, Field(ge=1, le=16)] = 1
    unread: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Of a file that holds one model a record says what it always said."""
        usual = {"entry": None, "entries": 1, "unread": 0}
        return {
            name: value for name, value in handler(self).items() if name not in usual or value != usual[name]
        }


class Software(Strict):
    """The versions that computed the outcome."""

    sigil: Name
    torch: Name
    numpy: Name
    python: Name
    platform: Name


class ReadingFacts(Strict):
    """One reading: what the suspect answered to one kind of question, before any correction.

    `agreements` says for every bit how many of the `count` answers equal the key's, largest first. Of an
    origin there are two numbers per octile, smallest weights first: eight times how many weights kept the
    sign of their initial value, then eight times how many were tested. What could not be read has none.
    """

    kind: Kind
    aligned: bool
    count: Annotated[int, Field(ge=0, le=MAX_COUNT)]
    wsr: Share
    log10_p_before: Log10
    exact: bool
    readable: bool
    source: Source
    digest: Hash | None
    agreements: Annotated[tuple[int, ...], Field(max_length=MAX_BITS)]

    @property
    def counts(self) -> bool:
        """Whether this reading may carry a verdict: it can be made, and no claimant chose what was asked."""
        return self.readable and self.source != "claimant"

    @property
    def octiles(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of an origin, for each octile how many weights agree and how many were tested."""
        return self.agreements[:OCTILES], self.agreements[OCTILES:]

    @property
    def weights(self) -> list[int]:
        """|w_j| = |2 a_j - N|, where a_j of N answers agree with the target at bit j."""
        return [abs(2 * agreed - self.count) for agreed in self.agreements]

    @property
    def statistic(self) -> int:
        """T = sum of 2 a_j - N, so that WSR = 1/2 + T / (2 N k)."""
        return sum(2 * agreed - self.count for agreed in self.agreements)

    @property
    def right_bits(self) -> int:
        """How many bits are read correctly by more than half of the answers."""
        return sum(2 * agreed > self.count for agreed in self.agreements)

    def as_reading(self) -> Reading:
        """The reading as verification knows it, its bits in another order."""
        shares = tuple(agreed / self.count for agreed in self.agreements) if self.count else ()
        return Reading(
            kind=self.kind,
            count=self.count,
            wsr=self.wsr,
            log10_p_before=self.log10_p_before,
            exact=self.exact,
            aligned=self.aligned,
            readable=self.readable,
            source=self.source,
            digest=self.digest,
            bit_shares=() if self.kind == "origin" else shares,
            agreeing=self.octiles[0] if self.kind == "origin" else (),
            tested=self.octiles[1] if self.kind == "origin" else (),
        )


class Verdict(Strict):
    """The readings, what p was multiplied by, and the outcome.

    `log10_p` is the best reading's after correction and `log10_p_origin` that of the origin; `tests`,
    `tries`, `cuts` and 2^`allowance_log2` are the factors. `register_count` is the number of statements that
    a judge counted, whose logarithm is the allowance then. `reasons` say what was chosen that nobody may
    choose: with any of them it is an `experiment`, and neither `owned` nor `descends`.
    """

    owned: bool
    descends: bool
    experiment: bool
    reasons: Annotated[tuple[Line, ...], Field(max_length=16)]
    log10_p: Log10
    log10_p_origin: Log10
    alpha: Level
    threshold: Share | None
    tests: Literal[4]
    tries: Tries
    cuts: Annotated[int, Field(ge=1, le=MOST_CUTS)]
    allowance_log2: Annotated[float, Field(ge=0.0, le=256.0, allow_inf_nan=False)]
    register_count: Annotated[int, Field(ge=1, le=MOST_STATEMENTS)] | None
    bits: Bits
    seed: Seed | None
    readings: Annotated[tuple[ReadingFacts, ...], Field(min_length=1, max_length=MAX_READINGS)]

    @cached_property
    def best(self) -> ReadingFacts:
        """The reading of the mark that says most."""
        marks = [one for one in self.readings if one.kind != "origin"]
        converted = [one.as_reading() for one in marks]
        return marks[converted.index(best_of(converted))]

    @property
    def origin(self) -> ReadingFacts | None:
        """What was found of the origin of the weights, if that was examined."""
        return next((one for one in self.readings if one.kind == "origin"), None)

    @property
    def wsr(self) -> float:
        """The watermark success rate of the best reading."""
        return self.best.wsr

    @property
    def exact(self) -> bool:
        """Whether the best reading's p-value is exact; otherwise it is a proven upper bound."""
        return self.best.exact

    @property
    def probes(self) -> int:
        """The number of inputs of the best reading."""
        return self.best.count

    @property
    def paper_rule(self) -> bool:
        """Whether the paper's fixed rule is met by the best reading."""
        return self.wsr > PAPER_THRESHOLD

    @property
    def allowance_of_kind(self) -> float | None:
        """The allowance, if it is that of a kind of key and not what a judge counted."""
        return self.allowance_log2 if self.register_count is None else None

    @property
    def log10_p_before(self) -> float:
        """The best reading's p-value before correction."""
        return self.best.log10_p_before

    @property
    def price(self) -> Price:
        """What p was multiplied by."""
        return Price(self.allowance_log2, cuts=self.cuts, tries=self.tries)


class KeyFacts(Strict):
    """What may be known of the owner's key.

    `token` is the authority's answer of a stamped key, in base64; `stamped_at` and `authority` are what it
    says, for people.
    """

    owner: Name
    commitment: Hash
    statement: Statement
    shape: Shape
    kind: Literal["plain", "stamped"]
    token: Annotated[str, StringConstraints(max_length=50_000, pattern=r"^[A-Za-z0-9+/]*={0,2}$")] | None
    stamped_at: Moment | None
    authority: Line | None


class Facts(Strict):
    """All that one run of `sigil verify` found."""

    format: Literal["sigil-evidence"] = "sigil-evidence"
    version: Literal[2] = 2
    created: Moment
    command: Command
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
    entry = report.entry
    several = entry is not None and (bool(entry.name) or len(entry.names) > 1)
    return Facts(
        created=moment_text(created or datetime.now(UTC)),
        command=_text(command, limit=20_000),
        verdict=judged(report),
        alignment=put_in_order(report),
        key=_key(key),
        suspect=SuspectFacts(
            # With its folder: copies of a model lie in folders of their own, under one name.
            file=_text(str(Path(*suspect.path.parts[-2:]))),
            sha256=suspect.sha256,
            kind=suspect.kind,
            description=_text(suspect.description if entry is None else entry.description),
            input_shape=tuple(input_shape),
            entry=_text(entry.name) if entry is not None and several else None,
            entries=1 if entry is None else len(entry.names),
            unread=0 if entry is None else min(entry.unread, MAX_COUNT),
        ),
        software=software(),
    )


def judged(report: Report) -> Verdict:
    """What a report found, in the form that is recorded."""
    return Verdict(
        owned=report.owned,
        descends=report.descends,
        experiment=report.experiment,
        reasons=tuple(_text(reason) for reason in report.reasons),
        log10_p=report.log10_p,
        log10_p_origin=report.log10_p_origin,
        alpha=report.alpha,
        threshold=report.threshold if report.threshold <= 1.0 else None,
        tests=TESTS,
        tries=report.tries,
        cuts=report.cuts,
        allowance_log2=float(report.allowance_log2),
        register_count=report.register,
        bits=report.bits,
        seed=report.seed,
        readings=tuple(_reading(reading) for reading in report.readings),
    )


def software() -> Software:
    """The versions of everything that takes part in the computation."""
    import numpy
    import torch

    return Software(
        sigil=__version__,
        torch=str(torch.__version__),
        numpy=numpy.__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
    )


def moment_text(moment: datetime) -> str:
    """A moment as records write it: UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _reading(reading: Reading) -> ReadingFacts:
    """Shares back to whole numbers of answers, largest first: the key's order stays secret."""
    answers = sorted((round(share * reading.count) for share in reading.bit_shares), reverse=True)
    return ReadingFacts(
        kind=reading.kind,
        aligned=reading.aligned,
        count=reading.count,
        wsr=reading.wsr,
        log10_p_before=reading.log10_p_before,
        exact=reading.exact,
        readable=reading.readable,
        source=reading.source,
        digest=reading.digest,
        agreements=reading.agreeing + reading.tested if reading.kind == "origin" else tuple(answers),
    )


def _key(key: Key) -> KeyFacts:
    stamp = key.stamp
    return KeyFacts(
        owner=key.owner,
        commitment=key.commitment,
        statement=key.statement(),
        shape=key.shape,
        kind=key.kind,
        token=None if stamp is None else base64.b64encode(stamp.response).decode(),
        stamped_at=None if stamp is None else moment_text(stamp.time),
        authority=None if stamp is None else _text(stamp.authority),
    )


def put_in_order(report: Report) -> AlignmentFacts | None:
    """What a report found of the order of channels, in the form that is recorded."""
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


def _text(text: str, limit: int = 2_000) -> str:
    """Names from outside may be long or hold bytes that are not text; the evidence holds neither."""
    return text.encode("utf-8", "replace").decode("utf-8")[:limit]
