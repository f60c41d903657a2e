"""Numbers in words never claim more than the numbers do."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigil.rules import Price
from sigil.testing.authority import DemonstrationAuthority
from sigil.verdict import wording
from sigil.verdict.wording import chance, decimal, percent, scientific, success_rate

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.5, "50.0 %"), (1.0, "100 %"), (0.9994, "99.9 %"), (0.99999, "more than 99.9 %")],
)
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("p", "plain", "raised"),
    [
        (2**-50, "8.9e-16", "8.9 × 10⁻¹⁶"),
        (3e-7, "3e-7", "3 × 10⁻⁷"),
        (9.99e-8, "1e-7", "1 × 10⁻⁷"),
        (0.2069, "0.21", "0.21"),
        (1.0, "1", "1"),
    ],
)
def test_probabilities_are_rounded_up(p: float, plain: str, raised: str) -> None:
    assert decimal(math.log10(p)) == plain
    assert scientific(math.log10(p)) == raised


@given(st.floats(min_value=-300, max_value=0))
def test_a_written_probability_is_never_smaller_than_the_true_one(log10: float) -> None:
    assert math.log10(float(decimal(log10))) >= log10 - 1e-9


def test_far_below_the_smallest_float() -> None:
    assert decimal(-903.09) == "8.2e-904"


def verdict(**changes: Any) -> Any:
    numbers = {
        "owned": True,
        "owner": "ACME",
        "aligned": False,
        "wsr": 0.98,
        "log10_p": math.log10(2**-50),
        "exact": True,
        "alpha": 3e-7,
        "threshold": 0.83,
        "tries": 1,
        "bits": 50,
        "probes": 512,
        "paper_rule": True,
        "descends": False,
        "experiment": False,
        "cuts": 1,
        "allowance_log2": 24,
        "register_count": None,
    }
    found = SimpleNamespace(**numbers | changes)
    best = SimpleNamespace(kind="noise", readable=True, counts=True, source="key", wsr=found.wsr)
    found.price = Price(found.allowance_log2, cuts=found.cuts, tries=found.tries)
    more = {"best": best, "readings": (best,), "log10_p_before": found.log10_p - 8} | changes
    return SimpleNamespace(**vars(found) | more)


def test_rate_and_threshold_can_be_told_apart() -> None:
    assert success_rate(verdict(wsr=0.82984, threshold=0.83016)) == ("82.98 %", "83.02 %")
    assert success_rate(verdict(wsr=0.99996))[0] == "99.996 %"
    assert success_rate(verdict(threshold=None))[1] is None
    assert success_rate(verdict(threshold=math.inf))[1] is None


def test_a_bound_is_called_one() -> None:
    assert chance(verdict()) == "one in 1.1 quadrillion"
    assert chance(verdict(exact=False)).startswith("at most one in")
    assert wording.p_value(verdict()) == "p = 8.9e-16"
    assert wording.p_value(verdict(exact=False)) == "p <= 8.9e-16"


def test_the_sentence_claims_no_more_than_the_other_texts() -> None:
    """It once rounded 99.96 % to 100.0%, and a rate just short of proof to the rate of proof."""
    nearly = wording.sentence(verdict(wsr=0.9996))
    assert "in 99.96 % of cases" in nearly
    short = verdict(owned=False, wsr=0.82984, threshold=0.83016)
    assert "in 82.98 % of cases" in wording.sentence(short)
    assert "takes 83.02 %." in wording.sentence(short)


@pytest.mark.parametrize("owned", [True, False])
def test_all_texts_give_the_same_verdict(owned: bool) -> None:
    found = verdict(owned=owned)
    texts = [
        wording.outcome(found),
        *wording.titles(found),
        wording.sentence(found),
        " ".join(wording.meaning(found)),
    ]
    for text in texts:
        negative = any(part in text.lower() for part in ("not proven", "not shown", "no verdict"))
        assert negative is not owned, text


def test_an_experiment_is_never_called_proven() -> None:
    found = verdict(owned=False, experiment=True)
    texts = [
        wording.outcome(found),
        *wording.titles(found),
        wording.sentence(found),
        " ".join(wording.meaning(found)),
    ]
    for text in texts:
        assert "experiment" in text.lower(), text
        assert "Proven" not in text, text
        assert "owned" not in text.lower(), text


def test_descent_is_not_called_theft() -> None:
    found = verdict(owned=False, descends=True)
    assert "the mark is not proven" in wording.titles(found).headline
    meaning = " ".join(wording.meaning(found))
    assert "every client" in meaning
    assert "does not show that anything trained was taken" in meaning


def test_corrections_are_one_sentence() -> None:
    found = verdict(tries=3, cuts=7)
    text = wording.corrections_at_length(found)
    for part in ("4 for the tests", "3 for the tries", "7 for the cuts", "2^24 for stamped keys"):
        assert part in text
    counted = wording.corrections_at_length(verdict(tries=3, cuts=7, register_count=1200))
    assert "1,200 for the statements that the judge counted" in counted
    assert "2^" not in counted


def test_the_demonstration_authority_is_recognised() -> None:
    name = DemonstrationAuthority().certificate.subject.rfc4514_string()
    key: Any = SimpleNamespace(kind="stamped", stamped_at="2026-01-02T03:04:05Z", authority=name)
    assert wording.is_demonstration(key)
    assert "worth nothing outside" in wording.kind_of_key(key)
    other: Any = SimpleNamespace(kind="stamped", stamped_at="2026-01-02T03:04:05Z", authority="CN=Real")
    assert wording.kind_of_key(other) == (
        "stamped on 2026-01-02 03:04:05 UTC by CN=Real: 2^24 keys are allowed for"
    )


def test_an_order_that_was_not_used_is_said_to_be_so() -> None:
    found: Any = SimpleNamespace(compared="initial weights", reference="1a" * 32, sure_channels=3, used=False)
    assert "not used: only 3 channels" in dict(wording.channel_order(found))["alignment"]
    assert wording.channel_order_at_length(found).startswith("tried and not used, since only 3 channels")
    assert wording.channel_order(None) == []
    assert wording.channel_order_at_length(None).startswith("none")


@pytest.mark.parametrize("changes", [{"experiment": True}, {"descends": True}])
def test_an_experiment_and_descent_alone_are_never_called_ownership(changes: dict[str, bool]) -> None:
    found = verdict(owned=False, **changes)
    assert "OWNED" not in wording.titles(found).headline
    assert "Proven" not in wording.titles(found).stamp


def test_descent_alone_says_what_it_shows() -> None:
    found = verdict(owned=False, descends=True)
    assert wording.titles(found).headline.startswith("DESCENDS from the initial weights of {owner}")
    assert "received" in wording.ending(found)


def test_a_level_above_proof_is_only_compared_with() -> None:
    assert "proof" not in wording.by_chance(verdict(alpha=0.99))
    assert "proof asks for 3e-07" in wording.by_chance(verdict(alpha=3e-7))


def test_everything_that_p_was_multiplied_by_is_said() -> None:
    said = wording.corrections(verdict(tries=7, cuts=5, allowance_log2=80))
    factors = "4 tests · 7 tries · 5 cuts and input shapes · 2^80 keys"
    assert said == f"p was multiplied by {factors} that could have been chosen"


def test_a_short_key_is_not_said_to_agree_by_chance() -> None:
    """99.9 % with a short key were "no more than chance gives"."""
    best = SimpleNamespace(kind="noise", readable=True, counts=True, source="key", wsr=0.999)
    short = verdict(
        **{"owned": False, "wsr": 0.999, "bits": 64, "threshold": None, "allowance_log2": 80, "best": best},
        **{"log10_p": 0.0, "log10_p_before": -19.2, "readings": (best,)},
    )
    said = wording.sentence(short)
    assert "one in 15.8 quintillion before correction and 1 after it" in said
    assert "no rate would be proof, as 64 bits are too few and 104 the least" in said
    assert "no more than chance" not in said
    assert "64 bits are too few and 104 the least" in wording.rate_and_proof(short)
    assert "64 bits are too few and 104 the least" in " ".join(wording.meaning(short))


def test_a_model_without_finite_answers_is_not_called_a_short_key() -> None:
    best = SimpleNamespace(kind="noise", readable=False, counts=False, source="key", wsr=0.5)
    broken = verdict(owned=False, wsr=0.5, threshold=None, log10_p=0.0, best=best, readings=(best,))
    texts = [
        wording.sentence(broken),
        wording.rate_and_proof(broken),
        " ".join(wording.meaning(broken)),
    ]
    for text in texts:
        assert "gives no finite activations" in text
        assert "too short" not in text
        assert "too few" not in text


def test_bits_that_come_out_at_random_are_not_called_a_short_key() -> None:
    random = verdict(owned=False, bits=200, threshold=None)
    assert "too many of the 200 bits at random" in wording.rate_and_proof(random)


def test_it_is_the_key_that_is_random() -> None:
    for owned in (True, False):
        text = wording.explanation(verdict(owned=owned))
        assert "a key that has nothing to do with this model would agree with it this well" in text
        assert "after correction" in text
    # In every text: chance is that of a key drawn at random, for the one model that is examined.
    texts = [*ROOT.glob("src/sigil/**/*.py"), *ROOT.glob("src/sigil/**/*.html"), *ROOT.glob("docs/*.md")]
    wrong = re.compile(r"(model|suspect|weights)[a-z ]{0,12} nothing to do with (this|the|a|your) key", re.I)
    for path in [*texts, *ROOT.glob("examples/*.*"), ROOT / "README.md"]:
        text = " ".join(path.read_text("utf-8").replace('"', "").split())
        assert not wrong.search(text), path
        assert "unrelated model gives" not in text, path
        assert "in any other model" not in text, path


def test_a_corrected_p_of_one_is_not_said_to_be_a_probability() -> None:
    """The page said that an unrelated key "would agree this well with a probability of 1 in 1"."""
    nothing = verdict(owned=False, log10_p=0.0, log10_p_before=-1.2, threshold=None)
    assert "an agreement like this is {chance} among keys" in wording.explanation(nothing)
    assert wording.by_chance(nothing).startswith("not rare (p = 1 after correction; proof asks for 3e-07)")
    assert "1 in 1" not in wording.sentence(nothing)


def test_every_p_is_said_to_be_corrected_or_not() -> None:
    assert "(p = 8.9e-16 after correction; proof asks for 3e-07)" in wording.by_chance(verdict())
    assert "after correction" in wording.sentence(verdict())
    own = SimpleNamespace(
        **{"kind": "inputs", "readable": True, "counts": False, "source": "claimant", "wsr": 0.99},
        **{"aligned": False, "count": 256, "log10_p_before": -20.0},
    )
    line = wording.reading(own)
    assert "chosen by the claimant alone, so that they do not count; p = 1e-20 before correction" in line
    said = wording.sentence(verdict(owned=False, readings=(own,)))
    assert "On the inputs 99.0 % agree. Inputs that nobody but the key's owner chose do not count" in said
