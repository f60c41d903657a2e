"""Models to attack as files: a run's directory, a whole model, or halves; written in the form they had."""

from __future__ import annotations

import os
from pathlib import Path

from sigil import files, models
from sigil.alignment import open_reference
from sigil.attacks.halves import Halves
from sigil.errors import AttackError
from sigil.keys.key import Key
from sigil.models import Model

CLIENT, SERVER = "client.safetensors", "server.safetensors"


def open_model(path: Path, *, server: Path | None = None) -> Model | Halves:
    """Read what is to be attacked.

    ``path`` is a directory with ``client.safetensors`` and ``server.safetensors`` (a run's, for example), the
    file of a whole model, or that of a client half. With ``server``, the file of its server half, a client
    half becomes a pair; without it stays alone.
    """
    if path.is_dir():
        if server is not None:
            raise AttackError(f"{path} is a directory and holds both halves; leave the server half out.")
        return _fitting(_half(path / CLIENT, "client"), _half(path / SERVER, "server"))
    model = models.load(path)
    if model.spec.part == "server":
        raise AttackError(f"{path} holds a server half, which carries no mark; give the client half first.")
    if server is None:
        return model
    if model.spec.part == "whole":
        raise AttackError(f"{path} holds a whole model; leave the server half out.")
    return _fitting(model, _half(server, "server"))


def open_initial(path: Path, key: Key | None = None) -> Model:
    """The weights that a training began with: a model file, or the directory of the finished run.

    A client was sent them; from a run's directory they follow by the run's ``key``, if that drew them.
    """
    found = open_reference(path, key=key)
    if not isinstance(found, Model):
        raise AttackError(f"{path} holds no weights; give a model file or the directory of a finished run.")
    return found


def check_target(path: Path, *, directory: bool) -> None:
    """Raise unless :func:`save_model` could write there without replacing anything.

    A pair of halves needs a directory, which may exist; one model needs a file, which may not.
    """
    try:
        is_directory = path.is_dir()
    except OSError:  # a name that is too long, say, about which files.check finds the words
        is_directory = False
    if directory and os.path.lexists(path) and not is_directory:
        raise AttackError(f"{path} is a file, but both halves need a directory; choose another name.")
    if directory and is_directory:
        for name in (CLIENT, SERVER):
            files.check(path / name, kind="model", raises=AttackError)
    elif is_directory:
        raise AttackError(f"{path} exists, and a model is never overwritten; choose another name.")
    else:
        files.check(path, kind="model", raises=AttackError)


def save_model(path: Path, model: Model | Halves) -> list[Path]:
    """Write a model to a file, or a pair of halves to a directory; returns the files."""
    if not isinstance(model, tuple):
        models.save(path, model, replace=False)
        return [path]
    path.mkdir(exist_ok=True)
    places = [path / CLIENT, path / SERVER]
    for file, half in zip(places, model, strict=True):
        models.save(file, half, replace=False)
    return places


def _half(path: Path, part: str) -> Model:
    model = models.load(path)
    if model.spec.part != part:
        raise AttackError(f"{path} should hold a {part} half, but holds the {model.spec}.")
    return model


def _fitting(client_half: Model, server_half: Model) -> Halves:
    models.join(client_half, server_half)  # raises if they are not of one model
    return client_half, server_half
