"""What goes through the pipes between a verification and the process that takes a suspect apart.

A frame is a short JSON object and raw bytes: no pickle, no code, nothing that a reader would have to
interpret. Each end states how much of either it is ready to take.
"""

from __future__ import annotations

import json
import struct
from typing import Any

PREFIX = struct.Struct("<IQ")
"""Lengths of the JSON object and of the bytes behind it."""
MAX_HEADER_BYTES = 16 * 1024**2


def packed(header: dict[str, Any], payload_bytes: int = 0) -> bytes:
    """The beginning of a frame whose payload of ``payload_bytes`` follows."""
    text = json.dumps(header).encode("ascii")
    return PREFIX.pack(len(text), payload_bytes) + text
