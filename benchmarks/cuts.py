"""How the choice of the cut decides whether a mark can be trained in, and on what it can be read.

    python benchmarks/cuts.py --json benchmarks/results/cuts.json

The loop of docs/own-server.md on the digits, three convolutions, cut behind the first, the second and the
third: 128 bits, eight epochs on 1,400 images, three seeds. The mark is read on noise and on the other 397
images by `sigil.check`, with a plain key.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import sigil
from common import command_line, write_result

LAYERS = ((1, 16, 1), (16, 32, 2), (32, 64, 2))
SHAPES = ((16, 8, 8), (32, 4, 4), (64, 2, 2))
BITS = 128
TRAINED = 1400


def stack(layers: tuple[tuple[int, int, int], ...]) -> list[nn.Module]:
    """Convolutions with batch norm and ReLU."""
    return [
        part
        for inputs, outputs, stride in layers
        for part in (nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU())
    ]


def measure(depth: int, *, seed: int, strength: float) -> dict[str, Any]:
    """Train with a cut behind `depth` convolutions, and read the mark both ways."""
    torch.manual_seed(seed)
    images, labels = (torch.tensor(column) for column in load_digits(return_X_y=True))
    images = images.float().view(-1, 1, 8, 8) / 8 - 1
    client = nn.Sequential(*stack(LAYERS[:depth]))
    server = nn.Sequential(
        *stack(LAYERS[depth:]), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    parameters = [*client.parameters(), *server.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4)
    key = sigil.Key.generate(
        "ACME",
        shape=SHAPES[depth - 1],
        bits=BITS,
        seed=bytes([seed]) * 32,
        input_shape=(1, 8, 8),
    )
    injector = sigil.Injector(key, strength=strength)
    for _ in range(8):
        for batch in torch.randperm(TRAINED).split(32):
            activation = client(images[batch] + 0.5 * torch.randn(len(batch), 1, 8, 8))
            injector.attach(activation)
            loss = cross_entropy(server(activation), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    client.eval(), server.eval()
    with torch.no_grad():
        right = server(client(images[TRAINED:])).argmax(1) == labels[TRAINED:]
    found = sigil.check(client, key, images[TRAINED:], inputs_from="judge")
    row: dict[str, Any] = {
        "convolutions": depth,
        "shape": list(key.shape),
        "seed": seed,
        "strength": strength,
    }
    row["accuracy"] = round(float(right.float().mean()), 4)
    for reading in found.readings:
        row |= {f"wsr_{reading.kind}": reading.wsr, f"log10_p_before_{reading.kind}": reading.log10_p_before}
    return row | {"provable_by": list(found.by)}


def spread(rows: list[dict[str, Any]], name: str, factor: float = 1.0) -> str:
    """The least and the greatest of a number over the seeds."""
    values = [factor * row[name] for row in rows]
    return f"{min(values):.1f} to {max(values):.1f}"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    rows = []
    for strength in (0.1, 0.3):
        for depth in (1, 2, 3):
            found = [measure(depth, seed=seed, strength=strength) for seed in range(arguments.seeds)]
            rows += found
            print(
                f"λ = {strength}, {depth} convolutions: accuracy {spread(found, 'accuracy', 100)} %, noise "
                f"{spread(found, 'wsr_noise', 100)} % (log10 p before correction "
                f"{spread(found, 'log10_p_before_noise')}), inputs {spread(found, 'wsr_inputs', 100)} % "
                f"(log10 p before correction {spread(found, 'log10_p_before_inputs')}), provable "
                f"{sum(bool(row['provable_by']) for row in found)} of {len(found)}",
                flush=True,
            )
    write_result(arguments.json, {"bits": BITS, "rows": rows})


if __name__ == "__main__":
    main()
