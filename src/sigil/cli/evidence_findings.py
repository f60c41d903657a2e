"""What `sigil evidence check` finds: what the record claims, what was checked, and what was not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sigil.errors import EvidenceError, SuspectError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from sigil.evidence.facts import Facts
    from sigil.evidence.repeating import Repeated
    from sigil.evidence.signed import Checked
    from sigil.keys.key import Key
    from sigil.keys.seal import Root


@dataclass(frozen=True)
class Question:
    """What the caller gave to compare the record with; what is None was not asked."""

    signer: str | None = None
    statement: str | None = None
    roots: Sequence[Certificate] | None = None
    suspect: Path | None = None
    suspect_sha256: str | None = None
    reference: str | None = None
    key: Key | None = None
    inputs: str | None = None
    inputs_from: Literal["judge", "defendant"] | None = None
    reference_file: Path | None = None
    statements: int | None = None
    model: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Findings:
    """A record that was not refused: what it claims, what was checked of it, what was not.

    `vouched` says whether anything from outside the file says who signed it.
    """

    vouched: bool
    claims: list[tuple[str, str]]
    checked: dict[str, str]
    unchecked: list[str]
    facts: Facts
    public_key: str
    signed_by: str
    repeated: bool

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
            "signer": self.public_key,
            "signed_by": self.signed_by,
            "facts": self.facts.model_dump(mode="json"),
        }


def examine(content: bytes, question: Question) -> Findings:
    """Check a record; raise a `SigilError` about the first thing that does not hold."""
    from sigil.evidence import repeating
    from sigil.evidence.signed import check

    found = check(
        content,
        signer=question.signer,
        statement=question.statement,
        suspect_sha256=question.suspect_sha256,
        references=question.reference,
    )
    _count(found, question.statements)
    root = _date(found, question.roots)
    repeated = None
    if question.key is not None:
        repeating.open_commitment(found.facts, found.stamp, question.key)
        own = question.key.signing_key().public_key().public_bytes_raw().hex()
        if question.signer is None and found.public_key != own:
            raise EvidenceError(
                f"The evidence is signed by {found.public_key}, which is not the key's own signer; name it "
                "with --signer if you trust it."
            )
        if question.suspect is not None:
            repeated = _repeat(found.facts, question)
    elif question.suspect is not None:
        _check_format(question.suspect)
    return _findings(found, question, root, repeated)


def _count(found: Checked, counted: int | None) -> None:
    """What the caller counted must be what the record says, if it says so."""
    if counted is None:
        return
    recorded = found.facts.verdict.register_count
    if recorded != counted:
        says = "no register" if recorded is None else f"{recorded:,} statements in a closed register"
        raise EvidenceError(f"You counted {counted:,} statements, but the evidence says: {says}.")


def _date(found: Checked, roots: Sequence[Certificate] | None) -> Root | None:
    if roots is None:
        return None
    if found.stamp is None:
        raise EvidenceError(
            "A root certificate was given, but the key of the evidence has no time stamp: it is plain, and "
            "nothing in the evidence shows its date."
        )
    return found.stamp.check(roots)


def _check_format(path: Path) -> None:
    """A file that is no model cannot have been examined."""
    from sigil.suspect.file import SuspectFile

    try:
        SuspectFile(path).close()
    except SuspectError as error:
        raise EvidenceError(f"The given suspect cannot have been examined as a model. {error}") from None


def _repeat(facts: Facts, question: Question) -> Repeated:
    from sigil.evidence import repeating
    from sigil.suspect import open_suspect

    key = question.key
    assert key is not None
    assert question.suspect is not None
    given = {name: value for name, value in question.model.items() if value is not None}
    suspect = open_suspect(
        question.suspect,
        **given,
        input_shape=facts.suspect.input_shape,
        key=key,
        # One that was chosen among several must be chosen again.
        entry=facts.suspect.entry if facts.suspect.entries == 1 else None,
    )
    try:
        if suspect.sha256 != facts.suspect.sha256:
            raise EvidenceError("The given suspect was changed while it was being checked; try again.")
        return repeating.repeat(
            facts,
            key,
            suspect,
            inputs=question.inputs,
            inputs_from=question.inputs_from,
            reference=question.reference_file,
            roots=question.roots,
            register=question.statements,
        )
    finally:
        suspect.close()


def _findings(found: Checked, question: Question, root: Root | None, repeated: Repeated | None) -> Findings:
    facts = found.facts
    signer = (
        "the evidence key that its statement names" if found.signed_by == "owner" else "another key than that"
    )
    checked = {
        "signature": f"the file is unaltered since {found.public_key} signed it ({signer})",
        "arithmetic": "every p-value, the correction and the verdict follow from the recorded counts",
    }
    unchecked = []
    if repeated is None:
        unchecked.append("The counts are the claimant's; nothing was repeated.")
    else:
        checked["examination"] = repeated.words
    if question.statement is None and question.key is None:
        unchecked.append("The statement in the record was not compared with a published one (--statement).")
    elif question.statement is not None:
        checked["statement"] = "it is the one that you gave, byte for byte"
    if question.key is None:
        unchecked.append(
            "Commitment not opened (--key): that its owner knows the secret behind it is not shown, nor "
            "that owner and evidence key are those of the commitment."
        )
    else:
        checked["commitment"] = "opened: the key has this statement, with this owner and this evidence key"
    if question.signer is not None:
        checked["signer"] = "the one that you named"
    _say_date(found, root, checked, unchecked)
    if question.suspect is not None:
        checked["suspect"] = (
            "the given file is the one recorded (SHA-256), and of a format that can hold a model"
        )
    else:
        unchecked.append("Which file was examined: no --suspect was given to compare with.")
    _say_choices(facts, question, checked, unchecked)
    return Findings(
        vouched=found.pinned or question.key is not None,
        claims=_claims(facts),
        checked=checked,
        unchecked=unchecked,
        facts=facts,
        public_key=found.public_key,
        signed_by=found.signed_by,
        repeated=repeated is not None,
    )


def _say_date(found: Checked, root: Root | None, checked: dict[str, str], unchecked: list[str]) -> None:
    from sigil.rules import PLAIN_ALLOWANCE_LOG2

    stamp = found.stamp
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


def _say_choices(facts: Facts, question: Question, checked: dict[str, str], unchecked: list[str]) -> None:
    from sigil.rules import PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2

    for reading in facts.verdict.readings:
        if reading.source in ("judge", "defendant") and question.inputs_from != reading.source:
            unchecked.append(f"That the {reading.source} chose the inputs is the claimant's word.")
            break
    counted = facts.verdict.register_count
    if counted is not None and question.statements is None:
        unchecked.append(
            f"That a judge counted {counted:,} statements in a closed register is the claimant's word "
            f"(--register): without it, 2^{PLAIN_ALLOWANCE_LOG2} keys would be allowed for, or "
            f"2^{STAMPED_ALLOWANCE_LOG2} if stamped."
        )
    elif counted is not None:
        checked["register"] = f"{counted:,} statements, as many as you counted"
    used = facts.alignment
    if used is None or not used.used:
        if question.reference is not None:
            checked["reference"] = "not needed: no channels were put in order"
    else:
        if question.reference is not None:
            checked["reference"] = "channels were put in order by a published reference, or by the key's own"
        elif used.compared == "initial weights":
            if "examination" not in checked:
                unchecked.append(
                    "That channels were put in order by initial weights which the key drew is the "
                    "claimant's word."
                )
        else:
            unchecked.append(
                "Channels were put in order by a reference that was not compared with a published one "
                "(--reference): chosen afterwards, it could suit any key."
            )
    unchecked.append("How many keys and suspects were tried: that is as the claimant declared it.")
    unchecked.append(
        "Whose file it is, and how it was obtained: anybody can train a mark of their own into a copy."
    )


def _claims(facts: Facts) -> list[tuple[str, str]]:
    """What the record says, as its signer's word."""
    from sigil.verdict import wording

    return [
        ("it claims", f"{wording.outcome(facts.verdict)}, for the key of {facts.key.owner}"),
        *(("experiment", reason) for reason in facts.verdict.reasons),
        ("file", f"{facts.suspect.file}, SHA-256 {facts.suspect.sha256}"),
        *wording.entry(facts.suspect),
        *(
            (
                "reading",
                f"{wording.reading_name(one)}: {wording.percent(one.wsr)}, log10 p "
                f"{one.log10_p_before:.1f} before correction; counts: {wording.reading_counts(one)}",
            )
            for one in facts.verdict.readings
        ),
        ("correction", wording.corrections(facts.verdict)),
        ("by chance", wording.by_chance(facts.verdict)),
        ("key", wording.kind_of_key(facts.key, facts.verdict.allowance_of_kind)),
        ("commitment", facts.key.commitment),
        ("made on", facts.created),
        *wording.channel_order(facts.alignment),
    ]
