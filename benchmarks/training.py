"""How fast and how small the training is, each claim as a ratio measured in one run.

    python benchmarks/training.py --json training.json
    python benchmarks/training.py --only-scale --json scale.json --figure scale.png

Steps of the variants are interleaved and medians taken. Memory is the peak of a process of its own.

*Scale*: 10 to 10,000 simulated clients with 20 images each, marked, batches of 20, one local epoch, one
process with one thread. A pool of 20,000 random images serves all, so that memory which grows is the
training's. All clients take part in a round, or one in a hundred (at least one). Each training is a
process of its own: some clients to warm up, then at least three rounds and 2,000 images, or one round of
1,000 clients or more. A ratio to ten clients is that inside a repetition; time is processor time, which
other work disturbs less.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sigil
from common import command_line, print_claims, write_result
from sigil.data import Dataset, Split
from sigil.federation import Client, Federation, Server, Settings, Step, step
from sigil.federation.from_settings import Training, build_halves
from sigil.federation.precision import Precision, choose
from sigil.federation.settings import make
from sigil.federation.trainer import LocalTrainer, RoundStart
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


POOL, SHARD = 20_000, 20
SIZES = (10, 100, 1_000, 10_000)


def federation_of(clients: int, **watermark: float) -> tuple[Settings, Dataset]:
    """20,000 random images, whatever the number of clients."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (POOL, 3, 32, 32), dtype=np.uint8)
    labels = random.integers(0, 10, POOL)
    data = Split(images, labels)
    dataset = Dataset(
        "random", data, Split(images[:100], labels[:100]), 10, (3, 32, 32), (0.5,) * 3, (0.25,) * 3, "none"
    )
    settings = make(
        {
            "model": {"name": "resnet18", "width": 8},
            "data": {"name": "random"},
            "federation": {"clients": clients, "rounds": 1, "local_epochs": 1, "batch_size": SHARD},
            "watermark": watermark,
            "run": {"workers": 1},
        }
    )
    return settings, dataset


def in_own_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(output)
    return result


def child(clients: int) -> None:
    settings, dataset = federation_of(clients, strength=0.0)
    result = Federation(settings, dataset).run_round()
    print(json.dumps({"seconds": result.seconds, "peak_mb": peak_mb(), "images": result.images}))


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def scaled(clients: int, share: float) -> None:
    """Rounds in which this share of the clients take part; each client has its 20 images of the pool."""
    torch.set_num_threads(1)
    settings, dataset = federation_of(clients)
    shape = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape).shape
    key = sigil.Key.generate("benchmark", shape=shape, bits=64, seed=bytes(range(32)))
    training = Training.prepare(settings, dataset, key=key)
    random = np.random.default_rng(0)
    starts = np.arange(clients) * SHARD % POOL
    training.parts = [np.arange(start, start + SHARD) for start in starts]
    trainer = LocalTrainer(training)
    halves = training.halves
    start = RoundStart(
        1, 1e-3, copy.deepcopy(halves.client.state_dict()), copy.deepcopy(halves.server.state_dict())
    )
    chosen = max(1, round(share * clients))
    trainer.train(start, clients=range(min(chosen, 10)))
    seconds: list[float] = []
    images = 0
    while images < 2_000 or len(seconds) < 3:
        began = time.process_time()
        sums = trainer.train(start, clients=sorted(random.choice(clients, chosen, replace=False).tolist()))
        sums.client.result()
        sums.server.result()
        seconds.append(time.process_time() - began)
        images += sums.images
        if chosen >= 1_000:
            break
    result = {
        "clients": clients,
        "taking_part": chosen,
        "rounds": len(seconds),
        "cpu_seconds_per_round": statistics.median(seconds),
        "cpu_seconds_per_image": sum(seconds) / images,
        "peak_mb": peak_mb(),
    }
    print(json.dumps(result))


def scale(repeats: int, sizes: Sequence[int]) -> list[dict[str, float]]:
    """Every number of clients, all or one in a hundred of them, again and again."""
    found = []
    for repetition in range(repeats):
        for share in (1.0, 0.01):
            for clients in sizes:
                row = in_own_process("--clients", str(clients), "--share", str(share))
                found.append({"repetition": repetition, "share": share, **row})
                print(found[-1], file=sys.stderr, flush=True)
    return found


def scale_table(found: list[dict[str, float]]) -> list[dict[str, float]]:
    """Medians over the repetitions, and ratios to the fewest clients inside each."""
    few = min(row["clients"] for row in found)
    base = {(row["repetition"], row["share"]): row for row in found if row["clients"] == few}
    table: dict[tuple[float, float], list[dict[str, float]]] = {}
    for row in found:
        first = base[row["repetition"], row["share"]]
        ratios = {f"{name}_ratio": row[name] / first[name] for name in ("cpu_seconds_per_image", "peak_mb")}
        table.setdefault((row["share"], row["clients"]), []).append(row | ratios)
    return [
        {name: statistics.median(row[name] for row in rows) for name in rows[0]} for rows in table.values()
    ]


def show_scale(found: list[dict[str, float]], options: argparse.Namespace) -> None:
    """The table, the figure and the file of the numbers of clients."""
    table = scale_table(found)
    columns = (
        *("clients", "in a round", "CPU s per round", "CPU ms per client", "memory, MB"),
        *("memory / fewest", "time per image / fewest"),
    )
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")
    for row in table:
        each = 1000 * row["cpu_seconds_per_round"] / row["taking_part"]
        print(
            f"| {row['clients']:,.0f} | {row['taking_part']:,.0f} | {row['cpu_seconds_per_round']:.2f} | "
            f"{each:.1f} | {row['peak_mb']:.0f} | {row['peak_mb_ratio']:.3f} | "
            f"{row['cpu_seconds_per_image_ratio']:.2f} |"
        )
    if options.figure:
        draw_scale(table, options.figure)
    targets = {"memory / fewest": "<= 1.2", "time per image / fewest": "<= 1.3"}
    write_result(options.json, {"targets": targets, "table": table, "trainings": found})


def draw_scale(table: list[dict[str, float]], file: Path) -> None:
    """Memory and time over the number of clients."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for share, label, style in ((1.0, "all take part", "o-"), (0.01, "1 % take part", "s--")):
        rows = [row for row in table if row["share"] == share]
        counts = [row["clients"] for row in rows]
        axes[0].plot(counts, [row["peak_mb"] for row in rows], style, label=label)
        axes[1].plot(counts, [1000 * row["cpu_seconds_per_image"] for row in rows], style, label=label)
    for axis, title in zip(axes, ("peak memory, MB", "processor time per image, ms"), strict=True):
        axis.set(xscale="log", xlabel="clients", ylabel=title, ylim=(0, 1.15 * axis.dataLim.ymax))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, loc="lower right")
    figure.savefig(file, dpi=150)


def channels_last(module: nn.Module) -> nn.Module:
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--width", type=int, default=16, help="for the comparison with plain training")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--wide-repeats", type=int, default=3, help="steps at width 64, batch 256")
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--only-scale", action="store_true", help="10 to 10,000 clients, and end")
    parser.add_argument("--scale-repeats", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of clients")
    parser.add_argument("--figure", type=Path, help="of the scale")
    parser.add_argument("--clients", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.share:
        scaled(options.clients, options.share)
        return
    if options.clients:
        child(options.clients)
        return
    if options.only_scale:
        show_scale(scale(options.scale_repeats, options.sizes), options)
        return

    if options.threads:
        torch.set_num_threads(options.threads)
    precision = choose("cpu", options.precision)
    small = compare_steps(options.width, options.batch, options.repeats, precision)
    wide = compare_steps(64, 256, options.wide_repeats, precision)
    few, many = in_own_process("--clients", "10"), in_own_process("--clients", "1000")
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
    claims = print_claims(rows)
    print("\n| variant | images/s, width", options.width, "| images/s, width 64 |\n| --- | --- | --- |")
    for variant in small:
        print(f"| {variant} | {small[variant]:.0f} | {wide[variant]:.1f} |")
    write_result(
        options.json,
        {
            "claims": claims,
            "images_per_second": {"small": small, "wide": wide},
            "rounds": {"10 clients": few, "1000 clients": many},
            "setting": {"precision": name, "threads": torch.get_num_threads()},
        },
    )


if __name__ == "__main__":
    main()
