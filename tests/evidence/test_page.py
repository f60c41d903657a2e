"""The page says what was found, to people, and brings nothing from elsewhere."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from sigil.verdict.page import SignedRecord, render, superscripts


class Reader(HTMLParser):
    """Collect the text that is shown, the elements and their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_an_owned_model(make: Callable[..., Any]) -> None:
    facts, key = make(1.0)
    page = Reader(render(facts))
    assert not page.open
    assert "This model carries the watermark of ACME ." in page.text
    for fact in (
        "one in 70.3 trillion",
        "1.5 × 10⁻¹⁴ after correction",
        "100 %",
        "128 of 128 bits",
        facts.suspect.sha256,
        key.commitment,
        key.statement(),
        facts.command,
        "1 March 2026, 12:30:59 UTC",
        f"torch {facts.software.torch}",
        f"numpy {facts.software.numpy}",
        f"Python {facts.software.python}",
        f"sigil {facts.software.sigil}",
        "The paper’s rule, more than 70 % met",
        "plain, without a date: 2 80 keys",
        "−38.5",
    ):
        assert fact in page.text, fact


def test_every_reading_is_in_the_table(make: Callable[..., Any]) -> None:
    page = render(make(0.9, on_inputs=0.99, source="claimant", origin=0.71)[0])
    text = Reader(page).text
    for row in (
        "mark, on noise 512 answers per bit ",
        "mark, on real inputs 256 answers per bit ",
        "no: the claimant chose the inputs",
        "origin of the weights 10,000 weights 71.0 % −172.1",
    ):
        assert row in text, row
    assert page.count('<tr class="best">') == 1
    assert "does not show that anything trained was taken" in text


def test_corrections_are_said_in_one_sentence(make: Callable[..., Any]) -> None:
    text = Reader(render(make(1.0, tries=1000, cuts=9, stamped=True)[0])).text
    assert "multiplied by 4 for the tests that the rules allow, made or not, by 1,000 for the tries" in text
    assert "by 9 for the cuts and input shapes that the key leaves open and by 2 24 for stamped keys" in text


def test_an_experiment_is_never_proven(make: Callable[..., Any]) -> None:
    for options in ({"seed": 3}, {"alpha": 0.99}, {"reasons": ("the suspect is a function",)}):
        page = render(make(1.0, origin=0.71, **options)[0])
        text = Reader(page).text
        assert "Experiment" in text
        assert "Proven" not in text
        assert "carries the watermark" not in text
        assert "Proof begins" not in text
        assert "proof begins" not in text
        assert "level of proof" not in text
        assert "no: this was an experiment" in text
        assert "yes:" not in text


def test_descent_is_a_verdict_of_its_own(make: Callable[..., Any]) -> None:
    text = Reader(render(make(0.5, origin=0.71)[0])).text
    assert "Descent proven, mark not proven" in text
    assert "descends from the initial weights of ACME ; its watermark is not proven" in text
    assert "which every client of the owner’s training received" in text
    assert "does not show that anything trained was taken" in text


def test_a_stamp_is_shown_with_date_and_authority(make: Callable[..., Any]) -> None:
    text = Reader(render(make(1.0, stamped=True)[0])).text
    assert "stamped on 2026-01-02 03:04:05 UTC by CN=Trusted time stamps: 2 24 keys are allowed for" in text
    assert "Who controls it can draw keys without end and date them back." in text
    assert "demonstration" not in text


def test_a_demonstration_seal_is_worth_nothing_outside(make: Callable[..., Any]) -> None:
    text = Reader(render(make(1.0, stamped=True, authority="Demonstration")[0])).text
    assert text.count("demonstration seal: worth nothing outside") == 2


def test_what_cannot_be_read_is_said_to_be_so(make: Callable[..., Any]) -> None:
    text = Reader(render(make(readable=False)[0])).text
    assert "no: the model does not let itself be read so" in text
    assert "not readable" in text
    both = Reader(render(make(readable=False, on_inputs=0.99)[0])).text
    assert "no: the model does not let itself be read so" in both
    assert "This model carries the watermark" in both


def test_what_put_the_channels_in_order_is_named(make: Callable[..., Any]) -> None:
    plain = Reader(render(make()[0])).text
    assert "Alignment none: the model was examined as it is" in plain
    used = Reader(render(make(reference="1a" * 32, compared="initial weights", aligned=True)[0])).text
    assert "31 of them were recognised by initial weights" in used
    assert "mark, on noise, channels put back in order" in used
    assert "1a" * 32 in used
    doubted = Reader(render(make(reference="1a" * 32)[0])).text
    assert "only 31 channels were recognised by correlations under images" in doubted
    named = "The order of the channels was not chosen."
    assert [named in text for text in (plain, used, doubted)] == [False, True, False]


def test_not_owned_is_not_proven_and_nothing_more(make: Callable[..., Any]) -> None:
    text = Reader(render(make(0.5)[0])).text
    assert "The watermark of ACME is not proven in this model." in text
    assert "gives no verdict" in text
    assert "does not show that the model is independent" in text
    assert "carries the watermark" not in text
    for word in ("stolen", "innocent", "not guilty", "does not carry"):
        assert word not in text.lower()


def test_a_key_too_short_for_the_level_is_explained(make: Callable[..., Any]) -> None:
    text = Reader(render(make(1.0, bits=8)[0])).text
    assert "out of reach" in text
    assert "8 bits are too few" in text


def test_the_papers_rule_beside_a_verdict_that_differs(make: Callable[..., Any]) -> None:
    facts, _ = make(0.9, bits=10)
    assert facts.paper_rule
    assert not facts.owned
    assert "does not say how often chance meets it" not in Reader(render(facts)).text
    facts, _ = make(0.72, bits=128)
    assert facts.paper_rule
    assert not facts.owned
    assert "does not say how often chance meets it" in Reader(render(facts)).text


def test_bounds_are_said(make: Callable[..., Any]) -> None:
    facts, _ = make(1.0)
    (noise,) = facts.readings
    bound = facts.model_copy(update={"readings": (noise.model_copy(update={"exact": False}),)})
    text = Reader(render(bound)).text
    assert "at most one in" in text
    assert "after correction, a bound" in text


@pytest.mark.parametrize("bits", [8, 50, 1000])
def test_nothing_comes_from_elsewhere_and_nothing_runs(make: Callable[..., Any], bits: int) -> None:
    page = render(make(0.9, bits=bits)[0])
    assert "http:" not in page
    assert "https:" not in page
    assert "//" not in page
    assert "@import" not in page
    reader = Reader(page)
    policy = [tag for tag in reader.tags if tag[1].get("http-equiv") == "Content-Security-Policy"]
    assert policy[0][1]["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert not {"script", "link", "iframe", "img", "object", "a", "form"} & {t for t, _ in reader.tags}
    for _, attributes in reader.tags:
        assert not any(name.startswith("on") or name in ("src", "href") for name in attributes)
    assert set(re.findall(r"url\(([^)]*)\)", page)) <= {"#bits-wide-cross", "#bits-narrow-cross"}


def test_hostile_names_are_text(make: Callable[..., Any]) -> None:
    attack = "<script>alert(1)</script>"
    quote = "\"><img src=x onerror='x'>"
    facts, key = make(
        1.0, owner=attack, file=f"x{quote}.pt", description=f"{{{{ 7*7 }}}}{attack}", command=quote + attack
    )
    page = render(facts, record=SignedRecord(file=attack, sha256="0" * 64, signers=("1" * 64,)))
    reader = Reader(page)
    assert not {"script", "img"} & {tag for tag, _ in reader.tags}
    assert attack not in page
    assert quote not in page
    assert html.escape(attack) in page
    assert "{{ 7*7 }}" in reader.text
    assert key.statement() in reader.text


def test_names_cannot_turn_the_direction_of_text(make: Callable[..., Any]) -> None:
    turned = "model\u202egpj.\u2069pt"
    facts, _ = make(1.0, file=turned, command=f"sigil verify {turned}")
    page = render(facts, record=SignedRecord(file=turned, sha256="0" * 64, signers=("1" * 64,)))
    assert not {"\u202e", "\u2069", "\u200f"} & set(page)
    assert page.count("<bdi>model\\u202egpj.\\u2069pt</bdi>") == 2
    title = html.unescape(page.partition("<title>")[2].partition("</title>")[0])
    assert title.endswith("\u2068model\\u202egpj.\\u2069pt\u2069")


def test_it_points_to_the_signed_record(make: Callable[..., Any]) -> None:
    record = SignedRecord(file="case.json", sha256="ab" * 32, signers=("cd" * 32, "ef" * 32))
    text = Reader(render(make()[0], record=record)).text
    assert "case.json" in text
    assert record.sha256 in text
    assert all(signer in text for signer in record.signers)
    assert "--evidence" in Reader(render(make()[0])).text


def test_ids_are_unique_and_every_picture_is_labelled(make: Callable[..., Any]) -> None:
    reader = Reader(render(make()[0]))
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    pictures = [attributes for tag, attributes in reader.tags if tag == "svg"]
    assert len(pictures) == 4
    for picture in pictures:
        assert picture["role"] == "img"
        assert set((picture["aria-labelledby"] or "").split()) <= set(ids)


def test_the_secret_is_not_on_the_page(make: Callable[..., Any]) -> None:
    facts, key = make()
    page = render(facts)
    assert bytes(range(100, 132)).hex() not in page
    assert key.signing_key().private_bytes_raw().hex() not in page


def test_light_dark_phone_and_paper_are_provided_for(make: Callable[..., Any]) -> None:
    page = render(make()[0])
    for rule in ("prefers-color-scheme: dark", "max-width: 760px", "@media print", "size: A4"):
        assert rule in page
    assert 'name="viewport"' in page


def test_powers_are_raised() -> None:
    assert superscripts("2^80 & 2^24 keys") == "2<sup>80</sup> &amp; 2<sup>24</sup> keys"
    assert superscripts("one in 10^300") == "one in 10<sup>300</sup>"
    assert superscripts("one in 16") == "one in 16"


def test_thousands_of_bits_stay_a_small_page(make: Callable[..., Any]) -> None:
    page = render(make(0.9, bits=3000, probes=64)[0])
    assert len(page) < 100_000
    assert "of 3,000 bits" in page
