"""Where models are: paths, and names on the hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

from trike._progress import Bars, Progress, watcher
from trike._trike import _hub_path

PathLike = Union[str, "os.PathLike[str]"]


def resolve(model: PathLike, progress: Union[None, bool, Progress] = False) -> Path:
    """The path of a model: an existing path, `tiny` for the bundled model, or `org/name[@revision][:file]` on the hub.

    A model that is not in the cache of the hub's tools is downloaded into it, unless `HF_HUB_OFFLINE` is set. Raises
    FileNotFoundError if it is nowhere, PermissionError if the hub refuses it, and ConnectionError if it does not arrive.
    """
    path = Path(os.fspath(model))
    if path.exists():
        return path
    name = os.fspath(model)
    repository = name.partition(":")[0].partition("@")[0]
    if name != "tiny" and (repository.count("/") != 1 or name.startswith((".", "/", "~"))):
        raise FileNotFoundError(f"{name}: there is no such file or directory, and it is not the name of a model (tiny, or org/name)")
    variables = dict(os.environ)
    variables.setdefault("HOME", os.path.expanduser("~"))
    watch = watcher(progress)
    try:
        return Path(_hub_path(name, variables, watch))
    finally:
        if isinstance(watch, Bars):
            watch.close()
