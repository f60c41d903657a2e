"""What clients do beside training, from the settings: add noise, or embed a baseline mark."""

from __future__ import annotations

from sigil.attacks import NoiseInjection
from sigil.baselines import Backdoor, ParameterMark
from sigil.experiments.lab.scales import PAPER_BITS
from sigil.federation.observers import ClientObserver
from sigil.federation.settings import Settings


def observers(settings: Settings) -> list[ClientObserver]:
    """The client observers that `settings.behaviour` asks for."""
    behaviour = settings.behaviour
    found: list[ClientObserver] = []
    if behaviour.mark == "backdoor":
        found.append(backdoor(settings))
    if behaviour.mark == "parameter":
        found.append(parameter_mark(settings))
    if behaviour.noise_snr is not None:
        noise = NoiseInjection(behaviour.noise_snr, reading=behaviour.noise_reading, seed=settings.run.seed)
        found.append(noise)
    return found


def backdoor(settings: Settings) -> Backdoor:
    """The backdoor of a training: fixed by its seed, since experiments must repeat."""
    return Backdoor(seed=settings.run.seed)


def parameter_mark(settings: Settings) -> ParameterMark:
    """The parameter mark of a training, with as many bits as the settings give a key, else the paper's."""
    return ParameterMark(bits=settings.watermark.bits or PAPER_BITS, seed=settings.run.seed)
