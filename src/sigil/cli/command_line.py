"""The command line as evidence records it: what was asked, and not where secrets are kept."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

# Options that name a file with a secret, and what stands in the place of its name.
_SECRET_FILES = {
    "--key": "KEY",
    "-k": "KEY",
    "--passphrase-file": "FILE",
    "--sign-with": "PEM",
}


def recorded(arguments: Sequence[str]) -> str:
    """The `sigil` command with these arguments, ready for a shell, without the paths of keys.

    >>> recorded(["verify", "model.pt", "--key", "/home/ada/owner.key"])
    'sigil verify model.pt --key KEY'
    """
    shown: list[str] = []
    hidden = None
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if hidden is not None:
            shown.append(hidden)
            hidden = None
        elif argument in _SECRET_FILES:
            shown.append(argument)
            hidden = _SECRET_FILES[argument]
        elif equals and option in _SECRET_FILES:
            shown.append(f"{option}={_SECRET_FILES[option]}")
        elif argument.startswith("-k") and not argument.startswith("--"):
            shown += ["-k", _SECRET_FILES["-k"]]
        else:
            shown.append(argument)
    return shlex.join(["sigil", *shown])
