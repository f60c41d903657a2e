"""The examples do what they say."""

from __future__ import annotations

import importlib.util
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def notebook_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_notebook", ROOT / "release" / "make_notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def printed_by(capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Runs an example; returns what it printed."""

    def run(name: str) -> str:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.slow
def test_an_own_server_marks_and_proves(printed_by: Callable[[str], str]) -> None:
    printed = printed_by("own_server.py")
    assert printed.startswith("This cut can carry a provable mark")
    assert "marked: The suspect carries the mark" in printed
    assert "clean:  The suspect is not shown to carry the mark" in printed


def test_copies_are_issued_and_found_again(printed_by: Callable[[str], str]) -> None:
    printed = printed_by("issue_copies.py")
    assert printed.startswith("The suspect contains the copy that was made for Clinic C")
    assert "Hospital B: log10 p " in printed
    assert len((EXAMPLES / "issue_copies.py").read_text().splitlines()) < 40


@pytest.mark.slow
def test_a_transformer_is_marked_and_proven(printed_by: Callable[[str], str]) -> None:
    printed = printed_by("transformer.py")
    assert "The mark is provable on" in printed
    assert "The suspect carries the mark" in printed


@pytest.mark.slow
def test_mixed_precision_marks_as_well(printed_by: Callable[[str], str]) -> None:
    printed = printed_by("mixed_precision.py")
    assert "torch.bfloat16: The suspect carries the mark" in printed
    assert "torch.float16: The suspect carries the mark" in printed


@pytest.mark.parametrize("passphrase", [None, "wide blue"])
def test_a_key_is_made_once_and_found_again(
    passphrase: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["keys.py", str(tmp_path)])
    if passphrase is not None:
        monkeypatch.setenv("SIGIL_PASSPHRASE", passphrase)
    printed = []
    for _ in range(2):
        runpy.run_path(str(EXAMPLES / "keys.py"), run_name="__main__")
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "refused: " in printed[0]
    assert json.loads((tmp_path / "published.txt").read_text())["owner"] == "ACME"


def test_an_own_server_needs_nothing_but_torch_and_sigil() -> None:
    lines = (EXAMPLES / "own_server.py").read_text().splitlines()
    imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert imported == {"__future__", "sigil", "torch"}


def test_the_notebook_is_made_from_its_script_and_was_executed() -> None:
    book = json.loads((EXAMPLES / "mark_and_verify.ipynb").read_text("utf-8"))
    script = (EXAMPLES / "mark_and_verify.py").read_text("utf-8")
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in book["cells"]] == notebook_maker().cells(
        script
    )
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    printed = "".join(line for output in code[-1]["outputs"] for line in output["text"])
    assert "marked:        The suspect carries the mark" in printed
    assert printed.count("is not shown to carry the mark") == 2
    kinds = [output["output_type"] for cell in code for output in cell["outputs"]]
    assert "error" not in kinds
    assert (EXAMPLES / "mark_and_verify.ipynb").stat().st_size < 100_000


def test_what_release_check_runs_is_there() -> None:
    """NVIDIA FLARE and a notebook's kernel are not installed here; these scripts run them."""
    makefile = (ROOT / "Makefile").read_text()
    for script in ("make_notebook.py", "run_nvflare.py", "fresh_install.py", "look_at_site.py"):
        assert f"release/{script}" in makefile
        assert (ROOT / "release" / script).is_file()
    loop = (EXAMPLES / "nvflare" / "marked_split_learning.py").read_text()
    assert "self.injector.attach(self.activation)" in loop
    assert "check_logit_gradient(" in loop
