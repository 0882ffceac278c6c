"""The command `trike` in the package."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import trike

#: The script that the package installs, if this is an environment where it did.
SCRIPT = Path(sys.executable).with_name("trike")
FORMS = [[sys.executable, "-m", "trike"]] + ([[str(SCRIPT)]] if SCRIPT.exists() else [])


def run(form, *args, **options):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRIKE_")}
    return subprocess.run(
        [*form, *args], capture_output=True, encoding="utf-8", env=environment, stdin=subprocess.DEVNULL, timeout=120, **options
    )


@pytest.mark.parametrize("form", FORMS, ids=["module", "script"][: len(FORMS)])
def test_version_help_and_usage(form):
    done = run(form, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"trike {trike.__version__}\n", "")
    assert "Usage: trike" in run(form, "run", "--help").stdout
    wrong = run(form, "run", "--temperature", "warm")
    assert wrong.returncode == 2 and "--temperature" in wrong.stderr
    missing = run(form, "run", "no/such/model", "-p", "x", cwd=os.path.dirname(__file__))
    assert missing.returncode in (1, 2) and missing.stderr.startswith("error") and "Traceback" not in missing.stderr


@pytest.mark.parametrize("form", FORMS, ids=["module", "script"][: len(FORMS)])
def test_run_says_what_the_model_says(form, tiny, tiny_path):
    prompt = "Once upon a time"
    options = ["-p", prompt, "--temperature", "0", "-n", "24", "--quiet"]
    expected = tiny.generate(prompt, max_tokens=24, temperature=0.0)
    done = run(form, "run", "-m", str(tiny_path), "--json", *options)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert (outcome["text"], outcome["ids"]) == (expected["text"], expected["ids"])
    # A pipe gets exactly the text, and the command carries the same model.
    assert run(form, "run", "-m", str(tiny_path), *options).stdout.endswith(expected["text"])


def test_ctrl_c_ends_it(tiny_path):
    # With a window the text has no end.
    command = [*FORMS[0], "run", "-m", str(tiny_path), "-p", "Once upon a time", "--temperature", "0", "--window", "64"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        # Text comes: the model is at work.
        assert process.stdout.read(100)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert time.monotonic() - began < 1
    assert process.returncode == 130
