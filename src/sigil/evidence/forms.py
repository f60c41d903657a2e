"""The kinds of values that a record of evidence is made of, in every version: strict, and short enough."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
)

MAX_BITS = 65_536
MAX_COUNT = 10**9

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Line = Annotated[str, StringConstraints(max_length=2_000)]
Statement = Annotated[str, StringConstraints(max_length=4_000)]
Command = Annotated[str, StringConstraints(max_length=20_000)]
Moment = Annotated[
    str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")
]
Name = Annotated[str, StringConstraints(max_length=200)]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1, le=2**31)]
Shape = Annotated[tuple[Size, ...], Field(min_length=1, max_length=16)]
Level = Annotated[float, Field(gt=0.0, lt=1.0, allow_inf_nan=False)]
Log10 = Annotated[float, Field(le=0.0, allow_inf_nan=False)]
Tries = Annotated[int, Field(ge=1, le=10**17)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Bits = Annotated[int, Field(ge=1, le=MAX_BITS)]


class Strict(BaseModel):
    """Refuses unknown names, missing names and values of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class AlignmentFacts(Strict):
    """What the suspect's channels were compared with, and whether they were put in order by it.

    `reference` is the fingerprint of what the owner showed (`sigil.alignment.fingerprint`). Where `used` is
    false too few channels were recognised, and the suspect was examined as it is.
    """

    compared: Name
    reference: Hash
    sure_channels: Annotated[int, Field(ge=0, le=2**31)]
    agreement: Annotated[float, Field(allow_inf_nan=False)]
    used: bool


class SuspectFacts(Strict):
    """Which file was examined, and how.

    `entry` says which of the models in the file the verdict is about, if it does not hold just one. All
    `entries` that were read or could have been are counted among the tries; of the `unread` nothing was read.
    """

    file: Line
    sha256: Hash
    kind: Name
    description: Line
    input_shape: Shape
    entry: Line | None = None
    entries: Annotated[int, Field(ge=1, le=16)] = 1
    unread: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Of a file that holds one model a record says what it always said."""
        usual = {"entry": None, "entries": 1, "unread": 0}
        return {
            name: value for name, value in handler(self).items() if name not in usual or value != usual[name]
        }


class Software(Strict):
    """The versions that computed the outcome."""

    sigil: Name
    torch: Name
    numpy: Name
    python: Name
    platform: Name
