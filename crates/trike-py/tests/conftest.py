"""What tests share: the bundled model, a dense one, and the shared data."""

import os
from pathlib import Path

import pytest

import trike

# Tests of names on the hub have a server of their own.
os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def tiny_path():
    return ROOT / "models" / "tiny"


@pytest.fixture(scope="session")
def tiny(tiny_path):
    return trike.Model(tiny_path, device="cpu")


@pytest.fixture(scope="session")
def dense_path(tiny_path, tmp_path_factory):
    """The bundled model with weights in f16."""
    path = tmp_path_factory.mktemp("dense") / "model"
    trike.convert(tiny_path, path, "f16", embeddings="f16", progress=False)
    return path


@pytest.fixture(scope="session")
def shared():
    folder = Path(os.environ.get("TRIKE_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip("skipped: no shared data")
    return folder / "data"
