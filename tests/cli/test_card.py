"""`sigil card`: a model card with the statement in it, and the statement in the model's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from harness.commands import Command
from sigil import Key, models
from sigil.cli.main import main
from sigil.federation import MetricsObserver
from sigil.federation.run import train
from sigil.federation.settings import make

SETTINGS = {
    "model": {"name": "resnet18", "width": 4, "cut": "layer3"},
    "data": {"name": "digits", "train_limit": 40, "test_limit": 20},
    "federation": {"clients": 1, "rounds": 2, "local_epochs": 1, "batch_size": 16},
    "watermark": {"bits": 8},
    "run": {"threads": 1, "workers": 1, "precision": "float32"},
}
logged: list[tuple[int, dict[str, float]]] = []


@pytest.fixture(scope="module")
def key() -> Key:
    return Key.generate("ACME", shape=(16, 2, 2), bits=8, seed=bytes(32))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, key: Key) -> Path:
    def log(numbers: dict[str, float], *, step: int) -> None:
        logged.append((step, numbers))

    folder = tmp_path_factory.mktemp("card") / "first"
    train(make(SETTINGS), folder, key=key, metrics_observers=[MetricsObserver(log)])
    return folder


def test_the_card_is_metadata_and_text_with_the_statement(
    run: Path, key: Key, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["card", str(run), "--license", "apache-2.0"]) == 0
    assert capsys.readouterr().out.strip() == str(run / "README.md")
    _, front, body = (run / "README.md").read_text().split("---\n", 2)
    metadata = yaml.safe_load(front)
    assert metadata["license"] == "apache-2.0"
    assert metadata["library_name"] == "sigil"
    assert {"sigil", "watermark"} <= set(metadata["tags"])
    (result,) = metadata["model-index"][0]["results"]
    assert result["dataset"]["name"] == "digits"
    assert result["metrics"][0]["type"] == "accuracy"
    assert key.statement() in body
    assert main(["card", str(run)]) == 0, "an own card is written again"


def test_the_statement_is_in_the_models_metadata(run: Path, key: Key) -> None:
    described = models.read_description(run / "client.safetensors")
    assert described.extra == {"statement": key.statement()}
    assert models.read_description(run / "server.safetensors").extra == {}


def test_a_card_of_ones_own_is_not_written_over(run: Path, refused: Command) -> None:
    (run / "README.md").unlink(missing_ok=True)
    (run / "README.md").write_text("---\nby hand\n")
    assert "not a card that Sigil wrote" in refused("card", run)
    (run / "README.md").unlink()


def test_a_name_cannot_break_out_of_the_metadata(run: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a: [b\n---\n# c"
    odd.symlink_to(run, target_is_directory=True)
    out = tmp_path / "card.md"
    assert main(["card", str(odd), "--out", str(out)]) == 0
    metadata = yaml.safe_load(out.read_text().split("\n---\n")[0].removeprefix("---\n"))
    assert metadata["model-index"][0]["name"] == odd.name
    assert main(["card", str(run), "--license", "x\nevil: 1", "--out", str(tmp_path / "b.md")]) == 2


def test_the_metrics_of_every_round_go_to_a_logger(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step for step, _ in logged] == [1, 2]
    for row, (_, numbers) in zip(rows, logged, strict=True):
        assert numbers["loss"] == row["loss"]
        assert {"accuracy", "wsr", "log10_p"} <= set(numbers)
        assert all(isinstance(value, float) for value in numbers.values())
