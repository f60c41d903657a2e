"""What the commands that read a mark share: which model, which key, which inputs, and opening all three."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sigil.cli import own_code
from sigil.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from sigil.data.inputs import Normalisation

_LONGEST = 2**16
MODEL = "The suspect (only what its weights do not show)"
INPUTS = "Real inputs to read the mark on"

Suspect = Annotated[
    Path,
    typer.Argument(
        metavar="SUSPECT",
        help="The model: safetensors, a state dict (.pt), an exported program (.pt2) or ONNX.",
    ),
]
OwnersKey = Annotated[Path, typer.Option("--key", "-k", metavar="FILE", help="The owner's secret key file.")]
Architecture = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="resnet18, vgg11, mobilenetv2 or densenet121.", rich_help_panel=MODEL),
]
Cut = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Where the model is cut, e.g. layer3.", rich_help_panel=MODEL),
]
Width = Annotated[
    int | None,
    typer.Option(metavar="W", min=1, help="Channels of the first convolution.", rich_help_panel=MODEL),
]
Classes = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Number of classes.", rich_help_panel=MODEL)
]
At = Annotated[
    str | None,
    typer.Option(metavar="NODE", help="For ONNX: the node or tensor at the cut.", rich_help_panel=MODEL),
]
Entry = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="For a file with several models: the keys or prefix in front of the layers' names.",
        rich_help_panel=MODEL,
    ),
]
Module = Annotated[
    str | None,
    typer.Option(
        "--module",
        metavar="FILE.py:NAME",
        help="For a model of your own: your function or class that makes its client half. Your file is "
        "executed; nothing in SUSPECT is.",
        rich_help_panel=MODEL,
    ),
]
InputShape = Annotated[
    str | None,
    typer.Option(metavar="C,H,W", help="Shape of one input, e.g. 3,32,32.", rich_help_panel=MODEL),
]
TimeLimit = Annotated[
    float,
    typer.Option(
        metavar="S",
        help="Seconds that the file's own process may take: reading it, and running ONNX.",
        rich_help_panel=MODEL,
    ),
]
Inputs = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|FILE|NAME[:SPLIT]",
        help="Inputs of the task: a folder of pictures, a .npy or safetensors array, or a data set.",
        rich_help_panel=INPUTS,
    ),
]
Normalise = Annotated[
    str | None,
    typer.Option(
        "--normalisation",
        metavar="MEANS/DEVIATIONS",
        help="Of 8-bit images, per channel on the scale 0 to 1: 0.49,0.48,0.45/0.25,0.24,0.26",
        rich_help_panel=INPUTS,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="SIGIL_DATA",
        help="Where the data sets for --inputs are.",
        rich_help_panel=INPUTS,
    ),
]


def build_module(text: str) -> nn.Module:
    """The client half of the caller's own code, named as FILE.py:NAME."""
    from sigil.arguments import check_module

    build = own_code.load(text)
    own_code.check_call(text, build)
    with own_code.running(own_code.split(text)[0]):
        module = build()
    check_module(text, module)
    return module


def shape_and_normalisation(
    input_shape: str | None, normalisation: str | None
) -> tuple[tuple[int, ...] | None, Normalisation | None]:
    """Both as numbers, as far as they were given."""
    return (
        None if input_shape is None else read_input_shape(input_shape),
        None if normalisation is None else read_normalisation(normalisation),
    )


def read_activation_shape(text: str) -> tuple[int, ...]:
    """The shape of one activation, such as 256,8,8 or 256x8x8; its sizes are checked with the key."""
    try:
        return tuple(int(size) for size in text.strip(" ()[]").replace("x", ",").split(","))
    except ValueError:
        raise ConfigError(
            "The shape must be whole numbers with commas between them, such as 256,8,8."
        ) from None


def read_input_shape(text: str) -> tuple[int, ...]:
    """The shape of one input, such as 3,32,32."""
    try:
        shape = tuple(int(size) for size in text.strip(" ()[]").replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not 1 <= len(shape) <= 4 or not all(1 <= size <= _LONGEST for size in shape):
        raise ConfigError(
            "--input-shape must be whole numbers of at least 1 with commas between them, such as 3,32,32."
        )
    return shape


def read_normalisation(text: str) -> Normalisation:
    """Means and deviations per channel, with a slash between them."""
    from sigil.data.inputs import parse_normalisation

    try:
        found = parse_normalisation(text)
    except ValueError:
        found = None
    if found is None:
        raise ConfigError(
            "--normalisation must be means, a slash and deviations, such as 0.49,0.48,0.45/0.25,0.24,0.26."
        )
    return found
