"""The pages hang together: links lead somewhere, every page can be found, and the made pages are complete."""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import typer

import sigil
from sigil.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def site_module(name: str) -> ModuleType:
    """A module that MkDocs loads by its file."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return site_module("hooks")


def anchors(page: str) -> set[str]:
    """What `#` may be followed by: the headings in small letters, with hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path, hooks: ModuleType) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        if name.endswith("command-line.md"):  # made by the hooks
            assert not anchor or anchor in anchors(hooks.command_line_page()), f"{page.name}: {target}"
            continue
        place = page.parent / name if name else page
        assert place.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(place.read_text("utf-8")), f"{page.name}: {target}"


def test_what_a_visitor_reads_first_is_short() -> None:
    """At most a screen or two each, whatever the cells add to the table of prices."""
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")
    assert all(len(release.splitlines()) <= 60 for release in changes)
    assert len(PAGES) - 1 <= 20


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {page.name for page in PAGES} - {"README.md"} <= listed


def test_every_module_of_the_reference_is_in_the_navigation(hooks: ModuleType) -> None:
    configuration = (ROOT / "mkdocs.yml").read_text()
    for module in hooks.REFERENCE:
        assert f"- {module}: reference/{module}.md\n" in configuration


def test_the_reference_covers_every_public_package(hooks: ModuleType) -> None:
    packages = {f"sigil.{found.name}" for found in pkgutil.iter_modules(sigil.__path__) if found.ispkg}
    # What these packages hold is offered by `sigil` itself, and they offer no name.
    silent = {name for name in packages if not hooks._public(import_module(name))}
    assert packages - silent - {"sigil.cli"} <= set(hooks.REFERENCE)
    assert silent <= {
        "sigil.cli",
        "sigil.keys",
        "sigil.pages",
        "sigil.testing",
        "sigil.verdict",
    }


def test_a_reference_page_names_each_public_name_once(hooks: ModuleType) -> None:
    shown = [
        line.removeprefix("::: ").rpartition(".")[2]
        for line in hooks.reference_page("sigil.attacks").splitlines()
        if line.startswith("::: ")
    ]
    assert sorted(shown) == sorted(["attacks", *sigil.attacks.__all__])


def test_reference_pages_describe_nothing_of_others(hooks: ModuleType) -> None:
    for module in hooks.REFERENCE:
        shown = [line for line in hooks.reference_page(module).splitlines() if line.startswith("::: ")]
        assert shown
        assert all(line.startswith("::: sigil") for line in shown), module


def test_the_command_line_page_describes_every_command_and_option(hooks: ModuleType) -> None:
    page = hooks.command_line_page()
    for name, command in hooks.commands(typer.main.get_command(app)):
        assert f"\n## `{name}`\n" in page
        for parameter in command.params:
            assert all(option in page for option in parameter.opts if option.startswith("-"))


def test_the_examples_of_the_site_modules_hold(hooks: ModuleType) -> None:
    outcome = doctest.testmod(hooks)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_a_page_lists_the_pages_of_its_section(hooks: ModuleType) -> None:
    class File:
        def __init__(self, name: str) -> None:
            self.name = name
            self.dest_uri = f"{name}.html"

        def url_relative_to(self, other: object) -> str:
            return f"{self.name}.html"

    section = SimpleNamespace(children=[])
    first, second = (
        SimpleNamespace(is_page=True, title=title, file=File(name), parent=section)
        for name, title in (("a", "Write <one>"), ("b", "Read"))
    )
    section.children = [first, SimpleNamespace(is_page=False), second]
    shown = hooks.on_post_page('<nav data-md-component="tabs"></nav><nav></nav>', page=second, config=None)
    assert shown == (
        '<nav data-md-component="tabs"></nav><nav class="sigil-neighbours" aria-label="Section">'
        '<a class="sigil-neighbour" href="a.html">Write &lt;one&gt;</a>'
        '<a class="sigil-neighbour" href="b.html" aria-current=page>Read</a></nav><nav></nav>'
    )
    alone = SimpleNamespace(parent=None, file=File("index"))
    assert hooks.on_post_page('<nav data-md-component="tabs"></nav>', page=alone, config=None) == (
        '<nav data-md-component="tabs"></nav>'
    )
