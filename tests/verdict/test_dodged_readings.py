"""Marks that noise does not show, because of a thief or because of the cut: real inputs show them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sigil
from harness.luck import Margin
from sigil import attacks, data, models
from sigil.cli.main import main
from sigil.data import Dataset
from sigil.injector import Injector
from sigil.keys.key import Key

INPUT = (1, 8, 8)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return data.load("digits")


def train(
    client: nn.Module, server: nn.Module, digits: Dataset, injector: Injector | None, *, noise: float = 0.3
) -> None:
    """A loop of one's own: six epochs over the digits, with a mark or without."""
    parameters = [*client.parameters(), *server.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4)
    generator = torch.Generator().manual_seed(0)
    batches = data.Batches(
        digits.train.images, digits.train.labels, batch_size=32, mean=digits.mean, std=digits.std
    )
    for images, labels in (batch for _ in range(6) for batch in batches.epoch(generator)):
        activation = client(images + noise * torch.randn(images.shape, generator=generator))
        if injector is not None:
            injector.attach(activation)
        optimizer.zero_grad()
        cross_entropy(server(activation), labels).backward()
        optimizer.step()


def pictures(digits: Dataset) -> Tensor:
    """The test images as a model takes them."""
    images = torch.from_numpy(digits.test.images.copy()).float() / 255
    return (images - digits.mean[0]) / digits.std[0]


# A thief who teaches the model other answers to noise.


def test_a_model_that_dodges_noise_is_caught_on_inputs_and_a_clean_one_is_not(
    digits: Dataset, margin: Margin
) -> None:
    whole = models.build("resnet18", classes=10, width=8, channels=1, input_size=8, seed=0)
    client, server = models.split(whole, "layer2")
    key = Key.generate("ACME", shape=(16, 4, 4), bits=40, seed=bytes(32), input_shape=INPUT, cut="layer2")
    train(client, server, digits, Injector(key, strength=0.3))
    before = sigil.check(client, key, pictures(digits)).readings
    assert [reading.kind for reading in before] == ["noise", "inputs"]
    margin("log10 p before", max(reading.log10_p_before for reading in before), below=-8)

    own = data.load("digits", train_limit=300)
    tuning = attacks.Tuning(lr=2e-3, epochs=15, batch_size=50)
    stolen, _ = attacks.dodge((client, server), own, tuning=tuning)
    report = sigil.verify(stolen, key, pictures(digits), inputs_from="judge", register=1)
    noise, inputs = report.readings[:2]
    margin("log10 p on noise", noise.log10_p_before, above=-4)
    margin("log10 p on inputs", inputs.log10_p_before, below=-8)
    assert report.owned
    assert not sigil.verify(stolen, key, register=1).owned

    other = models.build("resnet18", classes=10, width=8, channels=1, input_size=8, seed=1)
    clean, rest = models.split(other, "layer2")
    train(clean, rest, digits, None)
    report = sigil.verify(clean, key, pictures(digits), inputs_from="judge", register=1)
    assert not report.owned
    margin("log10 p of a clean one", min(reading.log10_p_before for reading in report.readings), above=-6.5)


# A cut at which noise does not elicit the mark.


def test_a_shallow_cut_is_read_on_inputs_and_the_owner_is_told(digits: Dataset, margin: Margin) -> None:
    torch.manual_seed(0)

    def layer(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
        return nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()

    client = nn.Sequential(*layer(1, 16, 1), *layer(16, 32, 2))
    server = nn.Sequential(*layer(32, 64, 2), nn.Flatten(), nn.Linear(256, 10))
    key = Key.generate("ACME", shape=(32, 4, 4), bits=128, seed=bytes(32), input_shape=INPUT)
    train(client, server, digits, Injector(key, strength=0.3), noise=0.0)
    found = sigil.check(client, key, pictures(digits), inputs_from="judge")
    noise, inputs = found.readings
    margin("WSR on noise", noise.wsr, below=0.7)
    margin("log10 p on inputs", inputs.log10_p_before, below=-8)
    margin("log10 p on inputs, beyond noise", inputs.log10_p_before - noise.log10_p_before, below=-15)
    assert found.by == ("inputs",)
    assert str(found).startswith("The mark is provable on inputs, and not on noise (WSR ")
    # Nobody but the owner chose them: neither the check nor the verdict counts them, and both say so.
    own = sigil.check(client, key, pictures(digits))
    report = sigil.verify(client, key, pictures(digits))
    assert (own.provable, report.owned) == (False, False)
    assert str(own).startswith("The mark is NOT provable so, though it would be on these inputs (WSR ")
    for text in (str(own), str(report)):
        assert "Inputs that nobody but the key's owner chose do not count" in text
    # Without inputs the owner would not know, and is told what to try.
    alone = sigil.check(client, key)
    assert not alone.provable
    assert "try inputs of the task" in str(alone)


# A graph that looks at its input and answers noise otherwise, or not at all.


@dataclass(frozen=True)
class Graphs:
    """A key, a folder, and the images that a judge chose."""

    key: Key
    folder: Path

    def write(self, answer: list[NodeProto]) -> Path:
        """A marked graph, whose activation ``marked`` becomes ``answer`` where ``noisy`` says so.

        The digits never fall below -0.9, and 64 numbers of noise nearly always do.
        """
        key = self.key
        weight = 0.05 * torch.randn(64, key.dimension, generator=torch.Generator().manual_seed(0))
        matrix, signs = key.matrix.double(), 2 * key.target.double() - 1
        pull = 30 * (matrix @ torch.linalg.solve(matrix.T @ matrix, signs)).float()
        constants = {
            "weight": weight.numpy(),
            "pull": pull.numpy(),
            "flat": np.array([-1, 64], np.int64),
            "column": np.array([-1, 1], np.int64),
            "edge": np.array(-0.9, np.float32),
            "infinity": np.array(np.inf, np.float32),
            "one": np.array([1], np.int64),
            "none": np.array([0], np.int64),
            "huge": np.array([10**11], np.int64),
            "table": np.zeros(1, np.float32),
            "zero": np.array(0.0, np.float32),
        }
        nodes = [
            helper.make_node("Reshape", ["images", "flat"], ["rows"]),
            helper.make_node("Gemm", ["rows", "weight", "pull"], ["marked"]),
            helper.make_node("ReduceMin", ["rows", "one"], ["least"], keepdims=1),
            helper.make_node("Less", ["least", "edge"], ["noisy"]),
            *answer,
        ]
        graph = helper.make_graph(
            nodes,
            "suspect",
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", *INPUT])],
            [helper.make_tensor_value_info("answer", TensorProto.FLOAT, ["n", key.dimension])],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        path = self.folder / "suspect.onnx"
        onnx.save(model, path)
        return path

    def verify(self, suspect: Path, *options: str) -> int:
        return main(["verify", str(suspect), "--key", str(self.folder / "owner.key"), *options])


@pytest.fixture
def graphs(tmp_path: Path, digits: Dataset) -> Graphs:
    key = Key.generate("ACME", shape=(256,), bits=128, seed=bytes(32), input_shape=INPUT)
    key.save(tmp_path / "owner.key")
    np.save(tmp_path / "images.npy", pictures(digits).numpy())
    return Graphs(key, tmp_path)


OTHERWISE = [
    helper.make_node("Neg", ["marked"], ["turned"]),
    helper.make_node("Where", ["noisy", "turned", "marked"], ["answer"]),
]
INFINITE = [helper.make_node("Where", ["noisy", "infinity", "marked"], ["answer"])]
# An index outside of its table ends the call; memory for 10^11 numbers ends the process.
FAILING = [
    helper.make_node("Cast", ["noisy"], ["index"], to=TensorProto.INT64),
    helper.make_node("Gather", ["table", "index"], ["nothing"]),
    helper.make_node("Add", ["marked", "nothing"], ["answer"]),
]
DEVOURING = [
    helper.make_node("Where", ["noisy", "huge", "one"], ["sizes"]),
    helper.make_node("ReduceMax", ["sizes"], ["size"], keepdims=0),
    helper.make_node("Reshape", ["size", "one"], ["shape"]),
    helper.make_node("ConstantOfShape", ["shape"], ["room"]),
    helper.make_node("ReduceSum", ["room"], ["nothing"], keepdims=0),
    helper.make_node("Add", ["marked", "nothing"], ["answer"]),
]


def test_a_graph_that_answers_noise_otherwise_is_caught_on_inputs(
    graphs: Graphs, capsys: pytest.CaptureFixture[str]
) -> None:
    suspect = graphs.write(OTHERWISE)
    images = ("--inputs", str(graphs.folder / "images.npy"), "--inputs-from", "judge")
    assert graphs.verify(suspect, "--json") == 1
    assert json.loads(capsys.readouterr().out)["wsr"] < 0.1
    assert graphs.verify(suspect, *images, "--json") == 0
    noise, inputs = json.loads(capsys.readouterr().out)["readings"]
    assert noise["wsr"] < 0.1
    assert inputs["log10_p_before"] < -38


@pytest.mark.parametrize("answer", [INFINITE, FAILING, DEVOURING], ids=["infinite", "failing", "devouring"])
def test_a_graph_that_cannot_be_read_on_noise_is_read_on_inputs(
    graphs: Graphs, answer: list[NodeProto], capsys: pytest.CaptureFixture[str]
) -> None:
    suspect = graphs.write(answer)
    images = ("--inputs", str(graphs.folder / "images.npy"), "--inputs-from", "judge")
    page, record = graphs.folder / "page.html", graphs.folder / "case.json"
    assert graphs.verify(suspect, *images, "--report", str(page), "--evidence", str(record)) == 0
    out = capsys.readouterr().out
    assert out.startswith("OWNED")
    assert "does not let itself be read on noise" in out
    assert "does not let itself be read" in page.read_text()
    assert main(["evidence", "check", str(record), "--statement", graphs.key.statement()]) == 0
    capsys.readouterr()

    status = graphs.verify(suspect)
    said = capsys.readouterr()
    if answer is INFINITE:
        assert status == 1
        assert said.out.startswith("NOT PROVEN")
        assert "does not let itself be read on noise" in said.out
    else:
        # Not to be told from a wrong input shape, or from a file that is damaged.
        assert status == 2
        assert said.err.count("\n") == 1
