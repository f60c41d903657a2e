"""False claims: do keys that never met a model prove it, drawn at random or ground to fit?

    python benchmarks/claims.py --json benchmarks/results/claims.json --figure benchmarks/results/claims.png

Clean models (ResNet-18, width 8, digits, cut at layer1) are trained without any mark. Then

- *fresh*: new keys of each kind, plain and stamped, are tried on each of them by `sigil.verify`, on noise and
  on test images, until there are at least 2,000 (key, model) pairs of each kind;
- *ground*: a claimant owns some of the models, the proxies, draws 10^6 seeds and keeps the one that fits the
  proxies best; the key is then read on the models that it never saw.

Deriving the matrix M of 10^6 keys would take hours, so grinding draws with numpy's generator in the place of
the key's: entries of M are independent standard normal numbers and the bits fair coins in both. A seed is
judged by the projections of the proxies' mean activations alone, so only M's part in their span is drawn for
each seed, and the rest of M for the best one: together they are distributed as one M drawn at once.

Everything that is computed is kept in --work at once, so that a run that was interrupted goes on.

Clean models answer a given M alike, so the best of 10^6 seeds fits models that it never saw far better than a
fresh key does: that is what the allowance, 2^24 or 2^80, prices.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from common import command_line, write_result
from sigil import data, models, statistics, verify
from sigil.keys.key import Key
from sigil.keys.stamping import make_query
from sigil.models import Model
from sigil.rules import PLAIN_ALLOWANCE_LOG2, STAMPED_ALLOWANCE_LOG2, Price
from sigil.testing.authority import DemonstrationAuthority

Floats = npt.NDArray[np.float32]

INPUT, CUT, PROBES = (1, 8, 8), "layer1", 512
BITS = {"plain": 128, "stamped": 64}
ALLOWANCE = {"plain": PLAIN_ALLOWANCE_LOG2, "stamped": STAMPED_ALLOWANCE_LOG2}
SEEDS_AT_ONCE = 5_000


def train(seed: int, images: Tensor, labels: Tensor) -> Model:
    """A clean classifier of digits, trained for three epochs; its half up to the cut."""
    model = models.build("resnet18", classes=10, width=8, channels=1, input_size=8, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    order = torch.Generator().manual_seed(seed)
    for _ in range(3):
        for part in torch.randperm(len(images), generator=order).split(64):
            optimizer.zero_grad()
            cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    half, _ = models.split(model.eval(), CUT)
    return half


def clean_half(path: Path, seed: int, images: Tensor, labels: Tensor) -> Model:
    """The half of a clean classifier, trained now or by an earlier run."""
    if not path.exists():
        models.save(path, train(seed, images, labels))
    return models.load(path)


def level(kind: str) -> float:
    """log10 of what a reading's p must reach: the level, divided by tests and allowance."""
    return Price(ALLOWANCE[kind]).log10_level()


def fresh_key(kind: str, number: int, shape: tuple[int, ...], authority: DemonstrationAuthority) -> Key:
    """A key that states everything that it can."""
    key = Key.generate(
        f"Claimant {number}",
        shape,
        bits=BITS[kind],
        model="resnet18",
        width=8,
        classes=10,
        cut=CUT,
        input_shape=INPUT,
        probes=PROBES,
    )
    return key if kind == "plain" else key.seal(authority.answer(make_query(key.to_be_stamped().statement())))


def try_fresh_keys(kind: str, halves: list[Model], inputs: Tensor, pairs: int, done: Path) -> dict[str, Any]:
    """Verify every clean model with fresh keys until there are enough pairs; `done` holds those made."""
    authority = DemonstrationAuthority()
    shape = models.activation_shape(halves[0], INPUT)
    rows = read_lines(done)
    while len(rows) < pairs:
        key = fresh_key(kind, len(rows), shape, authority)
        for i, half in enumerate(halves):
            roots = None if kind == "plain" else [authority.root]
            report = verify(half, key, inputs, inputs_from="judge", roots=roots, batch_size=PROBES)
            assert report.allowance_log2 == ALLOWANCE[kind]
            rows.append(
                {
                    "model": i,
                    "owned": report.owned,
                    "descends": report.descends,
                    "log10_p": round(report.log10_p_before, 3),
                    "log10_p_origin": round(
                        next(r.log10_p_before for r in report.readings if r.kind == "origin"), 3
                    ),
                }
            )
        add_lines(done, rows[-len(halves) :])
    return {
        "kind": kind,
        "bits": BITS[kind],
        "keys": len(rows) // len(halves),
        "pairs": len(rows),
        "owned": sum(row["owned"] for row in rows),
        "descends": sum(row["descends"] for row in rows),
        "smallest_log10_p_of_a_mark": min(row["log10_p"] for row in rows),
        "smallest_log10_p_of_an_origin": min(row["log10_p_origin"] for row in rows),
        "needed_log10_p": level(kind),
        "log10_p": [row["log10_p"] for row in rows],
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What an earlier run measured."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Keep what was measured."""
    with path.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def lean(projection: Floats) -> Floats:
    """How far answers lie on one side of zero, -1 to 1, by their mean over their deviation.

    For normal answers it is erf(x/√2); x/√(π/2 + x²) has the same slope and limits and takes a tenth of the
    time. It only ranks seeds.
    """
    size = np.square(projection)
    size += np.float32(math.pi / 2)
    np.sqrt(size, out=size)
    return np.divide(projection, size, out=size)


class Ground:
    """The search for a key that fits some models before it is shown, by what it sees of them."""

    def __init__(self, proxies: list[Tensor]) -> None:
        means = np.stack([activation.mean(dim=0).numpy() for activation in proxies]).astype(np.float32)
        # How far one answer strays from the mean one, along a random direction.
        strays = [float((one - one.mean(dim=0)).square().sum(dim=1).mean().sqrt()) for one in proxies]
        self.basis = np.linalg.qr(means.T)[0].astype(np.float32)
        self.scaled = (means @ self.basis / np.array(strays)[:, None]).astype(np.float32)

    def search(self, bits: int, seeds: int, generator: np.random.Generator) -> tuple[Floats, Floats, float]:
        """M, the signs of b and the score (standard deviations beyond chance) of the best of many seeds."""
        rank = self.basis.shape[1]
        score, part, signs = -math.inf, np.zeros((rank, bits), np.float32), np.zeros(bits, np.float32)
        for start in range(0, seeds, SEEDS_AT_ONCE):
            count = min(SEEDS_AT_ONCE, seeds - start)
            drawn = generator.standard_normal((count, rank, bits), dtype=np.float32)
            coins = 2.0 * generator.integers(0, 2, (count, bits)).astype(np.float32) - 1.0
            leaning = lean(np.matmul(self.scaled, drawn))  # (count, proxies, bits)
            size = np.einsum("cpb,cpb->cp", leaning, leaning)
            deviations = np.einsum("cpb,cb->cp", leaning, coins) / np.sqrt(size)
            scores = deviations.mean(1)
            best = int(scores.argmax())
            if scores[best] > score:
                score, part, signs = float(scores[best]), drawn[best], coins[best]
        rest = generator.standard_normal((len(self.basis), bits), dtype=np.float32)
        rest -= self.basis @ (self.basis.T @ rest)
        return self.basis @ part + rest, signs, score


def log10_p(activation: Tensor, matrix: Floats, signs: Floats) -> float:
    """The exact p-value of one reading, before any correction."""
    ones = (activation.numpy() @ matrix >= 0).sum(axis=0)
    return statistics.p_value(ones, (signs > 0).astype(int), len(activation)).log10_p


def grind(
    kind: str,
    noise: list[Tensor],
    pictures: list[Tensor],
    *,
    proxies: int,
    seeds: int,
    searches: int,
    done: Path,
) -> dict[str, Any]:
    """Grind keys on some models and read them on the others, on noise and on images."""
    rows = read_lines(done)
    for search in range(len(rows) // len(noise), searches):
        generator = np.random.default_rng([search, BITS[kind]])
        own = generator.permutation(len(noise))[:proxies].tolist()
        ground = Ground([noise[i] for i in own] + [pictures[i] for i in own])
        matrix, signs, score = ground.search(BITS[kind], seeds, generator)
        for i in range(len(noise)):
            found = min(log10_p(kept[i], matrix, signs) for kept in (noise, pictures))
            rows.append(
                {
                    "search": search,
                    "model": i,
                    "own": i in own,
                    "score": round(score, 3),
                    "log10_p": round(found, 3),
                }
            )
        add_lines(done, rows[-len(noise) :])
    unseen = [row["log10_p"] for row in rows if not row["own"]]
    return {
        "kind": kind,
        "bits": BITS[kind],
        "seeds": seeds,
        "searches": len(rows) // len(noise),
        "proxies": proxies,
        "proven": sum(row["log10_p"] <= level(kind) for row in rows),
        "would_be_proven_without_allowance": sum(Price(0).proves(value) for value in unseen),
        "unseen": len(unseen),
        "median_log10_p_unseen": float(np.median(unseen)),
        "smallest_log10_p_unseen": min(unseen),
        "smallest_log10_p_own": min(row["log10_p"] for row in rows if row["own"]),
        "needed_log10_p": level(kind),
        "rows": rows,
    }


@torch.no_grad()
def activations(half: Model, batch: Tensor) -> Tensor:
    """Activations at the cut, (n, d)."""
    return torch.cat([half(part).flatten(1) for part in batch.split(128)])


def alike(noise: list[Tensor]) -> float:
    """The mean cosine of the clean models' mean activations: why a key that fits one fits the others."""
    means = np.stack([one.mean(dim=0).numpy() for one in noise])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return float((means @ means.T)[np.triu_indices(len(means), 1)].mean())


def draw(path: Path, fresh: list[dict[str, Any]], ground: list[dict[str, Any]], seeds: int) -> None:
    """The p-values before the allowance, one panel per kind of key, with what proof takes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for axis, drawn, best in zip(axes, fresh, ground, strict=True):
        edges = np.linspace(level(drawn["kind"]) - 2, 0, 70)
        unseen = [row["log10_p"] for row in best["rows"] if not row["own"]]
        for values, label, colour in (
            (drawn["log10_p"], f"fresh keys, {drawn['pairs']:,} pairs", "#8a96a8"),
            (unseen, f"best of {seeds:,} seeds, {len(unseen)} pairs, models unseen", "#c4570f"),
        ):
            weights = np.full(len(values), 100 / len(values))
            axis.hist(values, bins=edges, weights=weights, alpha=0.75, color=colour, label=label)
        axis.axvline(Price(0).log10_level(), color="#1b2330", linestyle=":", label="proof without allowance")
        axis.axvline(
            level(drawn["kind"]), color="#1b2330", label=f"proof, 2^{ALLOWANCE[drawn['kind']]} allowed for"
        )
        axis.set(title=f"{drawn['kind']} keys, {drawn['bits']} bits", xlabel="log10 p before correction")
        axis.legend(fontsize=7, loc="upper left")
    axes[0].set_ylabel("share (%)")
    figure.tight_layout()
    figure.savefig(path, dpi=130, metadata={"Software": None})


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--models", type=int, default=8, help="clean models to train")
    parser.add_argument("--pairs", type=int, default=2_000, help="(key, model) pairs for each kind of key")
    parser.add_argument("--seeds", type=int, default=1_000_000, help="seeds that are drawn for a ground key")
    parser.add_argument("--searches", type=int, default=3, help="ground keys of each kind")
    parser.add_argument("--proxies", type=int, default=3, help="models that grinding sees")
    parser.add_argument("--kind", choices=tuple(BITS), help="measure this kind of key only, for --work")
    parser.add_argument("--work", type=Path, default=Path("build/claims"), help="where to keep what is done")
    parser.add_argument("--figure", type=Path, help="also draw the p-values into this file")
    arguments = parser.parse_args()

    digits = data.load("digits")
    (train_x, train_y), test_x = (digits.train.images, digits.train.labels), digits.test.images
    scaled = [torch.from_numpy(part.astype(np.float32)) / 127.5 - 1 for part in (train_x, test_x)]
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    labels = torch.from_numpy(train_y)
    halves = [
        clean_half(work / f"clean{seed}.safetensors", seed, scaled[0], labels)
        for seed in range(arguments.models)
    ]
    generator = torch.Generator().manual_seed(0)
    noise = [activations(half, torch.randn(PROBES, *INPUT, generator=generator)) for half in halves]
    pictures = [activations(half, scaled[1][:256]) for half in halves]
    print(f"{len(halves)} clean models, mean cosine of their mean activations {alike(noise):.2f}")

    fresh, ground = [], []
    for kind in [arguments.kind] if arguments.kind else BITS:
        fresh.append(try_fresh_keys(kind, halves, scaled[1], arguments.pairs, work / f"fresh-{kind}.jsonl"))
        print({name: value for name, value in fresh[-1].items() if name != "log10_p"}, flush=True)
        ground.append(
            grind(
                kind,
                noise,
                pictures,
                proxies=arguments.proxies,
                seeds=arguments.seeds,
                searches=arguments.searches,
                done=work / f"ground-{kind}.jsonl",
            )
        )
        print({name: value for name, value in ground[-1].items() if name != "rows"}, flush=True)
    if arguments.kind:
        return
    cosine = alike(noise)
    found = {"models": len(halves), "cosine_of_mean_activations": cosine, "fresh": fresh, "ground": ground}
    write_result(arguments.json, found)
    if arguments.figure:
        draw(arguments.figure, fresh, ground, arguments.seeds)


if __name__ == "__main__":
    main()
