"""Notebooks and the page of the API are what the examples and the stubs make, and notebooks run."""

import json
import subprocess
import sys

import pytest

import generate

RUN = """
import json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv.pop(), encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), names)
"""


@pytest.mark.parametrize("path", generate.EXAMPLES, ids=lambda path: path.stem)
def test_notebooks(path):
    written = path.with_suffix(".ipynb")
    assert written.read_text(encoding="utf-8") == generate.notebook(path), "run crates/trike-py/tests/generate.py"
    code = [text for kind, text in generate.cells(path.read_text(encoding="utf-8")) if kind == "code"]
    assert len(code) > 1 and json.loads(written.read_text(encoding="utf-8"))["nbformat"] == 4
    # Where they lie, since they import what examples share.
    done = subprocess.run([sys.executable, "-c", RUN, str(written)], cwd=path.parent, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0


def test_the_page_of_the_api():
    assert generate.PAGE.read_text(encoding="utf-8") == generate.page(), "run crates/trike-py/tests/generate.py"
