"""What this machine computes with: device, number format, processor and cores, asked in one place.

Everything that depends on the machine asks here, so that all parts of a training agree, and a test can
pretend to be on another machine. What was found is written beside every result (:func:`describe`), because
the rounding of every step, and with it a training's numbers, depends on the processor.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from sigil.errors import ConfigError, reason

PRECISION_VARIABLE: Final = "SIGIL_PRECISION"
NOT_RECORDED: Final = "processor not recorded"
_FORMATS: Final = ("float32", "bfloat16")
_LINUX_LIST: Final = Path("/proc/cpuinfo")


def device(name: str = "auto") -> torch.device:
    """The device of this name (auto, cpu, cuda, mps, cuda:1); auto is the fastest that is there."""
    if name == "auto":
        if torch.cuda.is_available():
            name = "cuda"
        elif torch.backends.mps.is_available():
            name = "mps"
        else:
            name = "cpu"
    try:
        chosen = torch.device(name)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"The device {name!r} cannot be used here ({reason(error)}); "
            'set run.device to "auto", "cpu" or a device that this machine has.'
        ) from None
    return chosen


def native_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions that multiply bfloat16 numbers.

    Not whether it can compute with them: every AVX-512 processor can, by converting to float32 and back, and
    takes two to three times as long as with float32. Where nothing is known (Arm processors, whose
    instructions PyTorch uses for some layers only, and Apple's GPUs) the answer is no.
    """
    if device.type == "cuda":
        # Older cards compute in bfloat16 by software, and two cards of a machine may differ.
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return _reported("_is_avx512_bf16_supported") or _reported("_is_amx_tile_supported")
    return False


def prefers_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 is what `auto` means on this device: native there, or asked for by SIGIL_PRECISION.

    Raises :class:`~sigil.errors.ConfigError` if the variable holds anything else than a number format.
    """
    wanted = os.environ.get(PRECISION_VARIABLE, "")
    if not wanted:
        return native_bfloat16(device)
    if wanted not in _FORMATS:
        raise ConfigError(
            f"The environment variable {PRECISION_VARIABLE} is {wanted[:40]!r}, but the number formats are "
            f"{' and '.join(_FORMATS)}; set it to one of them, or unset it."
        )
    return wanted == "bfloat16"


def cores() -> int:
    """How many cores this process may use: those it is bound to where the system says so, else all."""
    bound = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(bound(0)) if bound is not None else os.cpu_count() or 1


@cache
def processor() -> dict[str, str]:
    """The processor's model, the widest instructions that PyTorch uses on it, and its architecture."""
    architecture = platform.machine() or "unknown"
    capability = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "unknown")()
    name = _model() or platform.processor() or architecture
    return {"processor": name, "capability": capability, "architecture": architecture}


def describe(device: torch.device, *, bfloat16: bool) -> dict[str, Any]:
    """What to write beside a result: the processor, the device, the number format and the threads."""
    return {
        **processor(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "precision": "bfloat16" if bfloat16 else "float32",
        "threads": torch.get_num_threads(),
    }


def in_words(description: Mapping[str, Any] | None) -> str:
    """A description as a page shows it, such as "AMD EPYC (AVX2), float32"."""
    # Before the capability was written down, `processor` was the architecture alone.
    if not description or "capability" not in description:
        return NOT_RECORDED
    on = "" if description["device"] == "cpu" else f" with {description['device']}"
    return f"{description['processor']} ({description['capability']}){on}, {description['precision']}"


def _reported(question: str) -> bool:
    """What PyTorch answers about the processor; no, where this version does not know the question."""
    ask = getattr(torch.cpu, question, None)
    try:
        return ask is not None and bool(ask())
    except (AttributeError, RuntimeError):
        return False


def _model() -> str:
    """The processor's model name, or nothing where no source has it."""
    ask = getattr(torch.cpu, "get_capabilities", None)  # not yet in PyTorch 2.6
    name = str(ask().get("cpu_name", "")).strip() if ask is not None else ""
    if not name and _LINUX_LIST.is_file():
        listed = _LINUX_LIST.read_text("utf-8", errors="replace")
        match = re.search(r"^model name\s*:(.*)$", listed, re.MULTILINE)
        name = match[1].strip() if match else ""
    if not name and platform.system() == "Darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            name = subprocess.run(
                command, capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            name = ""
    return " ".join(name.split())
