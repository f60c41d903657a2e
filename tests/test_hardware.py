"""What the machine is asked, on machines that are not this one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from sigil import hardware, injector
from sigil.errors import ConfigError
from sigil.federation.precision import choose

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("SIGIL_PRECISION", raising=False)
    hardware.processor.cache_clear()
    yield
    monkeypatch.undo()
    hardware.processor.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, *, avx512_bf16: bool, amx: bool) -> None:
    """A processor with AVX-512, on which oneDNN says that it can do bfloat16, natively or not."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)


@pytest.mark.parametrize(
    ("avx512_bf16", "amx", "native"),
    [(False, False, False), (True, False, True), (False, True, True), (True, True, True)],
)
def test_auto_is_bfloat16_only_with_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, avx512_bf16: bool, amx: bool, native: bool
) -> None:
    pretend(monkeypatch, avx512_bf16=avx512_bf16, amx=amx)
    assert hardware.native_bfloat16(CPU) is native
    assert choose("cpu", "auto").bfloat16 is native
    assert choose("cpu", "float32").bfloat16 is False
    assert choose("cpu", "bfloat16").bfloat16 is True
    gradient = torch.ones(2, 3, dtype=torch.bfloat16)
    assert injector._work_dtype(gradient) is (torch.bfloat16 if native else torch.float32)


@pytest.mark.parametrize("broken", [False, True])
def test_a_torch_that_does_not_know_the_question_has_no_bfloat16(
    monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    def fail() -> bool:
        raise AttributeError("module 'torch._C._cpu' has no such function")

    for question in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        if broken:
            monkeypatch.setattr(torch.cpu, question, fail)
        else:
            monkeypatch.delattr(torch.cpu, question)
    assert hardware.native_bfloat16(CPU) is False


@pytest.mark.parametrize("native", [False, True])
def test_a_graphics_card_is_asked_itself_and_without_emulation(
    monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    asked: list[object] = []

    def enter(place: torch.device) -> Any:
        asked.append(place)
        return nullcontext()

    def supported(including_emulation: bool = True) -> bool:
        return native or including_emulation

    monkeypatch.setattr(torch.cuda, "device", enter)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert hardware.native_bfloat16(torch.device("cuda:1")) is native
    assert asked == [torch.device("cuda:1")]
    assert hardware.native_bfloat16(torch.device("mps")) is False


@pytest.mark.parametrize("native", [False, True])
def test_the_environment_overrides_auto_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    pretend(monkeypatch, avx512_bf16=native, amx=native)
    gradient = torch.ones(2, 3, dtype=torch.bfloat16)
    for wanted, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        monkeypatch.setenv("SIGIL_PRECISION", wanted)
        assert choose("cpu", "auto").number_format == wanted
        assert injector._work_dtype(gradient) is dtype
        assert choose("cpu", "float32").number_format == "float32"
        assert choose("cpu", "bfloat16").number_format == "bfloat16"
    monkeypatch.setenv("SIGIL_PRECISION", "")
    assert choose("cpu", "auto").bfloat16 is native


def test_a_worker_process_inherits_the_choice() -> None:
    # Whatever this processor would choose, the worker is told the other one.
    native = hardware.native_bfloat16(torch.device("cpu"))
    wanted = "float32" if native else "bfloat16"
    program = "import torch, sigil.hardware as h; print(h.prefers_bfloat16(torch.device('cpu')))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"SIGIL_PRECISION": wanted},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(not native)


@pytest.mark.parametrize("wanted", ["float16", "BFLOAT16", "auto", " ", "x" * 10_000])
def test_another_word_in_the_environment_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv("SIGIL_PRECISION", wanted)
    with pytest.raises(ConfigError, match=r"SIGIL_PRECISION is .*set it to one of them") as caught:
        choose("cpu", "auto")
    assert len(str(caught.value)) < 250
    assert choose("cpu", "float32").bfloat16 is False


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 7}, raising=False)
    assert hardware.cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert hardware.cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert hardware.cores() == 1


def test_the_processor_has_a_name_wherever_it_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def name() -> str:
        hardware.processor.cache_clear()
        return hardware.processor()["processor"]

    assert name()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": "From  torch "}, raising=False)
    assert name() == "From torch"
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    listed = tmp_path / "cpuinfo"
    monkeypatch.setattr(hardware, "_LINUX_LIST", listed)
    listed.write_bytes(
        b"processor\t: 0\nmodel\t\t: 85\nmodel name\t: From Linux @ 2 GHz\xff\nmodel name\t: Second\n"
    )
    assert name().startswith("From Linux @ 2 GHz")
    listed.write_text("processor\t: 0\nCPU part\t: 0xd0c\n")  # Arm
    monkeypatch.setattr(platform, "processor", lambda: "From platform")
    assert name() == "From platform"
    listed.unlink()
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert name() == "From platform"  # no sysctl here

    def answer(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, "Apple M9\n", "")

    monkeypatch.setattr(subprocess, "run", answer)
    assert name() == "Apple M9"
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    assert name() == "AMD64"
    monkeypatch.delattr(torch.backends.cpu, "get_cpu_capability")
    hardware.processor.cache_clear()
    expected = {"processor": "AMD64", "capability": "unknown", "architecture": "AMD64"}
    assert hardware.processor() == expected


def test_a_description_is_what_a_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"processor": "Chip 9", "capability": "AVX2", "architecture": "x86_64"}
    monkeypatch.setattr(hardware, "processor", lambda: known)
    found = choose("cpu", "bfloat16").describe()
    assert found == {
        "processor": "Chip 9",
        "capability": "AVX2",
        "architecture": "x86_64",
        "device": "cpu",
        "precision": "bfloat16",
        "threads": torch.get_num_threads(),
    }
    assert hardware.in_words(found) == "Chip 9 (AVX2), bfloat16"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: "Card 7")
    card = hardware.describe(torch.device("cuda"), bfloat16=False)
    assert hardware.in_words(card) == "Chip 9 (AVX2) with Card 7, float32"
    for old in (None, {}, {"processor": "x86_64", "threads": 1}):
        assert hardware.in_words(old) == "processor not recorded"
