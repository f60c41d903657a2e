"""What an imprint costs, what it survives, and whether its p-values are exact.

    python benchmarks/imprint.py --run reproduction/results/desk/models/a92a8e7bb5954189 --data-dir ~/data
    python benchmarks/imprint.py --exact

The first prints, for one training's client half, the accuracy and the deviations at which the pattern is
found after attacks of a thief with 5,000 images (Adam, rate falling to zero along a cosine). The second draws
20,000 patterns that a suspect knows nothing of and counts how often p is at most x: never more than x of them
should.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sigil
from sigil import attacks, models
from sigil.data import Dataset, load
from sigil.imprint import Imprint
from sigil.imprint_reading import filters_of_weight, spreads

RECIPIENTS = 20
THIEF_IMAGES = 5_000


class Subject:
    """One training's model, its imprint, and the data of who attacks a copy."""

    def __init__(self, run: Path, data: Dataset) -> None:
        self.key = sigil.Key.load(run / "owner.key")
        self.client, self.server = (models.load(run / f"{half}.safetensors") for half in ("client", "server"))
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (data.mean, data.std))

        def prepared(images: Any) -> Tensor:
            return ((torch.from_numpy(np.array(images)).float() / 255 - mean) / std).to(
                memory_format=torch.channels_last
            )

        self.test = prepared(data.test.images), torch.from_numpy(np.array(data.test.labels))
        chosen = np.random.default_rng(0).permutation(len(data.train))[:THIEF_IMAGES]
        self.train = (
            prepared(data.train.images[np.sort(chosen)]),
            torch.from_numpy(np.array(data.train.labels[np.sort(chosen)])),
        )
        self.copies = Imprint(self.key, self.client)
        self.names = [f"Recipient {number}" for number in range(RECIPIENTS)]
        self.halves = [self.copies.issue(name) for name in self.names]

    def whole(self, client: nn.Module) -> nn.Sequential:
        """A copy's client half with the server half."""
        return nn.Sequential(copy.deepcopy(client), copy.deepcopy(self.server))

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """In percent, on the test images."""
        model.eval()
        right = [
            (model(images).argmax(1) == labels).sum().item()
            for images, labels in zip(self.test[0].split(500), self.test[1].split(500), strict=True)
        ]
        return 100 * sum(right) / len(self.test[1])

    def trained(
        self, model: nn.Module, *, rate: float, epochs: int, teacher: nn.Module | None = None, seed: int = 0
    ) -> nn.Module:
        """Train further, with labels or by a teacher's logits at temperature 2."""
        images, labels = self.train
        random = torch.Generator().manual_seed(seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        steps, done = epochs * math.ceil(len(images) / 64), 0
        model.train()
        for _ in range(epochs):
            for batch in torch.randperm(len(images), generator=random).split(64):
                for group in optimizer.param_groups:
                    group["lr"] = rate * (1 + math.cos(math.pi * done / steps)) / 2
                seen = _augmented(images[batch], random)
                if teacher is None:
                    loss = F.cross_entropy(model(seen), labels[batch])
                else:
                    with torch.no_grad():
                        wanted = F.softmax(teacher(seen) / 2, 1)
                    loss = 4 * F.kl_div(F.log_softmax(model(seen) / 2, 1), wanted, reduction="batchmean")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                done += 1
        return model.eval()

    def patch_moments(self, client: nn.Module) -> dict[str, Tensor]:
        """The second moment of what each convolution reads, over 256 images."""
        found: dict[str, Tensor] = {}

        def note(name: str) -> Callable[..., None]:
            def hook(layer: nn.Conv2d, inputs: tuple[Tensor, ...], _: Tensor) -> None:
                padding = layer.padding[0] if isinstance(layer.padding[0], int) else 0
                patches = F.unfold(inputs[0], layer.kernel_size, padding=padding, stride=layer.stride)
                rows = patches.transpose(1, 2).reshape(-1, layer.weight[0].numel())
                rows = rows[:: max(1, len(rows) // 20_000)].double()
                found[name] = rows.T @ rows / len(rows)

            return hook

        hooks = [
            layer.register_forward_hook(note(f"{name}.weight"))
            for name, layer in client.named_modules()
            if isinstance(layer, nn.Conv2d)
        ]
        with torch.no_grad():
            client.eval()(self.train[0][:256])
        for hook in hooks:
            hook.remove()
        return found

    def noisy(self, client: nn.Module, size: float, shape: Mapping[str, Tensor] | None = None) -> nn.Module:
        """Add noise of `size` deviations of each filter, with `shape` large where inputs are small."""
        random = torch.Generator().manual_seed(1)
        found = copy.deepcopy(client)
        with torch.no_grad():
            for name, weight in found.named_parameters():
                if weight.ndim < 2:
                    continue
                rows = torch.randn(len(weight), weight[0].numel(), generator=random, dtype=torch.float64)
                if shape is not None:
                    values, vectors = torch.linalg.eigh(shape[name])
                    variance = values.clamp_min(1e-6 * float(values.max())) ** -0.7
                    rows = rows * (variance / variance.mean()).sqrt() @ vectors.T
                spread = torch.from_numpy(spreads(filters_of_weight(weight))).reshape(-1, 1)
                weight.add_((size * spread * rows).reshape(weight.shape).float())
        return found

    def row(self, what: str, model: nn.Sequential | nn.Module, known: int = 1) -> dict[str, Any]:
        """Accuracy and how the copies of the first `known` recipients are found."""
        outcome = sigil.trace(model[0].state_dict(), self.key, self.copies)  # type: ignore[index]
        found = {each.name: each for each in outcome.recipients}
        mine = [found[name] for name in self.names[:known]]
        others = [found[name] for name in self.names[known:]]
        row = {
            "attack": what,
            "accuracy": round(self.accuracy(model), 2),
            "deviations": [round(each.deviations, 1) for each in mine],
            "log10_p_before": round(max(each.log10_p_before for each in mine), 1),
            "named": f"{sum(each.contained for each in mine)} of {known}",
            "others": round(max(each.deviations for each in others), 1),
            "wrongly": sum(each.contained for each in others),
            "together": None if outcome.coalition is None else round(outcome.coalition.log10_p, 1),
            "together_right": None
            if outcome.coalition is None
            else f"{len(set(outcome.coalition.names) & set(self.names[:known]))} of "
            f"{len(outcome.coalition.names)}",
        }
        print(json.dumps(row), flush=True)
        return row


def _augmented(images: Tensor, random: torch.Generator) -> Tensor:
    """Each image shifted by up to four pixels and mirrored at random."""
    top, left = (int(torch.randint(0, 9, (1,), generator=random)) for _ in range(2))
    moved = F.pad(images, (4, 4, 4, 4))[:, :, top : top + 32, left : left + 32]
    mirrored = torch.rand(len(images), 1, 1, 1, generator=random) < 0.5
    return torch.where(mirrored, moved.flip(3), moved)


def _mean(halves: Sequence[nn.Module]) -> nn.Module:
    found = copy.deepcopy(halves[0])
    states = [half.state_dict() for half in halves]
    found.load_state_dict(
        {
            name: torch.stack([state[name].double() for state in states]).mean(0).to(value.dtype)
            for name, value in states[0].items()
        }
    )
    return found


def measure(run: Path, data_dir: Path | None, only: Sequence[str]) -> list[dict[str, Any]]:
    """All rows of the table."""
    subject = Subject(run, load("cifar10", data_dir=data_dir))
    first = subject.halves[0]
    rows = []

    def add(what: str, make: Callable[[], nn.Module], known: int = 1) -> None:
        if not only or any(word in what for word in only):
            rows.append(subject.row(what, make(), known))

    if not only or "cost" in only:
        plain = subject.accuracy(subject.whole(subject.client))
        for strength in (0.02, 0.03):
            imprint = Imprint(subject.key, subject.client, strength=strength)
            costs = [
                plain - subject.accuracy(subject.whole(imprint.issue(name))) for name in subject.names[:8]
            ]
            row = {
                "strength": strength,
                "accuracy": round(plain, 2),
                "lost": round(float(np.mean(costs)), 3),
                "most": round(max(costs), 2),
            }
            print(json.dumps(row), flush=True)
            rows.append(row)
    add("nothing", lambda: subject.whole(first))
    add("INT4", lambda: nn.Sequential(attacks.quantize(first, "int4"), subject.server))
    add("pruning 60 %", lambda: nn.Sequential(attacks.prune(first, 0.6), subject.server))
    add("fine-tuning", lambda: subject.trained(subject.whole(first), rate=1e-4, epochs=4))

    def after_noise(half: nn.Module, size: float, epochs: int) -> nn.Module:
        return subject.trained(subject.whole(subject.noisy(half, size)), rate=1e-3, epochs=epochs)

    for size in (0.3, 0.6, 1.0):
        add(f"noise {size}, retrained", partial(after_noise, first, size, 8))
    add(
        "shaped noise 0.9, distilled",
        lambda: subject.trained(
            subject.whole(subject.noisy(first, 0.9, subject.patch_moments(first))),
            rate=1e-3,
            epochs=8,
            teacher=subject.whole(first).eval(),
        ),
    )
    for number in (2, 5, 10):
        mixed = _mean(subject.halves[:number])
        add(f"average of {number}", partial(subject.whole, mixed), number)
        add(
            f"average of {number}, fine-tuned",
            partial(subject.trained, subject.whole(mixed), rate=5e-4, epochs=6),
            number,
        )
        add(f"average of {number}, noise 0.3, retrained", partial(after_noise, mixed, 0.3, 6), number)
    return rows


def exact(draws: int = 2_000, suspects: int = 10) -> list[dict[str, Any]]:
    """How often p is at most x, over patterns that the suspects know nothing of."""
    from sigil.imprint_reading import log10_p_before, read

    key = sigil.Key.generate("ACME", shape=(8, 4, 4), seed=bytes(32))
    random = torch.Generator().manual_seed(0)
    found = []
    for _ in range(suspects):
        ours = {"a": torch.randn(16, 8, 3, 3, generator=random), "b": torch.randn(8, 16, generator=random)}
        copies = Imprint(key, ours)
        theirs = {name: value + torch.randn(value.shape, generator=random) for name, value in ours.items()}
        reading = read(ours, theirs)
        found += [
            log10_p_before(reading.positive(copies.pattern(f"Recipient {number}")), reading.coins)
            for number in range(draws)
        ]
    p = 10.0 ** np.array(found)
    rows = [
        {"x": x, "share": float((p <= x).mean()), "draws": len(p)}
        for x in (0.9, 0.5, 0.2, 0.1, 0.05, 0.01, 0.001, 0.0001)
    ]
    for row in rows:
        print(json.dumps(row))
    return rows


def main() -> None:
    """Read the command line and print rows of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="rows whose name has one of these words")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = exact() if options.exact else measure(options.run, options.data_dir, options.only)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
