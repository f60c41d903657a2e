"""Sigil: prove who owns a model that was trained by split federated learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sigil.version import __version__ as __version__

if TYPE_CHECKING:
    from sigil import attacks, baselines, detectors, models
    from sigil.errors import SigilError
    from sigil.imprint import Imprint
    from sigil.injector import Injector
    from sigil.inspection import Inspection, inspect
    from sigil.keys.key import Key
    from sigil.logit_gradients import Loss, check_logit_gradient
    from sigil.tracing import Trace, trace
    from sigil.verdict.provability import check
    from sigil.verdict.report import Report
    from sigil.verdict.verification import verify

__all__ = [
    "Imprint",
    "Injector",
    "Inspection",
    "Key",
    "Loss",
    "Report",
    "SigilError",
    "Trace",
    "attacks",
    "baselines",
    "check",
    "check_logit_gradient",
    "detectors",
    "inspect",
    "models",
    "trace",
    "verify",
]

_HOMES = {
    "Imprint": "sigil.imprint",
    "Injector": "sigil.injector",
    "Inspection": "sigil.inspection",
    "Key": "sigil.keys.key",
    "Loss": "sigil.logit_gradients",
    "Report": "sigil.verdict.report",
    "SigilError": "sigil.errors",
    "Trace": "sigil.tracing",
    "check": "sigil.verdict.provability",
    "check_logit_gradient": "sigil.logit_gradients",
    "inspect": "sigil.inspection",
    "trace": "sigil.tracing",
    "verify": "sigil.verdict.verification",
}
_PACKAGES = {"attacks", "baselines", "detectors", "models"}
# Documented packages that are not listed among the names here, but that `import sigil` alone should find.
_MORE = {"alignment", "data", "errors", "evidence", "federation", "statistics", "suspect", "transport"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line starts without torch."""
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _PACKAGES | _MORE:
        return import_module(f"sigil.{name}")
    raise AttributeError(f"module 'sigil' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
