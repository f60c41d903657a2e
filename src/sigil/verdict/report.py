"""What one verification found: what is returned, printed, drawn on a page and signed.

None of what a record holds is secret. The seed, the matrix M and the bits b are not part of it, and what a
report knows in the order of the key's bits stays out of records: a list in that order would answer, for every
column of M, a question that the maker of the suspect has chosen; sorted, it says no more than the test needs.
"""

from __future__ import annotations

import base64
import math
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from sigil import files, statistics
from sigil.errors import ConfigError, EvidenceError
from sigil.keys.seal import Root
from sigil.keys.statement import MAX_BITS
from sigil.origin import OCTILES
from sigil.rules import MOST_CUTS, MOST_STATEMENTS, TESTS, Price
from sigil.verdict import envelope, wording
from sigil.verdict.arguments import as_key
from sigil.version import __version__

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from sigil.alignment import Alignment
    from sigil.keys.key import Key

Kind = Literal["noise", "inputs", "origin"]
Source = Literal["key", "statement", "judge", "defendant", "claimant"]

MAX_READINGS: Final = 8
MAX_COUNT: Final = 10**9

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(max_length=200)]
Line = Annotated[str, StringConstraints(max_length=2_000)]
Moment = Annotated[
    str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")
]
Token = Annotated[str, StringConstraints(max_length=50_000, pattern=r"^[A-Za-z0-9+/]*={0,2}$")]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1, le=2**31)]
Shape = Annotated[tuple[Size, ...], Field(min_length=1, max_length=16)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Log10 = Annotated[float, Field(le=0.0, allow_inf_nan=False)]


class Strict(BaseModel):
    """Refuses unknown names, missing names and values of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Reading(Strict):
    """What a suspect answers to one kind of question, before any correction.

    ``kind`` is ``"noise"``, ``"inputs"`` or ``"origin"``; ``aligned`` says whether channels were put back
    in order before it was asked. ``count`` is the number of probes, inputs or weights; ``wsr`` the share of
    bits (or signs) that are right and ``log10_p_before`` the logarithm of the probability of that by chance,
    before any correction.
    Values at the cut that are not finite are left out, as if they were zero; in ``incomplete`` of the answers
    there were some. A suspect most of whose values are not has ``readable`` false and p = 1.

    ``source`` says who chose the inputs: the ``"key"``, its ``"statement"``, the ``"judge"``, the
    ``"defendant"`` or the ``"claimant"``, whose choice cannot prove anything: ``counts`` is false.
    ``digest`` is that of the inputs.

    ``agreements`` says for every bit how many of the ``count`` answers equal the key's, largest first. Of an
    origin there are two numbers per octile (:mod:`sigil.origin`), smallest weights first: eight times how
    many weights kept the sign of their initial value, then eight times how many were tested. ``wsr`` is
    counted by octile there. What could not be read has none.

    Per bit ``j``, in the key's order and in no record: ``bit_shares`` is the share of answers that equal the
    target; ``margins`` is ``s_j * mean_i(P_ij) / sqrt(mean_i(P_ij ** 2))`` with ``s_j`` the sign that the
    target asks for, so +1 is a constant projection on the right side of zero and -1 one on the wrong side.
    """

    kind: Kind
    count: Count
    wsr: Share
    log10_p_before: Log10
    exact: bool = True
    aligned: bool = False
    readable: bool = True
    source: Source = "key"
    digest: Hash | None = None
    agreements: Annotated[tuple[int, ...], Field(max_length=MAX_BITS, repr=False)] = ()
    incomplete: Count = 0
    bit_shares: tuple[float, ...] = Field(default=(), repr=False, exclude=True)
    margins: tuple[float, ...] = Field(default=(), repr=False, exclude=True)

    @property
    def counts(self) -> bool:
        """Whether this reading may carry a verdict: it can be made, and no claimant chose what was asked."""
        return self.readable and self.source != "claimant"

    @property
    def octiles(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of an origin, for each octile how many weights agree and how many were tested."""
        return self.agreements[:OCTILES], self.agreements[OCTILES:]

    @property
    def bit_error(self) -> float:
        """The share of bits whose majority over the answers is wrong."""
        wrong = sum(2 * agreed < self.count for agreed in self.agreements)
        return wrong / len(self.agreements) if self.agreements else 0.5

    @property
    def right_bits(self) -> int:
        """How many bits are read correctly by more than half of the answers."""
        return sum(2 * agreed > self.count for agreed in self.agreements)

    @property
    def weights(self) -> tuple[int, ...]:
        """``|w_j| = |2 a_j - N|``, the numbers whose random signs make up the null distribution."""
        return tuple(abs(2 * agreed - self.count) for agreed in self.agreements)

    @property
    def statistic(self) -> int:
        """T = sum of 2 a_j - N, so that WSR = 1/2 + T / (2 N k)."""
        return sum(2 * agreed - self.count for agreed in self.agreements)

    def threshold(self, alpha: float) -> float:
        """The smallest WSR at which this suspect would have reached p <= alpha before correction, or inf."""
        if not self.agreements or self.kind == "origin":
            return math.inf
        # A level that is corrected for everything may be smaller than any float.
        return statistics.threshold(self.weights, probes=self.count, alpha=max(alpha, sys.float_info.min))


class AlignmentFacts(Strict):
    """What the suspect's channels were compared with, and whether they were put in order by it.

    ``reference`` is the fingerprint of what the owner showed (``sigil.alignment.fingerprint``). Where
    ``used`` is false too few channels were recognised, and the suspect was examined as it is.
    """

    compared: Name
    reference: Hash
    sure_channels: Annotated[int, Field(ge=0, le=2**31)]
    agreement: Annotated[float, Field(allow_inf_nan=False)]
    used: bool

    @classmethod
    def of(cls, alignment: Alignment) -> AlignmentFacts:
        """What is known of an alignment without its order."""
        return cls(
            compared=alignment.source,
            reference=alignment.fingerprint,
            sure_channels=alignment.sure,
            agreement=alignment.agreement,
            used=alignment.believed,
        )


class Opened(Strict):
    """What the examiner said of a file to have it opened; None is what was left to the file and the key."""

    architecture: Line | None = None
    cut: Line | None = None
    width: Annotated[int, Field(ge=1, le=2**31)] | None = None
    classes: Annotated[int, Field(ge=1, le=2**31)] | None = None
    at: Line | None = None
    entry: Line | None = None


class SuspectFacts(Strict):
    """What was examined, and how it was opened.

    ``sha256`` is that of the file, or, if a module was given, of the names, types, shapes and numbers of its
    weights (``sigil.alignment.fingerprint``); a function has none. ``entries`` names the models in the file
    that were counted as tries, ``entry`` the one that the verdict is about, empty if the file holds it as
    such; of ``unread`` more nothing was read.
    """

    file: Line
    sha256: Hash | None
    kind: Name
    description: Line
    input_shape: Shape
    opened: Opened = Opened()
    entry: Line = ""
    entries: Annotated[tuple[Line, ...], Field(min_length=1, max_length=16)] = ("",)
    unread: Count = 0


class KeyFacts(Strict):
    """What may be known of the owner's key.

    ``token`` is the authority's answer of a stamped key, in base64; ``stamped_at`` and ``authority`` are
    what it says, for people.
    """

    owner: Name
    commitment: Hash
    statement: Annotated[str, StringConstraints(max_length=4_000)]
    shape: Shape
    kind: Literal["plain", "stamped"]
    token: Token | None = None
    stamped_at: Moment | None = None
    authority: Line | None = None

    @classmethod
    def of(cls, key: Key) -> KeyFacts:
        """What a key says in public."""
        stamp = key.stamp
        return cls(
            owner=key.owner,
            commitment=key.commitment,
            statement=key.statement(),
            shape=key.shape,
            kind=key.kind,
            token=None if stamp is None else base64.b64encode(stamp.response).decode(),
            stamped_at=None if stamp is None else moment_text(stamp.time),
            authority=None if stamp is None else harmless(stamp.authority),
        )


class Software(Strict):
    """The versions that computed the outcome."""

    sigil: Name
    torch: Name
    numpy: Name
    python: Name
    platform: Name

    @classmethod
    def here(cls) -> Software:
        """Those of this process."""
        import numpy
        import torch

        return cls(
            sigil=__version__,
            torch=str(torch.__version__),
            numpy=numpy.__version__,
            python=platform.python_version(),
            platform=f"{platform.system()} {platform.machine()}",
        )


class Record(Strict):
    """What evidence can be made of: with which key something was examined, when, and by which software."""

    predicate_type: ClassVar[str]

    key: KeyFacts
    created: Moment
    command: Annotated[str, StringConstraints(max_length=20_000)] = ""
    software: Software

    @property
    def subject(self) -> dict[str, Any] | None:
        """What was examined, as in-toto names it; None if nothing says what that was."""
        raise NotImplementedError

    def save_evidence(
        self,
        path: str | os.PathLike[str],
        *,
        key: Key | str | os.PathLike[str],
        sign_with: Ed25519PrivateKey | str | os.PathLike[str] | None = None,
    ) -> None:
        """Write the facts, signed, to a new file: an in-toto attestation in a DSSE envelope.

        ``key`` is the one that was examined with; its evidence key signs. With ``sign_with``, an Ed25519
        key or its PEM file, somebody else who answers for the examination signs as well.
        """
        key = as_key(key)
        if (key.statement(), key.kind) != (self.key.statement, self.key.kind):
            raise ConfigError("The key is not the one that the suspect was examined with; give that one.")
        if self.subject is None:
            raise EvidenceError(
                "The suspect was not a file and has no digest, so that nothing says what was examined; give "
                "a file, or verify a module."
            )
        if isinstance(sign_with, str | os.PathLike):
            sign_with = envelope.load_private_key(sign_with)
        signers = [key.signing_key(), *([] if sign_with is None else [sign_with])]
        files.write(path, envelope.sign(self, *signers), raises=EvidenceError)


class Report(Record):
    """What one verification found.

    ``owned`` is the verdict on the mark: the best reading's p-value, corrected for everything that could
    have been chosen, is at most ``alpha``. ``descends`` is that on the origin of the weights, corrected
    likewise. Neither is ever true of an experiment: ``reasons`` says what was chosen by the person who
    ran the test.

    ``readings`` holds every reading, before correction. ``wsr``, ``bit_shares``, ``margins`` and
    ``bit_error`` are those of the best one, ``log10_p`` and ``p_value`` its p-value after correction by the
    ``price`` (:mod:`sigil.rules`), ``log10_p_before`` the one before.
    ``threshold`` is the smallest WSR at which this suspect would have been found owned by that reading;
    None if none would do. ``register_count`` is the number of statements that a judge counted,
    ``trusted_root`` the one under which the examiner trusts the key's time stamp. ``alignment`` says what
    channels were compared with, if they were; ``key`` and ``suspect`` what was examined with which key.
    """

    predicate_type: ClassVar = envelope.VERDICT_TYPE

    owned: bool
    descends: bool
    reasons: Annotated[tuple[Line, ...], Field(max_length=16)] = ()
    readings: Annotated[tuple[Reading, ...], Field(min_length=1, max_length=MAX_READINGS)]
    log10_p: Log10
    log10_p_origin: Log10
    alpha: Annotated[float, Field(gt=0.0, lt=1.0, allow_inf_nan=False)]
    threshold: Share | None
    tests: Literal[4] = TESTS
    tries: Annotated[int, Field(ge=1, le=10**17)]
    cuts: Annotated[int, Field(ge=1, le=MOST_CUTS)]
    allowance_log2: Annotated[float, Field(ge=0.0, le=256.0, allow_inf_nan=False)]
    register_count: Annotated[int, Field(ge=1, le=MOST_STATEMENTS)] | None = None
    trusted_root: Root | None = None
    bits: Annotated[int, Field(ge=1, le=MAX_BITS)]
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    alignment: AlignmentFacts | None = None
    suspect: SuspectFacts

    @property
    def subject(self) -> dict[str, Any] | None:
        """The suspect's file, or its weights."""
        algorithm = "sigilWeights" if self.suspect.kind == "module" else "sha256"
        digest = self.suspect.sha256
        return None if digest is None else {"name": self.suspect.file, "digest": {algorithm: digest}}

    @property
    def best(self) -> Reading:
        """The reading of the mark that says most."""
        return best_of(self.readings)

    @property
    def origin(self) -> Reading | None:
        """What was found of the origin of the weights, if that was examined."""
        return next((one for one in self.readings if one.kind == "origin"), None)

    @property
    def experiment(self) -> bool:
        """Whether something was chosen that nobody may choose, so that nothing is proven either way."""
        return bool(self.reasons)

    @property
    def owner(self) -> str:
        """The name that the key proves."""
        return self.key.owner

    @property
    def commitment(self) -> str:
        """The key's commitment."""
        return self.key.commitment

    @property
    def kind(self) -> Literal["plain", "stamped"]:
        """The kind of the key."""
        return self.key.kind

    @property
    def p_value(self) -> float:
        """The corrected p-value; 0.0 if it is too small for a float, where ``log10_p`` still holds."""
        return float(10.0**self.log10_p)

    @property
    def price(self) -> Price:
        """What p was multiplied by."""
        return Price(self.allowance_log2, cuts=self.cuts, tries=self.tries)

    @property
    def allowance_of_kind(self) -> float | None:
        """The allowance, if it is that of a kind of key and not what a judge counted."""
        return self.allowance_log2 if self.register_count is None else None

    @property
    def log10_p_before(self) -> float:
        """The best reading's p-value before correction."""
        return self.best.log10_p_before

    @property
    def exact(self) -> bool:
        """Whether the best reading's p-value is exact; otherwise it is a proven upper bound."""
        return self.best.exact

    @property
    def wsr(self) -> float:
        """The watermark success rate of the best reading."""
        return self.best.wsr

    @property
    def probes(self) -> int:
        """The number of inputs of the best reading."""
        return self.best.count

    @property
    def bit_error(self) -> float:
        """The share of bits that the best reading's majority gets wrong."""
        return self.best.bit_error

    @property
    def bit_shares(self) -> tuple[float, ...]:
        """Per bit, in the key's order, the share of the best reading's answers that are right."""
        return self.best.bit_shares

    @property
    def margins(self) -> tuple[float, ...]:
        """Per bit, in the key's order, how far on the right side of zero the best reading lies."""
        return self.best.margins

    @property
    def paper_rule(self) -> bool:
        """Whether the paper's fixed rule is met by the best reading."""
        return self.wsr > statistics.PAPER_THRESHOLD

    @property
    def aligned(self) -> bool:
        """Whether the suspect's channels were put back in order for the best reading."""
        return self.best.aligned

    def reading(self, kind: str, *, aligned: bool = False) -> Reading | None:
        """The reading of a kind, or None if it was not made."""
        found = (one for one in self.readings if one.kind == kind and one.aligned == aligned)
        return next(found, None)

    def sentence(self) -> str:
        """The verdict in one sentence for people."""
        return wording.sentence(self)

    def __str__(self) -> str:
        return self.sentence()

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain JSON values, for the owner: it says per bit, in the key's order, what agrees.

        What a record holds besides, of the suspect and of the run, is left out.
        """
        of_the_run = {"suspect", "created", "command", "software"}
        derived = (
            *("experiment", "wsr", "p_value", "log10_p_before", "exact", "probes", "bit_error", "bit_shares"),
            *("margins", "paper_rule", "owner", "commitment", "kind", "aligned"),
        )
        values = {name: getattr(self, name) for name in derived}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        plain["p_in_words"] = wording.chance(self)
        plain["readings"] = [one.model_dump(mode="json") | {"counts": one.counts} for one in self.readings]
        return self.model_dump(mode="json", exclude=of_the_run) | plain

    def save_page(
        self,
        path: str | os.PathLike[str],
        *,
        evidence: str | os.PathLike[str] | None = None,
        copies: Sequence[str] = (),
        overwrite: bool = False,
    ) -> None:
        """Write a page for people to read: one HTML file that needs nothing else.

        It links the ``evidence`` that :meth:`save_evidence` wrote, if that is given, and holds the sentences
        of a trace about whose copy it is (``copies``, as ``str(trace).split("\\n")``). An existing file is
        replaced only with ``overwrite``, and only if it is a page of Sigil's.
        """
        from sigil.verdict import page  # it draws, which takes a second to load

        record = None
        if evidence is not None:
            payload, signers = envelope.open_envelope(envelope.read_file(evidence))
            if payload != envelope.statement(self):
                raise EvidenceError(f"{os.fspath(evidence)} is the evidence of another verification.")
            place = os.path.relpath(evidence, Path(path).parent)
            record = page.SignedRecord(harmless(place), files.sha256_of(evidence), signers)
        text = page.render(self, record=record, copies=copies)
        files.write(path, text, replace=files.PAGE if overwrite else False, raises=EvidenceError)


def best_of(readings: Sequence[Reading]) -> Reading:
    """The reading of the mark that says most: those that count come first, then the smallest p-value."""
    marks = [reading for reading in readings if reading.kind != "origin"]
    return min(marks, key=lambda reading: (not reading.counts, reading.log10_p_before, -reading.wsr))


def moment_text(moment: datetime) -> str:
    """A moment as records write it: UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def harmless(text: str, limit: int = 2_000) -> str:
    """Names from outside may be long or hold bytes that are not text; a report holds neither."""
    return text.encode("utf-8", "replace").decode("utf-8")[:limit]
