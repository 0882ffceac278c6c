"""Where models are: paths, and the cache of the hub's own tools."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

from trike._trike import _cached

PathLike = Union[str, "os.PathLike[str]"]


def cache_root() -> Path:
    """The hub's cache, from the variables of the hub's tools, in their order."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return Path(os.environ[name])
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]) / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "huggingface" / "hub"


def resolve(model: PathLike) -> Path:
    """The path of a model: an existing path, or `org/name[@revision][:file]` in the hub's cache.

    A model that is not in the cache is downloaded if `huggingface_hub` is installed. Raises FileNotFoundError if it is nowhere.
    """
    path = Path(os.fspath(model))
    if path.exists():
        return path
    name = os.fspath(model)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise FileNotFoundError(f"{name}: there is no such file or directory, and it is not the name of a model (org/name)")
    try:
        return Path(_cached(name, cache_root()))
    except FileNotFoundError as error:
        try:
            import huggingface_hub
        except ImportError:
            raise FileNotFoundError(f"{error}; pip install huggingface_hub to download it, or pass a path") from None
        repository, _, file = name.partition(":")
        repository, _, revision = repository.partition("@")
        patterns = [f"*{file}*"] if file else ["*.json", "*.safetensors", "*.jinja", "tokenizer*"]
        huggingface_hub.snapshot_download(
            repository, revision=revision or None, allow_patterns=patterns, cache_dir=cache_root()
        )
        return Path(_cached(name, cache_root()))
