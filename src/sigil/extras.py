"""What the extras of the distribution bring, and the one line that installs a missing one.

The core (keys, injector, verification, evidence) needs none of them. What does need one calls :func:`need`
before it works, and says in one sentence what to install.
"""

from __future__ import annotations

import importlib.util
from typing import Final

from sigil.errors import MissingExtraError

DISTRIBUTION: Final = "sigil-watermark"
"""The name on the package index; the import name is ``sigil``."""

EXTRAS: Final = {
    "train": ("sklearn", "PIL", "matplotlib", "tensorboard", "datasets"),
    "network": ("flwr", "grpc", "httpx", "uvicorn", "prometheus_client"),
    "onnx": ("onnx", "onnxruntime"),
    "simulation": ("ray", "psutil"),
}
"""The modules that each extra brings, by the extra's name; network brings train's too."""


def need(extra: str, *modules: str) -> None:
    """Raise :class:`~sigil.errors.MissingExtraError` unless the modules of an extra are installed.

    Without `modules` all of the extra are meant.
    """
    for module in modules or EXTRAS[extra]:
        if not _installed(module):
            raise _missing(module, extra)


def explain(error: ModuleNotFoundError) -> MissingExtraError | None:
    """The sentence for a module that was not found, or None if no extra brings it."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules:
            return _missing(module, extra)
    return None


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _missing(module: str, extra: str) -> MissingExtraError:
    return MissingExtraError(
        f"This needs {module}, which is not installed; install it with: pip install '{DISTRIBUTION}[{extra}]'"
    )
