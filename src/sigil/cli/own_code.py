"""The caller's own code, named as FILE.py:NAME: an attack, a detector, a module for `sigil verify`.

Only the named file is executed. Its folder does not become a place to import from, and no compiled copy that
lies beside it is read.
"""

from __future__ import annotations

import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from sigil.cli.options import option
from sigil.errors import ConfigError, SigilError

if TYPE_CHECKING:
    from torch import nn

_LONGEST_FILE, _LONGEST_MESSAGE = 1 << 20, 200

Parameters = Annotated[
    list[str] | None, option("NAME=VALUE", "Set a parameter of FILE:NAME; may be given many times.", "--set")
]


def split(text: str) -> tuple[Path, str]:
    """The file and the name in it."""
    path, _, name = text.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        raise ConfigError(
            f"{text!r} does not name code of your own; write FILE.py:NAME, such as my.py:jitter."
        )
    return Path(path), name


def load(text: str) -> Any:
    """Execute the file and return what has the name in it."""
    path, name = split(text)
    if not path.is_file():
        raise ConfigError(f"{path} is no file that can be read; give a Python file as FILE.py:NAME.")
    with path.open("rb") as file:
        source = file.read(_LONGEST_FILE + 1)
    if len(source) > _LONGEST_FILE:
        raise ConfigError(f"{path} has more than {_LONGEST_FILE:,} bytes; give a file with your code alone.")
    # Not under the file's own name, which may be that of a module which others import.
    module = ModuleType(f"sigil own code {path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    with running(path):
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    if not hasattr(module, name):
        raise ConfigError(f"There is no {name} in {path}; name a function or class that it defines.")
    return getattr(module, name)


@contextmanager
def running(path: Path) -> Iterator[None]:
    """Inside, an error of the caller's code becomes one sentence that names its line; so does an exit."""
    try:
        yield
    except SigilError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        number = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = "" if number is None else f" in line {number}"
        message = f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE].rstrip(".: ")
        raise ConfigError(f"{path} failed{where} ({message}); correct it and try again.") from None


def parameters(given: Sequence[str] | None) -> dict[str, Any]:
    """The parameters that --set names; values are read as JSON, and anything else is text."""
    values: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--set {text!r} is not of the form NAME=VALUE, such as share=0.3.")
        try:
            values[name] = json.loads(value)
        except (ValueError, RecursionError):
            values[name] = value
    return values


def check_call(text: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Raise unless the function can be called like this."""
    if not callable(function):
        raise ConfigError(f"{text} is no function and no class; name one that the file defines.")
    try:
        inspect.signature(function).bind(*arguments, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{text} cannot be called as it must be ({error}); change its parameters, or --set."
        ) from None


def build_module(text: str) -> nn.Module:
    """The client half that the caller's code makes."""
    from torch import nn

    build = load(text)
    check_call(text, build)
    with running(split(text)[0]):
        module = build()
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{text} makes a {type(module).__name__}; it must make a module of PyTorch.")
    return module
