"""What belongs to a release agrees: versions, citation, change log, workflow, hooks and constraints."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

import sigil

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_in_one_place_and_cited() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/sigil/version.py"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == sigil.__version__
    reproduction = tomllib.loads((ROOT / "reproduction" / "pyproject.toml").read_text())
    assert reproduction["project"]["version"] == sigil.__version__
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == sigil.__version__


def test_the_oldest_python_is_the_same_everywhere() -> None:
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    makefile = (ROOT / "Makefile").read_text()
    checked = re.search(r"sys\.version_info >= \(([\d, ]+)\)", makefile)
    assert checked is not None
    assert checked[1].replace(", ", ".") == oldest
    for page in ("Makefile", "README.md", "CONTRIBUTING.md", "docs/tutorial.md"):
        assert set(re.findall(r"Python (3[\d.]*\d)", (ROOT / page).read_text())) == {oldest}, page


def test_the_workflow_runs_what_the_readme_names() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    assert any(step.get("run") == "make test" for step in jobs["linux"]["steps"])
    assert jobs["quick"]["strategy"]["matrix"]["os"] == ["macos-latest", "windows-latest"]


def test_the_hooks_before_a_commit_are_the_checks_of_make() -> None:
    (hooks,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    makefile = (ROOT / "Makefile").read_text()
    for hook in hooks["hooks"]:
        assert hook["entry"].replace(".venv/bin/", "$(BIN)/") in makefile, hook["id"]


def test_constraints_fit_what_is_required() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    versions = {Requirement(line).name.lower().replace("_", "-"): line.partition("==")[2] for line in lines}
    wanted = [*PROJECT["project"]["dependencies"]]
    for extra in ("train", "network", "onnx", "simulation"):
        wanted += PROJECT["project"]["optional-dependencies"][extra]
    for line in wanted:
        requirement = Requirement(line)
        if requirement.name != "sigil-watermark":
            assert requirement.specifier.contains(versions[requirement.name.lower()]), line
