"""What the mark costs: injector, verification and key file, each as a ratio measured in one run.

Variants are interleaved and medians taken, so that a busy machine disturbs all of them alike.

    python benchmarks/overhead.py --json overhead.json
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sigil
from common import command_line, print_claims, write_result
from sigil.federation.precision import choose
from sigil.federation.repetition import MEMORY, Repetitions, projection
from sigil.logit_gradients import check_logit_gradient
from sigil.verdict.descent import origin_of
from sigil.verdict.verification import read_mark
from sigil_reproduction.runner.timing import ServerStep, interleaved


def autograd_gradient(key: sigil.Key, matrix: Tensor, activation: Tensor, gradient: Tensor) -> Tensor:
    """The same G_final as research code writes it: BCE by autograd, norms of full gradients."""
    leaf = activation.detach().clone().requires_grad_()
    projection = leaf.flatten(1).float() @ matrix
    loss = F.binary_cross_entropy_with_logits(projection, key.target.expand_as(projection))
    (mark,) = torch.autograd.grad(loss, leaf)
    factor = min(1.0, 0.1 * float(gradient.norm()) / (float(mark.norm()) + 1e-12))
    return gradient + factor * mark


def channels_last(module: nn.Module) -> nn.Module:
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    options = parser.parse_args()

    if options.threads:
        torch.set_num_threads(options.threads)
    precision = choose("cpu", options.precision)
    dtype = torch.bfloat16 if precision.bfloat16 else torch.float32
    whole = sigil.models.build("resnet18", classes=10, width=options.width, seed=0)
    client, server = (channels_last(half).train() for half in sigil.models.split(whole, "layer3"))
    shape = (options.width * 4, 8, 8)
    generator = torch.Generator().manual_seed(0)
    activation = torch.rand(options.batch, *shape, generator=generator)
    activation = activation.to(dtype, memory_format=torch.channels_last)
    step = ServerStep(server, activation, precision=precision)
    gradient = step()
    keys = {k: sigil.Key.generate("benchmark", shape=shape, bits=k) for k in (50, 1000)}
    injectors = {k: sigil.Injector(key, 0.1) for k, key in keys.items()}
    for injector in injectors.values():
        injector(activation, gradient)  # derives and arranges M once

    share = sigil.Injector(keys[50], 0.3, cap=False, share=(0, 10))
    share(activation, gradient)
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(options.batch, 10, generator=random)
    labels = torch.randint(10, (options.batch,), generator=random)
    honest = (logits.softmax(1) - F.one_hot(labels, 10)) / options.batch
    repetitions = Repetitions(projection(keys[50].matrix[:1], keys[50].dimension))
    for _ in range(MEMORY // options.batch):  # an epoch that fills the memory: the dearest case
        repetitions.count(torch.rand(activation.shape, generator=random))

    def checks() -> None:
        """What a server with all checks does beside its step and the injection."""
        check_logit_gradient(logits, honest)
        repetitions.count(activation)

    def marked(k: int) -> Tensor:
        return injectors[k](activation, step())

    steps = interleaved(
        {
            "step": step,
            "step + injector, k=50": lambda: marked(50),
            "step + injector, k=1000": lambda: marked(1000),
            "injector, k=50": lambda: injectors[50](activation, gradient),
            "injector, k=1000": lambda: injectors[1000](activation, gradient),
            "injector, k=50, one share of ten": lambda: share(activation, gradient),
            "check of the logit gradient": lambda: check_logit_gradient(logits, honest),
            "checks": checks,
        },
        options.repeats,
    )
    forms = interleaved(
        {
            "closed form, k=50": lambda: injectors[50](activation, gradient),
            "autograd, k=50": lambda: autograd_gradient(
                keys[50], keys[50].matrix, activation.contiguous(), gradient.contiguous()
            ),
        },
        4 * options.repeats,
    )
    client.eval()
    probes = torch.randn(256, 3, 32, 32, generator=generator).to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def forward() -> None:
        for batch in probes.split(64):
            client(batch)

    verifications = interleaved(
        {
            "forward of 256 probes": forward,
            "reading, 256 probes, k=50": lambda: read_mark(
                client, keys[50], input_shape=(3, 32, 32), probes=256, batch_size=64
            ),
            "whole verdict, 256 probes, k=50": lambda: sigil.verify(
                client, keys[50], input_shape=(3, 32, 32), probes=256, batch_size=64
            ),
            "test of the origin": lambda: origin_of(client, keys[50], (3, 32, 32)),
        },
        max(3, options.repeats // 3),
    )
    median = {**steps, **forms, **verifications}
    with tempfile.TemporaryDirectory() as folder:
        sizes = {}
        for k, key in keys.items():
            key.save(Path(folder) / f"{k}.key")
            sizes[k] = (Path(folder) / f"{k}.key").stat().st_size

    def within(k: int) -> float:
        """(step + injector) / step, with the injector's own time over the same run's step."""
        return 1 + median[f"injector, k={k}"] / median["step"]

    rows = [
        ("server step with injector / without, k=50", within(50), "<= 1.01"),
        ("the same, whole steps compared", median["step + injector, k=50"] / median["step"], ""),
        ("server step with injector / without, k=1000", within(1000), "<= 1.10"),
        ("the same, whole steps compared", median["step + injector, k=1000"] / median["step"], ""),
        (
            "server step with injector and checks / without, k=50",
            within(50) + median["checks"] / median["step"],
            "<= 1.02",
        ),
        (
            "closed form / autograd of BCE, k=50",
            median["closed form, k=50"] / median["autograd, k=50"],
            "<= 0.5",
        ),
        (
            "reading the mark / plain forward, k=50",
            median["reading, 256 probes, k=50"] / median["forward of 256 probes"],
            "<= 1.2",
        ),
        (
            "the whole verdict, with origin and order of channels / plain forward, k=50",
            median["whole verdict, 256 probes, k=50"] / median["forward of 256 probes"],
            "",
        ),
        ("key file, bytes, k=50", float(sizes[50]), "< 1024"),
        ("key file, bytes, k=1000", float(sizes[1000]), "< 1024"),
    ]
    name = precision.number_format
    print(
        f"ResNet-18 width {options.width}, cut layer3, batch {options.batch}, channels-last {name}, "
        f"{torch.get_num_threads()} threads, medians of {options.repeats}\n"
    )
    claims = print_claims(rows)
    print("\n| part | median ms |\n| --- | --- |")
    for part, seconds in median.items():
        print(f"| {part} | {1000 * seconds:.1f} |")
    setting = vars(options) | {"precision": name}
    write_result(options.json, {"claims": claims, "median_seconds": median, "setting": setting})


if __name__ == "__main__":
    main()
