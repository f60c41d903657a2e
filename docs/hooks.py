"""What MkDocs is told beyond mkdocs.yml: pages made from the code, the results, links out of this folder."""

from __future__ import annotations

import html
import os
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
RESULTS = ROOT / "reproduction" / "results"
OUTSIDE = {RESULTS: "results", ROOT / "benchmarks" / "results": "benchmarks"}
"""Folders outside docs/ that are part of the site, and where they lie on it."""

REFERENCE = (
    "sigil",
    "sigil.keys",
    "sigil.verdict",
    "sigil.models",
    "sigil.data",
    "sigil.federation",
    "sigil.transport",
    "sigil.watching",
    "sigil.suspect",
    "sigil.alignment",
    "sigil.evidence",
    "sigil.statistics",
    "sigil.attacks",
    "sigil.detectors",
    "sigil.baselines",
    "sigil.errors",
)
"""Modules that have a page in the reference: whatever a program may import."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code, and all measured results, which lie outside docs/."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "command-line.md", content=command_line_page()))
    for module in REFERENCE:
        files.append(File.generated(config, f"reference/{module}.md", content=reference_page(module)))
    for path in sorted(path for folder in OUTSIDE for path in folder.rglob("*")):
        # Single cells are for programs; pages, figures and benchmarks are for readers.
        if path.is_file() and not re.search(r"\.seed\d+\.json$", path.name):
            name = site_place(path)
            assert name is not None
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the links of the repository right for the site."""
    home = page.file.abs_src_path
    return site_links(markdown, Path(home).parent) if home else markdown


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """List a page's neighbours below the tabs, and have the search from the disk fetch nothing."""
    place = "../" * page.file.dest_uri.count("/") + "worker-from-disk.js"
    output = output.replace("https://unpkg.com/iframe-worker/shim", place)
    tabs, end, rest = output.partition('data-md-component="tabs"')
    return tabs + end + rest.replace("</nav>", "</nav>" + neighbours(page), 1)


def neighbours(page: Page) -> str:
    """The pages of a section as a row of links; site.css shows it where the theme hides its side bar."""
    pages = [child for child in page.parent.children if child.is_page] if page.parent else []
    links = [
        f'<a class="sigil-neighbour" href="{html.escape(sibling.file.url_relative_to(page.file))}"'
        f"{' aria-current=page' if sibling is page else ''}>{html.escape(sibling.title)}</a>"
        for sibling in pages
    ]
    return f'<nav class="sigil-neighbours" aria-label="Section">{"".join(links)}</nav>' if links else ""


def site_place(path: Path) -> str | None:
    """Where a file or folder lies on the site, if it is part of it.

    >>> site_place(RESULTS / "cpu"), site_place(DOCS / "data.md"), site_place(ROOT / "src")
    ('results/cpu', 'data.md', None)
    """
    for folder, name in {DOCS: "", **OUTSIDE}.items():
        if path.is_relative_to(folder):
            return (Path(name) / path.relative_to(folder)).as_posix()
    return None


def site_links(markdown: str, folder: Path) -> str:
    """Turn links between docs/, results and the rest of the repository into links of the site.

    On the site the results lie in docs/, and a folder is its README. What is not part of the site, such as a
    source file, keeps its text and loses its link. ``folder`` is where the page lies.

    >>> site_links("[a](../reproduction/results/cpu/) [b](../src/sigil/keys/key.py) [c](data.md)", DOCS)
    '[a](results/cpu/README.md) b [c](data.md)'
    >>> site_links("[the p-value](../../../docs/p-value.md)", RESULTS / "cpu")
    '[the p-value](../../p-value.md)'
    """
    home = site_place(folder) or "."

    def mend(link: re.Match[str]) -> str:
        text, target = link.groups()
        if ":" in target or target.startswith("#"):
            return link[0]
        name, mark, heading = target.partition("#")
        place = (folder / name).resolve()
        place = place / "README.md" if (place / "README.md").is_file() else place
        there = site_place(place)
        if there is None or place.is_dir():
            return text
        return f"[{text}]({os.path.relpath(there, home)}{mark}{heading})"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", mend, markdown)


def reference_page(name: str) -> str:
    """List a module and its public names, for mkdocstrings to fill in their docstrings."""
    module = import_module(name)
    lines = [f"::: {name}", "    options: {heading_level: 1, members: false, show_root_full_path: true}", ""]
    elsewhere = []
    for public in _public(module):
        found = getattr(module, public)
        home = found.__name__ if isinstance(found, ModuleType) else getattr(found, "__module__", "")
        if home.partition(".")[0] != "sigil":
            elsewhere.append(f"- `{public}`: a name for `{found}`")  # a union of types, or a constant
        elif home in REFERENCE and home != name:
            elsewhere.append(f"- `{public}`: see [`{home}`]({home}.md)")
        else:
            # The full path, because a function may have the name of the module that it lies in.
            lines += [f"::: {home}.{public}", ""]
    return "\n".join([*lines, *elsewhere])


def _public(module: ModuleType) -> list[str]:
    """What a module offers: its ``__all__``, or else the classes and functions that it defines."""
    defined = [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    return getattr(module, "__all__", [name for name in defined if not name.startswith("_")])


def command_line_page() -> str:
    """Describe every command as Markdown, from the command line's own help."""
    from sigil.cli.main import app

    lines = [
        "# Command line",
        "",
        "The same text as `sigil COMMAND --help`. Exit status: 0 done or owned, 1 not owned or a check that "
        "failed, 2 bad use or bad input with one sentence.",
        "",
    ]
    for path, command in commands(typer.main.get_command(app)):
        lines += _described(path, command)
    return "\n".join(lines)


def commands(command: Any, path: str = "sigil") -> list[tuple[str, Any]]:
    """Every command with its full name, a group before its members."""
    members = getattr(command, "commands", {})
    found = [(path, command)]
    for name, member in members.items():
        found += commands(member, f"{path} {name}")
    return found


def _described(path: str, command: Any) -> list[str]:
    context = command.context_class(command, info_name=path)
    usage = command.get_usage(context).removeprefix("Usage: ")
    lines = [f"## `{path}`", "", "```text", usage, "```", "", *_prose(command.help or ""), ""]
    rows = [record for record in (p.get_help_record(context) for p in command.get_params(context)) if record]
    lines += ["| argument or option | meaning |", "| --- | --- |"]
    lines += [f"| `{_cell(name)}` | {_cell(meaning)} |" for name, meaning in rows]
    return [*lines, ""]


def _prose(text: str) -> list[str]:
    """A command's help as Markdown: its indented lines are examples, to be kept as they are."""
    lines: list[str] = []
    inside = False
    for line in text.replace("\b\n", "").splitlines():
        if line.startswith("  ") != inside:
            inside = not inside
            lines += ["", "```text"] if inside else ["```", ""]
        lines.append(line.removeprefix("  ") if inside else line)
    return [*lines, "```"] if inside else lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
