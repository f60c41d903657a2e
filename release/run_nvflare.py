"""Run the example for NVIDIA FLARE with the Python that runs this, and check what it says.

build/examples/bin/python release/run_nvflare.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

JOB = Path(__file__).parents[1] / "examples" / "nvflare" / "job.py"


def main() -> None:
    ended = subprocess.run(
        [sys.executable, str(JOB)], capture_output=True, text=True, timeout=1800, check=False
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stderr
    assert "marked: The suspect carries the mark" in ended.stdout, "the marked model was not proven"
    assert "clean:  The suspect is not shown to carry the mark" in ended.stdout, (
        "a model without a mark was proven"
    )


if __name__ == "__main__":
    main()
