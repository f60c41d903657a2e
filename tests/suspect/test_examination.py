"""The process that examines a suspect: what it is given, what it may take, and that it always ends."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from harness.waiting import until
from sigil.errors import ConfigError, SuspectError
from sigil.suspect import examination, open_suspect
from sigil.suspect.examination import Examination
from sigil.suspect.file import SuspectFile
from sigil.suspect.graph import open_graph

TENSOR = "/pool2/MaxPool_output_0"


def process_of(suspect: Any) -> int:
    return int(suspect._run.__self__._process.pid)


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_activations_are_those_of_this_process_bit_for_bit(graph: Path) -> None:
    suspect = open_suspect(graph, at=TENSOR)
    alone = open_graph(graph.read_bytes(), source=graph, at=TENSOR, threads=torch.get_num_threads())
    for count in (1, 2, 5, 64):
        batch = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(count))
        assert torch.equal(suspect(batch), torch.from_numpy(alone.run(batch.numpy())))


def test_the_process_ends_with_its_suspect(graph: Path) -> None:
    suspect = open_suspect(graph, at=TENSOR)
    pid = process_of(suspect)
    assert not ended(pid)
    suspect.close()
    assert ended(pid)
    with pytest.raises(SuspectError, match="is over"):
        suspect(torch.zeros(1, 3, 16, 16))
    forgotten = open_suspect(graph, at=TENSOR)
    pid = process_of(forgotten)
    del forgotten
    assert ended(pid)


def test_the_process_has_no_environment_and_no_key(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGIL_PASSPHRASE", "not for strangers")
    suspect = open_suspect(graph, at=TENSOR)
    folder = Path(f"/proc/{process_of(suspect)}")
    environment = (folder / "environ").read_bytes()
    assert b"strangers" not in environment
    assert b"HOME" not in environment
    assert os.readlink(folder / "cwd") == "/"
    assert "torch" not in (folder / "maps").read_text()
    files = [os.readlink(entry) for entry in (folder / "fd").iterdir()]
    assert not any(name.endswith(".key") for name in files)
    limits = (folder / "limits").read_text()
    assert "Max file size             0" in limits


@pytest.fixture
def examiner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a script of an adversary who has taken over the process in the examiner's place."""

    def put(body: str) -> Path:
        script = tmp_path / "examiner.py"
        begin = """
        import json, os, signal, struct, sys, time
        def say(header, payload=b"", claimed=None):
            text = json.dumps(header).encode()
            os.write(1, struct.pack("<IQ", len(text), len(payload) if claimed is None else claimed) + text)
            os.write(1, payload)
        """
        script.write_text(textwrap.dedent(begin) + textwrap.dedent(body))
        monkeypatch.setattr(examination.examiner, "__file__", str(script))
        return script

    return put


def opened(graph: Path, **options: Any) -> Examination:
    with SuspectFile(graph) as file:
        return Examination(file, **options)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("signal.signal(15, signal.SIG_IGN); say({}); time.sleep(600)", "time limit of 1 seconds"),
        ("say({})\nwhile True: os.write(1, bytes(1 << 16))", "answer that is none"),
        ("say({}); say({}, claimed=1 << 62); time.sleep(600)", r"answers with 4,611,686,018,427,387,904"),
        ("say({}); os.write(1, struct.pack('<IQ', 1 << 31, 0)); time.sleep(600)", "answer that is none"),
        ("say({}); os.write(1, struct.pack('<IQ', 5, 0) + b'[[[[['); time.sleep(600)", "answer that is none"),
        ("say({}); say([1]); time.sleep(600)", "answer that is none"),
        ("say({}); say({}); time.sleep(600)", "answer that is none"),
        ("say({}); say({'tensor': 'a', 'input_shape': [3, -1]}); time.sleep(600)", "answer that is none"),
        (
            "say({}); os.write(1, struct.pack('<IQ', 60000, 0) + b'[' * 60000); time.sleep(600)",
            "answer that is none",
        ),
        ("say({}); os.abort()", "signal 6"),
        ("say({}); os._exit(0)", "status 0"),
        ("say({}); say({'refused': 'a\\n\\x1b[2Jb'}); time.sleep(600)", r"a\?\?\[2Jb"),
        ("say({}); b = bytearray(b'1') * (1 << 30); time.sleep(600)", r"more than the 0\.1 GB"),
    ],
)
def test_whatever_the_process_does_the_answer_is_one_sentence(
    body: str, why: str, examiner: Any, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examiner(body)
    started: list[Any] = []
    start = examination._start
    monkeypatch.setattr(examination, "_start", lambda *given: started.append(start(*given)) or started[-1])
    monkeypatch.setattr(examination, "MEMORY_BYTES", 1 << 27)
    limit = 1.0 if "limit" in why else 600.0
    with pytest.raises(SuspectError, match=why) as info:
        opened(graph, time_limit=limit)
    assert "\n" not in str(info.value)
    assert ended(started[0].pid)


@pytest.mark.parametrize("said", ["[[1 << 20, 1 << 20, 3, 3]]", "[[3, 3]]", "[[3, 3, 3, -3]]", "7"])
def test_filters_that_cannot_be_are_an_answer_that_is_none(said: str, examiner: Any, graph: Path) -> None:
    examiner(f"say({{}}); say({{'tensor': 'a'}}); say({{'filters': {said}}}); time.sleep(600)")
    examined = opened(graph)
    try:
        with pytest.raises(SuspectError, match="answer that is none"):
            examined.filters()
    finally:
        examined.close()


def test_an_interrupt_ends_the_process(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suspect = open_suspect(graph, at=TENSOR)
    pid = process_of(suspect)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(examination._Watch, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        suspect(torch.zeros(1, 3, 16, 16))
    assert ended(pid)


def test_a_verification_that_is_killed_leaves_no_process(graph: Path) -> None:
    """The process notices the closed pipe, without anybody to end it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        suspect = open_suspect(graph, at=TENSOR)
        os.write(writing, str(process_of(suspect)).encode())
        time.sleep(600)
    os.close(writing)
    pid = int(os.read(reading, 20))
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until(lambda: ended(pid))


def test_the_time_of_all_calls_counts_together(graph: Path) -> None:
    suspect = open_suspect(graph, at=TENSOR)
    run = suspect._run.__self__  # type: ignore[attr-defined]
    left = run._left
    suspect(torch.zeros(2, 3, 16, 16))
    assert run._left < left
    run._left = 0.0
    with pytest.raises(SuspectError, match="time limit of 120 seconds"):
        suspect(torch.zeros(2, 3, 16, 16))
    assert ended(process_of(suspect))
    for limit in (0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="more than 0"):
            open_suspect(graph, at=TENSOR, time_limit=limit)


def test_an_error_of_one_call_does_not_end_the_suspect(graph: Path) -> None:
    suspect = open_suspect(graph, at=TENSOR)
    with pytest.raises(SuspectError, match="does not run"):
        suspect(torch.zeros(1, 1, 16, 16))
    assert suspect(torch.zeros(1, 3, 16, 16)).shape == (1, 8, 4, 4)


def test_the_current_directory_is_not_where_modules_come_from(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnx.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", ".", *sys.path])
    assert open_suspect(graph, at=TENSOR).kind == "onnx"


def test_weights_of_a_few_hundred_megabytes_fit(tmp_path: Path) -> None:
    """An honest graph whose weights take far more than its activations."""
    weight = numpy_helper.from_array(np.zeros((3000, 8000), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 3000))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "large.onnx"
    path.write_bytes(model.SerializeToString())
    assert open_suspect(path)(torch.zeros(2, 3000)).shape == (2, 8000)
