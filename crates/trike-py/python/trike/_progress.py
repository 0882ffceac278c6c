"""Progress: a callable, or a bar of tqdm where that is installed."""

from __future__ import annotations

from typing import Callable, Optional, Union

#: `progress(step, done, total)`.
Progress = Callable[[str, int, int], object]


class Bars:
    """One bar per step."""

    def __init__(self, tqdm: type) -> None:
        self._tqdm = tqdm
        self._bar = None
        self._step = ""

    def __call__(self, step: str, done: int, total: int) -> None:
        if self._bar is None or step != self._step:
            self.close()
            self._bar = self._tqdm(total=total, desc=step, leave=False)
            self._step = step
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def watcher(progress: Union[None, bool, Progress]) -> Optional[Progress]:
    """The callable for an argument `progress`: None is a bar if tqdm is installed, False is nothing."""
    if progress is False:
        return None
    if progress is not None and progress is not True:
        if not callable(progress):
            raise TypeError(f"progress: expected a callable, a bool or None, got {type(progress).__name__}")
        return progress
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return Bars(tqdm)
