"""Time of an alignment: 512 channels in under 10 s on two cores, by each of the three ways.

    python benchmarks/alignment.py --json alignment.json

The suspect is a ResNet-18 at full width cut at layer4, which has 512 channels there, with random weights;
the reference is recorded over 2,000 random pictures of smooth blobs. "copy" is the model itself in another
order and at other scales; "stranger" is another one, for which the search is repeated until it gives up, the
longest that an alignment can take. "forward" is the part of the time in which the suspect itself computes.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from common import command_line, write_result
from sigil import attacks, models
from sigil.alignment import Alignment, Reference, align
from sigil.federation.observers import Step
from sigil.federation.recording import ReferenceRecorder

SHAPE = (3, 32, 32)
CLAIM = 10.0


def pictures(count: int, *, seed: int) -> Tensor:
    """Random blobs: noise that is smooth enough for channels to respond differently."""
    coarse = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, size=SHAPE[1:], mode="bilinear")


@torch.no_grad()
def recorded(half: models.Model) -> Reference:
    """What a server would have recorded of this half."""
    shape = models.activation_shape(half, SHAPE)
    recorder = ReferenceRecorder(shape)
    for batch in pictures(2_000, seed=1).split(100):
        activation = half(batch)
        recorder.on_gradient_sent(Step(1, 0, 1), activation=activation, main=activation, final=activation)
    return Reference.from_sums(shape, recorder.sums)


def timed(
    suspect: models.Model, reference: Reference | models.Model, probes: Tensor | None
) -> tuple[float, float, Alignment]:
    """Seconds in all, seconds in the suspect's own forward pass, and what was found."""
    began: list[float] = []
    spent: list[float] = []
    hooks = [
        suspect.register_forward_pre_hook(lambda *_: began.append(time.perf_counter())),
        suspect.register_forward_hook(lambda *_: spent.append(time.perf_counter() - began[-1])),
    ]
    start = time.perf_counter()
    found = align(suspect, reference, probes, input_shape=SHAPE)
    seconds = time.perf_counter() - start
    for hook in hooks:
        hook.remove()
    return seconds, sum(spent), found


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--width", type=int, default=64, help="width of the model: 64 gives 512 channels")
    arguments = parser.parse_args()
    owner, other = (
        models.build("resnet18", width=arguments.width, classes=10, input_size=SHAPE[1:], seed=seed).eval()
        for seed in (0, 1)
    )
    half = models.split(owner, "layer4")[0]
    copy = models.split(attacks.permute(owner, cut="layer4", seed=2), "layer4")[0]
    stranger = models.split(other, "layer4")[0]
    reference = recorded(half)
    ways: dict[str, tuple[Reference | models.Model, Tensor | None]] = {
        "400 images": (reference, pictures(400, seed=3)),
        "1,024 noise inputs": (reference, None),
        "initial weights": (half, None),
    }
    rows: list[dict[str, Any]] = []
    head = ("channels", "believed", "forward", "claim", "time")
    print(f"{'compared by':>18} {'suspect':>9} " + " ".join(f"{name:>8}" for name in head))
    for way, (known, probes) in ways.items():
        for name, suspect in (("copy", copy), ("stranger", stranger)):
            seconds, forward, found = timed(suspect, known, probes)
            rows.append(
                {
                    "compared_by": way,
                    "suspect": name,
                    "channels": len(found.order),
                    "believed": found.believed,
                    "seconds": seconds,
                    "forward_seconds": forward,
                    "claim_seconds": CLAIM,
                    "met": seconds < CLAIM,
                }
            )
            believed = "yes" if found.believed else "no"
            print(
                f"{way:>18} {name:>9} {len(found.order):>8} {believed:>8} {forward:>6.2f} s {CLAIM:>6.0f} s "
                f"{seconds:>6.2f} s",
                flush=True,
            )
    write_result(arguments.json, {"rows": rows})


if __name__ == "__main__":
    main()
