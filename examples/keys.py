"""Make a key once and find it again: what a script that is run every day does, with a passphrase.

    python examples/keys.py [FOLDER]

The first run draws the key and publishes its statement; later runs read it. Another owner, shape or length
than the file's is refused, so that no training is marked with the wrong key.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import sigil


def open_key(folder: Path) -> sigil.Key:
    """The key of this project: read if it is there, else drawn, saved and published."""
    file, public = folder / "owner.key", folder / "published.txt"
    is_new = not file.exists()
    key = sigil.Key.load_or_generate(
        file,
        "ACME",
        (128, 2, 2),  # activation.shape[1:]
        passphrase=os.environ.get("SIGIL_PASSPHRASE"),  # None: not encrypted
        input_shape=(1, 8, 8),
    )
    if is_new:
        public.write_text(key.statement() + "\n", "utf-8")  # before the first batch is marked
    return key


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    first = open_key(folder)
    print(f"{first.owner}: {first.bits} bits, {first.kind}, commitment {first.commitment[:16]}…")
    assert open_key(folder) == first  # as the next run of the script finds it
    assert sigil.Key.load(folder / "owner.key", passphrase=os.environ.get("SIGIL_PASSPHRASE")) == first
    try:
        sigil.Key.load_or_generate(
            folder / "owner.key", "Mallory", (128, 2, 2), passphrase=os.environ.get("SIGIL_PASSPHRASE")
        )
    except sigil.SigilError as error:
        print(f"refused: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "keys"))
