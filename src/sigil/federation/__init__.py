"""U-shaped split federated training: the paper's setting as software."""

from sigil.federation.client import Client
from sigil.federation.federation import Federation, RoundResult
from sigil.federation.messages import Activation, CutGradient, LogitGradient, Logits
from sigil.federation.observers import ClientObserver, ServerObserver, Step
from sigil.federation.progress import MetricsObserver
from sigil.federation.recording import Recording
from sigil.federation.run import Run, open_run, train
from sigil.federation.server import LabelServer, Server
from sigil.federation.settings import Settings
from sigil.federation.step import step
from sigil.federation.trainer import RoundStart, RoundSums, RoundTrainer

__all__ = [
    "Activation",
    "Client",
    "ClientObserver",
    "CutGradient",
    "Federation",
    "LabelServer",
    "LogitGradient",
    "Logits",
    "MetricsObserver",
    "Recording",
    "RoundResult",
    "RoundStart",
    "RoundSums",
    "RoundTrainer",
    "Run",
    "Server",
    "ServerObserver",
    "Settings",
    "Step",
    "open_run",
    "step",
    "train",
]
