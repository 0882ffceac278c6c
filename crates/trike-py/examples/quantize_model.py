"""A dense model becomes ternary, with a report."""

import tempfile
from pathlib import Path

from _common import model_path

import trike

with tempfile.TemporaryDirectory() as folder:
    dense, ternary = Path(folder) / "dense", Path(folder) / "ternary"
    # The model in the repository is ternary: its weights as floats serve as the dense one here.
    trike.convert(model_path(), dense, "f16", embeddings="f16", progress=False)
    report = trike.quantize(dense, ternary, planes=2, method="least_squares", tune=False, sequences=2, progress=False)
    print(f"{report['ternary']['bits_per_weight']:.2f} bits per weight")
    print(trike.Model(ternary).generate("Once upon a time", max_tokens=30)["text"])
