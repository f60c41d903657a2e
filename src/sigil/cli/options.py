"""Options that several commands have, and what their text means: how they talk, keys, suspects, inputs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigil.errors import ConfigError

if TYPE_CHECKING:
    from sigil.data.inputs import Normalisation


def option(metavar: str | None, help: str, *flags: str, **more: Any) -> Any:
    """An option of a command: what stands for its value, and what it is for."""
    return typer.Option(*flags, metavar=metavar, help=help, **more)


_LONGEST = 2**16
MODEL = "The suspect (only what its weights do not show)"
INPUTS = "Real inputs to read the mark on"
_model = partial(option, rich_help_panel=MODEL)
_inputs = partial(option, rich_help_panel=INPUTS)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a FILE that Sigil itself wrote.")]
DataDir = Annotated[Path | None, option("DIR", "Where the data sets are.", envvar="SIGIL_DATA")]

KeyFile = Annotated[Path, typer.Argument(metavar="FILE", help="The key file.")]
OwnersKey = Annotated[Path, option("FILE", "The owner's secret key file.", "--key", "-k")]
AskPassphrase = Annotated[bool, typer.Option("--passphrase", help="Ask for the passphrase at the terminal.")]
PassphraseFile = Annotated[
    Path | None, option("FILE", "Read the passphrase from the first line of this file.")
]

Suspect = Annotated[
    Path,
    typer.Argument(
        metavar="SUSPECT",
        help="The model: safetensors, a state dict (.pt), an exported program (.pt2) or ONNX.",
    ),
]
Architecture = Annotated[str | None, _model("NAME", "resnet18, vgg11, mobilenetv2 or densenet121.")]
Cut = Annotated[str | None, _model("NAME", "Where the model is cut, e.g. layer3.")]
Width = Annotated[int | None, _model("W", "Channels of the first convolution.", min=1)]
Classes = Annotated[int | None, _model("N", "Number of classes.", min=1)]
At = Annotated[str | None, _model("NODE", "For ONNX: the node or tensor at the cut.")]
Entry = Annotated[
    str | None,
    _model("NAME", "For a file with several models: the keys or prefix in front of the layers' names."),
]
Module = Annotated[
    str | None,
    _model(
        "FILE.py:NAME",
        "For a model of your own: your function or class that makes its client half. Your file is executed; "
        "nothing in SUSPECT is.",
        "--module",
    ),
]
InputShape = Annotated[str | None, _model("C,H,W", "Shape of one input, e.g. 3,32,32.")]
TimeLimit = Annotated[
    float, _model("S", "Seconds that the file's own process may take: reading it, and running ONNX.")
]
Inputs = Annotated[
    str | None,
    _inputs(
        "DIR|FILE|NAME[:SPLIT]",
        "Inputs of the task: a folder of pictures, a .npy or safetensors array, or a data set.",
    ),
]
Normalise = Annotated[
    str | None,
    _inputs(
        "MEANS/DEVIATIONS",
        "Of 8-bit images, per channel on the scale 0 to 1: 0.49,0.48,0.45/0.25,0.24,0.26",
        "--normalisation",
    ),
]
InputsDir = Annotated[
    Path | None, _inputs("DIR", "Where the data sets for --inputs are.", "--data-dir", envvar="SIGIL_DATA")
]


def read_activation_shape(text: str) -> tuple[int, ...]:
    """The shape of one activation, such as 256,8,8 or 256x8x8; its sizes are checked with the key."""
    shape = _sizes(text)
    if not shape:
        raise ConfigError("The shape must be whole numbers with commas between them, such as 256,8,8.")
    return shape


def read_input_shape(text: str | None) -> tuple[int, ...] | None:
    """The shape of one input, such as 3,32,32, if it was given."""
    if text is None:
        return None
    shape = _sizes(text)
    if not 1 <= len(shape) <= 4 or not all(1 <= size <= _LONGEST for size in shape):
        raise ConfigError(
            "--input-shape must be whole numbers of at least 1 with commas between them, such as 3,32,32."
        )
    return shape


def _sizes(text: str) -> tuple[int, ...]:
    """The numbers of a shape; none where it is something else."""
    try:
        return tuple(int(size) for size in text.strip(" ()[]").replace("x", ",").split(","))
    except ValueError:
        return ()


def read_normalisation(text: str | None) -> Normalisation | None:
    """Means and deviations per channel, with a slash between them, if they were given."""
    if text is None:
        return None
    from sigil.data.inputs import parse_normalisation

    try:
        return parse_normalisation(text)
    except ValueError:
        raise ConfigError(
            "--normalisation must be means, a slash and deviations, such as 0.49,0.48,0.45/0.25,0.24,0.26."
        ) from None
