from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sigil.errors import ConfigError
from sigil.federation.from_settings import resolve
from sigil.federation.settings import Settings, make, read, to_toml


def test_defaults_are_the_papers() -> None:
    settings = Settings()
    assert (settings.federation.rounds, settings.federation.local_epochs) == (80, 2)
    assert (settings.federation.clients, settings.federation.batch_size) == (10, 256)
    assert (settings.optimizer.lr, settings.optimizer.lr_min) == (0.1, 1e-4)
    assert (settings.optimizer.momentum, settings.optimizer.weight_decay) == (0.9, 5e-4)
    assert settings.optimizer.warmup_rounds == 5
    assert resolve(make({"federation": {"clients": 3}}), None).watermark.strength == 0.1


def test_file_and_changes(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[model]\nname = "vgg11"\nwidth = 8\n[federation]\nclients = 4\n')
    settings = read(file, ["federation.clients=7", "data.name=cifar10", "record.clients=[0, 2]"])
    assert (settings.model.name, settings.model.width) == ("vgg11", 8)
    assert settings.federation.clients == 7
    assert settings.data.name == "cifar10"
    assert settings.record.clients == (0, 2)


def test_toml_round_trip(tmp_path: Path) -> None:
    settings = read(None, ["model.cut=layer2", "record.clients=[1]", 'data.name="folder:a b"'])
    file = tmp_path / "again.toml"
    file.write_text(to_toml(settings))
    assert read(file) == settings


@pytest.mark.parametrize(
    ("change", "nearest"),
    [
        ("federation.client=3", "federation.clients"),
        ("watermark.strenght=0.1", "watermark.strength"),
        ("optimiser.lr=0.1", "optimizer"),
        ("modle.name=vgg11", "model"),
    ],
)
def test_a_misspelt_setting_is_an_error_that_names_the_nearest(change: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        read(None, [change])


@pytest.mark.parametrize(
    "change",
    [
        "federation.clients=0",
        "federation.mode=vertical",
        "optimizer.lr=fast",
        "watermark.strength=-1",
        "federation.partition=dirichlet",
        "federation.partition=lognormal",
        "record.clients=[10]",
        "record.rounds=[0]",
        "federation",
        "federation.clients",
        "xyzzy.q=1",
    ],
)
def test_impossible_values_are_one_sentence(change: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(None, [change])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "sections",
    [
        {"federation": {"partition": "dirichlet"}},
        {"federation": {"partition": "lognormal"}},
        {"record": {"clients": (10,)}},
        {"record": {"rounds": (81,)}},
    ],
)
def test_settings_made_in_python_must_fit_together_too(sections: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as made:
        Settings(**sections)
    with pytest.raises(ConfigError) as read_in:
        make(sections)
    assert str(made.value) == str(read_in.value)
    assert "\n" not in str(made.value)


def test_unreadable_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "missing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[model\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read(broken)
    flat = tmp_path / "flat.toml"
    flat.write_text("model = 3\n")
    with pytest.raises(ConfigError, match="section"):
        read(flat, ["model.name=vgg11"])


def test_settings_cannot_change_under_a_run() -> None:
    with pytest.raises(ValueError, match="frozen"):
        make({}).federation.clients = 3  # type: ignore[misc]
