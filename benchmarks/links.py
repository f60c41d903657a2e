"""How long a step's messages take over slow links in each format of the wire, and what they take at least.

    PYTHONPATH=tests python benchmarks/links.py --json benchmarks/results/links.json \\
        --figure benchmarks/results/links.png

A client and the service, in processes of their own on the loopback interface with mutual TLS, exchange
the four messages of a step through a link with a bandwidth and a latency
(``tests/harness/slow_link.py``). As in ``network.py`` the halves compute nothing, on either side: what
arithmetic takes comes on top and is the same for all. The wires take turns, and a figure is the median
over the turns. *Least* is what no implementation gets below: both large messages at the link's bandwidth,
and two round trips, as the logits must be at the client before the gradient of its loss can leave.

    PYTHONPATH=tests python benchmarks/links.py --sparse --json benchmarks/results/sparse.json

What a sparse wire would leave of accuracy and mark, in the trainings of ``network.py --only-wires`` in
one process: of each sample's activation and of its gradient a share of the numbers, the largest, and a
fifth as many again that are drawn; the others are zero. Nothing is fed back: what was left out belongs to
a sample that the next step has not got.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common import command_line, write_result
from harness.slow_link import SlowLink
from network import CLIENTS, Service, batch_of, settings_of, small_training, stepping
from sigil.federation import Activation, CutGradient, Federation, LogitGradient, Logits, Server
from sigil.federation.from_settings import build_halves, load_data
from sigil.keys.key import Key
from sigil.transport import certificates
from sigil.transport.wire import Wire

BYTES: dict[Wire, int] = {"float32": 4, "bfloat16": 2, "int8": 1}


def measure(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Seconds of a step for each link and wire."""
    certificates.make(folder, clients=CLIENTS)
    services = {wire: Service(folder, settings_of(options), wire=wire, computes=False) for wire in BYTES}
    shape = services["float32"].shape
    activation, labels = batch_of(shape, options.batch)
    ways: list[tuple[float | None, float]] = [(None, 0.0)]
    ways += [(mbits, round_trip) for mbits in options.mbits for round_trip in options.round_trips]
    for mbits, round_trip in ways:
        links = {
            wire: SlowLink(service.address, mbits=mbits, round_trip=round_trip)
            for wire, service in services.items()
        }
        # A client of its own for each way: a round goes on where it was left.
        remotes = {
            wire: service.client(ways.index((mbits, round_trip)), links[wire].address)
            for wire, service in services.items()
        }
        times: dict[Wire, list[float]] = {wire: [] for wire in BYTES}
        for turn in range(options.warm + options.turns):
            for wire, remote in remotes.items():
                began = time.perf_counter()
                stepping(remote, activation, labels)()
                if turn >= options.warm:
                    times[wire].append(time.perf_counter() - began)
        for wire in BYTES:
            remotes[wire].close()
            links[wire].close()
            large = 8e-6 * BYTES[wire] * options.batch * math.prod(shape)
            yield {
                "mbits": mbits,
                "round_trip": round_trip,
                "wire": wire,
                "seconds": statistics.median(times[wire]),
                "least": 2 * round_trip + (0.0 if mbits is None else 2 * large / mbits),
                "all": times[wire],
            }
    for service in services.values():
        service.close()


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Time of a step over latency, a panel for each bandwidth."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    bandwidths = sorted({row["mbits"] for row in rows if row["mbits"] is not None})
    figure, axes = pyplot.subplots(1, len(bandwidths), figsize=(9, 3.4), layout="constrained", squeeze=False)
    for axis, mbits in zip(axes[0], bandwidths, strict=True):
        for index, wire in enumerate(BYTES):
            here = [row for row in rows if row["mbits"] == mbits and row["wire"] == wire]
            latencies = [1000 * row["round_trip"] for row in here]
            axis.plot(latencies, [row["seconds"] for row in here], f"C{index}o-", label=wire)
            axis.plot(latencies, [row["least"] for row in here], f"C{index}:")
        axis.plot([], [], "k:", label="least that the link takes")
        axis.set(
            xlabel="round trip, ms", ylabel="messages of a step, s", title=f"{mbits:g} Mbit/s", ylim=(0, None)
        )
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(file, dpi=150)


def thinned(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Of each sample, (N, *shape), a share of its numbers, the largest, and a fifth as many others."""
    rows = values.flatten(1).float()
    count = max(1, round(share * rows.shape[1]))
    rank = rows.abs()
    rank.scatter_(1, rank.topk(count).indices, math.inf)
    drawn = torch.rand(rank.shape, generator=generator) < 0.2 * share / (1 - share)
    return torch.where(torch.isinf(rank) | drawn, rows, 0.0).reshape(values.shape).to(values)


class SparseServer(Server):
    """A server behind a sparse wire: it gets and sends a share of the numbers only."""

    share = 1.0

    def forward(self, message: Activation) -> Logits:
        self.random = torch.Generator().manual_seed(hash((self.round, self.client, self.steps)))
        return super().forward(Activation(thinned(message.values, self.share, self.random)))

    def backward(self, message: LogitGradient) -> CutGradient:
        return CutGradient(thinned(super().backward(message).values, self.share, self.random))


def sparse(share: float, rounds: int, seed: int) -> dict[str, float]:
    """One training behind a sparse wire, or behind one that carries everything."""
    settings = small_training(rounds, seed)
    dataset = load_data(settings)
    shape = build_halves(settings, classes=dataset.classes, input_shape=dataset.shape).shape
    key = Key.generate("benchmark", shape=shape, bits=50, seed=bytes([seed]) * 32)
    factory = type("Thin", (SparseServer,), {"share": share}) if share < 1 else None
    federation = Federation(settings, dataset, key=key, server_factory=factory)
    for _ in range(rounds):
        federation.run_round()
    report, *_ = federation.read_mark(key)
    return {
        "share": share,
        "seed": seed,
        # Two bytes for each number that is sent and a bit for each that could be; a byte each is int8's.
        "bytes / int8": 4.0 if share == 1 else 1 / 8 + 2 * 1.2 * share,
        "accuracy": federation.accuracy(),
        "wsr": report.wsr,
        "log10_p_before": report.log10_p_before,
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--warm", type=int, default=3, help="turns before, in which gRPC's windows grow")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=16, help="64 × 64 × 8 × 8 floats are 1.05 MB each way")
    parser.add_argument("--mbits", type=float, nargs="+", default=[10.0, 100.0])
    parser.add_argument("--round-trips", type=float, nargs="+", default=[0.0, 0.02, 0.1], help="seconds")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--sparse", action="store_true", help="train behind a sparse wire, and end")
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.25, 0.1])
    parser.add_argument("--rounds", type=int, default=15, help="of those trainings")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.sparse:
        torch.set_num_threads(1)
        trained = []
        for seed in range(options.seeds):
            for share in options.shares:
                trained.append(sparse(share, options.rounds, seed))
                print(trained[-1], flush=True)
        write_result(options.json, {"trainings": trained})
        return
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for row in measure(options, Path(name)):
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    print("| Mbit/s | round trip, ms | " + " | ".join(f"{wire}, s (least)" for wire in BYTES) + " |")
    print("| --- " * (2 + len(BYTES)) + "|")
    for first in rows[:: len(BYTES)]:
        same = [row for row in rows if all(row[name] == first[name] for name in ("mbits", "round_trip"))]
        cells = " | ".join(f"{row['seconds']:.3f} ({row['least']:.3f})" for row in same)
        print(f"| {first['mbits'] or 'all'} | {1000 * first['round_trip']:g} | {cells} |")
    if options.figure:
        draw(rows, options.figure)
    write_result(options.json, {"steps": rows, "setting": vars(options)})


if __name__ == "__main__":
    main()
