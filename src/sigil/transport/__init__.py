"""The same training across machines: rounds, tickets and one encrypted stream per client."""

from sigil.transport.certificates import ClientCredentials, ServerCredentials
from sigil.transport.client import RemoteServer, RoundTask, RoundUpdate, train_round
from sigil.transport.limits import Limits
from sigil.transport.metrics import Metrics
from sigil.transport.rejections import Reason, Refused
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
