"""How fast and how small the training is, each claim as a ratio measured in one run.

    python benchmarks/training.py --json training.json

Steps of the variants are interleaved and medians taken. Memory is the peak of a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sigil
from sigil.data import Dataset, Split
from sigil.federation import Client, Federation, Server, Settings, Step, step
from sigil.federation.precision import Precision, choose
from sigil.federation.settings import make
from sigil_reproduction.runner.timing import interleaved

NOW = Step(round=1, client=0, step=1)


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    parameters = [value for module in modules for value in module.parameters()]
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=5e-4, fused=True)


def plain(model: nn.Module, images: Tensor, labels: Tensor, precision: Precision) -> Callable[[], None]:
    """The limit: the whole network, one graph, nothing in between."""
    optimizer = sgd(model)

    def run() -> None:
        with precision.autocast():
            logits = model(images)
        loss = F.cross_entropy(logits.float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return run


def split(
    model: nn.Module, images: Tensor, labels: Tensor, precision: Precision, strength: float
) -> Callable[[], None]:
    """One step of U-SFL as the federation does it."""
    client_half, server_half = sigil.models.split(model, "layer3")  # type: ignore[arg-type]
    shape = sigil.models.activation_shape(client_half, images.shape[1:])
    for half in (client_half, server_half):
        channels_last(half).train()
    injector = None
    if strength:
        injector = sigil.Injector(sigil.Key.generate("benchmark", shape=shape, bits=50), strength)
    client = Client(0, client_half, sgd(client_half), precision=precision)
    server = Server(server_half, sgd(server_half), shape=shape, precision=precision, injector=injector)
    return lambda: step(client, server, images, labels, at=NOW)


def research(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """The loop as research code writes it: contiguous float32, copies, a new optimizer every batch."""
    client_half, server_half = sigil.models.split(model, "layer3")  # type: ignore[arg-type]
    client_half.train()
    server_half.train()

    def run() -> None:
        client_optimizer = torch.optim.SGD(client_half.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
        server_optimizer = torch.optim.SGD(server_half.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
        client_optimizer.zero_grad()
        server_optimizer.zero_grad()
        activation = client_half(images)
        received = activation.clone().detach().requires_grad_(True)
        loss = F.cross_entropy(server_half(received), labels)
        loss.backward()
        server_optimizer.step()
        assert received.grad is not None
        activation.backward(received.grad.clone().detach())
        client_optimizer.step()

    return run


def compare_steps(width: int, batch: int, repeats: int, precision: Precision) -> dict[str, float]:
    model = sigil.models.build("resnet18", width=width, seed=0)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (batch,), generator=generator)
    fast = images.to(memory_format=torch.channels_last)
    whole = channels_last(copy.deepcopy(model)).train()
    seconds = interleaved(
        {
            "plain": plain(whole, fast, labels, precision),
            "split": split(model, fast, labels, precision, 0.0),
            "split, marked": split(model, fast, labels, precision, 0.1),
            "research": research(copy.deepcopy(model), images, labels),
        },
        repeats,
    )
    return {name: batch / time for name, time in seconds.items()}


def injector_share(width: int, batch: int, repeats: int, step_seconds: float) -> float:
    """Speed with the mark over speed without it, from the injector's own time: free of the steps' noise."""
    shape = (4 * width, 8, 8)
    injector = sigil.Injector(sigil.Key.generate("benchmark", shape=shape, bits=50), 0.1)
    generator = torch.Generator().manual_seed(0)
    activation = torch.rand(batch, *shape, generator=generator).to(memory_format=torch.channels_last)
    gradient = torch.randn(batch, *shape, generator=generator).to(memory_format=torch.channels_last)
    own = interleaved({"injector": lambda: injector(activation, gradient)}, repeats)["injector"]
    return step_seconds / (step_seconds + own)


def federation_of(clients: int) -> tuple[Settings, Dataset]:
    """20,000 random images, whatever the number of clients."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (20_000, 3, 32, 32), dtype=np.uint8)
    labels = random.integers(0, 10, 20_000)
    data = Split(images, labels)
    dataset = Dataset(
        "random", data, Split(images[:100], labels[:100]), 10, (3, 32, 32), (0.5,) * 3, (0.25,) * 3, "none"
    )
    settings = make(
        {
            "model": {"name": "resnet18", "width": 8},
            "data": {"name": "random"},
            "federation": {"clients": clients, "rounds": 1, "local_epochs": 1, "batch_size": 20},
            "watermark": {"strength": 0.0},
            "run": {"workers": 1},
        }
    )
    return settings, dataset


def round_in_own_process(clients: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--clients", str(clients)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(output)
    return result


def child(clients: int) -> None:
    settings, dataset = federation_of(clients)
    result = Federation(settings, dataset).run_round()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": result.seconds, "peak_mb": peak, "images": result.images}))


def channels_last(module: nn.Module) -> nn.Module:
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--width", type=int, default=16, help="for the comparison with plain training")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--wide-repeats", type=int, default=3, help="steps at width 64, batch 256")
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--clients", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.clients:
        child(options.clients)
        return

    if options.threads:
        torch.set_num_threads(options.threads)
    precision = choose("cpu", options.precision)
    small = compare_steps(options.width, options.batch, options.repeats, precision)
    wide = compare_steps(64, 256, options.wide_repeats, precision)
    few, many = round_in_own_process(10), round_in_own_process(1000)
    rows: list[tuple[str, float, str]] = [
        (f"U-SFL / plain training, width {options.width}", small["split"] / small["plain"], ">= 0.95"),
        (f"with mark / without, width {options.width}", small["split, marked"] / small["split"], ">= 0.98"),
        (
            f"the same from the injector's own time, width {options.width}",
            injector_share(options.width, options.batch, options.repeats, options.batch / small["split"]),
            ">= 0.98",
        ),
        ("U-SFL / plain training, width 64", wide["split"] / wide["plain"], ">= 0.95"),
        ("with mark / without, width 64", wide["split, marked"] / wide["split"], ">= 0.98"),
        (
            "the same from the injector's own time, width 64",
            injector_share(64, 256, options.repeats, 256 / wide["split"]),
            ">= 0.98",
        ),
        ("U-SFL / research loop, width 64, batch 256", wide["split"] / wide["research"], ">= 2.4"),
        ("peak memory, 1,000 clients / 10 clients", many["peak_mb"] / few["peak_mb"], "<= 1.2"),
        ("time a round, 1,000 clients / 10 clients", many["seconds"] / few["seconds"], "report"),
    ]
    name = precision.number_format
    print(f"ResNet-18, cut layer3, channels-last {name}, {torch.get_num_threads()} threads\n")
    print("| claim | measured | must reach |\n| --- | --- | --- |")
    for claim, value, target in rows:
        print(f"| {claim} | {value:.3f} | {target} |")
    print("\n| variant | images/s, width", options.width, "| images/s, width 64 |\n| --- | --- | --- |")
    for variant in small:
        print(f"| {variant} | {small[variant]:.0f} | {wide[variant]:.1f} |")
    if options.json:
        result: dict[str, Any] = {
            "claims": [{"claim": c, "measured": v, "target": t} for c, v, t in rows],
            "images_per_second": {"small": small, "wide": wide},
            "rounds": {"10 clients": few, "1000 clients": many},
            "setting": {"precision": name, "threads": torch.get_num_threads(), "cores": os.cpu_count()},
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
