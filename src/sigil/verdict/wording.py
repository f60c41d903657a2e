"""The wording of a verdict: all that a report, the command line and the evidence page say of one.

Numbers are rounded so that no claim becomes stronger than it is. Texts with a name or a number that a page
sets in its own way are given with a placeholder, such as ``{owner}``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from sigil import statistics
from sigil.errors import shown
from sigil.rules import ALPHA, PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2, TESTS, Price
from sigil.statistics import PAPER_THRESHOLD

if TYPE_CHECKING:
    from sigil.verdict.report import AlignmentFacts, KeyFacts, Reading, Report, SuspectFacts

NOT_DISPROVEN = (
    "Not proven is not disproven: the mark may be absent, or weakened, or it may belong\n"
    "to another key or to another cut."
)

NOT_COUNTED = (
    "Inputs that nobody but the key's owner chose do not count: state them in the key before the training "
    "(inputs_digest, and the normalisation of 8-bit images), or have a judge or the defendant choose some "
    "(inputs_from)."
)

NOT_READABLE = "the model gives no finite activations, so that nothing can be read"

IF_ALL_AGREE = "if all inputs agree (less if they do not, as chance then moves the rate less)"
"""Why the rate of proof of a key alone is not that of a model: beside the first, wherever it is said."""

DESCENT_ONLY = (
    "Descent shows that the weights go back to those that the owner gave to its clients. Every client\n"
    "received them, so it does not show that anything trained was taken."
)

DEMONSTRATION = "demonstration seal: worth nothing outside"
"""What is said of a time stamp by the authority of Sigil's own demonstrations."""

ORIGIN = (
    "A mark shows that a model was trained with this key. The origin shows less: that its weights descend "
    "from the initial weights which the key drew and which every client of the owner’s training received. A "
    "client who went on alone from them, or a model to which a little of them was added, shows the same "
    "origin. It does not show that anything trained was taken."
)

_DEMONSTRATION_AUTHORITY = "CN=Demonstration time stamps"
SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


Outcome = Literal["owned", "descends", "experiment", "not proven"]


def outcome(verdict: Report) -> Outcome:
    """What a verdict comes to: the mark decides, then the origin; an experiment decides nothing."""
    if verdict.experiment:
        return "experiment"
    if verdict.owned:
        return "owned"
    return "descends" if verdict.descends else "not proven"


class Titles(NamedTuple):
    """A verdict by itself: on a page, as its title and its heading, and as the first line in a terminal.

    The last two have a place for the ``{owner}``.
    """

    stamp: str
    title: str
    heading: str
    headline: str


_TITLES: dict[Outcome, Titles] = {
    "owned": Titles(
        "Proven",
        "Ownership proven",
        "This model carries the watermark of {owner}.",
        "OWNED: this model carries the mark of {owner}.",
    ),
    "descends": Titles(
        "Descent proven, mark not proven",
        "Descent proven, ownership not proven",
        "This model descends from the initial weights of {owner}; its watermark is not proven.",
        "DESCENDS from the initial weights of {owner}; the mark is not proven.",
    ),
    "experiment": Titles(
        "Experiment",
        "Experiment",
        "An experiment with the key of {owner}: nothing is proven by it.",
        "EXPERIMENT: nothing is proven by it, whatever the numbers say.",
    ),
    "not proven": Titles(
        "Not proven",
        "Ownership not proven",
        "The watermark of {owner} is not proven in this model.",
        "NOT PROVEN: the mark of {owner} is not proven in this model.",
    ),
}


def titles(verdict: Report) -> Titles:
    """The verdict in a few words."""
    return _TITLES[outcome(verdict)]


def sentence(verdict: Report) -> str:
    """The verdict in one sentence for people."""
    wsr, needed = success_rate(verdict)
    found = f"its bits agree with the key of {verdict.owner} in {wsr} of cases"
    if verdict.aligned:
        found += " once its channels are back in order"
    if verdict.experiment:
        return f"This was an experiment, which proves nothing: {found} ({p_value(verdict)} after correction)."
    if verdict.owned:
        return (
            f"The suspect carries the mark: {found}, which chance alone would reach with a "
            f"probability of {chance(verdict)} after correction."
        )
    if not verdict.best.readable:
        return f"The suspect is not shown to carry the mark: {NOT_READABLE}."
    before = "1" if verdict.log10_p_before >= 0 else bounded(verdict.log10_p_before, verdict.exact)
    reached = f"which chance alone would reach with a probability of {before} before correction"
    if verdict.best.counts:
        reached += f" and {'1' if verdict.log10_p >= 0 else chance(verdict)} after it"
    proof = out_of_reach(verdict)
    if needed is not None:
        proof = f"proof (p <= {verdict.alpha:.1g}) takes {needed}"
    said = f"The suspect is not shown to carry the mark: {found}, {reached}; {proof}."
    return " ".join([said, *uncounted(verdict)])


def uncounted(verdict: Report) -> list[str]:
    """One sentence about inputs that were read and do not count, if there are any."""
    own = [one for one in verdict.readings if one.source == "claimant" and one.readable]
    return [f"On the inputs {percent(one.wsr)} agree. {NOT_COUNTED}" for one in own[:1]]


def out_of_reach(verdict: Report) -> str:
    """Why no success rate would be proof, where none would."""
    if not verdict.best.readable:
        return NOT_READABLE
    least = verdict.price.shortest_bits(verdict.alpha)
    if verdict.bits < least:
        return f"no rate would be proof, as {verdict.bits} bits are too few and {least} the least"
    return f"no rate would be proof, as this model answers too many of the {verdict.bits} bits at random"


def left_open(price: Price) -> str:
    """What a key that does not state everything is called by, behind its name."""
    return f" that leaves {price.cuts} cuts and input shapes open" if price.cuts > 1 else ""


def too_short(bits: int, kind: str, price: Price, alpha: float = ALPHA) -> str:
    """That a key proves nothing, and how many bits it takes."""
    return (
        f"a {kind} key of {bits} bits{left_open(price)} proves nothing, however well a model answers; it "
        f"takes at least {price.shortest_bits(alpha)} bits"
    )


def explanation(verdict: Report) -> str:
    """What the probability says, with the places of the ``{chance}`` and the ``{level}`` of proof."""
    if verdict.log10_p >= 0:
        return (
            "After correction for everything that could have been chosen, an agreement like this is {chance} "
            "among keys that have nothing to do with this model; proof here asks for {level} or less."
        )
    found = (
        "By chance alone, a key that has nothing to do with this model would agree with it this well with a "
        "probability of {chance}, after correction for everything that could have been chosen"
    )
    return f"{found}." if verdict.owned else f"{found}; proof here asks for {{level}} or less."


_NO_VERDICT_ON_THE_MARK = (
    "The mark itself is not proven: it may be absent, because only the initial weights were used, or it may "
    "have been weakened or removed."
)


def meaning(verdict: Report) -> list[str]:
    """What the verdict means and what it does not, in paragraphs."""
    wsr, needed = success_rate(verdict)
    if verdict.owned:
        return [
            "A key that has nothing to do with a model agrees with its answers like tossed coins, about half "
            "of the time; this model gave the answer that the owner’s key asks for in "
            f"{unbroken(wsr)} of {verdict.bits * verdict.probes:,} answers. Provided that the key was fixed "
            "before the model existed, coincidence is not a reasonable explanation: the mark was put there "
            "in training, with this key, into this model or into one that it was made from."
        ]
    if verdict.experiment:
        return [
            "Something was chosen that nobody may choose if the result is to prove anything, and somebody "
            "who may choose it can choose what suits them. So this is an experiment: its numbers are right "
            "as numbers, and nothing follows from them, neither for the owner nor against."
        ]
    if verdict.descends:
        return [ORIGIN, _NO_VERDICT_ON_THE_MARK]
    paragraphs = [
        "The agreement found is not rare enough to rule out coincidence at the level that was set, so this "
        "test gives no verdict for the owner. It does not show that the model is independent of the owner’s: "
        "a mark can be absent, but it can also have been weakened or removed, belong to another key, or lie "
        "at another place in the network than the one examined."
    ]
    if not verdict.best.readable:
        return [
            f"This test gives no verdict: {NOT_READABLE}. It does not show that the model is independent."
        ]
    paragraphs += uncounted(verdict)
    if needed is None:
        paragraphs.append(f"With this key and this model {out_of_reach(verdict)}.")
    elif verdict.paper_rule:
        paragraphs.append(
            f"The fixed rule of the original paper, more than {unbroken(percent(PAPER_THRESHOLD, 0))} "
            "agreement, is met. It is not relied on here because it does not say how often chance meets it."
        )
    return paragraphs


def rate_and_proof(verdict: Report) -> str:
    """The success rate, and the one at which proof begins."""
    wsr, needed = success_rate(verdict)
    if not verdict.best.readable:
        return NOT_READABLE
    return f"{wsr} ({f'proof begins at {needed}' if needed else out_of_reach(verdict)})"


def rate_if_all_agree(verdict: Report) -> str | None:
    """Why proof begins elsewhere than the key alone says; None if it does not."""
    needed = success_rate(verdict)[1]
    rate = verdict.price.needed_rate(verdict.bits, verdict.alpha)
    if needed is None or rate > 1 or math.isclose(rate, verdict.threshold or math.inf):
        return None
    return (
        f"{needed} by this model's answers, {needed_percent(rate)} if all inputs agreed: where they do not, "
        "chance moves the rate less"
    )


def p_value(verdict: Report) -> str:
    """The p-value as a number: "p = 8.9e-16", or "p <= …" for a bound."""
    return f"p {'=' if verdict.exact else '<='} {decimal(verdict.log10_p)}"


def by_chance(verdict: Report) -> str:
    """The p-value in words and as a number, and what proof asks for."""
    asked = "proof asks for" if verdict.alpha <= ALPHA else "compared with"
    said = rarity(verdict.log10_p, verdict.exact)
    return f"{said} ({p_value(verdict)} after correction; {asked} {verdict.alpha:g})"


def corrections(verdict: Report) -> str:
    """What the p-value was multiplied by."""
    parts = [f"{TESTS} tests"]
    if verdict.tries > 1:
        parts.append(f"{verdict.tries:,} tries")
    if verdict.cuts > 1:
        parts.append(f"{verdict.cuts} cuts and input shapes")
    parts.append(f"2^{verdict.allowance_log2:g} keys")
    return f"p was multiplied by {' · '.join(parts)} that could have been chosen"


def entry(suspect: SuspectFacts) -> list[tuple[str, str]]:
    """Rows about which model of a file was read: none if it holds just one."""
    rows, count = [], len(suspect.entries)
    if suspect.entry or count > 1:
        others = f", one of {count} in the file, each of which counts as a try"
        where = shown(suspect.entry) if suspect.entry else "what stands outside all others"
        rows.append(("entry", where + (others if count > 1 else "")))
    if suspect.unread:
        more = "--time-limit" if suspect.kind == "onnx" else "--entry"
        rows.append(("not read", f"{suspect.unread:,} further models or tensors in the file ({more})"))
    return rows


def reading(found: Reading) -> str:
    """One reading as a line: what agreed, how likely by chance, and whether it counts."""
    if not found.readable:
        return f"does not let itself be read on {found.kind}: it gives no finite activations there"
    what = "of the weights kept their initial sign" if found.kind == "origin" else "of the answers agree"
    order = ", channels put back in order" if found.aligned else ""
    choice = "" if found.kind != "inputs" else f", chosen by the {found.source}"
    if not found.counts:
        choice += " alone, so that they do not count"
    return (
        f"{percent(found.wsr)} {what} ({found.count:,}{order}{choice}; "
        f"p = {decimal(found.log10_p_before)} before correction)"
    )


def ending(verdict: Report) -> str:
    """What must be said below a verdict, or nothing."""
    below: dict[Outcome, list[str]] = {
        "descends": [DESCENT_ONLY],
        "not proven": [NOT_DISPROVEN, *uncounted(verdict)],
    }
    return "\n".join(below.get(outcome(verdict), []))


def corrections_at_length(verdict: Report) -> str:
    """What the p-value was multiplied by, as one sentence on a page."""
    register = verdict.register_count
    kind = "stamped" if verdict.allowance_log2 == STAMPED_ALLOWANCE_LOG2 else "plain"
    parts = [f"{TESTS} for the tests that the rules allow, made or not"]
    if verdict.tries > 1:
        parts.append(f"{verdict.tries:,} for the tries, declared or made in one file")
    if verdict.cuts > 1:
        parts.append(f"{verdict.cuts} for the cuts and input shapes that the key leaves open")
    if register is None:
        parts.append(f"2^{verdict.allowance_log2:g} for {kind} keys that could have been drawn beforehand")
    else:
        parts.append(f"{register:,} for the statements that the judge counted in a closed register")
    last = parts.pop()
    return f"The probability was multiplied by {', by '.join(parts)} and by {last}."


def kind_of_key(key: KeyFacts, allowance_log2: float | None = None) -> str:
    """The kind of a key: plain, or when and by whom it was stamped, and what it is counted as."""
    if key.kind == "plain":
        return (
            f"plain, without a date: 2^{PLAIN_ALLOWANCE_LOG2} keys that could have been drawn beforehand are "
            "allowed for"
        )
    of_demonstration = f" ({DEMONSTRATION})" if is_demonstration(key) else ""
    moment = (key.stamped_at or "").replace("T", " ").replace("Z", " UTC")
    counted = f"2^{STAMPED_ALLOWANCE_LOG2} keys are allowed for"
    if allowance_log2 is not None and allowance_log2 > STAMPED_ALLOWANCE_LOG2:
        counted = (
            f"no trusted root was named, so that 2^{allowance_log2:g} are allowed for as for a plain key"
        )
    return f"stamped on {moment} by {key.authority}{of_demonstration}: {counted}"


def is_demonstration(key: KeyFacts) -> bool:
    """Whether a key's time stamp is one of Sigil's own demonstrations, by the name of its authority."""
    return key.authority == _DEMONSTRATION_AUTHORITY


def reading_name(reading: Reading) -> str:
    """What was read, in words."""
    name = {"noise": "mark, on noise", "inputs": "mark, on real inputs", "origin": "origin of the weights"}
    return name[reading.kind] + (", channels put back in order" if reading.aligned else "")


def reading_counts(reading: Reading) -> str:
    """Whether a reading may carry a verdict, and who chose what was asked."""
    if not reading.readable:
        return "no: the model does not let itself be read so"
    return {
        "key": "yes: nobody chose, it follows from the key",
        "statement": "yes: the inputs were fixed in the key’s statement",
        "judge": "yes: the judge chose the inputs",
        "defendant": "yes: the defendant chose the inputs",
        "claimant": "no: the claimant chose the inputs",
    }[reading.source]


def paper_rule(verdict: Report) -> str:
    """Whether the paper's fixed rule is met."""
    return f"{'met' if verdict.paper_rule else 'not met'} (success rate above {percent(PAPER_THRESHOLD, 0)})"


def chance(verdict: Report) -> str:
    """The corrected p-value in words."""
    return bounded(verdict.log10_p, verdict.exact)


def bounded(log10_p: float, exact: bool) -> str:
    """A p-value in words, and whether it is a bound: "at most one in 3.3 million"."""
    return ("" if exact else "at most ") + statistics.in_words(log10_p)


def rarity(log10_p: float, exact: bool) -> str:
    """The same; a corrected p of 1 is a bound, and no probability that anything happens for certain."""
    return "not rare" if log10_p >= 0 else bounded(log10_p, exact)


def channel_order(found: AlignmentFacts | None) -> list[tuple[str, str]]:
    """Rows about the order of channels: none if no reference was given."""
    if found is None:
        return []
    sure = f"{found.sure_channels} channels recognised by {found.compared}"
    used = f"{sure}, put back in order" if found.used else f"not used: only {sure}, so examined as it is"
    return [("alignment", used), ("reference", f"fingerprint {found.reference}")]


def channel_order_at_length(found: AlignmentFacts | None) -> str:
    """The same as a clause on a page."""
    if found is None:
        return "none: the model was examined as it is"
    if found.used:
        return (
            f"channels were first put back in the owner’s order; {found.sure_channels} of them were "
            f"recognised by {found.compared}"
        )
    return (
        f"tried and not used, since only {found.sure_channels} channels were recognised by "
        f"{found.compared}: the model was examined as it is"
    )


def success_rate(verdict: Report) -> tuple[str, str | None]:
    """The WSR and the WSR at which proof begins (None if out of reach), as percentages.

    They have one decimal, or as many as tell them from each other and from 100 %.
    """
    threshold = verdict.threshold if verdict.threshold is not None and verdict.threshold <= 1 else None
    for digits in (1, 2, 3, 4):
        wsr = percent(verdict.wsr, digits)
        needed = None if threshold is None else percent(threshold, digits)
        if (wsr != needed or verdict.wsr == threshold) and "than" not in wsr:
            break
    return wsr, needed


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage; what is less than all never reads as 100 %."""
    if share >= 1.0:
        return "100 %"
    text = f"{100 * share:.{digits}f}"
    if float(text) >= 100.0:
        return f"more than {100 - 10.0**-digits:.{digits}f} %"
    return f"{text} %"


def needed_percent(rate: float) -> str:
    """A rate that proof takes as a percentage, which is never smaller than the true one."""
    return f"{math.ceil(1000 * rate - 1e-9) / 10:.1f} %"


def decimal(log10: float) -> str:
    """A probability in the form 8.9e-16, which is never smaller than the true one."""
    mantissa, exponent = _round_up(log10)
    return f"{mantissa:g}e{exponent}" if log10 < -2 else f"{_hundredths(log10):g}"


def scientific(log10: float) -> str:
    """A probability in the form 8.9 × 10⁻¹⁶, which is never smaller than the true one."""
    mantissa, exponent = _round_up(log10)
    if log10 >= -2:
        return f"{_hundredths(log10):g}"
    return f"{mantissa:g} × 10{str(exponent).translate(SUPERSCRIPT)}"


def _round_up(log10: float) -> tuple[float, int]:
    exponent = math.floor(log10)
    # A logarithm carries rounding: without the slack 3e-7 could read 3.1e-7.
    mantissa = math.ceil(10 ** (log10 - exponent) * 10 - 1e-9) / 10
    return (1.0, exponent + 1) if mantissa >= 10 else (mantissa, exponent)


def _hundredths(log10: float) -> float:
    return math.ceil(10 ** (log10 + 2) - 1e-9) / 100


def unbroken(text: str) -> str:
    """Keep a number and what belongs to it on one line."""
    return text.replace(" ", "\u00a0")
