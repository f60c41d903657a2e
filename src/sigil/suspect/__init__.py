"""Open a suspect model safely: the file may have been written by an adversary.

Nothing in a file is ever executed, and a process of its own takes the file apart, with limits on
memory and time (:mod:`~sigil.suspect.examination`, :mod:`~sigil.suspect.examiner`). What each format
allows and what is refused, and why, is in the module that reads it: :mod:`~sigil.suspect.pickled`
(files of ``torch.save``), :mod:`~sigil.suspect.exported` (exported programs),
:mod:`~sigil.suspect.graph` (ONNX), :mod:`~sigil.suspect.tensors` (safetensors, which hold no code).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sigil.suspect.opening import Suspect, Weights, open_into, open_suspect, open_weights

__all__ = ["Suspect", "Weights", "open_into", "open_suspect", "open_weights"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the process that takes files apart needs no torch."""
    if name in __all__:
        from sigil.suspect import opening

        return getattr(opening, name)
    raise AttributeError(f"module 'sigil.suspect' has no attribute {name!r}")
