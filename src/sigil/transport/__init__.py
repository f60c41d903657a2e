"""The same training across machines: rounds, tickets and one encrypted stream per client."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sigil.transport.certificates import ClientCredentials, ServerCredentials
    from sigil.transport.client import RemoteServer, RoundTask, RoundUpdate, train_round
    from sigil.transport.limits import Limits, Reason, Refused
    from sigil.transport.metrics import Metrics
    from sigil.transport.rounds import ClientOutcome, RoundOutcome
    from sigil.transport.service import SplitService
    from sigil.transport.session import Status

__all__ = [
    "ClientCredentials",
    "ClientOutcome",
    "Limits",
    "Metrics",
    "Reason",
    "Refused",
    "RemoteServer",
    "RoundOutcome",
    "RoundTask",
    "RoundUpdate",
    "ServerCredentials",
    "SplitService",
    "Status",
    "train_round",
]

_MODULES = ("certificates", "limits", "client", "metrics", "session", "rounds", "service")


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: Flower looks into this package for the app, without torch."""
    if name in __all__:
        for module in _MODULES:
            found = vars(import_module(f"sigil.transport.{module}")).get(name)
            if found is not None:
                return found
    raise AttributeError(f"module 'sigil.transport' has no attribute {name!r}")
