"""Examining a record of evidence: what it claims, what was checked of it, and what was not."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from cryptography.x509 import Certificate
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from sigil import files
from sigil.alignment import fingerprint
from sigil.data.inputs import Array, Inputs
from sigil.errors import ConfigError, EvidenceError, SuspectError
from sigil.evidence import arithmetic, published, repeating
from sigil.keys.key import Key
from sigil.keys.seal import Root, Seal, read_roots
from sigil.rules import PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2
from sigil.suspect import Suspect, open_suspect, open_weights
from sigil.suspect.file import SuspectFile
from sigil.suspect.shards import INDEX_END, model_in
from sigil.tracing import Trace, in_sentences
from sigil.verdict import envelope, wording
from sigil.verdict.arguments import as_key
from sigil.verdict.report import Report

AnyPath = str | os.PathLike[str]


R = TypeVar("R", bound=Report | Trace)


class _InTotoStatement(BaseModel, Generic[R]):
    """An in-toto statement about a report or a trace; its subject is compared with what that says."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type_: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type")]
    subject: Annotated[list[dict[str, Any]], Field(max_length=1)]
    predicate_type: Annotated[
        Literal["urn:sigil-watermark:verdict:v1", "urn:sigil-watermark:trace:v1"],
        Field(alias="predicateType"),
    ]
    predicate: R


@dataclass(frozen=True)
class Checked:
    """Evidence that has passed every check that was asked for.

    ``signers`` are the public keys that signed: the evidence key that the record's statement names, and
    who else did. ``pinned`` says whether they were compared with something that came from outside the
    file; without that the file only vouches for itself. ``stamp`` is the time stamp of a stamped key, whose
    root nobody has looked at here.
    """

    report: Report
    signers: tuple[str, ...]
    pinned: bool
    stamp: Seal | None = None


@dataclass(frozen=True)
class Findings:
    """A record that was not refused: what it claims, what was checked of it, what was not.

    ``vouched`` says whether anything from outside the file says who signed it; ``repeated`` whether the
    examination was, with the key.
    """

    vouched: bool
    repeated: bool
    claims: list[tuple[str, str]]
    checked: dict[str, str]
    unchecked: list[str]
    report: Report | Trace
    signers: tuple[str, ...]

    @property
    def headline(self) -> str:
        """The first line: never the record's verdict, which is only what it claims."""
        if not self.vouched:
            return (
                "NOBODY VOUCHES FOR THIS SIGNER: the file is unaltered and its numbers fit together, which "
                "anybody can\nachieve for any file. Give --statement with the line that the owner "
                "published, --signer with an\nauditor's key, or --key."
            )
        if self.repeated:
            return "HOLDS: the examination was repeated, and the record says what it gives."
        return "HOLDS as far as it was checked; the examination was not repeated."

    def to_dict(self) -> dict[str, Any]:
        """The findings as plain JSON values."""
        return {
            "held": self.vouched,
            "vouched": self.vouched,
            "repeated": self.repeated,
            "claims": dict(self.claims),
            "checked": self.checked,
            "not_checked": self.unchecked,
            "signers": list(self.signers),
            "report": self.report.model_dump(mode="json"),
        }


def check(
    content: bytes,
    *,
    signer: str | None = None,
    statement: str | None = None,
    suspect_sha256: str | None = None,
    references: str | None = None,
) -> Checked:
    """Check a record and return what it says; raise `EvidenceError` if anything is wrong.

    ``signer`` is a public key (64 hex digits) that must have signed. ``statement`` is the line that
    the owner published: the key must be that one. ``suspect_sha256`` is the hash that the suspect must have.
    ``references`` is the line of references that the owner published: if channels were put in order, then
    by one of those.
    """
    payload, signers = envelope.open_envelope(content)
    report = _read(payload, signers, Report, signer, statement, suspect_sha256)
    stamp = arithmetic.recompute(report)
    if references is not None:
        _compare_references(report, published.parse_references(references))
    return Checked(report, signers, pinned=not (signer is None and statement is None), stamp=stamp)


def _read(
    payload: bytes,
    signers: tuple[str, ...],
    kind: type[R],
    signer: str | None,
    statement: str | None,
    suspect_sha256: str | None,
) -> R:
    """The record in a payload that these signed, if they may and it is about the right key and file."""
    try:
        report: R = _InTotoStatement[kind].model_validate_json(payload).predicate  # type: ignore[valid-type]
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the whole"
        raise EvidenceError(
            f"The evidence is signed but not well-formed at {place[:100]!r}; it was not made by "
            "this version of Sigil, so check it with the version that made it."
        ) from None
    if envelope.statement(report) != payload:
        raise EvidenceError(
            "The evidence is signed but not in its one canonical form, or its subject is not its suspect; "
            "it was not made by Sigil, do not rely on it."
        )
    own = published.parse(report.key.statement)
    if own.evidence_key not in signers:
        raise EvidenceError(
            f"The evidence is signed by {signers[0]} and not by {own.evidence_key}, the evidence key that "
            "its statement names; ask the owner of the key for a record."
        )
    if statement is not None and published.parse(statement) != own:
        raise EvidenceError(
            "The evidence is about another key: its statement is not the published one; ask for "
            "evidence that was made with the published key."
        )
    if signer is not None and signer not in signers:
        raise EvidenceError(
            f"The evidence is signed by {' and '.join(signers)} and not by {signer}; ask the expected "
            "signer for it."
        )
    (recorded,) = report.subject["digest"].values() if report.subject else (None,)
    if suspect_sha256 not in (None, recorded):
        raise EvidenceError(
            f"The given suspect is not the one that was examined: its SHA-256 is {suspect_sha256} "
            f"and not {recorded}; compare with the copy that was secured."
        )
    return report


def examine(
    record: bytes | AnyPath,
    *,
    statement: str | None = None,
    signer: AnyPath | None = None,
    roots: Sequence[Certificate] | AnyPath | None = None,
    register: int | None = None,
    references: str | None = None,
    key: Key | AnyPath | None = None,
    suspect: Suspect | nn.Module | AnyPath | None = None,
    inputs: Inputs | Array | Tensor | AnyPath | None = None,
    inputs_from: Literal["judge", "defendant"] | None = None,
    reference: AnyPath | None = None,
    copies: AnyPath | None = None,
) -> Findings:
    """Check a record of evidence, a file or its content; raise a `SigilError` where something does not hold.

    What is given is compared: the ``statement`` and the line of ``references`` that the owner published, a
    ``signer`` (64 hex digits or a PEM file), the ``roots`` of time-stamping authorities that you trust, the
    number of statements that you counted in a closed ``register``, the ``suspect``, a file or a module.

    With the owner's ``key`` the commitment is opened and, if there is a suspect, the examination repeated as
    the record says. It takes what no record can show: the ``inputs``, who chose them to your knowledge
    (``inputs_from``), a ``reference`` that channels were put in order by. What is missing for that is a
    `ConfigError`, which says nothing about the record. A trace is repeated with the owner's ``copies``: its
    register, or a run.
    """
    content = record if isinstance(record, bytes) else envelope.read_file(record)
    key = None if key is None else as_key(key)
    trusted = read_roots(Path(roots)) if isinstance(roots, str | os.PathLike) else roots
    named = None if signer is None else envelope.read_public_key(signer)
    sha256 = None if suspect is None else _sha256(suspect)
    payload, signers = envelope.open_envelope(content)
    if sha256 is not None and isinstance(suspect, str | os.PathLike) and sha256.encode() not in payload:
        sha256 = _sha256_with_parts(suspect) or sha256
    facts: Report | Trace
    if envelope.TRACE_FIELD in payload:
        if any(given is not None for given in (register, references, inputs, inputs_from, reference)):
            raise ConfigError(
                "The record is about whose copy a suspect contains: registers of statements, references and "
                "inputs are for a verdict; leave them out."
            )
        facts = _read(payload, signers, Trace, named, statement, sha256)
        stamp = arithmetic.recompute_trace(facts)
    else:
        if copies is not None:
            raise ConfigError(
                "Copies are for repeating a trace, and the record is a verdict: leave them out."
            )
        found = check(
            content, signer=named, statement=statement, suspect_sha256=sha256, references=references
        )
        facts, stamp = found.report, found.stamp
        _check_count(facts, register)
    root = _check_date(stamp, trusted)
    if key is not None:
        repeating.open_commitment(facts, stamp, key)
    checked = {"signature": _signed(facts, signers)}
    unchecked: list[str] = []
    if isinstance(facts, Trace):
        checked["arithmetic"] = (
            "which copies are contained follows from the recorded p-values and what was tried"
        )
        if copies is None:
            unchecked.append("The p-values are the claimant's; nothing was repeated (--copies).")
        elif key is None or suspect is None:
            raise ConfigError("Copies are for repeating a trace: give the key and the suspect as well.")
        else:
            checked["trace"] = repeating.repeat_trace(facts, key, suspect, copies)
    else:
        checked["arithmetic"] = (
            "every p-value, the correction and the verdict follow from the recorded counts"
        )
        if key is None or suspect is None:
            unchecked.append("The counts are the claimant's; nothing was repeated.")
        else:
            opened, close = _opened(suspect, facts, key)
            try:
                checked["examination"] = repeating.repeat(
                    facts,
                    key,
                    opened,
                    inputs=inputs,
                    inputs_from=inputs_from,
                    reference=reference,
                    roots=trusted,
                    register=register,
                )
            finally:
                close()
    _say_key(statement, key, signer, checked, unchecked)
    _say_date(stamp, root, checked, unchecked)
    if suspect is None:
        unchecked.append("Which file was examined: no --suspect was given to compare with.")
    else:
        checked["suspect"] = _compared(suspect, facts, examined=key is not None)
    if isinstance(facts, Trace):
        unchecked.append(
            "Who passed the copy on: its recipient, a burglar, or the owner, who can make every one."
        )
    else:
        _say_choices(facts, register, references, inputs_from, checked, unchecked)
    return Findings(
        vouched=not (named is None and statement is None and key is None),
        repeated="examination" in checked or "trace" in checked,
        claims=_claims(facts),
        checked=checked,
        unchecked=unchecked,
        report=facts,
        signers=signers,
    )


def _compared(suspect: Suspect | nn.Module | AnyPath, facts: Report | Trace, *, examined: bool) -> str:
    """That the given suspect is the one of the record, whose hash was compared; a verdict needs a model."""
    if isinstance(suspect, nn.Module):
        return "the given module has the recorded weights (SHA-256)"
    if isinstance(facts, Trace):
        return "the given file is the one recorded (SHA-256)"
    if not isinstance(suspect, Suspect) and not examined:
        try:
            if not (place := model_in(Path(suspect))).name.endswith(INDEX_END):
                SuspectFile(place).close()
        except SuspectError as error:
            raise EvidenceError(f"The given suspect cannot have been examined as a model. {error}") from None
    return "the given file is the one recorded (SHA-256), and of a format that can hold a model"


def _signed(record: Report | Trace, signers: Sequence[str]) -> str:
    others = [one for one in signers if one != published.parse(record.key.statement).evidence_key]
    also = f", and so did {' and '.join(others)}" if others else ""
    return f"the file is unaltered since the evidence key that its statement names signed it{also}"


def _say_key(
    statement: str | None,
    key: Key | None,
    signer: AnyPath | None,
    checked: dict[str, str],
    unchecked: list[str],
) -> None:
    if statement is not None:
        checked["statement"] = "it is the one that you gave, byte for byte"
    elif key is None:
        unchecked.append("The statement in the record was not compared with a published one (--statement).")
    if key is None:
        unchecked.append(
            "Commitment not opened (--key): that its owner knows the secret behind it is not shown, nor "
            "that owner and evidence key are those of the commitment."
        )
    else:
        checked["commitment"] = "opened: the key has this statement, with this owner and this evidence key"
    if signer is not None:
        checked["signer"] = "the one that you named"


def _sha256(suspect: Suspect | nn.Module | AnyPath) -> str:
    if isinstance(suspect, nn.Module):
        return fingerprint(suspect)
    if isinstance(suspect, Suspect):
        return suspect.sha256
    try:
        return files.sha256_of(model_in(Path(suspect)))
    except OSError as error:
        raise ConfigError(
            f"Cannot read {os.fspath(suspect)} ({error.strerror}); give an existing, readable file."
        ) from None
    except SuspectError as error:
        raise ConfigError(str(error)) from None


def _sha256_with_parts(suspect: AnyPath) -> str | None:
    """The hash of a model in several files: shards, or a graph with its weights beside it. None of others."""
    place = model_in(Path(suspect))
    try:
        if not place.name.endswith(INDEX_END):
            with SuspectFile(place) as file:
                if file.format != "onnx":
                    return None
    except SuspectError:
        return None
    try:
        return open_weights(place, []).sha256
    except SuspectError as error:
        raise EvidenceError(
            f"The given suspect is not the one that was examined, or not all of it. {error}"
        ) from None


def _opened(
    suspect: Suspect | nn.Module | AnyPath, report: Report, key: Key
) -> tuple[Suspect | nn.Module, Callable[[], None]]:
    """The suspect as the record says that it was opened, and what ends it if it was opened here."""
    if isinstance(suspect, Suspect | nn.Module):
        return suspect, lambda: None
    asked = report.suspect.opened.model_dump()
    opened = open_suspect(suspect, **asked, input_shape=report.suspect.input_shape, key=key)
    if opened.sha256 != report.suspect.sha256:
        opened.close()
        raise EvidenceError("The given suspect was changed while it was being checked; try again.")
    return opened, opened.close


def _check_count(report: Report, counted: int | None) -> None:
    """What the caller counted must be what the record says, if it says so."""
    if counted is not None and report.register_count != counted:
        recorded = report.register_count
        says = "no register" if recorded is None else f"{recorded:,} statements in a closed register"
        raise EvidenceError(f"You counted {counted:,} statements, but the evidence says: {says}.")


def _check_date(stamp: Seal | None, roots: Sequence[Certificate] | None) -> Root | None:
    if roots is None:
        return None
    if stamp is None:
        raise EvidenceError(
            "A root certificate was given, but the key of the evidence has no time stamp: it is plain, and "
            "nothing in the evidence shows its date."
        )
    return stamp.check(roots)


def _compare_references(report: Report, references: published.References) -> None:
    if references.commitment != report.commitment:
        raise EvidenceError(
            "The published references belong to another key than the evidence; give the line that was "
            "published for this key."
        )
    used, fields = report.alignment, published.parse(report.key.statement).fields
    if used is None or not used.used:
        return
    drawn = not report.experiment and fields.initialiser is not None and used.compared == "initial weights"
    if not drawn and used.reference not in references:
        raise EvidenceError(
            "Channels were put in order by a reference that was not published: its fingerprint is "
            f"{used.reference}; a reference chosen afterwards proves nothing."
        )


def _say_date(stamp: Seal | None, root: Root | None, checked: dict[str, str], unchecked: list[str]) -> None:
    if stamp is None:
        unchecked.append(
            "The date of the key: it is plain, and nothing in the record shows when it was made."
        )
        return
    dated = f"stamped on {stamp.time:%Y-%m-%d %H:%M:%S} UTC by {stamp.authority}, number {stamp.serial}"
    if root is None:
        unchecked.append(
            f"The date: the key is {dated}, and no root was given (--tsa-root). Who controls this authority "
            f"can grind keys and backdate: without a root that you trust, 2^{PLAIN_ALLOWANCE_LOG2} keys have "
            "to be allowed for."
        )
    else:
        checked["date"] = (
            f"{dated}, under the root that you gave: {root.name}, SHA-256 {root.fingerprint}. Who controls "
            "this authority can grind keys and backdate"
        )


def _say_choices(
    report: Report,
    register: int | None,
    references: str | None,
    inputs_from: str | None,
    checked: dict[str, str],
    unchecked: list[str],
) -> None:
    chosen = next((one.source for one in report.readings if one.source in ("judge", "defendant")), None)
    if chosen not in (None, inputs_from):
        unchecked.append(f"That the {chosen} chose the inputs is the claimant's word.")
    counted = report.register_count
    if counted is not None and register is None:
        unchecked.append(
            f"That a judge counted {counted:,} statements in a closed register is the claimant's word "
            f"(--register): without it, 2^{PLAIN_ALLOWANCE_LOG2} keys would be allowed for, or "
            f"2^{STAMPED_ALLOWANCE_LOG2} if stamped."
        )
    elif counted is not None:
        checked["register"] = f"{counted:,} statements, as many as you counted"
    used = report.alignment
    if used is None or not used.used:
        if references is not None:
            checked["reference"] = "not needed: no channels were put in order"
    elif references is not None:
        checked["reference"] = "channels were put in order by a published reference, or by the key's own"
    elif used.compared != "initial weights":
        unchecked.append(
            "Channels were put in order by a reference that was not compared with a published one "
            "(--reference): chosen afterwards, it could suit any key."
        )
    elif "examination" not in checked:
        unchecked.append(
            "That channels were put in order by initial weights which the key drew is the claimant's word."
        )
    unchecked.append("How many keys and suspects were tried: that is as the claimant declared it.")
    unchecked.append(
        "Whose file it is, and how it was obtained: anybody can train a mark of their own into a copy."
    )


def _claims(report: Report | Trace) -> list[tuple[str, str]]:
    """What the record says, as its signer's word."""
    if isinstance(report, Trace):
        said = [("it claims", line) for line in in_sentences(report).split("\n")]
        file = ("file", f"{report.file}, SHA-256 {report.sha256}")
        return [*said, file, ("commitment", report.key.commitment), ("made on", report.created)]
    return [
        ("it claims", f"{wording.outcome(report)}, for the key of {report.owner}"),
        *(("experiment", reason) for reason in report.reasons),
        ("file", f"{report.suspect.file}, SHA-256 {report.suspect.sha256}"),
        *wording.entry(report.suspect),
        *(
            (
                "reading",
                f"{wording.reading_name(one)}: {wording.percent(one.wsr)}, log10 p "
                f"{one.log10_p_before:.1f} before correction; counts: {wording.reading_counts(one)}",
            )
            for one in report.readings
        ),
        ("correction", wording.corrections(report)),
        ("by chance", wording.by_chance(report)),
        ("key", wording.kind_of_key(report.key, report.allowance_of_kind)),
        ("commitment", report.commitment),
        ("made on", report.created),
        *wording.channel_order(report.alignment),
    ]
