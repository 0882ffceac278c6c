"""Whole models on disk: inspect, convert, quantize, train."""

from __future__ import annotations

import html as _html
import json
import os
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

from trike import _trike
from trike._hub import PathLike, resolve
from trike._progress import Bars, Progress, watcher


class Report(dict):
    """A report as a dict with the fields of the command's `--json`, shown as a table in notebooks."""

    def _repr_html_(self) -> str:
        plain = {name: value for name, value in self.items() if not isinstance(value, (list, dict))}
        rows = "".join(f"<tr><th>{_html.escape(n)}</th><td>{_html.escape(str(v))}</td></tr>" for n, v in plain.items())
        return f"<table>{rows}</table>"


class ConvertReport(Report):
    """What a conversion wrote."""


class TrainReport(Report):
    """What a training did, or with `check=True` will do."""


class Inspection(Report):
    """What a checkpoint is and what its tensors are."""

    def _repr_html_(self) -> str:
        names = ("name", "shape", "encoding", "bits_per_weight", "zeros")
        head = "".join(f"<th>{name}</th>" for name in names)
        body = ""
        for tensor in self["tensors"]:
            cells = "".join(f"<td>{_html.escape(_short(tensor[name]))}</td>" for name in names)
            body += f"<tr>{cells}</tr>"
        totals = self["totals"]
        title = f"{self['path']} ({self['format']}): {totals['parameters']:,} weights, {totals['bits_per_weight']:.2f} bits each"
        return f"<p>{_html.escape(title)}</p><table><tr>{head}</tr>{body}</table>"


class QuantizeReport(Report):
    """What was quantized, and what it costs. `html` is the page that is beside the model, too."""

    html: str = ""

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{_html.escape(self.html)}" width="100%" height="600" frameborder="0"></iframe>'


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else str(value)


def _run(call: Any, progress: Union[None, bool, Progress]) -> Any:
    watch = watcher(progress)
    try:
        return call(watch)
    finally:
        if isinstance(watch, Bars):
            watch.close()


def _path(path: Optional[PathLike]) -> Optional[Path]:
    return None if path is None else Path(os.fspath(path))


def inspect(model: PathLike, *, progress: Union[None, bool, Progress] = None) -> Inspection:
    """Describes a checkpoint, also one that cannot be run: `model`, `tensors`, `totals`, `refusal`."""
    path = resolve(model, progress)
    return Inspection(json.loads(_run(lambda watch: _trike._inspect(path, watch), progress)))


def convert(
    model: PathLike,
    output: PathLike,
    to: str = "trike",
    *,
    encoding: str = "base3",
    embeddings: str = "stored",
    scales: str = "stored",
    strict: bool = False,
    packed: bool = False,
    tokenizer: Optional[PathLike] = None,
    progress: Union[None, bool, Progress] = None,
) -> ConvertReport:
    """Converts a model to `output`, which must not exist. `to` is `tq1_0`, `tq2_0` or `q2_0` (GGUF files), `trike` or `f16`
    (directories). Weights keep their values, unless `embeddings` (`int8`, `f16`) or `scales` (`f16`) round some."""
    path = resolve(model, progress)
    text = _run(
        lambda watch: _trike._convert(
            path,
            _path(output),
            to,
            encoding=encoding,
            embeddings=embeddings,
            scales=scales,
            strict=strict,
            packed=packed,
            tokenizer=_path(tokenizer),
            progress=watch,
        ),
        progress,
    )
    return ConvertReport(json.loads(text))


class _Quantization:
    """Options of a quantization, as attributes."""

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)


def quantize(
    model: PathLike,
    output: PathLike,
    *,
    planes: Optional[int] = None,
    group: Union[None, int, str] = None,
    max_ppl_ratio: Optional[float] = None,
    bits: Optional[float] = None,
    max_bytes: Optional[int] = None,
    calibration: Optional[PathLike] = None,
    sequences: Optional[int] = None,
    evaluation: Optional[PathLike] = None,
    method: str = "compensate",
    encoding: Optional[str] = None,
    skip: Sequence[str] = (),
    min_size: int = 0,
    int8_head: bool = False,
    tune: bool = True,
    recover: float = 0.0,
    split: Optional[str] = None,
    seed: int = 0,
    threads: int = 0,
    tokenizer: Optional[PathLike] = None,
    progress: Union[None, bool, Progress] = None,
) -> QuantizeReport:
    """Makes a dense model ternary, in the directory `output`, which must not exist.

    With `planes` (1 to 6), all layers get that many. Otherwise each layer gets the precision that a budget needs: `max_ppl_ratio`
    (perplexity over that of the dense model; 1.02 if nothing is given), `bits` per weight, or `max_bytes`. `group` is the number of
    weights that share a scale (32, 64, 128, 256), `row` or `tensor`. `calibration` and `evaluation` are text files; without a
    calibration text the model writes `sequences` itself. `method` is `compensate`, or a rounding without statistics: `least_squares`,
    `absmean`, `twn`, `absmax`. An interrupted call that is repeated continues where it was.
    """
    path = resolve(model, progress)
    if isinstance(group, int) and not isinstance(group, bool):
        group = f"group{group}"
    text = None if calibration is None else Path(os.fspath(calibration)).read_text(encoding="utf-8")
    measured = None
    if evaluation is not None:
        measured = (os.fspath(evaluation), Path(os.fspath(evaluation)).read_text(encoding="utf-8"))
    options = _Quantization(
        planes=planes,
        group=group,
        max_ppl_ratio=max_ppl_ratio,
        bits=bits,
        max_bytes=max_bytes,
        method=method,
        encoding=encoding,
        skip=list(skip),
        min_size=min_size,
        int8_head=int8_head,
        tune=tune,
        recover=recover,
        threads=threads,
        tokenizer=_path(tokenizer),
        text=text,
        sequences=sequences,
        seed=seed,
        split=split,
        eval=measured,
    )
    fields, page = _run(lambda watch: _trike._quantize(path, _path(output), options, watch), progress)
    report = QuantizeReport(json.loads(fields))
    report.html = page
    return report


def train(
    config: Union[PathLike, Mapping[str, Any]],
    *,
    check: bool = False,
    progress: Union[None, bool, Progress] = None,
) -> TrainReport:
    """Trains a model. `config` is a file (TOML, YAML or JSON) or a mapping with the settings of `trike train`, such as `base_model`, `datasets` and
    `output_dir`. With `check`, nothing is trained, and the report is the plan. Ctrl-C, and what `progress` raises, waits for the
    step and writes a checkpoint, from which the same call continues; a second Ctrl-C does not wait."""
    if isinstance(config, Mapping):
        text, path = json.dumps(config, default=os.fspath), None
    else:
        text, path = None, _path(config)
    return TrainReport(json.loads(_run(lambda watch: _trike._train(text, path, check, watch), progress)))
