"""Where the time of a training step goes, and what each way to make it faster is worth.

    python benchmarks/step.py --json step.json

One thread. Speeds are images per CPU second, medians over turns in which the variants alternate; the first is
the loop as it was before any of them. The profile is of the federation's own step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import sigil
from common import command_line, write_result
from sigil import eager
from sigil.data.batches import Batches
from sigil.federation import Client, Server, Step, step
from sigil.federation.precision import Precision, choose
from sigil_reproduction.runner.timing import interleaved

NOW = Step(round=1, client=0, step=1)
RATE = 1e-3
KINDS = {
    "convolution": ("conv",),
    "batch norm": ("batch_norm",),
    "ReLU and its gradient": ("relu", "threshold", "clamp_min"),
    "optimizer": ("sgd",),
    "conversion and copies": ("copy_", "to_copy", "contiguous", "aten::to", "clone"),
}


def batches(images: int, batch: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Batches as a client makes them: shuffled, cropped, flipped, normalised."""
    random = np.random.default_rng(0)
    data = Batches(
        random.integers(0, 256, (images, 3, 32, 32), dtype=np.uint8),
        random.integers(0, 10, images),
        np.arange(images - images % batch),  # full batches only
        batch_size=batch,
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        augment="crop-flip",
        memory_format=torch.channels_last,
    )
    generator = torch.Generator().manual_seed(0)
    state = {"epoch": data.epoch(generator)}

    def load() -> tuple[torch.Tensor, torch.Tensor]:
        for found in state["epoch"]:
            return found
        state["epoch"] = data.epoch(generator)
        return next(state["epoch"])

    return load


def plain(
    width: int,
    batch: int,
    *,
    last: bool,
    fused: bool | None,
    foreach: bool | None,
    bfloat16: bool,
    compiled: bool,
) -> Callable[[], None]:
    """The whole network as one graph."""
    model: nn.Module = sigil.models.build("resnet18", width=width, seed=0).train()
    layout = torch.channels_last if last else torch.contiguous_format
    model = model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = eager.SGD(
        model.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4, fused=fused, foreach=foreach
    )
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, 32, 32, generator=generator).to(memory_format=layout)
    labels = torch.randint(10, (batch,), generator=generator)
    precision = Precision(torch.device("cpu"), bfloat16=bfloat16, channels_last=last)
    forward = torch.compile(model) if compiled else model

    def run() -> None:
        with precision.autocast():
            logits = forward(images)
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()

    return run


def federated(
    width: int, batch: int, precision: Precision
) -> tuple[Callable[[], None], Callable[[], object]]:
    """A step of U-SFL with the paper's mark as the federation makes it, with loading; and loading alone."""
    halves = sigil.models.split(sigil.models.build("resnet18", width=width, seed=0), "layer3")
    shape = sigil.models.activation_shape(halves[0], (3, 32, 32))
    client_half, server_half = halves
    for half in halves:
        half.to(memory_format=precision.layout)  # type: ignore[call-overload]
        half.train()
    injector = sigil.Injector(sigil.Key.generate("benchmark", shape=shape, bits=50), 0.1)

    def sgd(half: nn.Module) -> torch.optim.Optimizer:
        return eager.SGD(half.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4, fused=True)

    client = Client(0, client_half, sgd(client_half), precision=precision)
    server = Server(server_half, sgd(server_half), shape=shape, precision=precision, injector=injector)
    load = batches(4096, batch)
    return (lambda: step(client, server, *load(), at=NOW)), load


def speeds(variants: dict[str, tuple[int, Callable[[], object]]], turns: int) -> dict[str, float]:
    """Images per CPU second, in turns of 256 images or more."""

    def turn(batch: int, run: Callable[[], object]) -> Callable[[], None]:
        def several() -> None:
            for _ in range(_steps(batch)):
                run()

        return several

    seconds = interleaved(
        {name: turn(batch, run) for name, (batch, run) in variants.items()}, turns, clock=time.process_time
    )
    return {name: batch * _steps(batch) / seconds[name] for name, (batch, _) in variants.items()}


def _steps(batch: int) -> int:
    return max(1, 256 // batch)


def profile(run: Callable[[], object], repeats: int) -> dict[str, float]:
    """Which share (%) of the time of all operations goes into which kind."""
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        for _ in range(repeats):
            run()
    shares = dict.fromkeys([*KINDS, "other operations"], 0.0)
    for row in recorded.key_averages():
        name = row.key.lower()
        kind = next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), None)
        shares[kind or "other operations"] += row.self_cpu_time_total
    total = sum(shares.values())
    return {kind: 100 * value / total for kind, value in shares.items()}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    width, batch = options.width, options.batch
    automatic = choose("cpu")

    def variant(size: int = batch, **changes: Any) -> tuple[int, Callable[[], None]]:
        usual: dict[str, Any] = {
            "last": False,
            "fused": None,
            "foreach": False,
            "bfloat16": False,
            "compiled": False,
        }
        return size, plain(width, size, **usual | changes)

    fast: dict[str, Any] = {"last": True, "fused": True, "foreach": None}
    run, load = federated(width, batch, automatic)
    variants: dict[str, tuple[int, Callable[[], object]]] = {
        "contiguous float32, plain optimizer": variant(),
        "foreach optimizer": variant(foreach=True),
        "fused optimizer": variant(fused=True, foreach=None),
        "channels-last": variant(last=True),
        "channels-last, fused": variant(**fast),
        "channels-last, fused, batch 16": variant(16, **fast),
        "channels-last, fused, batch 256": variant(256, **fast),
        "channels-last, fused, torch.compile": variant(**fast, compiled=True),
        **(
            {
                "channels-last, fused, bfloat16": variant(**fast, bfloat16=True),
                "channels-last, fused, bfloat16, batch 256": variant(256, **fast, bfloat16=True),
                "channels-last, fused, bfloat16, torch.compile": variant(
                    **fast, bfloat16=True, compiled=True
                ),
            }
            if automatic.bfloat16
            else {}
        ),
        f"U-SFL with mark and loading, {automatic.number_format}": (batch, run),
        "loading alone": (batch, load),
    }
    found = speeds(variants, options.turns)
    shares = profile(run, 20)
    first = next(iter(found.values()))
    print(f"ResNet-18, width {width}, batch {batch} unless stated, {automatic.describe()}\n")
    print("| variant | images per CPU second | ratio |\n| --- | --- | --- |")
    for name, speed in found.items():
        print(f"| {name} | {speed:.0f} | {speed / first:.2f} |")
    print("\n| part of a step | % |\n| --- | --- |")
    for kind, share in shares.items():
        print(f"| {kind} | {share:.1f} |")
    setting = {"width": width, "batch": batch, "turns": options.turns, **automatic.describe()}
    write_result(
        options.json, {"images_per_cpu_second": found, "profile_percent": shares, "setting": setting}
    )


if __name__ == "__main__":
    main()
