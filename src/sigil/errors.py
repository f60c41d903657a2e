"""Everything that can go wrong, in one small tree: catch :class:`SigilError` to catch all of it.

Each message is one sentence that says what was wrong, what was expected and what to do; the command
line prints it and exits with status 2.
"""

from __future__ import annotations


class SigilError(Exception):
    """Base of all errors that Sigil raises on purpose."""


class KeyFileError(SigilError):
    """A key file cannot be read, written or trusted."""


class KeyFileWarning(UserWarning):
    """A key file lies open to others; it is read nevertheless."""


class SealError(SigilError):
    """A time stamp is malformed, fits another key, or comes from an authority that is not trusted."""


class ShapeError(SigilError):
    """A tensor does not have the shape that the key or the model expects."""


class SuspectError(SigilError):
    """A suspect model cannot be opened safely or does not fit the key."""


class NotReadable(SuspectError):
    """A suspect answers with values that are not finite: on these inputs it does not let itself be read.

    An outcome and no accident: a thief can build a model that does so on noise. Readings on other inputs
    remain possible.
    """


class AlignmentError(SigilError):
    """A reference for alignment cannot be read, or the suspect cannot be compared with it."""


class EvidenceError(SigilError):
    """An evidence file is damaged, unsigned or signed by somebody else."""


class ModelError(SigilError):
    """An architecture, width or cut point does not exist or does not fit."""


class DataError(SigilError):
    """A data set or partition is missing, damaged or impossible."""


class ConfigError(SigilError):
    """A setting is unknown, misspelt or has an impossible value."""


class TrainingError(SigilError):
    """Training cannot start, go on or be resumed."""


class LossError(SigilError):
    """A logit gradient is not one that the agreed loss can produce."""


class RepetitionError(SigilError):
    """A client sends the same samples again where an honest one would not."""


class AttackError(SigilError):
    """An attack was asked for something that it cannot do."""


class DetectorError(SigilError):
    """A detector lacks what it needs to give a score."""


class ExperimentError(SigilError):
    """An experiment or its stored results cannot be run or read."""


class OutputError(SigilError):
    """A result cannot be written where it was asked for, or would take the place of something else."""


class MissingExtraError(SigilError):
    """A part of Sigil was asked for whose packages are not installed; the message says how to get them."""


class NetworkError(SigilError):
    """A training across machines cannot go on: no connection, bad certificates, or too few clients."""


def no_key_file(path: object) -> KeyFileError:
    """What to say of a key file that does not exist."""
    return KeyFileError(
        f"The key file {path} cannot be read: there is no such file; check the path, or make a key with "
        "`sigil key new`."
    )


def reason(error: Exception) -> str:
    """The first line of a foreign error's text, short and printable: it may quote an adversary's file."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = (text.strip() or type(error).__name__).splitlines()[0]
    return "".join(sign if sign.isprintable() else "?" for sign in line[:300]).rstrip(".")


def shown(value: object) -> str:
    """A value that an adversary may have chosen, short and printable."""
    try:
        text = ascii(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"a huge {type(value).__name__}"
    text = " ".join(text.split())  # a tensor prints several lines
    return text if len(text) <= 80 else f"{text[:77]}..."
