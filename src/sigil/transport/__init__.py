"""The same training across machines: rounds, tickets and one encrypted stream per client."""

from __future__ import annotations

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

_HOMES = {
    "ClientCredentials": "sigil.transport.certificates",
    "ClientOutcome": "sigil.transport.rounds",
    "Limits": "sigil.transport.limits",
    "Metrics": "sigil.transport.metrics",
    "Reason": "sigil.transport.limits",
    "Refused": "sigil.transport.limits",
    "RemoteServer": "sigil.transport.client",
    "RoundOutcome": "sigil.transport.rounds",
    "RoundTask": "sigil.transport.client",
    "RoundUpdate": "sigil.transport.client",
    "ServerCredentials": "sigil.transport.certificates",
    "SplitService": "sigil.transport.service",
    "Status": "sigil.transport.session",
    "train_round": "sigil.transport.client",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: Flower looks into this package for the app, without torch."""
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sigil.transport' has no attribute {name!r}")
