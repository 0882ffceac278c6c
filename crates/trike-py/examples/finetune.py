"""Some steps of training on a text, from a model's weights."""

import tempfile
from pathlib import Path

from _common import model_path

import trike

with tempfile.TemporaryDirectory() as folder:
    text = Path(folder) / "stories.txt"
    text.write_text("Once upon a time there was a fox. The fox liked to sing at night.\n<|endoftext|>\n" * 300)
    dense = Path(folder) / "dense"
    trike.convert(model_path(), dense, "f16", embeddings="f16", progress=False)
    config = {
        "base_model": dense,
        "datasets": [{"path": text}],
        "output_dir": f"{folder}/run",
        "max_steps": 4,
        "sequence_len": 64,
        "teacher": "none",
    }
    print("plan:", trike.train(config, check=True, progress=False)["steps"], "steps")
    report = trike.train(config, progress=lambda step, done, total: print(f"{step} {done} of {total}"))
    print(trike.Model(report["output"]).generate("Once upon a time", max_tokens=10)["text"])
