"""What MkDocs is told beyond mkdocs.yml: pages made from the code, the results, links out of here, terms."""

from __future__ import annotations

import html
import json
import os
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
RESULTS = ROOT / "reproduction" / "results"
OUTSIDE = {
    RESULTS: "results",
    ROOT / "benchmarks" / "results": "benchmarks",
    ROOT / "reproduction" / "README.md": "results/reproduce.md",
}
"""Folders and files outside docs/ that are part of the site, and where they lie on it."""

GLOSSARY = "glossary.md"

EXIT_STATUS = """
## Exit status

| status | meaning |
| --- | --- |
| 0 | done. Of `sigil verify`: owned. Of `sigil trace`: the suspect contains a copy. Of `sigil evidence check`: all that was asked holds, whatever the record claims |
| 1 | `sigil verify`: not owned, also if the model only descends, and for any experiment. `sigil trace`: not shown to contain a copy. `sigil evidence check`: something does not hold, or nobody vouches for the signer. `sigil demo`: it did not come out as told |
| 2 | bad use or bad input, with one sentence on standard error; nothing was decided |
| 70 | a bug in Sigil |
| 130 | interrupted |
| 141 | the reader of the output went away |

Only 0 and 1 are answers, so that no accident can be taken for a verdict.
"""  # noqa: E501

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
    for path in sorted(
        path for place in OUTSIDE for path in ([place] if place.is_file() else place.rglob("*"))
    ):
        # Single cells are for programs; pages, figures and benchmarks are for readers.
        if path.is_file() and not re.search(r"\.seed\d+\.json$|\.jinja$", path.name):
            name = site_place(path)
            assert name is not None
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the links of the repository right for the site, and link terms to the glossary."""
    home = page.file.abs_src_path
    if not home:
        return markdown
    if Path(home).parent == DOCS and page.file.src_uri != GLOSSARY:
        markdown = link_terms(markdown, terms((DOCS / GLOSSARY).read_text("utf-8")))
    return site_links(markdown, Path(home).parent)


def terms(glossary: str) -> dict[str, str]:
    """What is linked to the glossary, and the place of each there.

    A term is a heading of the third level. A remark below it lists the words that are linked, if they are not
    the heading itself.

    >>> terms("### Cut\\n<!-- linked: cut, cut point -->\\n\\nA place.\\n\\n### Client half\\n\\nA part.\\n")
    {'cut': 'cut', 'cut point': 'cut', 'client half': 'client-half'}
    """
    found = {}
    for heading, listed in re.findall(r"^### (.+)\n(?:<!-- linked: (.+) -->)?", glossary, re.MULTILINE):
        place = heading.lower().replace(" ", "-")
        for words in listed.split(", ") if listed else [heading[0].lower() + heading[1:]]:
            found[words] = place
    return found


# Where no term is linked: code, headings, links, pictures, HTML, and what mkdocstrings fills in.
_UNTOUCHED = re.compile(
    r"^```.*?^```$|^(?:#| {4}|:::).*?$|`[^`]*`|!?\[[^\]]*\]\([^)]*\)|<[^>]+>", re.MULTILINE | re.DOTALL
)


def link_terms(markdown: str, known: dict[str, str]) -> str:
    """Link each term to the glossary where a page's text first uses it.

    >>> link_terms("# A cut\\nA `cut` is a cut, and Cut again.", {"cut": "cut"})
    '# A cut\\nA `cut` is a [cut](glossary.md#cut), and Cut again.'
    """
    missing = dict(known)

    def linked(match: re.Match[str]) -> str:
        place = missing.get(match[0]) or missing.get(match[0][0].lower() + match[0][1:])
        if place is None:
            return match[0]
        for words in [words for words, its_place in missing.items() if its_place == place]:
            del missing[words]
        return f"[{match[0]}]({GLOSSARY}#{place})"

    forms = {form for words in known for form in (words, words[0].upper() + words[1:]) if form != "P"}
    longest_first = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w-])(?:{longest_first})(?![\w-])")
    pieces, end = [], 0
    for untouched in [*_UNTOUCHED.finditer(markdown), None]:
        start = untouched.start() if untouched else len(markdown)
        pieces += [pattern.sub(linked, markdown[end:start]), untouched[0] if untouched else ""]
        end = untouched.end() if untouched else start
    return "".join(pieces)


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

    >>> site_place(RESULTS / "cpu"), site_place(DOCS / "p-value.md"), site_place(ROOT / "src")
    ('results/cpu', 'p-value.md', None)
    >>> site_place(ROOT / "reproduction" / "README.md")
    'results/reproduce.md'
    """
    for folder, name in {DOCS: "", **OUTSIDE}.items():
        if path.is_relative_to(folder):
            return (Path(name) / path.relative_to(folder)).as_posix()
    return None


def site_links(markdown: str, folder: Path) -> str:
    """Turn links between docs/, results and the rest of the repository into links of the site.

    On the site the results lie in docs/, and a folder is its README. What is not part of the site, such as a
    source file, keeps its text and loses its link. ``folder`` is where the page lies.

    >>> site_links("[a](../reproduction/results/cpu/) [b](../src/sigil/keys/key.py) [c](p-value.md)", DOCS)
    '[a](results/cpu/README.md) b [c](p-value.md)'
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
        "# Commands and settings",
        "",
        "The same text as `sigil COMMAND --help`; at the end [all settings](#settings) of a training.",
        EXIT_STATUS,
    ]
    for path, command in commands(typer.main.get_command(app)):
        lines += _described(path, command)
    return "\n".join([*lines, *settings_tables()])


def settings_tables() -> list[str]:
    """Every setting of a training as Markdown, from the code."""
    from sigil import presets
    from sigil.federation.settings import Settings, section_fields

    lines = [
        "## Settings",
        "",
        "Of `sigil train` and `sigil serve`: `--set section.name=value`, or a file (`--config`). Defaults "
        "are the paper's (`--preset paper`); in brackets what the preset `digits` changes.",
        "",
    ]
    digits = presets.get("digits")
    for section in Settings.model_fields:
        lines += [
            f"### `{section}`",
            "",
            "| setting | values | default | meaning |",
            "| --- | --- | --- | --- |",
        ]
        for name, field in section_fields(section).items():
            changed = digits.get(section, {}).get(name, field.default)
            other = "" if changed == field.default else f" (`digits`: {_value(changed)})"
            values = " ".join(filter(None, (_values(field.annotation), *map(_limit, field.metadata))))
            cells = (f"`{section}.{name}`", values, _value(field.default) + other, field.description)
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
        lines.append("")
    return lines


def _values(annotation: Any) -> str:
    """The values of a setting in words: those of a choice, or the kind of number.

    >>> _values(Literal["mean", "sum"]), _values(int | None), _values(tuple[int, ...])
    ('`mean`, `sum`', 'whole number', 'list of whole numbers')
    """
    kinds = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}
    if annotation in kinds:
        return kinds[annotation]
    if get_origin(annotation) is Literal:
        return ", ".join(_value(one) for one in get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"list of {kinds[get_args(annotation)[0]]}s"
    (given,) = (one for one in get_args(annotation) if one is not type(None))
    return _values(given)


def _limit(bound: Any) -> str:
    """One bound of a number, as pydantic keeps it."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return "".join(f"{signs[name]} {getattr(bound, name):,}" for name in signs if hasattr(bound, name))


def _value(value: Any) -> str:
    """A setting's value as it is written in TOML; none is nothing."""
    return "none" if value is None else f"`{value if isinstance(value, str) else json.dumps(value)}`"


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
