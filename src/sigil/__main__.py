"""`python -m sigil` is the command `sigil`, with the Python that you name."""

import sys

from sigil.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
