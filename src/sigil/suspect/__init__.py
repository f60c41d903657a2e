"""Open a suspect model safely: the file may have been written by an adversary.

Nothing in a file is ever executed. What each format allows and what is refused, and why, is in the
module that reads it: :mod:`~sigil.suspect.pickled` (files of ``torch.save``),
:mod:`~sigil.suspect.exported` (exported programs), :mod:`~sigil.suspect.graph` (ONNX); safetensors
hold no code at all.
"""

from __future__ import annotations

from sigil.suspect.opening import Suspect, open_suspect

__all__ = ["Suspect", "open_suspect"]
