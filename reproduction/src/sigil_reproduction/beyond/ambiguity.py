"""Attacks on the meaning of the mark, named by the paper as limitations: overwriting, permuting, forging.

ResNet-18, three strengths. *Overwriting* embeds a second key and measures both. *Permuting* reorders and
scales channels without changing the function. *Forging* makes a key fit an innocent model afterwards: by
choosing the bits (which a Sigil key does not allow), or by drawing many keys (which the p-value prices).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sigil import attacks, statistics
from sigil.federation.precision import choose
from sigil.federation.run import Run
from sigil.keys.key import Key
from sigil.pages.tables import Page, Power, Row, Table
from sigil.seeds import derive
from sigil.verdict.report import Report
from sigil_reproduction.runner import attacked, keys, scales
from sigil_reproduction.runner.attacked import attackers_share, marks
from sigil_reproduction.runner.experiment import Experiment, Finding, Measured
from sigil_reproduction.runner.reading import on_noise
from sigil_reproduction.runner.scales import STRENGTHS, Scale
from sigil_reproduction.runner.store import Cell, Store

ATTACKS = ("none", "overwrite", "permute", "scale")
PLAN = dict.fromkeys(reversed(STRENGTHS), ATTACKS)


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """The attacks on marked models, and forging on a clean one."""
    return attacked.cells("ambiguity", scale, seeds, PLAN) + [
        Cell(
            "ambiguity",
            "forging",
            seed,
            (scale.settings(seed=seed, watermark={"strength": 0.0}),),
            {"attack": "forging"},
        )
        for seed in seeds
    ]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Attack the run and measure the owner's mark, and the attacker's where there is one."""
    (run,) = runs
    settings, dataset, attack = run.settings, store.dataset(run.settings), cell.options["attack"]
    if attack == "forging":
        return _forge(run, store)
    halves, seed = run.halves(), settings.run.seed
    second: Report | None = None
    if attack == "overwrite":
        precision = choose(settings.run.device, settings.run.precision)
        mallory = _other(keys.stated(settings, store.data_dir), 0)
        halves = attacks.overwrite(
            halves,
            attackers_share(dataset, settings),
            mallory,
            batch_size=settings.federation.batch_size,
            seed=seed,
            precision=precision,
        )
        second = attacks.measure(halves, data=dataset, key=mallory, precision=precision).report
    elif attack != "none":
        halves = attacks.permute(halves, seed=seed, permutation=attack == "permute")
    numbers = marks(halves, run, store)
    if second is not None:
        numbers |= {"second_wsr": 100 * second.wsr, "second_log10_p": second.best.log10_p_before}
    return numbers


def _forge(run: Run, store: Store) -> dict[str, Any]:
    """What an innocent model gives to somebody who chooses a key after seeing it."""
    client, _ = run.halves()
    shape = store.dataset(run.settings).shape
    key = keys.stated(run.settings, store.data_dir)
    plain = on_noise(client, key, shape, probes=256)
    chosen = sum(max(share, 1 - share) for share in plain.bit_shares) / key.bits
    tries = scales.get(store.scale).keys_per_model
    drawn = (_other(key, number) for number in range(1, tries + 1))
    reports = (on_noise(client, other, shape, probes=64) for other in drawn)
    best = min(reports, key=lambda report: report.log10_p_before)
    return {
        "wsr": 100 * plain.wsr,
        "log10_p": plain.log10_p_before,
        "chosen_wsr": 100 * chosen,
        "tries": tries,
        "best_wsr": 100 * best.wsr,
        "best_log10_p": best.log10_p_before,
        "best_log10_p_corrected": statistics.correct(best.log10_p_before, tries),
    }


def _other(key: Key, number: int) -> Key:
    """The attacker's key for the same cut; the seed fixes it, since experiments must repeat."""
    seed = derive(number, "mallory").to_bytes(16, "big").rjust(32, b"m")
    return Key.generate("Mallory", shape=key.shape, bits=key.bits, seed=seed)


def show(measured: Measured, folder: Path) -> Page:
    """Marks before and after, and the price list of forging."""
    rows = attacked.rows(measured, PLAN, ATTACKS)
    for row, strength in zip(rows, PLAN, strict=True):
        name = attacked.name_of(strength, "overwrite")
        exponents = measured.values(name, "second_log10_p")
        second = measured.number(name, "second_wsr", "WSR")
        row.append([second, Power(max(exponents))] if exponents else second)

    def forged(number: str, form: str = ".1f") -> str:
        return measured.number("forging", number, form=form).text

    prices: list[Row] = [
        ["a key committed before", measured.number("forging", "wsr", "WSR"), "the test's own p-value"],
        [
            "bits chosen after seeing the model",
            measured.number("forging", "chosen_wsr", "WSR"),
            "no key can hold them",
        ],
        [
            f"the best of {forged('tries', ',.0f')} keys drawn",
            f"WSR {forged('best_wsr')}, p = 10^{forged('best_log10_p')}",
            f"p = 10^{forged('best_log10_p_corrected')} after correction",
        ],
    ]
    return [
        Table(["", *ATTACKS, "the attacker's key after overwriting"], rows),
        Table(["forging on an innocent model", "found", "what it is worth"], prices),
    ]


def verdict(measured: Measured) -> list[Finding]:
    """The paper names permutation as a limitation and hopes that overwriting leaves both marks."""

    def holds(attack: str, above: bool) -> bool | None:
        rates = measured.values(f"strength 0.1 {attack}", "wsr")
        return None if not rates else (min(rates) > 70 if above else max(rates) < 70)

    return [
        Finding("Permuted channels hide the mark from plain verification.", holds("permute", False)),
        Finding("Overwriting leaves the owner's mark above 70 %.", holds("overwrite", True)),
    ]


CAPTION = "The mark after overwriting, permuting and scaling, and what forging a key gains."
EXPERIMENT = Experiment("ambiguity", CAPTION, cells, show, measure, verdict)
