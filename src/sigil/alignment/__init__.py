"""Alignment: put the channels of a disguised copy back in order before its mark is read.

An attacker who permutes the channels at the cut, scales each of them, and changes the layers behind to match,
has a model that computes the same and whose mark cannot be read. Both can be undone:

- the **order** is found by comparing the suspect with what the owner knows of the training: the correlations
  between channels that the server recorded (:mod:`sigil.alignment.correlations`), or the initial weights
  (:mod:`sigil.alignment.initial_weights`);
- the **scale** is found by the columns of a layer that reads the channels, whose initial norms are known, if
  there is one in front of the cut; otherwise each channel is divided by its own standard deviation over the
  inputs that it is read on, in front of the last rectifier where that is known. Recorded scales would carry
  the mark and move the null hypothesis (docs/p-value.md).
"""

from __future__ import annotations

from sigil.alignment.aligning import Alignment, Probes, align
from sigil.alignment.initial_weights import search_known
from sigil.alignment.own_layers import LAYERS, has_layers, layers_of, search_own
from sigil.alignment.references import (
    Reference,
    ReferenceKind,
    began_with_key,
    check_channels,
    fingerprint,
    initial_half,
    open_reference,
    save_sums,
)
from sigil.alignment.unknown_layers import search_unknown

__all__ = [
    "LAYERS",
    "Alignment",
    "Probes",
    "Reference",
    "ReferenceKind",
    "align",
    "began_with_key",
    "check_channels",
    "fingerprint",
    "has_layers",
    "initial_half",
    "layers_of",
    "open_reference",
    "save_sums",
    "search_known",
    "search_own",
    "search_unknown",
]
