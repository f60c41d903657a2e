"""A model card for a finished run, in the format that Hugging Face's Hub reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from sigil import files, models
from sigil.errors import ConfigError
from sigil.federation.run import STATEMENT, Run, open_run
from sigil.version import __version__

MAGIC: Final = files.Magic(b"---\n", head=b"- sigil\n")
"""How Sigil knows a card that it wrote, and may write again."""


def render(folder: Path, *, licence: str = "other") -> str:
    """The card of the run in `folder`: metadata in YAML, then text in Markdown."""
    if not licence.replace("-", "").replace(".", "").isalnum() or len(licence) > 64:
        raise ConfigError("A licence is named as on the Hub, such as apache-2.0, mit or other.")
    run = open_run(folder)
    described = models.read_description(folder / "client.safetensors")
    statement = described.extra.get(STATEMENT)
    return _front(run, licence) + "\n" + _body(run, described, statement)


def _front(run: Run, licence: str) -> str:
    settings, final = run.settings, run.final
    task = {"type": "image-classification"}
    entry: dict[str, Any] = {
        "name": run.folder.name,
        "results": [
            {
                "task": task,
                "dataset": {"name": settings.data.name, "type": settings.data.name},
                "metrics": [{"type": "accuracy", "value": round(float(final["accuracy"]), 4)}],
            }
        ],
    }
    # JSON's strings and objects are YAML's too, so that no name can break out of its place.
    return "\n".join(
        [
            "---",
            f"license: {licence}",
            "library_name: sigil",
            "pipeline_tag: image-classification",
            "tags:",
            "- sigil",
            "- watermark",
            "- split-learning",
            "- federated-learning",
            f"model-index: {json.dumps([entry], ensure_ascii=True)}",
            "---",
            "",
        ]
    )


def _body(run: Run, described: models.Description, statement: str | None) -> str:
    settings, final = run.settings, run.final
    name = described.spec.name
    lines = [
        f"# {_plain(run.folder.name)}",
        "",
        f"The client half of {name} (width {described.spec.width}, cut after `{described.spec.cut}`), "
        f"trained on {_plain(settings.data.name)} by U-shaped split federated learning with "
        f"{settings.federation.clients} clients in {settings.federation.rounds} rounds.",
        "",
        "| what | value |",
        "| --- | --- |",
        f"| accuracy, with the server half | {100 * final['accuracy']:.1f} % |",
        f"| classes | {described.spec.classes} |",
        f"| input | {' × '.join(map(str, described.input_shape or ())) or 'unknown'} |",
        f"| made with | Sigil {__version__} |",
        "",
        "## Ownership",
        "",
    ]
    if statement is None:
        lines += ["This model was trained without a mark.", ""]
    else:
        lines += [
            "This model was trained with an ownership mark, which a secret key reads in its activations at "
            "the cut. The owner's public statement, which is also in the metadata of `client.safetensors`:",
            "",
            "```json",
            statement,
            "```",
            "",
            "The owner tests a suspected copy with `sigil verify SUSPECT --key owner.key --evidence "
            "case.json`; anybody checks that evidence against the statement, offline and without the key, "
            "with `sigil evidence check case.json --statement statement.txt`.",
            "",
        ]
    if settings.federation.imprint:
        lines += [
            "Every client had its own copy in each round, so that one which leaked from the training shows "
            "whose it was (`sigil trace`). This file is nobody's copy.",
            "",
        ]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """A name without what Markdown would take for markup."""
    return "".join(sign if sign.isalnum() or sign in " -_./:" else "?" for sign in text)
