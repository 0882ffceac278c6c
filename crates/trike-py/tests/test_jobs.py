"""Models on disk: inspect, convert, quantize, train."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import trike


def test_inspect(tiny_path):
    seen = []
    found = trike.inspect(tiny_path, progress=lambda *step: seen.append(step))
    assert found["model"]["layers"] > 0 and found["totals"]["ternary_parameters"] > 2_000_000 and found["damaged"] == 0
    assert seen[-1][0] == "reading" and seen[-1][1] == seen[-1][2]
    page = found._repr_html_()
    assert "<table>" in page and found["tensors"][0]["name"] in page
    json.dumps(found)


def test_convert_and_run(tiny_path, tiny, tmp_path):
    report = trike.convert(tiny_path, tmp_path / "tiny.gguf", "tq2_0", progress=False)
    assert report["tensors"] > 0 and os.path.getsize(tmp_path / "tiny.gguf") == report["output_bytes"]
    model = trike.Model(tmp_path / "tiny.gguf", device="cpu")
    text = model.generate("Once upon a time", max_tokens=20, temperature=0.0)["text"]
    assert text == tiny.generate("Once upon a time", max_tokens=20, temperature=0.0)["text"]
    with pytest.raises((OSError, trike.ModelError)):
        trike.convert(tiny_path, tmp_path / "tiny.gguf", "tq2_0", progress=False)
    with pytest.raises(ValueError, match="tq1_0"):
        trike.convert(tiny_path, tmp_path / "other", "q4", progress=False)


def test_quantize(dense_path, tmp_path, tiny):
    report = trike.quantize(dense_path, tmp_path / "out", planes=2, method="least_squares", group="row", tune=False, sequences=1, progress=False)
    assert report["ternary"]["layers"] == 28
    assert report.html.startswith("<!") and "iframe" in report._repr_html_()
    text = trike.Model(tmp_path / "out", device="cpu").generate("Once upon a time", max_tokens=10)["text"]
    assert text
    stored = trike.inspect(tmp_path / "out", progress=False)
    assert stored["totals"]["ternary_parameters"] > 2_000_000
    with pytest.raises(ValueError, match="at most one"):
        trike.quantize(dense_path, tmp_path / "two", bits=2.0, max_ppl_ratio=1.1, progress=False)
    with pytest.raises(ValueError, match="group"):
        trike.quantize(dense_path, tmp_path / "two", planes=1, group=48, progress=False)
    # A ternary model has nothing left to quantize.
    with pytest.raises(trike.ModelError):
        trike.quantize(tmp_path / "out", tmp_path / "two", planes=1, progress=False)


def test_quantize_to_a_budget(dense_path, tmp_path, shared):
    text = shared / "corpora" / "tinystories_sample.txt"
    report = trike.quantize(
        dense_path, tmp_path / "out", bits=3.0, group=128, calibration=text, sequences=2, evaluation=text, tune=False, progress=False
    )
    assert report["ternary"]["bits_per_weight"] <= 3.01
    assert report["evaluation"]["ratio"] < 1.5 if isinstance(report.get("evaluation"), dict) else True


def test_train(dense_path, tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("Once upon a time there was a cat. The cat sat on a mat and was happy.\n<|endoftext|>\n" * 200)
    config = {
        "base_model": dense_path,
        "datasets": [{"path": str(data)}],
        "output_dir": str(tmp_path / "run"),
        "max_steps": 2,
        "sequence_len": 64,
        "teacher": "none",
    }
    plan = trike.train(config, check=True, progress=False)
    assert plan["steps"] == 2
    seen = []
    report = trike.train(config, progress=lambda *step: seen.append(step))
    assert report["steps"] == 2 and ("training", 2, 2) in seen
    assert trike.Model(report["output"], device="cpu").generate("Once", max_tokens=2)["ids"]


@pytest.mark.parametrize("how", ["signal", "callback"])
def test_an_interrupted_training_has_its_checkpoint(dense_path, tmp_path, how):
    data = tmp_path / "data.txt"
    data.write_text("Once upon a time there was a cat. The cat sat on a mat and was happy.\n<|endoftext|>\n" * 200)
    run = tmp_path / "run"
    config = {
        "base_model": dense_path, "datasets": [{"path": str(data)}], "output_dir": str(run), "max_steps": 500, "sequence_len": 64,
        "teacher": "none", "save_steps": 400,
    }  # fmt: skip

    def progress(step, done, total):
        if step == "training" and done == 2:
            if how == "callback":
                raise KeyboardInterrupt
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()

    # Where the tests run in the background, the shell has it ignored.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trike.train(config, progress=progress)
    finally:
        signal.signal(signal.SIGINT, ignored)
    # Written when the call returns, not some time later; nothing goes on.
    checkpoints = sorted((run / "checkpoints").iterdir())
    assert checkpoints, list(run.iterdir())
    before = (run / "log.jsonl").read_text()
    time.sleep(0.3)
    assert (run / "log.jsonl").read_text() == before
    assert int(checkpoints[-1].name[len("step-") :]) >= 2


def test_import_is_small():
    program = "import time; t = time.perf_counter(); import numpy; n = time.perf_counter(); import trike; print(time.perf_counter() - n)"
    began = time.monotonic()
    seconds = float(subprocess.check_output([sys.executable, "-c", program], text=True))
    assert seconds < 1.0 and time.monotonic() - began < 20
