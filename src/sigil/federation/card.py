"""A model card for a finished run, in the format that Hugging Face's Hub reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from sigil import files, models
from sigil.errors import ConfigError
from sigil.federation.run import STATEMENT, open_run
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
    spec, federation, dataset = described.spec, run.settings.federation, run.settings.data.name
    accuracy = float(run.final["accuracy"])
    results = {
        "task": {"type": "image-classification"},
        "dataset": {"name": dataset, "type": dataset},
        "metrics": [{"type": "accuracy", "value": round(accuracy, 4)}],
    }
    # JSON's strings and objects are YAML's too, so that no name can break out of its place.
    index = json.dumps([{"name": run.folder.name, "results": [results]}])
    card = f"""---
license: {licence}
library_name: sigil
pipeline_tag: image-classification
tags:
- sigil
- watermark
- split-learning
- federated-learning
model-index: {index}
---

# {_plain(run.folder.name)}

The client half of {spec.name} (width {spec.width}, cut after `{spec.cut}`), trained on {_plain(dataset)} by \
U-shaped split federated learning with {federation.clients} clients in {federation.rounds} rounds.

| what | value |
| --- | --- |
| accuracy, with the server half | {100 * accuracy:.1f} % |
| classes | {spec.classes} |
| input | {" × ".join(map(str, described.input_shape or ())) or "unknown"} |
| made with | Sigil {__version__} |

## Ownership

"""
    card += "This model was trained without a mark.\n" if statement is None else _MARKED.format(statement)
    return card + (_COPIES if federation.imprint else "")


_MARKED = """\
This model was trained with an ownership mark, which a secret key reads in its activations at the cut. The \
owner's public statement, which is also in the metadata of `client.safetensors`:

```json
{}
```

The owner tests a suspected copy with `sigil verify SUSPECT --key owner.key --evidence case.json`; anybody \
checks that evidence against the statement, offline and without the key, with `sigil evidence check \
case.json --statement statement.txt`.
"""
_COPIES = """
Every client had its own copy in each round, so that one which leaked from the training shows whose it was \
(`sigil trace`). This file is nobody's copy.
"""


def _plain(text: str) -> str:
    """A name without what Markdown would take for markup."""
    return "".join(sign if sign.isalnum() or sign in " -_./:" else "?" for sign in text)
