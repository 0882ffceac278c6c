"""The model of the examples: the first argument, or the one in the repository."""

import sys
from pathlib import Path


def model_path() -> Path:
    # Notebooks have options as arguments.
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        return Path(sys.argv[1])
    return Path(__file__).resolve().parents[3] / "models" / "tiny"
