"""Clumsy and hostile callers of the public names: each call is refused by one sentence of the right kind.

Nothing may hang on a pipe. What contradicts a type annotation, such as text for a number, gets Python's own
error and is not listed here: these are values, shapes, paths and files that somebody may plausibly give.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sigil
from sigil import errors

REFUSED = r"""
ConfigError     Key.generate("ACME", ())
ConfigError     Key.generate("ACME", (8, -4, 4))
ConfigError     Key.generate("ACME", (10**9, 10**9))
ConfigError     Key.generate("ACME", [10**100])
ConfigError     Key.generate("", (8,4,4))
ConfigError     Key.generate("A\nB", (8,4,4))
ConfigError     Key.generate("A"*1000, (8,4,4))
ConfigError     Key.generate("\ud800", (8,4,4))
ConfigError     Key.generate("ACME", (8,4,4), bits=-1)
ConfigError     Key.generate("ACME", (8,4,4), bits=10**100)
ConfigError     Key.generate("ACME", (8,4,4), seed="secret")
ConfigError     Key.generate("ACME", (8,4,4), cut="\n")
ConfigError     Key.generate("ACME", (8,4,4), input_shape=())
ConfigError     Key.generate("ACME", (8,4,4), normalisation=(0.5, 0.5))
ConfigError     Key.generate("ACME", (8,4,4), normalisation=((0.5,), (nan,)))
ConfigError     Key.generate("ACME", (8,4,4), normalisation=((0.5,), (0.0,)))
ConfigError     Key.generate("ACME", (8,4,4), normalisation=((0.5,), (0.5,), (0.5,)))
ConfigError     Key.generate("ACME", (8,4,4), normalisation=((0.5, 0.5), (0.5,)))
ConfigError     Key.generate("ACME", (8,4,4), scheme="mine")
ConfigError     Key.generate("ACME", (8,4,4), scheme="shares", carriers_per_bit=0)
ConfigError     Key.generate("ACME", (8,4,4), carriers_per_bit=2)
ConfigError     Key.generate("ACME", (8,4,4), inputs_digest="abc")
ConfigError     Key.generate("ACME", (8,4,4), probes=0)
ConfigError     Key.generate("ACME", (8,4,4), alpha=nan)
ConfigError     Key.generate("ACME", (8,4,4), alpha=2)
ConfigError     Key.generate("ACME", (8,4,4), initialiser="kaiming")
ConfigError     Key.generate("ACME", (8,4,4), seal="wax")
ShapeError      Key.for_activation(torch.tensor(1.0), "ACME")
ShapeError      Key.for_activation(torch.rand(8), "ACME")
ShapeError      Key.for_activation(torch.rand(0,8,4,4), "ACME")
ConfigError     Key.for_activation(torch.rand(4,0,4), "ACME")
KeyFileError    Key.load("missing.key")
KeyFileError    Key.load("folder")
KeyFileError    Key.load("pipe")
KeyFileError    Key.load("/dev/null")
KeyFileError    Key.load("/dev/zero")
KeyFileError    Key.load("words.txt")
KeyFileError    Key.load("empty")
KeyFileError    Key.load("a\0b")
KeyFileError    Key.load("")
KeyFileError    Key.load("locked.key")
KeyFileError    Key.load("locked.key", passphrase="wrong")
KeyFileError    Key.load("locked.key", passphrase="\ud800")
KeyFileError    Key.load("owner.key/inside")
KeyFileError    key.save("folder")
KeyFileError    key.save("pipe")
KeyFileError    key.save("missing/a.key")
KeyFileError    key.save("a\0b")
KeyFileError    key.save("n"*5000)
KeyFileError    key.save("")
KeyFileError    key.save("owner.key")
KeyFileError    key.save("/proc/a.key")
KeyFileError    key.save("words.txt/a.key")
KeyFileError    key.save("b.key", passphrase="")
KeyFileError    key.save("b.key", passphrase="\ud800")
ShapeError      key.rows(-1, 4)
ShapeError      key.rows(0, 10**9)
ConfigError     key.noise_probes(0, 4)
ConfigError     key.noise_probes(0, 4, (3, -8))
ShapeError      key.noise_probes(0, 2**40, (3, 8, 8))
ConfigError     key.noise_probes(0, 2**31, (3, 8000, 8000))
ConfigError     key.choose(3, 10, "other")
ConfigError     key.choose(-3, 10)
ConfigError     key.choose(10**12, 10**13)
ConfigError     key.share_of(-1, 3)
ConfigError     key.share_of(0, 10**9)
ConfigError     key.initial("conv1.weight", (8,))
ConfigError     key.initial("conv1.weight", (10**9, 10**9))
ConfigError     key.initial("conv1.weight", (8, 0))
ConfigError     key.held_out("conv1.weight", (10**9, 10**9))
ConfigError     key.initialise(nn.Identity())
ConfigError     key.initialise(nn.Linear(0, 4))
SealError       key.seal(b"token")
SealError       key.seal(b"")
KeyFileError    Injector("missing.key")
KeyFileError    Injector("folder")
KeyFileError    Injector("pipe")
ConfigError     Injector(key.matrix)
ConfigError     Injector(key, nan)
ConfigError     Injector(key, inf)
ConfigError     Injector(key, -1)
ConfigError     Injector(key, 10**400)
ConfigError     Injector(key, share=(3,))
ConfigError     Injector(key, share=(10, 3))
ConfigError     Injector(key, share=(0, 3), carriers_per_bit=9)
ConfigError     Injector(key, carriers_per_bit=2)
ConfigError     inj(act.numpy(), grad.numpy())
ConfigError     inj(act, grad.numpy())
ShapeError      inj(act, torch.rand(4, 8, 4))
ShapeError      inj(torch.rand(4, 8, 5, 4), torch.rand(4, 8, 5, 4))
ShapeError      inj(act[:0], grad[:0])
ShapeError      inj(torch.tensor(1.0), torch.tensor(1.0))
ShapeError      inj(act.long(), grad.long())
ShapeError      inj(act.bool(), grad)
ShapeError      inj(act.to(torch.complex64), grad)
ShapeError      inj(act, grad.to(torch.complex64))
ShapeError      inj(meta, grad)
ConfigError     inj(act.to_sparse(), grad.to_sparse())
ConfigError     inj(act, grad.to_sparse())
ConfigError     inj(act.to_sparse(), grad)
ShapeError      inj(act.to(torch.float8_e4m3fn), grad.to(torch.float8_e4m3fn))
ShapeError      inj(act, grad.to(torch.float8_e5m2))
ConfigError     inj(torch.quantize_per_tensor(act, 0.1, 0, torch.qint8), grad)
ConfigError     inj(torch.nested.nested_tensor([torch.rand(8,4,4)]), grad)
SigilError      inj.attach(act)
ConfigError     inj.attach(act.numpy())
ShapeError      inj.attach(torch.rand(4, 3, requires_grad=True))
ShapeError      inj.attach(torch.rand(0, 8, 4, 4, requires_grad=True))
ConfigError     inj.attach(torch.rand(4, 8, 4, 4, device="meta", requires_grad=True))
ConfigError     inj.attach(torch.rand(4, 8, 4, 4, requires_grad=True).to_sparse())
ShapeError      inj.attach(torch.rand(4, 8, 4, 4, requires_grad=True, dtype=torch.complex64))
ConfigError     inj.attach(torch.nested.nested_tensor([torch.rand(8,4,4)], requires_grad=True))
KeyFileError    verify(half, "missing.key")
KeyFileError    verify(half, "folder")
KeyFileError    verify(half, "pipe")
KeyFileError    verify(half, "locked.key")
SuspectError    verify(act, key)
SuspectError    verify(half.state_dict(), key)
SuspectError    verify("missing.safetensors", key)
SuspectError    verify("folder", key)
SuspectError    verify("pipe", key)
SuspectError    verify("/dev/zero", key)
SuspectError    verify("/dev/null", key)
SuspectError    verify("words.txt", key)
SuspectError    verify("empty", key)
SuspectError    verify("a\0b", key)
SuspectError    verify("n"*5000, key)
SuspectError    verify("", key)
ShapeError      verify(half, key)
SuspectError    verify(half, key, input_shape=(3, 8))
ShapeError      verify(half, key, input_shape=(3, 0, 8))
ShapeError      verify(half, key, input_shape=())
ShapeError      verify(half, key, input_shape=(10**9, 10**9))
ShapeError      verify(half, key, input_shape=(3, 80, 80))
ConfigError     verify(half, key, input_shape=(3,8,8), probes=0)
ConfigError     verify(half, key, input_shape=(3,8,8), probes=10**12)
ConfigError     verify(half, key, input_shape=(3,8,8), seed=-1)
ConfigError     verify(half, key, input_shape=(3,8,8), seed=2**70)
ConfigError     verify(half, key, input_shape=(3,8,8), alpha=nan)
ConfigError     verify(half, key, input_shape=(3,8,8), alpha=0)
ConfigError     verify(half, key, input_shape=(3,8,8), tries=0)
ConfigError     verify(half, key, input_shape=(3,8,8), tries=10**30)
ConfigError     verify(half, key, input_shape=(3,8,8), register=0)
ConfigError     verify(half, key, input_shape=(3,8,8), roots="missing.pem")
ConfigError     verify(half, key, input_shape=(3,8,8), batch_size=0)
ModelError      Imprint(key, {})
ConfigError     Imprint(key, {"w": torch.rand(64, 64)}, strength=None).issue(7)
ConfigError     Imprint.load("missing", key)
ConfigError     trace(half, key, "missing")
ConfigError     trace(half, key, "folder")
ConfigError     trace(half, key, "words.txt")
ConfigError     trace(half, key, "pipe")
ConfigError     trace(half, key, "a\0b")
ShapeError      inspect(half, torch.rand(4,5,8,8))
ShapeError      inspect(half, torch.rand(3,8,8))
ShapeError      inspect(half, torch.tensor(1.0))
ShapeError      inspect(half, x[:0])
ShapeError      inspect(half, x * nan)
ShapeError      inspect(half, x * inf)
ShapeError      inspect(half, x.long())
ShapeError      inspect(half, x.double())
ShapeError      inspect(half, x.to(torch.complex64))
ConfigError     inspect(half, x.to("meta"))
ShapeError      inspect(nn.Module(), x)
ShapeError      inspect(nn.Flatten(0), x)
ShapeError      inspect(nn.Sequential(nn.Flatten(), nn.Linear(192, 0)), x)
ConfigError     inspect(nn.LSTM(8, 8), torch.rand(4, 3, 8))
ConfigError     inspect(half, x, key=key, bits=64)
ConfigError     inspect(half, x, key="wax")
ConfigError     inspect(half, x, bits=0)
ConfigError     inspect(half, x, bits=-5)
ConfigError     inspect(half, x, bits=10**9)
ConfigError     inspect(half, x, steps=-1)
ConfigError     check_logit_gradient(torch.rand(4,10).numpy(), torch.rand(4,10).numpy())
ShapeError      check_logit_gradient(torch.rand(4,10), torch.rand(4,9))
ShapeError      check_logit_gradient(torch.rand(10), torch.rand(10))
ShapeError      check_logit_gradient(torch.rand(0,10), torch.rand(0,10))
LossError       check_logit_gradient(torch.rand(4,10), torch.rand(4,10)*nan)
LossError       check_logit_gradient(torch.rand(4,10)*nan, torch.rand(4,10))
ShapeError      check_logit_gradient(torch.rand(4,10), torch.rand(4,10).long())
ShapeError      check_logit_gradient(torch.rand(4,10).long(), torch.rand(4,10))
ShapeError      check_logit_gradient(torch.rand(4,10), torch.rand(4,10).to(torch.complex64))
ConfigError     check_logit_gradient(torch.rand(4,10), torch.rand(4,10).to_sparse())
ConfigError     check_logit_gradient(torch.rand(4,10,device="meta"), torch.rand(4,10,device="meta"))
ConfigError     check_logit_gradient(torch.rand(4,10,device="meta"), torch.rand(4,10))
ShapeError      check_logit_gradient(torch.rand(4,10), torch.rand(4,10).to(torch.float8_e4m3fn))
ConfigError     Loss("mse")
ConfigError     Loss(smoothing=nan)
ConfigError     Loss(smoothing=1)
ModelError      models.build("alexnet", classes=10)
ModelError      models.build("resnet18", classes=0)
ModelError      models.build("resnet18", classes=10**12)
ModelError      models.build("resnet18", classes=10, width=0)
ModelError      models.build("resnet18", classes=10, width=10**9)
ModelError      models.cut_points("alexnet")
ModelError      models.split(half, "layer3")
ModelError      models.split(model, "layer9")
ModelError      models.split(halves[0], "pool2")
ModelError      models.join(half, half)
ModelError      models.join(halves[1], halves[0])
ModelError      models.join(model, model)
SuspectError    models.load("missing")
SuspectError    models.load("folder")
SuspectError    models.load("pipe")
SuspectError    models.load("words.txt")
SuspectError    models.load("empty")
SuspectError    models.load("a\0b")
SuspectError    models.read_description("words.txt")
SuspectError    models.read_spec("words.txt")
ModelError      models.save(half, "m.safetensors")
ModelError      models.save(model, "folder")
ModelError      models.save(model, "missing/m.safetensors")
ModelError      models.save(model, "a\0b")
ModelError      models.save(model, "words.txt")
AttackError     attacks.prune(half, 0.5)
AttackError     attacks.prune((half, half), 0.5)
AttackError     attacks.prune(model, nan)
AttackError     attacks.prune(model, 2)
AttackError     attacks.prune(model, 0.5, scope="all")
AttackError     attacks.quantize(model, "int2")
AttackError     attacks.quantize(half, "int8")
AttackError     attacks.permute(half)
AttackError     attacks.permute(halves[0])
ModelError      attacks.permute(model, cut="layer9")
AttackError     attacks.permute(model, scale=nan)
AttackError     attacks.finetune(model, None, steps=10, epochs=10)
AttackError     attacks.finetune(model, None, lr=nan)
AttackError     attacks.measure(half)
AttackError     attacks.measure(model, key="missing.key")
AttackError     attacks.measure(halves[0], key=key)
AttackError     attacks.Starve(0)
AttackError     attacks.Starve(nan)
AttackError     attacks.NoiseInjection(0)
AlignmentError  verify(half, key, input_shape=(3,8,8), reference="missing")
AlignmentError  verify(half, key, input_shape=(3,8,8), reference="folder")
AlignmentError  verify(half, key, input_shape=(3,8,8), reference="pipe")
AlignmentError  verify(half, key, input_shape=(3,8,8), reference="words.txt")
AlignmentError  verify(half, key, input_shape=(3,8,8), reference="a\0b")
DataError       verify(half, key, "missing", input_shape=(3,8,8))
DataError       verify(half, key, "folder", input_shape=(3,8,8))
DataError       verify(half, key, "pipe", input_shape=(3,8,8))
DataError       verify(half, key, "words.txt", input_shape=(3,8,8))
DataError       verify(half, key, x, input_shape=(3,8,8))
DataError       verify(half, key, torch.rand(0,3,8,8), input_shape=(3,8,8))
DataError       verify(half, key, torch.rand(256,3,8,8)*nan, input_shape=(3,8,8))
DataError       verify(half, key, torch.rand(256,3,8,8,dtype=torch.complex64), input_shape=(3,8,8))
DataError       verify(half, key, torch.rand(256,3,8,8,device="meta"), input_shape=(3,8,8))
DataError       verify(half, key, torch.rand(256,3,8,8).to_sparse(), input_shape=(3,8,8))
DataError       verify(half, key, torch.rand(256,3,8,8).long(), input_shape=(3,8,8))
DataError       verify(half, key, torch.rand(256,3,8,8).bool(), input_shape=(3,8,8))
DataError       verify(half, key, torch.tensor(1.0), input_shape=(3,8,8))
DataError       verify(half, key, torch.rand(256, 5), input_shape=(3,8,8))
DataError       verify(half, key, np.array(["a"]*256), input_shape=(3,8,8))
DataError       verify(half, key, images, input_shape=(3,8,8))
DataError       verify(half, key, images, input_shape=(3,8,8), normalisation=((0.5,),(0.0,)))
DataError       verify(half, key, images, input_shape=(3,8,8), normalisation=((0.5,)*3,(nan,)*3))
DataError       verify(half, key, images, input_shape=(3,8,8), normalisation=((0.5,)*3,))
DataError       verify(half, key, "digits:valid", input_shape=(3,8,8))
DataError       verify(half, key, "a\0b", input_shape=(3,8,8))
DataError       verify(half, key, "n"*5000, input_shape=(3,8,8))
ConfigError     verify(half, key, inputs_from="me", input_shape=(3,8,8))
ConfigError     verify(half, key, torch.rand(256,3,8,8), inputs_from="me", input_shape=(3,8,8))
ConfigError     verify(half, key, normalisation=((0.5,),(0.5,)), input_shape=(3,8,8))
SuspectError    verify(lambda b: None, key, input_shape=(3,8,8))
SuspectError    verify(lambda b: b.numpy(), key, input_shape=(3,8,8))
SuspectError    verify(lambda b: 1/0, key, input_shape=(3,8,8))
ShapeError      verify(lambda b: b[0], key, input_shape=(3,8,8))
SuspectError    verify(lambda b: {}["x"], key, input_shape=(3,8,8))
SuspectError    verify(lambda b: None.x, key, input_shape=(3,8,8))
SuspectError    verify(lambda b: torch.rand(len(b),8,4,4).to_sparse(), key, input_shape=(3,8,8))
SuspectError    verify(lambda b: torch.rand(len(b),8,4,4, device="meta"), key, input_shape=(3,8,8))
SuspectError    verify(lambda b: torch.rand(len(b),8,4,4, dtype=torch.complex64), key, input_shape=(3,8,8))
ShapeError      verify(lambda b: torch.rand(len(b),8,5,4), key, input_shape=(3,8,8))
SuspectError    verify(nn.Module(), key, input_shape=(3,8,8))
ShapeError      verify(nn.Sequential(), key, input_shape=(3,8,8))
SuspectError    verify(nn.Conv2d, key, input_shape=(3,8,8))
ConfigError     check("missing", key)
ConfigError     check("words.txt", key)
ShapeError      check(half, key)
KeyFileError    check(half, "missing.key", input_shape=(3,8,8))
DataError       check(half, key, x, input_shape=(3,8,8))
SuspectError    check(act, key, input_shape=(3,8,8))
SuspectError    check(half.state_dict(), key, input_shape=(3,8,8))
AttackError     attacks.overlap(torch.rand(128), key)
AttackError     attacks.Tuning(steps=5, epochs=5)
ConfigError     baselines.ParameterMark().verify(nn.Linear(3, 3))
ShapeError      detectors.SplitGuard(10).update(act, [0, 1])
ShapeError      detectors.SplitGuard(10).update(act[:0], torch.zeros(0, dtype=torch.int64))
ShapeError      detectors.GradientScrutinizer().update(act, torch.zeros(3, dtype=torch.int64))
DetectorError   detectors.draw([], "x.png")
DetectorError   detectors.draw([detectors.SplitGuard(10)], "missing/x.png")
"""

ACCEPTED = """
Key.generate("ACME", iter([8, 4, 4])).shape == (8, 4, 4)
Key.generate("ACME", np.array([8, 4, 4])).shape == (8, 4, 4)
Key.generate("ACME", torch.tensor([8, 4, 4])).shape == (8, 4, 4)
Key.generate("ACME", (8, 4, 4), bits=np.int64(16)).bits == 16
Key.generate("ACME", (8, 4, 4), bits=torch.tensor(16)).bits == 16
Key.generate("A", (8, 4), normalisation=(np.array([0.5]), [np.float32(2)])).fields.normalisation == "0.5/2"
Key.for_activation(meta, "ACME", bits=16).shape == (8, 4, 4)
Injector(key, np.float32(0.5)).strength == 0.5
Injector(key, torch.tensor(0.5)).strength == 0.5
Injector(key, 1).strength == 1.0
Injector(key, share=[0, 3]).share == [0, 3]
Injector(key, share=(np.int64(0), np.int64(3)))(act, grad).shape == grad.shape
inj(act.half(), grad.half()).dtype is torch.float16
inj(act.double(), grad).dtype is torch.float32
bool(inj(act * nan, grad).equal(grad))
key.rows(np.int64(0), np.int64(4)).shape == (4, 16)
verify(half, key, input_shape=np.array([3, 8, 8]), probes=np.int64(8), seed=np.int64(3)).owned is False
verify(half, key, input_shape=(3,8,8), probes=torch.tensor(8)).probes == 8
verify(half, key, input_shape=torch.Size((3, 8, 8)), probes=8, alpha=np.float32(1e-7)).owned is False
attacks.prune(model, torch.tensor(0.5)).spec == model.spec
"""


class Opaque:
    """An object that is nothing of what is ever wanted."""


def _lines(text: str) -> list[str]:
    lines = [line for line in text.strip().splitlines() if line]
    if os.name == "nt":  # no pipes or devices among the files
        lines = [line for line in lines if '"pipe"' not in line and '("/' not in line]
    return lines


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the calls refer to, in a folder with files of every unsuitable kind."""
    before = Path.cwd()
    place = tmp_path_factory.mktemp("clumsy")
    os.chdir(place)
    Path("folder").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo("pipe")
    Path("words.txt").write_text("words")
    Path("empty").touch()
    with Path("words.txt").open() as closed:
        pass
    key = sigil.Key.generate("ACME", (8, 4, 4), bits=16, seed=bytes(32))
    key.save("owner.key")
    key.save("locked.key", passphrase="x")
    model = sigil.models.build("vgg11", classes=10, width=4)
    yield {name: getattr(sigil, name) for name in sigil.__all__} | {
        "Opaque": Opaque,
        "act": torch.rand(4, 8, 4, 4),
        "closed": closed,
        "grad": torch.randn(4, 8, 4, 4),
        "half": nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU()),
        "halves": sigil.models.split(model, "pool2"),
        "images": np.zeros((256, 3, 8, 8), np.uint8),
        "inf": float("inf"),
        "inj": sigil.Injector(key),
        "key": key,
        "meta": torch.rand(4, 8, 4, 4, device="meta"),
        "model": model,
        "nan": float("nan"),
        "nn": nn,
        "np": np,
        "torch": torch,
        "x": torch.rand(4, 3, 8, 8),
    }
    os.chdir(before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", _lines(REFUSED))
def test_a_clumsy_call_is_refused_by_one_sentence(line: str, names: dict[str, Any]) -> None:
    kind, call = line.split(maxsplit=1)
    with pytest.raises(errors.SigilError) as refusal:
        eval(call, dict(names))  # noqa: S307  one of the lines above
    assert type(refusal.value) is getattr(errors, kind), refusal.value
    sentence = str(refusal.value)
    assert len(sentence.splitlines()) == 1, sentence
    assert 20 < len(sentence) < 6000, sentence
    assert "Traceback" not in sentence
    assert " object at 0x" not in sentence, sentence


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", _lines(ACCEPTED))
def test_numbers_of_numpy_and_pytorch_are_numbers(call: str, names: dict[str, Any]) -> None:
    assert eval(call, dict(names)) is True  # noqa: S307


def test_every_public_name_is_called_clumsily() -> None:
    values = {"Inspection", "Report", "SigilError", "Trace"}  # results and errors, which callers do not make
    assert [name for name in sigil.__all__ if name not in values and name not in REFUSED] == []
