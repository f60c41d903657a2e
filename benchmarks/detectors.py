"""What a detector costs a client: each one's update relative to the client's own forward and backward pass.

All are run in turns in one process and medians taken, so that a busy machine disturbs all of them alike.

    python benchmarks/detectors.py --json detectors.json
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import sigil
from common import command_line, write_result
from sigil.detectors import GradientScrutinizer, SplitGuard, SplitOut
from sigil.federation.precision import Precision, choose
from sigil_reproduction.runner.timing import interleaved

CLASSES = 10


def client_step(half: nn.Module, images: Tensor, gradient: Tensor, precision: Precision) -> None:
    """The client's own work on a batch: forward, and backward from the gradient that arrived."""
    with precision.autocast():
        activation = half(images)
    half.zero_grad(set_to_none=True)
    activation.backward(gradient.to(activation.dtype))


def forward(half: nn.Module, images: Tensor, precision: Precision) -> None:
    with precision.autocast():
        half(images)


def full_scrutinizer(steps: int) -> GradientScrutinizer:
    """One with a long past, which gives a score at every batch."""
    detector = GradientScrutinizer(every=1)
    for name in ("step", "same", "same_spread", "different", "different_spread"):
        detector.curves[name] = torch.rand(steps).tolist()
    return detector


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--cut", default="layer3")
    parser.add_argument("--local", type=int, default=50, help="local gradients of SplitOut: 1 %% of 5,000")
    parser.add_argument("--past", type=int, default=3200, help="steps before: 80 rounds of 40")
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    options = parser.parse_args()

    precision = choose("cpu", options.precision)
    random = torch.Generator().manual_seed(0)
    whole = sigil.models.build("resnet18", classes=CLASSES, width=options.width, seed=0)
    half, _ = sigil.models.split(whole, options.cut)
    half = half.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    shape = sigil.models.activation_shape(half, (3, 32, 32))
    images = torch.randn(options.batch, 3, 32, 32, generator=random).to(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (options.batch,), generator=random)
    centres = torch.randn(CLASSES, *shape, generator=random)
    gradient = centres[labels] + torch.randn(options.batch, *shape, generator=random)
    gradient = gradient.to(memory_format=torch.channels_last) if gradient.ndim == 4 else gradient

    scrutinizer, scoring = GradientScrutinizer(every=10**9), full_scrutinizer(options.past)
    local = torch.randn(options.local, *shape, generator=random)
    out, guard = SplitOut([local]), SplitGuard(CLASSES, warmup=0)
    median = interleaved(
        {
            "client forward": lambda: forward(half, images, precision),
            "client forward and backward": lambda: client_step(half, images, gradient, precision),
            "Gradient Scrutinizer": lambda: scrutinizer.update(gradient, labels),
            "Gradient Scrutinizer, a step with a score": lambda: scoring.update(gradient, labels),
            "SplitOut": lambda: out.update(gradient, labels),
            "SplitGuard": lambda: guard.update(gradient, labels),
        },
        options.repeats,
    )
    both = median["client forward and backward"]
    backward = both - median["client forward"]
    targets = {"Gradient Scrutinizer": "<= 0.25"}
    rows = [
        {
            "part": part,
            "milliseconds": 1000 * seconds,
            "of forward and backward": seconds / both,
            "of backward": seconds / backward,
            "target": targets.get(part, ""),
        }
        for part, seconds in median.items()
    ]
    name = precision.number_format
    print(
        f"ResNet-18 width {options.width}, cut {options.cut} (d = {gradient[0].numel():,}), batch "
        f"{options.batch}, channels-last {name}, {torch.get_num_threads()} threads, medians of "
        f"{options.repeats}; SplitOut with {options.local} local gradients\n"
    )
    print("| part | ms | of the client's forward and backward | of its backward | must reach |")
    print("| --- | --- | --- | --- | --- |")
    for row in rows:
        print(
            f"| {row['part']} | {row['milliseconds']:.1f} | {row['of forward and backward']:.3f} | "
            f"{row['of backward']:.3f} | {row['target']} |"
        )
    write_result(options.json, {"rows": rows, "setting": vars(options) | {"precision": name}})


if __name__ == "__main__":
    main()
