"""Every setting of a training run, with the paper's defaults (appendix B) and one line of help each.

Settings come from TOML files and from ``--set section.name=value``; an unknown or misspelt name is an error
that names the nearest known one.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sigil import presets
from sigil.errors import ConfigError


class Section(BaseModel):
    """A group of settings: frozen, and closed to unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSettings(Section):
    name: str = Field("resnet18", description="architecture: resnet18, vgg11, mobilenetv2, densenet121")
    width: int | None = Field(None, ge=1, description="channels of the first convolution; none: standard")
    cut: str | None = Field(None, description="cut point; none: the paper's for this architecture")


class DataSettings(Section):
    name: str = Field("digits", description="digits, cifar10, tiny-imagenet, fashion-mnist, folder:…, hub:…")
    train_limit: int | None = Field(None, ge=2, description="use only this many training images")
    test_limit: int | None = Field(None, ge=1, description="use only this many test images")
    classes: int | None = Field(None, ge=2, description="use only this many classes, the first")
    augment: bool = Field(True, description="random crops and flips, as usual for the data set")


class FederationSettings(Section):
    mode: Literal["usfl", "sfl", "sl"] = Field(
        "usfl",
        description="usfl: labels stay at the clients; sfl: labels at the server; sl: in turn",
    )
    server_halves: Literal["per-client", "shared"] = Field(
        "per-client", description="one server half per client, averaged (V1), or one for all (V2)"
    )
    clients: int = Field(10, ge=1, le=1_000_000, description="number of clients")
    partition: Literal["iid", "dirichlet", "lognormal"] = Field("iid", description="who holds what")
    beta: float | None = Field(None, gt=0, description="Dirichlet parameter; smaller is more skewed")
    sigma: float | None = Field(None, ge=0, description="deviation of the log of the clients' sizes")
    rounds: int = Field(80, ge=1, le=1_000_000, description="global rounds")
    local_epochs: int = Field(2, ge=1, le=1_000_000, description="epochs of each client in a round")
    batch_size: int = Field(256, ge=2, le=1_000_000, description="batch of one client")
    loss: Literal["cross-entropy", "any"] = Field(
        "cross-entropy",
        description="what logit gradients must be gradients of; any: the server cannot judge them",
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="the ε of label smoothing")
    label_mixing: bool = Field(False, description="clients may mix two classes (mixup, cutmix)")
    loss_reduction: Literal["mean", "sum"] = Field("mean", description="of the loss over a batch")
    repeated_activations: Literal["count", "refuse"] = Field(
        "count", description="what becomes of a client that sends the same samples again in an epoch"
    )
    average: Literal["mean", "trimmed-mean", "median"] = Field(
        "mean", description="of the halves: weighted mean, or coordinate by coordinate without the ends"
    )
    trim: float = Field(
        0.2, gt=0, lt=0.5, description="share of clients that a trimmed mean cuts at each end"
    )
    imprint: bool | None = Field(
        None,
        description="give each client its own copy, which names it; none: across machines, if there is a key",
    )


class OptimizerSettings(Section):
    name: Literal["sgd", "adam"] = Field("sgd", description="of both halves: sgd (the paper's) or adam")
    lr: float = Field(0.1, gt=0, description="highest learning rate")
    lr_min: float = Field(1e-4, ge=0, description="learning rate of the last round")
    warmup_rounds: int = Field(5, ge=0, description="rounds of linear warm-up")
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD momentum, fresh each round")
    weight_decay: float = Field(5e-4, ge=0, description="weight decay")


class WatermarkSettings(Section):
    scheme: Literal["auto", "paper", "shares"] = Field(
        "auto",
        description="paper: every client carries all bits; shares: each its part; auto: as the key states, "
        "or shares with four or more clients that are averaged",
    )
    carriers_per_bit: Literal[1, 2] | None = Field(
        None, description="clients that carry a bit under shares; none: as the key states, or 1"
    )
    strength: float | None = Field(
        None, ge=0, description="the paper's λ; none: 0.1, under shares 0.3; 0 trains without a mark"
    )
    bits: int | None = Field(
        None, ge=1, description="length of a key made for the run; none: a bit for 16 dimensions, 32 to 512"
    )
    clip: bool = Field(True, description="clip the watermark gradient; false only as a control")
    per_sample: bool = Field(False, description="clip by each sample's norms instead of the batch's")
    statistics_every: int = Field(
        10, ge=0, description="steps from one record of norms and cosine to the next; 0: none"
    )
    probes: int = Field(256, ge=1, description="noise inputs for the WSR of each round")


class RecordSettings(Section):
    clients: tuple[int, ...] = Field((), description="clients that record their incoming gradients")
    rounds: tuple[int, ...] = Field((), description="rounds to record, from 1; none: all")
    share: float = Field(1.0, gt=0, le=1, description="share of the steps to record")
    whole_rounds: int = Field(
        0, ge=0, description="number of first rounds of which every step is recorded, whatever the share"
    )
    limit_mb: int = Field(512, ge=1, description="largest size of the recording")


class BehaviourSettings(Section):
    """What clients do beside training, in one process."""

    noise_snr: float | None = Field(None, gt=0, description="clients add noise of this signal-to-noise ratio")
    noise_reading: Literal["power", "amplitude"] = Field("power", description="what the ratio is of")
    mark: Literal["none", "backdoor", "parameter"] = Field(
        "none", description="a baseline mark that cooperating clients embed"
    )


class RunSettings(Section):
    seed: int = Field(0, ge=0, description="seed of everything random but the key")
    device: str = Field("auto", description="auto, cpu, cuda, mps")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 where the hardware has instructions for it"
    )
    threads: int = Field(0, ge=0, description="threads per process; 0: all cores, shared among the workers")
    workers: int = Field(0, ge=0, description="processes that train clients side by side; 0: what is fastest")
    evaluate_every: int = Field(
        1, ge=1, description="rounds from one measurement of accuracy and WSR to the next"
    )


class Settings(Section):
    """All settings of a run."""

    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    federation: FederationSettings = FederationSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    watermark: WatermarkSettings = WatermarkSettings()
    record: RecordSettings = RecordSettings()
    behaviour: BehaviourSettings = BehaviourSettings()
    run: RunSettings = RunSettings()

    @property
    def marked(self) -> bool:
        """Whether this run embeds a mark."""
        return self.watermark.strength is None or self.watermark.strength > 0

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        # Not a ValueError: pydantic lets it through as it is, one sentence and no list of locations.
        _check_together(self)
        return self


def make(values: Mapping[str, Any]) -> Settings:
    """Check a nested mapping of settings, as read from TOML."""
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from None


def read(file: Path | None = None, changes: Iterable[str] = (), *, preset: str | None = None) -> Settings:
    """Settings from a TOML file or a preset, and ``section.name=value`` changes, which win.

    Without either the preset is ``digits`` for the embedded digits, a small task, and ``paper`` for every
    other data set; below a file lie the paper's settings.
    """
    if file is not None and preset is not None:
        raise ConfigError(
            "A configuration holds all settings, so a preset means nothing beside it: give one."
        )
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = tomllib.loads(file.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"The configuration {file} cannot be read: {error.strerror}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"The configuration {file} is not valid TOML: {error}.") from None
    for change in changes:
        _apply(values, change)
    if file is None:
        data = values.get("data", {})
        embedded = not isinstance(data, dict) or str(data.get("name", "digits")).startswith("digits")
        values = _beneath(values, presets.get(preset or ("digits" if embedded else "paper")))
    return make(values)


def _beneath(values: dict[str, Any], preset: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A preset with the values on top of it."""
    merged: dict[str, Any] = {section: dict(fields) for section, fields in preset.items()}
    for section, given in values.items():
        merged[section] = {**merged.get(section, {}), **given} if isinstance(given, dict) else given
    return merged


def to_toml(settings: Settings) -> str:
    """The settings as TOML, for a file that `read` understands."""
    lines = []
    for section, values in settings.model_dump(exclude_none=True, mode="json").items():
        lines.append(f"[{section}]")
        # JSON's numbers, strings, booleans and lists are TOML's too.
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def _apply(values: dict[str, Any], change: str) -> None:
    name, equals, text = change.partition("=")
    section, dot, field = name.strip().partition(".")
    if not (equals and dot and section and field):
        whole = [known for known in _known(2) if known.partition(".")[2] == name.strip()]
        hint = f"did you mean {' or '.join(whole)}?" if whole else "write section.name=value."
        raise ConfigError(f"{change!r} is not a change of a setting; {hint}")
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    group = values.setdefault(section, {})
    if not isinstance(group, dict):
        raise ConfigError(f"{section!r} is a section of the configuration, but the file gives it a value.")
    group[field] = value


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    name = ".".join(path)
    if first["type"] == "extra_forbidden":
        if path[-1].lower() in _USUAL_NAMES:
            return f"There is no setting {name!r}; did you mean {_USUAL_NAMES[path[-1].lower()]!r}?"
        nearest = difflib.get_close_matches(name, _known(len(path)), n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "`sigil train --settings` lists all of them."
        return f"There is no setting {name!r}; {hint}"
    return f"The setting {name!r} is {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}."


# What the settings are called elsewhere.
_USUAL_NAMES = {
    "learning_rate": "optimizer.lr",
    "lambda": "watermark.strength",
    "alpha": "watermark.strength",
    "epochs": "federation.local_epochs",
    "num_clients": "federation.clients",
    "num_rounds": "federation.rounds",
    "batchsize": "federation.batch_size",
    "dataset": "data.name",
    "arch": "model.name",
    "architecture": "model.name",
    "split": "model.cut",
    "cut_layer": "model.cut",
    "wd": "optimizer.weight_decay",
}


def _known(depth: int) -> list[str]:
    sections = Settings.model_fields
    if depth == 1:
        return list(sections)
    return [f"{name}.{field}" for name in sections for field in section_fields(name)]


def section_fields(section: str) -> dict[str, Any]:
    """The fields of one section, by name."""
    kind = Settings.model_fields[section].annotation
    assert isinstance(kind, type)
    assert issubclass(kind, Section)
    return dict(kind.model_fields)


def _check_together(settings: Settings) -> None:
    federation, record = settings.federation, settings.record
    if federation.partition == "dirichlet" and federation.beta is None:
        raise ConfigError("A Dirichlet partition needs federation.beta, for example 0.5.")
    if federation.partition == "lognormal" and federation.sigma is None:
        raise ConfigError("A log-normal partition needs federation.sigma, for example 1.0.")
    for client in record.clients:
        if not 0 <= client < federation.clients:
            raise ConfigError(
                f"record.clients names client {client}, but there are only {federation.clients}, from 0 on."
            )
    for number in record.rounds:
        if not 1 <= number <= federation.rounds:
            raise ConfigError(
                f"record.rounds names round {number}, but the run has only {federation.rounds}, from 1 on."
            )
