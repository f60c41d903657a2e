"""What the mark costs the server (the paper's section 6): arithmetic, time and storage.

Arithmetic is counted on the paper's network without running it, so it is the same at every scale. Time is the
injector's own over the server's step, both measured in turns in one run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from sigil import models
from sigil.federation.precision import choose
from sigil.federation.run import Run
from sigil.injector import Injector
from sigil.keys.key import SEED_BYTES, Key
from sigil.models import Model
from sigil.pages.tables import Page, Row, Table
from sigil_reproduction.runner import published as paper
from sigil_reproduction.runner.experiment import Claim, Experiment, Measured
from sigil_reproduction.runner.keys import OWNER
from sigil_reproduction.runner.scales import PerScale, Scale
from sigil_reproduction.runner.store import Cell, Store
from sigil_reproduction.runner.timing import ServerStep, interleaved

BITS = (50, 1_000)
WIDTH, BATCH, IMAGE, SHAPE = 64, 256, (3, 32, 32), (256, 8, 8)  # the paper's: network, batch, image, cut
MIB = 2**20
# Width, batch and repeats where the server's step is timed.
TIMED = PerScale((64, 256, 9), desk=(64, 256, 3), cpu=(64, 256, 3), smoke=(8, 16, 3))


def cells(scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Two lengths; nothing is trained, and the seed changes nothing but the key."""
    width, batch, repeats = TIMED.at(scale)
    return [
        Cell(
            experiment="efficiency",
            name=f"k = {bits}",
            seed=seed,
            trainings=(),
            options={"bits": bits, "width": width, "batch": batch, "repeats": repeats},
        )
        for seed in seeds
        for bits in BITS
    ]


def measure(cell: Cell, runs: list[Run], store: Store) -> dict[str, Any]:
    """Count, time and weigh."""
    return {**arithmetic(_key(SHAPE, cell)), **_seconds(cell), **_storage(_key(SHAPE, cell))}


def arithmetic(key: Key) -> dict[str, float]:
    """Operations of the products and convolutions of one training step (millions per sample), by counting.

    A multiply-add counts as two. The halves' steps are forward and backward; updates and everything
    elementwise are left out on both sides.
    """
    client_half, server_half = (half.to("meta").train() for half in _halves(WIDTH))
    images = torch.empty(BATCH, *IMAGE, device="meta")
    sent: list[Tensor] = []
    forward = _count(lambda: sent.append(client_half(images)))
    received = sent[0].detach().requires_grad_()
    server = _count(lambda: server_half(received).sum().backward())
    client = forward + _count(lambda: sent[0].backward(torch.empty_like(sent[0])))

    injector = Injector(key, 0.1)
    activation = received.detach()
    injector(activation, activation)  # the Gram matrix of M is made once in a training, not every step
    extra = _count(lambda: injector(activation, activation))
    return {
        "injector_mflop": extra / BATCH / 1e6,
        "server_mflop": server / BATCH / 1e6,
        "client_mflop": client / BATCH / 1e6,
        "of_server": 100 * extra / server,
        "of_client": 100 * extra / client,
        "of_both": 100 * extra / (server + client),
    }


def _count(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def _seconds(cell: Cell) -> dict[str, Any]:
    """The injector's time over the server's step on the processor, at the width and batch of the scale."""
    width, batch = cell.options["width"], cell.options["batch"]
    precision = choose("cpu")
    client_half, server_half = _halves(width)
    precision.move(server_half).train()
    shape = models.activation_shape(client_half, IMAGE)
    random = torch.Generator().manual_seed(cell.seed)
    activation = torch.rand(batch, *shape, generator=random)
    activation = activation.to(**precision.place)
    step = ServerStep(server_half, activation, precision=precision)
    injector = Injector(_key(shape, cell), 0.1)
    gradient = step()
    injector(activation, gradient)  # derives and arranges M once
    median = interleaved(
        {"step": step, "injector": lambda: injector(activation, gradient)}, cell.options["repeats"]
    )
    return {
        "step_ms": 1000 * median["step"],
        "injector_ms": 1000 * median["injector"],
        "time_of_server": 100 * median["injector"] / median["step"],
        "precision": precision.number_format,
        "threads": torch.get_num_threads(),
    }


def _storage(key: Key) -> dict[str, float]:
    """What the paper keeps, M in float32, beside the key file that M is derived from."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "owner.key"
        key.save(file)
        size = file.stat().st_size
    return {
        "matrix_mib": 4 * key.dimension * key.bits / MIB,
        "key_file_bytes": size,
        "seed_bytes": SEED_BYTES,
    }


def _key(shape: tuple[int, ...], cell: Cell) -> Key:
    seed = cell.seed.to_bytes(SEED_BYTES, "big")
    return Key.generate(OWNER, shape=shape, bits=cell.options["bits"], seed=seed)


def _halves(width: int) -> tuple[Model, Model]:
    whole = models.build("resnet18", classes=10, width=width, seed=0)
    return models.split(whole, models.default_cut("resnet18"))


def show(measured: Measured, folder: Path) -> Page:
    """The table, ours with the paper's in brackets where the same thing is counted."""
    rows: list[Row] = []
    for bits in BITS:
        name, theirs = f"k = {bits}", paper.numbers()["efficiency"][str(bits)]
        rows.append(
            [
                name,
                measured.number(name, "of_server", form=".2f"),
                measured.number(name, "of_client", form=".2f", paper=theirs["extra_compute_percent"]),
                measured.number(name, "of_both", form=".2f"),
                measured.number(name, "time_of_server"),
                measured.number(name, "matrix_mib", form=".2f", paper=theirs["storage_mb"], paper_form=".1f"),
                measured.number(name, "key_file_bytes", form=".0f"),
            ]
        )
    header = [
        "",
        "arithmetic, % of the server half's",
        "% of the client half's",
        "% of both",
        "time, % of the server's step",
        "M as the paper stores it (MiB)",
        "key file (bytes)",
    ]
    notes = (
        "Arithmetic of one training step of the paper's ResNet-18 (width 64, cut layer3, batch 256), "
        "forward and backward, is counted and not timed. The paper's 0.13 % and 2.6 % come out where the "
        "injector is divided by the step of the *client* half, the larger one; of the server's own half it "
        f"is three times as much. Time was measured at {_timed(measured)}."
    )
    return [Table(header, rows, notes=notes)]


def _timed(measured: Measured) -> str:
    for cell in measured.cells:
        for numbers in measured.every(cell.name):
            options = cell.options
            return (
                f"width {options['width']} and batch {options['batch']} in {numbers['precision']} on "
                f"{numbers['threads']} thread{'s' if numbers['threads'] > 1 else ''}"
            )
    return "no machine yet"


def _claims(bits: int, most: float, slowest: float) -> list[Claim]:
    """Percentages and megabytes beside the paper's, and the claim that the overhead is small."""
    cell, theirs = f"k = {bits}", paper.numbers()["efficiency"][str(bits)]
    percent, stored = f"{theirs['extra_compute_percent']} %", float(theirs["storage_mb"])

    def counted(text: str, holds: Callable[[float], bool], number: str, theirs: str, **more: Any) -> Claim:
        more.setdefault("opens", bits == BITS[0])
        return Claim(f"{text}, {bits} bits", cell, holds, number, theirs, form=".2f", counted=True, **more)

    return [
        counted(
            f"The mark's arithmetic, of the client half's step (at most {most:g} %)",
            lambda share: share <= most,
            "of_client",
            percent,
        ),
        counted(
            f"The mark's arithmetic, of the server half's own step (at most {most:g} %)",
            lambda share: share <= most,
            "of_server",
            percent,
        ),
        counted(
            f"The mark's time, of the server's step (at most {slowest:g} %)",
            lambda share: share <= slowest,
            "time_of_server",
            "",
            opens=False,
        ),
        counted(
            "Storage, if M were stored (within a tenth of the paper's)",
            lambda size: abs(size / stored - 1) < 0.1,
            "matrix_mib",
            f"{stored:g} MB",
            opens=False,
            unit="MiB",
        ),
    ]


CAPTION = "What the mark costs the server: arithmetic, time and storage, the paper's numbers in brackets."
CLAIMS = [*_claims(50, 0.2, 1), *_claims(1_000, 4, 10)]
EXPERIMENT = Experiment("efficiency", CAPTION, cells, show, measure, claims=CLAIMS)
